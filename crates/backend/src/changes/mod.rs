//! Changes of messages: recalls, edits, reactions, and what they leave.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use std::collections::BTreeMap;

use async_trait::async_trait;
use protocol::change::{Altered, ChangeRow, Changed};
use protocol::history::Version;
use protocol::{ConversationId, SendId, Seq, UserId};

pub use self::embedded::EmbeddedChanges;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaChanges;
use crate::Result;
use crate::hook::{hooked, number};

/// How far a search by send_id goes back: a repeat comes soon after the first.
const SEARCH: u64 = 1000;

/// Messages after `after` up to `last`, as records up to `until` left them: a head or row that is of that record counts
/// what these recalled, and nothing later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub conversation: ConversationId,
    pub after: Seq,
    pub last: Seq,
    pub until: Version,
}

#[async_trait]
pub trait ChangeStore: Send + Sync {
    /// Writes changes, and what they leave on their messages. Writing one again changes nothing, and what an earlier
    /// version leaves never replaces what a later one does.
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()>;

    /// Changes of a conversation after `after`, in order, at most `limit`.
    async fn since(
        &self,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Changed>>;

    /// The change that this record made, at or before `last`, if it made one.
    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        last: u64,
    ) -> Result<Option<Changed>>;

    /// The change that `by` asked for under this send_id, if it is among the last thousand up to `last`.
    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, Changed)>>;

    /// What has become of the messages from `first` to `last`, both included; those that stand as they were sent are
    /// left out.
    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Altered>>;

    /// What has become of each of these messages, in order of the question.
    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Altered>>;

    /// Which messages of each stretch were recalled, and who had written them, in order of the question.
    async fn recalled(&self, stretches: &[Stretch]) -> Result<Vec<BTreeMap<Seq, UserId>>>;
}

hooked! { ChangeStore as "changes":
    write save(changes: Vec<ChangeRow>) of changes.iter().map(|row| number(&row.conversation)) => ();
    read since(conversation: ConversationId, after: u64, limit: usize) of [number(&conversation)] => Vec<Changed>;
    read of_record(conversation: ConversationId, record: Version, last: u64) of [number(&conversation)]
        => Option<Changed>;
    read find_send(conversation: ConversationId, by: UserId, send_id: SendId, last: u64) of [number(&conversation)]
        => Option<(Version, Changed)>;
    read altered(conversation: ConversationId, first: Seq, last: Seq) of [number(&conversation)]
        => BTreeMap<Seq, Altered>;
    read altered_each(places: &[(ConversationId, Seq)]) of places.iter().map(|(of, _)| number(of)) => Vec<Altered>;
    read recalled(stretches: &[Stretch]) of stretches.iter().map(|stretch| number(&stretch.conversation))
        => Vec<BTreeMap<Seq, UserId>>;
}
