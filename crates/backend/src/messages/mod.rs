//! Messages for good: a private message is two rows, one on each side; a message of a group is one,
//! whatever the size of the group.

#[cfg(test)]
mod contract;
mod embedded;
mod owners;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, RowStatus};
use protocol::message_row::{MessageRow, Owner, StoredPlace};
use protocol::reading::OwnRange;
use protocol::receipt::StatusWrite;
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

pub use self::embedded::EmbeddedMessages;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaMessages;
use crate::Result;
use crate::hook::hooked;

const SEAM: &str = "messages";

/// A call about users and groups asks for both side by side. Answers are in the order of the
/// request.
#[async_trait]
pub trait MessageStore: Send + Sync {
    /// Writes rows. Writing one again changes nothing, and the message or position of an earlier
    /// version never replaces that of a later. Registers are not touched. After a failure some rows
    /// may be there: rows of users and of groups do not wait for each other.
    async fn save(&self, rows: Vec<MessageRow>) -> Result<()>;

    /// Rows of these keys.
    async fn rows(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<Option<MessageRow>>>;

    /// Places of users' copies: all that a receipt needs, and cheaper than the rows.
    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<StoredPlace>>>;

    /// Rows of one owner by id, of a user with all peers (S0-58 to S0-60, S0-61f, S0-61g: bounds
    /// exclusive, an empty range is an empty list, at most `limit`; the next page begins at the
    /// last id).
    async fn find(
        &self,
        owner: Owner,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>>;

    /// Conversation as the owner has it, dense in seq, in the order of `range`: a page ends before
    /// a hole, and a page that would have to begin with one is `Corrupt`. A conversation that is
    /// not the owner's is empty.
    async fn page(
        &self,
        owner: Owner,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>>;

    /// Ids and tallies of the owners' messages at these positions; `None` at a position without
    /// one. A group counts by positions alone.
    async fn at(
        &self,
        places: &[(Owner, ConversationId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>>;

    /// The first row under each of these send_ids.
    async fn find_sends(&self, keys: &[SendKey]) -> Result<Vec<Option<MessageRow>>>;

    /// Senders and ids of the messages sent under this send_id, to users or groups. Several users
    /// may have chosen the same one.
    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>>;

    /// Counts the user's own messages in each range of a group's positions. The cost grows with the
    /// user's messages there, not with those of others.
    async fn own_between(&self, user: UserId, ranges: &[OwnRange]) -> Result<Vec<u64>>;

    /// Moves registers of users' copies forward; read implies delivered. Returns for each write
    /// whether the status advanced: a repeat, or received after read, does not.
    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>>;

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>>;

    /// Marks messages deleted for good: of a private one both sides, whichever is named.
    async fn delete(&self, keys: &[(Owner, MessageId)]) -> Result<()>;

    /// Tells for each message if it is deleted.
    async fn deleted(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<bool>>;
}

hooked! { MessageStore as "messages" of ["user", "group"]:
    write save(rows: Vec<MessageRow>) of rows.iter().map(|row| row.id().get()), as kind(&rows) => ();
    read rows(keys: &[(Owner, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<Option<MessageRow>>;
    read places(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<Option<StoredPlace>>;
    read find(owner: Owner, range: IdRange, order: Order, limit: usize) of [owner.number()] => Vec<MessageRow>;
    read page(owner: Owner, conversation: ConversationId, range: HistoryRange, limit: usize)
        of [owner.number()] => Vec<MessageRow>;
    read at(places: &[(Owner, ConversationId, Seq)]) of places.iter().map(|(owner, ..)| owner.number())
        => Vec<Option<(MessageId, Tally)>>;
    read find_sends(keys: &[SendKey]) of keys.iter().map(|key| key.from.get()) => Vec<Option<MessageRow>>;
    read sent_as(send_id: SendId) => Vec<(UserId, MessageId)>;
    read own_between(user: UserId, ranges: &[OwnRange]) of ranges.iter().map(|range| range.group.get()) => Vec<u64>;
    write set_status(writes: Vec<StatusWrite>) of writes.iter().map(|write| write.id.get()) => Vec<bool>;
    read status(keys: &[(UserId, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<RowStatus>;
    write delete(keys: &[(Owner, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => ();
    read deleted(keys: &[(Owner, MessageId)]) of keys.iter().map(|(_, id)| id.get()) => Vec<bool>;
}

/// Kind of owner of saved rows: `group` if one of them is a group's.
fn kind(rows: &[MessageRow]) -> &'static str {
    if rows.iter().any(|row| matches!(row.owner, Owner::Group(_))) {
        "group"
    } else {
        "user"
    }
}
