//! The message that a record does something to, or says something about.

use protocol::group::GroupRow;
use protocol::history::{Place, PrivateRow};
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, Placed, Seq, UserId};

use super::decide::{Decided, Rows};
use super::{WriteFailure, Writer};

/// A message that stands.
pub(super) struct Original {
    pub(super) placed: Placed,
    /// Where that is, as the user counts who asked.
    pub(super) at: Tally,
}

impl Original {
    fn of_private(row: &PrivateRow) -> Option<Original> {
        Some(Original {
            placed: row.placed()?,
            at: Place::from(row).into(),
        })
    }

    /// In a group nobody's unread messages are counted by places.
    fn of_group(row: &GroupRow) -> Original {
        Original {
            placed: row.placed(),
            at: Tally {
                seq: row.seq,
                incoming: 0,
            },
        }
    }

    pub(super) fn author(&self) -> UserId {
        self.placed.message.from
    }

    pub(super) fn seq(&self) -> Seq {
        self.placed.position.seq
    }
}

impl Writer {
    /// The message as `owner` has it, in this conversation, also where an earlier record of the batch placed it.
    pub(super) async fn subject(
        &self,
        conversation: ConversationId,
        owner: UserId,
        id: MessageId,
        decided: &[Decided],
    ) -> Result<Option<Original>, WriteFailure> {
        let original = match (pending(decided, owner, id), conversation) {
            (Some(original), _) => Some(original),
            (None, ConversationId::Group(group)) => {
                let key = [(group, id)];
                let rows = self.stores.within(self.group_history.rows(&key)).await?;
                rows.first()
                    .and_then(Option::as_ref)
                    .map(Original::of_group)
            }
            (None, ConversationId::Private { .. } | ConversationId::System(_)) => {
                let key = [(owner, id)];
                let rows = self.stores.within(self.history.private(&key)).await?;
                let row = rows.first().and_then(Option::as_ref);
                row.and_then(Original::of_private)
            }
        };
        Ok(original.filter(|original| original.placed.conversation == conversation))
    }
}

/// The message where an earlier record of the batch placed it.
fn pending(decided: &[Decided], owner: UserId, id: MessageId) -> Option<Original> {
    decided.iter().rev().find_map(|decided| match decided {
        Decided::Placed { placement, .. } if placement.placed.message.id == id => {
            match &placement.rows {
                Rows::Private(rows) => {
                    let row = rows.iter().find(|row| row.owner == owner)?;
                    Original::of_private(row)
                }
                Rows::Group(row) => Some(Original::of_group(row)),
            }
        }
        _ => None,
    })
}
