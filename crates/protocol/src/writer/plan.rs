//! Plans: effects in their order.
//!
//! | stage | effects | before what follows, because |
//! | --- | --- | --- |
//! | 1, 2, 3 | `Group`, `Touch`, `Invalidate` | records behind a command are judged by it; whoever was removed must not find them in a cache |
//! | 4 | `Permits`, `Messages` | no position is announced before its row |
//! | 5, 6 | `Changes`, `Recalled` | change rows, also of changes that died, before overlays; a crash before `Recalled` brings the recalls back, and marking again changes nothing |
//! | 7 | `Heads` | a device whose list knows *n* must find *n* |
//! | 8 | `Renew`, `Timeline`, `ListRows`, `ListOps` | whoever gets an event and asks must find it |
//! | 9 | the handover | settle, commit |

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::cache::Invalidation;
use crate::change::{ChangeRow, ListArrangement};
use crate::conversation::{ConversationRow, Head};
use crate::delivery::{DeliveryTask, Notice, Source};
use crate::group::{Group, GroupUpdate};
use crate::history::Version;
use crate::ledger::{DeadReason, LedgerEntry};
use crate::message_row::{MessageRow, Owner};
use crate::unread::Tally;
use crate::{ConversationId, GroupId, Hidden, MessageId, Seq, Timestamp, UserId};

/// Plan of a batch. Apply the stages in order, then hand over; after any failure repeat all of it.
#[derive(Debug)]
#[must_use]
pub struct Plan {
    pub stages: Vec<Stage>,
    pub handover: Handover,
    /// One for each record that the plan deals with: the first ones of the batch, or all.
    pub outcomes: Vec<RecordOutcome>,
}

/// Effects side by side. The next stage begins when those that must be are done, and lazy ones are done or late.
#[derive(Debug)]
pub struct Stage(pub Vec<Effect>);

/// One kind of call. It may be applied again: an earlier version never replaces a later one, a register only grows, and
/// a position of a cache holds one value.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// A group after a command: members first, the group itself last.
    Group(Box<GroupChange>),
    /// Lists of members whose membership changed.
    Touch {
        lists: Vec<(UserId, ConversationId)>,
        at: Timestamp,
    },
    Invalidate(Vec<Invalidation>),
    /// Fill tokens of the cache entries of these groups, from before anything is written.
    Permits(Vec<GroupId>),
    Messages(Vec<MessageRow>),
    Changes(Vec<ChangeRow>),
    /// Deletion marks of recalled messages.
    Recalled(Vec<(Owner, MessageId)>),
    /// The last head of each conversation; of groups also where only its stamp moves.
    Heads(Vec<HeadMove>),
    /// Cache entries of groups, from the permits and from the heads as they were stamped.
    Renew(Vec<(GroupId, ChangedPlaces)>),
    Timeline(Vec<(GroupId, Vec<TimelineEntry>)>),
    ListRows(Vec<ConversationRow>),
    /// Operations of one kind.
    ListOps {
        ops: Vec<ListOp>,
        at: Timestamp,
    },
}

/// Kind of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectKind {
    Group,
    Touch,
    Invalidate,
    Permits,
    Messages,
    Changes,
    Recalled,
    Heads,
    Renew,
    Timeline,
    ListRows,
    ListOps,
}

impl EffectKind {
    /// True where a failure is counted and stalls nobody: such effects fill caches, and no answer is wrong without them.
    pub const fn is_lazy(self) -> bool {
        matches!(
            self,
            EffectKind::Permits | EffectKind::Renew | EffectKind::Timeline
        )
    }
}

impl Effect {
    pub const fn kind(&self) -> EffectKind {
        match self {
            Effect::Group(_) => EffectKind::Group,
            Effect::Touch { .. } => EffectKind::Touch,
            Effect::Invalidate(_) => EffectKind::Invalidate,
            Effect::Permits(_) => EffectKind::Permits,
            Effect::Messages(_) => EffectKind::Messages,
            Effect::Changes(_) => EffectKind::Changes,
            Effect::Recalled(_) => EffectKind::Recalled,
            Effect::Heads(_) => EffectKind::Heads,
            Effect::Renew(_) => EffectKind::Renew,
            Effect::Timeline(_) => EffectKind::Timeline,
            Effect::ListRows(_) => EffectKind::ListRows,
            Effect::ListOps { .. } => EffectKind::ListOps,
        }
    }

