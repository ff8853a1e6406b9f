//! Conversation lists of users: the rows behind the list difference.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::change::ListArrangement;
pub use protocol::conversation::ListRegisters;
use protocol::conversation::{ConversationRow, ListEntry};
use protocol::history::Version;
use protocol::unread::Tally;
use protocol::{ConversationId, Seq, Timestamp, UserId};

pub use self::embedded::EmbeddedConversations;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaConversations;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait ConversationStore: Send + Sync {
    /// Writes rows. A row of an earlier source never replaces one of a later; the same source again
    /// may raise the version.
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()>;

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<ListEntry>>>;

    /// Registers alone, in request order; defaults where none was written.
    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<ListRegisters>>;

    /// Conversations of `owner` whose [`version`](ListEntry::version) is not before
    /// `min_version`, in order of conversation, strictly after `cursor`, at most `limit`.
    async fn changed(
        &self,
        owner: UserId,
        min_version: Timestamp,
        cursor: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<ListEntry>>;

    /// Moves the read register forward (and received with it), or leaves it. `at` is the time of
    /// the call: the list difference shows conversations touched then.
    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()>;

    async fn set_received(&self, moves: Vec<(UserId, ConversationId, Seq)>) -> Result<()>;

    /// Sets the owner's arrangement of a conversation in the list; the later record wins. `at` as
    /// above.
    async fn arrange(
        &self,
        arrangements: Vec<(UserId, ConversationId, Version, ListArrangement)>,
        at: Timestamp,
    ) -> Result<()>;

    /// Moves the cleared register forward, or leaves it; `at` as above.
    async fn set_cleared(
        &self,
        moves: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()>;

    /// Hides messages from their owner. Each is stored under the [mark](Version::mark) of the
    /// record that hid it, those of a conversation in that order: a reader that finds one finds all
    /// before it. Then the register of the conversation moves forward to the last; `at` as above.
    async fn hide(
        &self,
        messages: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()>;

    /// Messages hidden by the owner in a conversation, by mark, strictly after `cursor`, at most
    /// `limit`.
    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        cursor: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>>;

    /// Mark of the first record that hid each of these messages from its owner, in request order;
    /// `None` for a message that is not hidden.
    async fn first_hidden(
        &self,
        keys: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<u64>>>;

    /// Stamps conversations whose change is stored elsewhere, such as the owner's role in a group.
    /// `at` as above.
    async fn touch(
        &self,
        conversations: Vec<(UserId, ConversationId)>,
        at: Timestamp,
    ) -> Result<()>;
}

hooked! { ConversationStore as "conversations":
    write save(rows: Vec<ConversationRow>) of rows.iter().map(|row| row.owner.get()) => ();
    read get(keys: &[(UserId, ConversationId)]) of keys.iter().map(|(owner, _)| owner.get()) => Vec<Option<ListEntry>>;
    read registers(keys: &[(UserId, ConversationId)]) of keys.iter().map(|(owner, _)| owner.get()) => Vec<ListRegisters>;
    read changed(owner: UserId, since: Timestamp, after: Option<ConversationId>, limit: usize)
        of [owner.get()] => Vec<ListEntry>;
    write set_read(reads: Vec<(UserId, ConversationId, Seq)>, at: Timestamp)
        of reads.iter().map(|(owner, ..)| owner.get()) => ();
    write set_received(received: Vec<(UserId, ConversationId, Seq)>)
        of received.iter().map(|(owner, ..)| owner.get()) => ();
    write arrange(arranged: Vec<(UserId, ConversationId, Version, ListArrangement)>, at: Timestamp)
        of arranged.iter().map(|(owner, ..)| owner.get()) => ();
    write set_cleared(cleared: Vec<(UserId, ConversationId, Tally)>, at: Timestamp)
        of cleared.iter().map(|(owner, ..)| owner.get()) => ();
    write hide(hidden: Vec<(UserId, ConversationId, Version, Seq)>, at: Timestamp)
        of hidden.iter().map(|(owner, ..)| owner.get()) => ();
    read hidden(owner: UserId, conversation: ConversationId, after: u64, limit: usize)
        of [owner.get()] => Vec<(u64, Seq)>;
    read first_hidden(keys: &[(UserId, ConversationId, Seq)]) of keys.iter().map(|(owner, ..)| owner.get())
        => Vec<Option<u64>>;
    write touch(touched: Vec<(UserId, ConversationId)>, at: Timestamp)
        of touched.iter().map(|(owner, _)| owner.get()) => ();
}
