//! Last private message that each user received, kept beside the mailbox: a device that has lost
//! its own cursors may ask from there on (S0-83). It is only a help: losing it costs a device a
//! longer page, and sync works without it.

use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::clock::Clock;
use backend::mailbox::MailboxStore;
use metrics::Counter;
use parking_lot::Mutex;
use protocol::receipt::LastReceived;
use protocol::{MessageId, UserId};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::stores::within;

/// Shortest time between two writes of a user.
const WRITE_INTERVAL: Duration = Duration::from_secs(30);

/// Interval of checking for users who are due.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// Users remembered between two writes.
const USERS_MAX: usize = 131_072;

/// Users of one write.
const WRITE_BATCH_MAX: usize = 256;

/// Gathers the last received messages, and writes them.
pub(crate) struct LastReceivedWriter {
    last: Mutex<LastReceived>,
    mailbox: Arc<dyn MailboxStore>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    written_total: Counter,
    dropped_total: Counter,
}

impl LastReceivedWriter {
    pub(crate) fn new(backends: &Backends, deadline: Duration) -> LastReceivedWriter {
        LastReceivedWriter {
            last: Mutex::new(LastReceived::new(WRITE_INTERVAL, USERS_MAX)),
            mailbox: backends.mailbox.clone(),
            clock: backends.clock.clone(),
            deadline,
            written_total: metrics::counter!("station_last_received_total", "result" => "written"),
            dropped_total: metrics::counter!("station_last_received_total", "result" => "dropped"),
        }
    }

    /// Notes a message, to be written later.
    pub(crate) fn note(&self, user: UserId, id: MessageId) {
        if !self.last.lock().note(user, id, self.clock.now()) {
            self.dropped_total.increment(1);
        }
    }

    /// Writes users who are due until `stop`, and then the rest.
    pub(crate) async fn keep_written(&self, stop: CancellationToken) {
        let mut ticker = interval(CHECK_INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticker.tick()).await.is_some() {
            let due_messages = self.last.lock().take_due(self.clock.now());
            self.write(due_messages).await;
        }
        let rest = self.last.lock().take_all();
        // The shutdown does not wait long: what is lost here costs a device only a longer page.
        let _ = timeout(self.deadline, self.write(rest)).await;
    }

    /// Writes users in parts. A part that fails, and those after it, are written with the user's
    /// next message.
    async fn write(&self, mut messages: Vec<(UserId, MessageId)>) {
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(WRITE_BATCH_MAX));
            let count = messages.len();
            let write = self.mailbox.set_received(messages);
            if within(self.deadline, write).await.is_err() {
                self.dropped_total.increment((count + rest.len()) as u64);
                return;
            }
            self.written_total.increment(count as u64);
            messages = rest;
        }
    }
}