    /// Dates a write that lists compare with a client's version; false for the others.
    pub fn stamp(&mut self, now: Timestamp) -> bool {
        match self {
            Effect::Touch { at, .. } | Effect::ListOps { at, .. } => *at = now,
            Effect::Heads(heads) => heads
                .iter_mut()
                .for_each(|head_move| head_move.head.stamp = now),
            Effect::ListRows(rows) => rows.iter_mut().for_each(|row| row.version = now),
            Effect::Group(_)
            | Effect::Invalidate(_)
            | Effect::Permits(_)
            | Effect::Messages(_)
            | Effect::Changes(_)
            | Effect::Recalled(_)
            | Effect::Renew(_)
            | Effect::Timeline(_) => return false,
        }
        true
    }
}

/// True for a stamped write that ended soon enough: a client's list version may be `list_margin` ahead of a stamp, and
/// a write that took longer than half of that is stamped and written again.
pub fn stamp_holds(write_time: Duration, list_margin: Duration) -> bool {
    write_time <= list_margin / 2
}

/// A group and what a command makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupChange {
    pub group: GroupId,
    pub partition: u32,
    pub update: GroupUpdate,
    pub updated_group: Arc<Group>,
}

/// A head to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadMove {
    pub conversation: ConversationId,
    /// Partition of its records.
    pub partition: u32,
    pub head: Head,
}

/// Positions of the messages that a batch changes, by change.
pub type ChangedPlaces = BTreeMap<u64, Seq>;

/// A message of a group as pages show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TimelineEntry {
    pub seq: Seq,
    pub id: MessageId,
    /// A frame, as [`crate::event::Encode`] makes it.
    pub body: Bytes,
}

impl fmt::Debug for TimelineEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimelineEntry")
            .field("seq", &self.seq)
            .field("id", &self.id)
            .field("body", &Hidden::of(&self.body))
            .finish()
    }
}

/// Change of the owner's view, and of nobody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOp {
    pub owner: UserId,
    pub conversation: ConversationId,
    pub version: Version,
    pub kind: ListOpKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListOpKind {
    /// Up to here, as the owner counts.
    Clear(Tally),
    Arrange(ListArrangement),
    Hide(Seq),
}

impl ListOpKind {
    pub(super) const fn index(self) -> usize {
        match self {
            ListOpKind::Clear(_) => 0,
            ListOpKind::Arrange(_) => 1,
            ListOpKind::Hide(_) => 2,
        }
    }
}

/// Work that follows once everything is written.
#[derive(Debug, Default)]
pub struct Handover {
    pub deliver: Vec<(Source, DeliveryTask)>,
    pub notices: Vec<Notice>,
    /// Indexes of records that end sessions.
    pub kickouts: Vec<usize>,
    /// Records that end here: repeats, refusals, changes of nothing.
    pub settled_records: Vec<(Source, Vec<LedgerEntry>)>,
    pub dead: Vec<DeadRecord>,
}

/// A record that becomes a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadRecord {
    pub index: usize,
    pub reason: DeadReason,
    pub error: String,
}

/// Outcome of a record, for its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    Placed,
    Changed,
    Unchanged,
    Listed,
    Granted,
    Refused,
    Repeat,
    Dead(DeadReason),
    /// The record asked for no position.
    NotPlaced,
}

impl RecordOutcome {
    /// Name in a span; `None` where the record has no span of its placement.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            RecordOutcome::Placed => Some("placed"),
            RecordOutcome::Changed => Some("changed"),
            RecordOutcome::Unchanged => Some("unchanged"),
            RecordOutcome::Listed => Some("listed"),
            RecordOutcome::Granted => Some("granted"),
            RecordOutcome::Refused => Some("refused"),
            RecordOutcome::Repeat => Some("repeat"),
            RecordOutcome::Dead(reason) => Some(reason.name()),
            RecordOutcome::NotPlaced => None,
        }
    }
}
