//! What a user missed of all private conversations in one question (S0-05): a device that keeps no cursor for each of
//! them goes on from one message, its own or the last that the server knows the user received.

use std::sync::Arc;
use std::time::Duration;

use backend::history::HistoryStore;
use backend::mailbox::MailboxStore;
use protocol::frame::MissedPage;
use protocol::history::{IdRange, Order, PrivateRow};
use protocol::sync::fitting;
use protocol::{MessageId, Placed, Refusal, UserId};

use crate::current::Current;
use crate::deadline::within;
use crate::limits::Limits;

/// Reads by id.
pub(crate) struct Missed {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) current: Current,
    pub(crate) limits: Arc<Limits>,
    pub(crate) deadline: Duration,
    /// How far before the last received it begins.
    pub(crate) margin: Duration,
    pub(crate) page_bytes_max: usize,
}

impl Missed {
    pub(crate) async fn page(
        &self,
        user: UserId,
        after: Option<MessageId>,
        limit: usize,
    ) -> Result<MissedPage, Refusal> {
        let after = match after {
            Some(after) => Some(after),
            None => {
                let received = within(self.deadline, self.mailbox.received(user)).await?;
                // What was accepted elsewhere at the time may have come later.
                received.map(|id| MessageId::floor_of(id.timestamp() - self.margin))
            }
        };
        let range = IdRange {
            after,
            ..IdRange::default()
        };
        // One more than a page tells whether there are more.
        let read = self.limits.read(user)?;
        let rows = (self.history).find_private(user, range, Order::Forward, limit + 1);
        let rows = within(self.deadline, rows).await?;
        drop(read);
        let mut messages: Vec<Placed> = rows.iter().filter_map(PrivateRow::placed).collect();
        let found = messages.len();
        messages.truncate(limit);
        self.current.mark_all(&mut messages).await?;
        let sizes = messages.iter().map(|m| m.message.content.data.len());
        messages.truncate(fitting(sizes, self.page_bytes_max));
        let more = messages.len() < found;
        Ok(MissedPage { messages, more })
    }
}
