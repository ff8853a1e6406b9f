//! Messages of groups, for good: a message is one row, whatever the size of the group.

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
    /// Writes rows. Writing one again changes nothing, and the message or position of an earlier
    /// version never replaces that of a later. Deletions are not touched.
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()>;

    /// Rows of these keys, in request order.
    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>>;

    /// Rows of a group by id (S0-61f, S0-61g: bounds exclusive, an empty range is an empty list, at
    /// most `limit`; the next page begins at the last id).
    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>>;

    /// Conversation of a group, dense in seq, in the order of `range`: a page ends before a hole,
    /// and a page that would have to begin with one is `Corrupt`.
    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>>;

    /// Ids of the messages at these positions, in request order.
    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>>;

    /// Row that `from` sent to the group under this send_id, if its id is not below `since`.
    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>>;

    /// Senders and ids of the messages sent to groups under this send_id. Several users may have
    /// chosen the same one.
    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>>;

    /// Counts the user's own messages at positions after `after`, up to and including `last`. The
    /// cost grows with the user's messages there, not with those of others.
    async fn own_between(&self, group: GroupId, user: UserId, after: Seq, last: Seq)
    -> Result<u64>;

    /// Marks messages deleted, for good.
    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()>;

    /// Tells for each message if it is deleted, in request order.
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
