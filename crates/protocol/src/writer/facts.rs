//! Facts: what the stores answered, and what they still have to be asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::change::{ChangeSearch, OrderedChange, Overlay};
use crate::conversation::{Head, StoredPosition};
use crate::group::{Group, GroupInfo, Member};
use crate::history::Version;
use crate::message_row::{MessageRow, Owner};
use crate::unread::Tally;
use crate::{ConversationId, GroupId, MessageId, Platform, SendId, Seq, UserId};

/// Rounds of reading that a batch has: groups and heads, rows, heads anew, overlays or first sends, and for a change
/// whose handling panicked what it wrote before. A batch that needs more is decided in smaller parts.
pub const ROUNDS_MAX: usize = 5;

/// Search for the first message under a send_id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendKey {
    pub from: UserId,
    pub conversation: ConversationId,
    pub send_id: SendId,
    /// Smallest id that counts.
    pub min_id: MessageId,
}

/// Search for the first change under a send_id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeKey {
    pub conversation: ConversationId,
    pub by: UserId,
    pub send_id: SendId,
}

/// A message, and the user who hides it.
pub type HideKey = (UserId, ConversationId, Seq);

/// Answers of the stores. No entry: not asked yet. `None`, or a default value: asked, and there is nothing.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub groups: BTreeMap<GroupId, Option<Arc<Group>>>,
    /// Heads as the writer remembers them, or as they were read.
    pub heads: BTreeMap<ConversationId, Head>,
    /// Heads read anew, because a later writer seems to be ahead of the remembered one.
    pub stored_heads: BTreeMap<ConversationId, Head>,
    /// Groups read anew, because their heads show records behind a command.
    pub stored_groups: BTreeMap<GroupId, Option<Arc<Group>>>,
    pub rows: BTreeMap<(Owner, MessageId), Option<MessageRow>>,
    pub first_sends: BTreeMap<SendKey, Option<(MessageId, StoredPosition)>>,
    pub overlays: BTreeMap<(ConversationId, Seq), Overlay>,
    pub first_changes: BTreeMap<ChangeKey, Option<(Version, OrderedChange)>>,
    /// Changes that a record made before: redelivered, or broken off by a crash.
    pub own_changes: BTreeMap<(ConversationId, Version), Option<OrderedChange>>,
    /// Records of the messages that follow a sequence number.
    pub followers: BTreeMap<(Owner, ConversationId, Seq), Option<Version>>,
    /// Clears by the owner so far.
    pub clears: BTreeMap<(UserId, ConversationId), Tally>,
    /// Mark of the first record that hid a message from its owner.
    pub hide_marks: BTreeMap<HideKey, Option<u64>>,
    pub platforms: BTreeMap<UserId, Vec<Platform>>,
    /// Members as they are now, for retries of group commands and of edited messages.
    pub members: BTreeMap<(GroupId, UserId), Option<(GroupInfo, Member)>>,
}

/// Keys to be read before a batch can be decided: all that can be named by now. One call a kind, side by side, but
/// groups before heads, and heads before the rest: what stands before a command that shows is in the heads then, and
/// what stands behind a head is in no row, or in one of a write that is not done, or of a writer that is ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Missing {
    /// With the partition of their records.
    pub groups: BTreeMap<GroupId, u32>,
    pub heads: BTreeSet<ConversationId>,
    pub stored_heads: BTreeSet<ConversationId>,
    /// With the partition of their records. Read behind all heads.
    pub stored_groups: BTreeMap<GroupId, u32>,
    pub rows: BTreeSet<(Owner, MessageId)>,
    pub first_sends: BTreeSet<SendKey>,
    pub overlays: BTreeSet<(ConversationId, Seq)>,
    /// With the last change of the conversation: the search ends there.
    pub first_changes: BTreeMap<ChangeKey, u64>,
    pub own_changes: BTreeMap<(ConversationId, Version), ChangeSearch>,
    pub followers: BTreeSet<(Owner, ConversationId, Seq)>,
    pub clears: BTreeSet<(UserId, ConversationId)>,
    pub hide_marks: BTreeSet<HideKey>,
    pub platforms: BTreeSet<UserId>,
    pub members: BTreeSet<(GroupId, UserId)>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        *self == Missing::default()
    }
}

/// A fact is missing; its key is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingFact;
