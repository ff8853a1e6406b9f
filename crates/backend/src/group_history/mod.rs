//! What groups say, for good: a message is one row, whatever the size of the group.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::group::GroupRow;
use protocol::history::{IdRange, Order};
use protocol::{GroupId, MessageId, SendId, Seq, UserId};

pub use self::embedded::EmbeddedGroupHistory;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaGroupHistory;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait GroupHistoryStore: Send + Sync {
    /// Writes rows; writing one again changes nothing, and what an earlier version says of a message or of a
    /// position never replaces what a later one says. That a message was deleted is not touched.
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()>;

    /// Each of these rows, in order of the question.
    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>>;

    /// Rows of a group by id (S0-61f, S0-61g: bounds exclusive, an empty range is an empty list, at most
    /// `limit`; to go on, ask again from the last id).
    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>>;

    /// A group's conversation, dense in seq, in the order of `range`: a page ends before a hole, and a page
    /// that would have to begin with one is `Corrupt`.
    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>>;

    /// Which message stands at each of these positions, in order of the question.
    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>>;

    /// The row that `from` sent to the group under this send_id, if its id is not below `since`.
    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>>;

    /// Who sent a message to a group under this send_id, and its id. Several users may have chosen the same one.
    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>>;

    /// How many positions behind `after`, up to and with `last`, are the user's own messages. It costs what
    /// they wrote there, not what the others did.
    async fn own_between(&self, group: GroupId, user: UserId, after: Seq, last: Seq)
    -> Result<u64>;

    /// Marks messages deleted, for good.
    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()>;

    /// Which of these messages are deleted, in order of the question.
    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>>;
}

hooked! { GroupHistoryStore as "group_history":
    write save(rows: Vec<GroupRow>) of rows.iter().map(|row| row.id.get()) => ();
    read rows(keys: &[(GroupId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<Option<GroupRow>>;
    read find(group: GroupId, range: IdRange, order: Order, limit: usize) of [group.get()] => Vec<GroupRow>;
    read conversation(group: GroupId, range: HistoryRange, limit: usize) of [group.get()] => Vec<GroupRow>;
    read ids(group: GroupId, seqs: &[Seq]) of [group.get()] => Vec<Option<MessageId>>;
    read find_send(from: UserId, group: GroupId, send_id: SendId, since: MessageId) of [from.get()] => Option<GroupRow>;
    read sent_as(send_id: SendId) => Vec<(UserId, MessageId)>;
    read own_between(group: GroupId, user: UserId, after: Seq, last: Seq) of [group.get()] => u64;
    write delete(group: GroupId, ids: &[MessageId]) of [group.get()] => ();
    read deleted(group: GroupId, ids: &[MessageId]) of [group.get()] => Vec<bool>;
}
