//! Changes of messages: recalls, edits, reactions, pins, and their effects.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use std::collections::BTreeMap;

use async_trait::async_trait;
#[cfg(doc)]
use protocol::change::MessageChange;
use protocol::change::{ChangeRow, ChangeSearch, OrderedChange, Overlay};
use protocol::history::Version;
use protocol::reading::RecallRange;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

pub use self::embedded::EmbeddedChanges;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaChanges;
use crate::hook::{hooked, number};
use crate::{Error, Result};

/// Number of changes that a search by send_id covers: a repeat follows soon after the first try.
const SEARCH: u64 = 1000;

/// Refusal to store a change that no record asks for.
fn unknown() -> Error {
    Error::conflict("changes", "unknown kind of change")
}

#[async_trait]
pub trait ChangeStore: Send + Sync {
    /// Writes changes, and their effects on messages: all changes before any effect. So if an effect
    /// is there after a crash, all changes of its call are. Writing a change again changes nothing,
    /// and the effect of an earlier version never replaces that of a later one. The place of a change
    /// that died has no effect; the change of the same record replaces it.
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()>;

    /// Changes of a conversation after `after_rev`, in order, at most `limit`: also those that
    /// died, and as [`MessageChange::Unknown`] those of a kind that this program does not know.
    async fn since(
        &self,
        conversation: ConversationId,
        after_rev: u64,
        limit: usize,
    ) -> Result<Vec<OrderedChange>>;

    /// The change made by this record, if any; one that died says so.
    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>>;

    /// The change that `by` asked for under this send_id, if among the last thousand up to `last`.
    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, OrderedChange)>>;

    /// Overlays of the messages from `first` to `last`, both included; unchanged messages are left
    /// out.
    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Overlay>>;

    /// Overlays of these messages, in request order.
    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Overlay>>;

    /// Recalled messages of each range with their authors, in request order.
    async fn recalled(&self, ranges: &[RecallRange]) -> Result<Vec<BTreeMap<Seq, UserId>>>;

    /// Places and ids of the messages whose pin is on, before a place, newest first, at most
    /// `limit`. A recall takes the pin off.
    async fn pins(
        &self,
        conversation: ConversationId,
        before_seq: Seq,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>>;
}

hooked! { ChangeStore as "changes":
    write save(changes: Vec<ChangeRow>) of changes.iter().map(|row| number(&row.conversation)) => ();
    read since(conversation: ConversationId, after: u64, limit: usize) of [number(&conversation)] => Vec<OrderedChange>;
    read of_record(conversation: ConversationId, record: Version, search: ChangeSearch) of [number(&conversation)]
        => Option<OrderedChange>;
    read find_send(conversation: ConversationId, by: UserId, send_id: SendId, last: u64) of [number(&conversation)]
        => Option<(Version, OrderedChange)>;
    read altered(conversation: ConversationId, first: Seq, last: Seq) of [number(&conversation)]
        => BTreeMap<Seq, Overlay>;
    read altered_each(places: &[(ConversationId, Seq)]) of places.iter().map(|(of, _)| number(of)) => Vec<Overlay>;
    read recalled(ranges: &[RecallRange]) of ranges.iter().map(|range| number(&range.conversation))
        => Vec<BTreeMap<Seq, UserId>>;
    read pins(conversation: ConversationId, before: Seq, limit: usize) of [number(&conversation)]
        => Vec<(Seq, MessageId)>;
}
