//! Judges a change at the door, so that whoever may not, or comes too late, hears it at once.
//!
//! The conversation's writer judges again, at the change's place in the log: only that counts. What cannot be
//! judged here, because the message is not placed yet or its store does not answer, goes on to the writer.

use std::sync::Arc;
use std::time::Duration;

use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::group_history::GroupHistoryStore;
use backend::history::HistoryStore;
use protocol::change::{Asked, Rules, Subject, judge};
use protocol::group::Role;
use protocol::history::{Direction, PrivateRow, Version};
use protocol::message::Content;
use protocol::{
    Code, ConversationId, GroupId, Message, MessageId, Refusal, Seq, Timestamp, UserId,
};

use crate::deadline::within;
use crate::membership::Membership;

/// A message that was accepted this long ago is placed, if it was ever accepted.
const PLACED_AFTER: Duration = Duration::from_secs(600);

/// The message that is to be changed, as it was sent.
struct Standing {
    from: UserId,
    seq: Seq,
    accepted_at: Timestamp,
    content: Content,
}

/// Judges changes.
pub(crate) struct ChangeDoor {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) group_history: Arc<dyn GroupHistoryStore>,
    pub(crate) membership: Arc<Membership>,
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
        let (role, standing) = match conversation {
            ConversationId::Group(group) => {
                let role = match self.membership.of(asked.by, group).await {
                    Ok((_, member)) => member.role,
                    Err(refusal) if refusal.code.retryable() => return None,
                    Err(refusal) => return Some(refusal),
                };
                (role, self.in_group(group, asked.subject).await.ok()?)
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                let standing = self.in_private(&asked, conversation).await.ok()?;
                (None::<Role>, standing)
            }
        };
        let Some(standing) = standing else {
            return self.unknown(asked.subject);
        };
        let seq = standing.seq;
        let altered = self.changes.altered(conversation, seq, seq);
        let altered = within(self.deadline, altered).await.ok()?.remove(&seq);
        let altered = altered.unwrap_or_default();
        let subject = Subject {
            from: standing.from,
            accepted_at: standing.accepted_at,
            content: &standing.content,
            altered: &altered,
        };
        judge(Version::LATEST, &asked, Some(subject), role, &self.rules).err()
    }

    async fn in_private(
        &self,
        asked: &Asked,
        conversation: ConversationId,
    ) -> Result<Option<Standing>, Refusal> {
        let key = [(asked.by, asked.subject)];
        let rows = within(self.deadline, self.history.private(&key)).await?;
        let row = rows.into_iter().next().flatten();
        let row = row.filter(|row| row.conversation() == Some(conversation));
        Ok(row.map(|row| Standing {
            from: author(&row),
            seq: row.seq,
            accepted_at: row.accepted_at,
            content: row.content,
        }))
    }

    async fn in_group(
        &self,
        group: GroupId,
        subject: MessageId,
    ) -> Result<Option<Standing>, Refusal> {
        let key = [(group, subject)];
        let rows = within(self.deadline, self.group_history.rows(&key)).await?;
        let row = rows.into_iter().next().flatten();
        Ok(row.map(|row| Standing {
            from: row.from,
            seq: row.seq,
            accepted_at: row.accepted_at,
            content: row.content,
        }))
    }

    fn unknown(&self, subject: MessageId) -> Option<Refusal> {
        let age = self.clock.now().since(subject.timestamp());
        let text = "no such message in this conversation";
        (age > PLACED_AFTER).then(|| Refusal::new(Code::NotFound, text))
    }
}

fn author(row: &PrivateRow) -> UserId {
    match row.direction {
        Direction::Out => row.owner,
        Direction::In => row.peer,
    }
}
