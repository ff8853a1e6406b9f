//! The message that a record does something to, or says something about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::task::Work;
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::change::{Asked, ChangeKind};
use protocol::group::GroupRow;
use protocol::history::{Place, PrivateRow};
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, MessageId, Placed, Seq, UserId};

use super::decide::{Before, Decided, Rows};
use super::{WriteFailure, Writer};
use crate::work::Read;

/// Messages whose changes are read at once.
const TOGETHER: usize = 64;

/// A message as one of its users has it.
type Key = (ConversationId, UserId, MessageId);

/// Subjects as the store has them; `None`: it has none.
pub(super) type Subjects = BTreeMap<Key, Option<Original>>;

/// A message that stands.
#[derive(Clone)]
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
        key: Key,
        decided: &[Decided],
        before: &Before,
    ) -> Result<Option<Original>, WriteFailure> {
        let (conversation, owner, id) = key;
        let original = match (pending(decided, owner, id), before.subjects.get(&key)) {
            (Some(original), _) => Some(original),
            (None, Some(stored)) => stored.clone(),
            (None, None) => {
                let mut stored = self.stored_subjects([key].into()).await?;
                stored.remove(&key).flatten()
            }
        };
        Ok(original.filter(|original| original.placed.conversation == conversation))
    }

    /// Reads together what the records of a batch are about, and what has become of it.
    pub(super) async fn prefetch_subjects(
        &self,
        reads: &[Arc<Read>],
        before: &mut Before,
    ) -> Result<(), WriteFailure> {
        let keys: BTreeSet<Key> = reads.iter().filter_map(|read| key_of(read)).collect();
        before.subjects = self.stored_subjects(keys).await?;
        let changed = reads.iter().filter(|read| changes(read));
        let changed = changed.filter_map(|read| before.subjects.get(&key_of(read)?)?.as_ref());
        let places: BTreeSet<(ConversationId, Seq)> = changed
            .map(|original| (original.placed.conversation, original.seq()))
            .collect();
        let reads = stream::iter(places).map(async |(conversation, seq)| {
            let altered = self.changes.altered(conversation, seq, seq);
            let altered = self.stores.within(altered).await?.remove(&seq);
            Ok::<_, WriteFailure>(((conversation, seq), altered.unwrap_or_default()))
        });
        before.altered = reads.buffer_unordered(TOGETHER).try_collect().await?;
        Ok(())
    }

    async fn stored_subjects(&self, keys: BTreeSet<Key>) -> Result<Subjects, WriteFailure> {
        let group_of = |(conversation, _, id): &Key| match conversation {
            ConversationId::Group(group) => Some((*group, *id)),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        };
        let (of_groups, private): (Vec<Key>, Vec<Key>) =
            keys.into_iter().partition(|key| group_of(key).is_some());
        let mut subjects = Subjects::new();
        if !of_groups.is_empty() {
            let asked: Vec<(GroupId, MessageId)> = of_groups.iter().filter_map(group_of).collect();
            let rows = self.stores.within(self.group_history.rows(&asked)).await?;
            let originals = rows.iter().map(|row| row.as_ref().map(Original::of_group));
            subjects.extend(of_groups.into_iter().zip(originals));
        }
        if !private.is_empty() {
            let asked: Vec<_> = private.iter().map(|(_, owner, id)| (*owner, *id)).collect();
            let rows = self.stores.within(self.history.private(&asked)).await?;
            let originals = rows.iter().map(|row| Original::of_private(row.as_ref()?));
            subjects.extend(private.into_iter().zip(originals));
        }
        Ok(subjects)
    }
}

/// The message that a record changes, hides or clears up to, as whoever asks has it.
fn key_of(read: &Read) -> Option<Key> {
    let Work::Message(task) = &read.task.work else {
        return None;
    };
    let message = &task.message;
    let change = message.content.change.as_deref()?;
    match change.kind {
        ChangeKind::Arrange(_) | ChangeKind::Wish(_) => None,
        _ => Some((message.conversation()?, message.from, change.subject?)),
    }
}

/// Does it change what a message says to everybody?
fn changes(read: &Read) -> bool {
    matches!(&read.task.work, Work::Message(task) if Asked::of(&task.message).is_some())
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
