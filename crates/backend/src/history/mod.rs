//! Messages for good: a private message is two rows, one on each side.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus};
use protocol::receipt::StatusWrite;
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

pub use self::embedded::EmbeddedHistory;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaHistory;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait HistoryStore: Send + Sync {
    /// Writes rows; writing one again changes nothing, and a row of an earlier version never
    /// replaces one of a later. Statuses are not touched.
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()>;

    /// Rows of these keys, in request order.
    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>>;

    /// Places of these rows: all that a receipt needs, and cheaper than the rows.
    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>>;

    /// Rows of one owner with all peers, by id (S0-58 to S0-60: bounds exclusive, an empty range is
    /// an empty list, at most `limit`).
    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>>;

    /// Conversation of one owner, dense in seq, in the order of `range`: a page ends before a hole,
    /// and a page that would have to begin with one is `Corrupt`.
    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>>;

    /// Tallies of `owner` at these positions; `None` at a position without a message.
    async fn tallies(&self, places: &[(UserId, ConversationId, Seq)])
    -> Result<Vec<Option<Tally>>>;

    /// Row that `from` sent under this send_id, if its id is not below `since`.
    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>>;

    /// Senders and ids of the messages sent under this send_id. Several users may have chosen the
    /// same one.
    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>>;

    /// Moves registers forward; read implies delivered. Returns for each write whether the status
    /// advanced: a repeat, or received after read, does not.
    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>>;

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>>;

    /// Marks both sides deleted for good, whichever side is named.
    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()>;
}

hooked! { HistoryStore as "history":
    write save_private(rows: Vec<PrivateRow>) of rows.iter().map(|row| row.id.get()) => ();
    read private(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<Option<PrivateRow>>;
    read places(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<Option<Place>>;
    read find_private(owner: UserId, range: IdRange, order: Order, limit: usize) of [owner.get()] => Vec<PrivateRow>;
    read conversation(owner: UserId, conversation: ConversationId, range: HistoryRange, limit: usize)
        of [owner.get()] => Vec<PrivateRow>;
    read tallies(places: &[(UserId, ConversationId, Seq)]) of places.iter().map(|(owner, ..)| owner.get())
        => Vec<Option<Tally>>;
    read find_send(from: UserId, conversation: ConversationId, send_id: SendId, since: MessageId)
        of [from.get()] => Option<PrivateRow>;
    read sent_as(send_id: SendId) => Vec<(UserId, MessageId)>;
    write set_status(writes: Vec<StatusWrite>) of writes.iter().map(|write| write.id.get()) => Vec<bool>;
    read status(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<RowStatus>;
    write delete(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => ();
}
