//! ack:N: tells the senders' live sessions what became of their messages. Best effort: what is lost
//! here is learned by asking for the status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{Notice, NoticeKind};
use api::codec;
use backend::mailbox::MailboxStore;
use bytes::Bytes;
use protocol::frame::ServerFrame;
use protocol::presence::BoatLife;
use protocol::receipt::Receipt;
use protocol::{SessionId, UserId};
use tokio::time::timeout;

use crate::boats::Boats;
use crate::metrics::ReceiptMetrics;
use crate::receipts::Tell;

/// Receipts of one frame: well below what a frame may hold.
const RECEIPTS_PER_FRAME: usize = 500;

/// Tells senders, and the other devices of readers.
#[derive(Clone)]
pub(crate) struct Teller {
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) boats: Arc<Boats>,
    pub(crate) deadline: Duration,
    pub(crate) metrics: ReceiptMetrics,
}

impl Teller {
    /// Looks up the sessions of all of them at once, and tells each boat in one call.
    pub(crate) async fn tell_all(self, batches: Vec<Vec<Tell>>) {
        let mut by_user: BTreeMap<UserId, Vec<Receipt>> = BTreeMap::new();
        for tell in batches.into_iter().flatten() {
            by_user.entry(tell.to).or_default().push(tell.receipt);
        }
        let users: Vec<UserId> = by_user.keys().copied().collect();
        let asked = self.mailbox.sessions(&users, self.boats.denied());
        let Ok(answers) = timeout(self.deadline, asked).await else {
            self.metrics.push_failed.increment(users.len() as u64);
            return;
        };
        let mut notices: BTreeMap<BoatLife, Vec<Notice>> = BTreeMap::new();
        for (receipts, sessions) in by_user.into_values().zip(answers) {
            let Ok(sessions) = sessions else {
                self.metrics.push_failed.increment(1);
                continue;
            };
            if sessions.is_empty() {
                continue;
            }
            let frames = frames_of(receipts);
            for entry in sessions {
                let told = frames.iter().map(|frame| notice(entry.session, frame));
                notices.entry(entry.life).or_default().extend(told);
            }
        }
        for (life, notices) in notices {
            self.boats.notify(life, notices).await;
        }
    }
}

/// Encoded once for all sessions of a user.
fn frames_of(receipts: Vec<Receipt>) -> Vec<Bytes> {
    receipts
        .chunks(RECEIPTS_PER_FRAME)
        .map(|chunk| codec::encode_server(&ServerFrame::Receipts(chunk.to_vec())))
        .collect()
}

fn notice(session: SessionId, frame: &Bytes) -> Notice {
    Notice {
        session,
        kind: NoticeKind::Frame(frame.clone()),
    }
}
