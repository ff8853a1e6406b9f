//! Judges a change at the door, so that whoever may not, or comes too late, hears it at once.
//!
//! The conversation's writer judges again, at the change's place in the log: only that counts. What cannot be
//! judged here, because the message is not placed yet or its store does not answer, goes on to the writer.

use std::sync::Arc;
use std::time::Duration;

use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::history::HistoryStore;
use protocol::change::{Asked, Rules, Subject, judge};
use protocol::history::{Direction, PrivateRow, Version};
use protocol::{Code, ConversationId, Message, MessageId, Refusal};

use crate::deadline::within;

/// A message that was accepted this long ago is placed, if it was ever accepted.
const PLACED_AFTER: Duration = Duration::from_secs(600);

/// After every record: all that stands is seen.
const LATEST: Version = Version {
    epoch: u32::MAX,
    offset: u64::MAX,
};

/// Judges changes.
pub(crate) struct ChangeDoor {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    pub(crate) rules: Rules,
}

impl ChangeDoor {
    /// Why this change would come to nothing; `None` where it may go on.
    pub(crate) async fn refused(
        &self,
        message: &Message,
        conversation: ConversationId,
    ) -> Option<Refusal> {
        let asked = Asked::of(message)?;
        let key = [(asked.by, asked.subject)];
        let rows = within(self.deadline, self.history.private(&key))
            .await
            .ok()?;
        let row = rows.into_iter().next().flatten();
        let Some(row) = row.filter(|row| row.conversation() == Some(conversation)) else {
            return self.unknown(asked.subject);
        };
        let altered = self.changes.altered(conversation, row.seq, row.seq);
        let altered = within(self.deadline, altered).await.ok()?.remove(&row.seq);
        let altered = altered.unwrap_or_default();
        let subject = Subject {
            from: author(&row),
            accepted_at: row.accepted_at,
            content: &row.content,
            altered: &altered,
        };
        judge(LATEST, &asked, Some(subject), None, &self.rules).err()
    }

    fn unknown(&self, subject: MessageId) -> Option<Refusal> {
        let age = self.clock.now().since(subject.timestamp());
        let text = "no such message in this conversation";
        (age > PLACED_AFTER).then(|| Refusal::new(Code::NotFound, text))
    }
}

fn author(row: &PrivateRow) -> protocol::UserId {
    match row.direction {
        Direction::Out => row.owner,
        Direction::In => row.peer,
    }
}
