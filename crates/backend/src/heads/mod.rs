//! Head of each conversation, stored for its single writer.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::ConversationId;
use protocol::conversation::Head;

pub use self::embedded::EmbeddedHeads;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaHeads;
use crate::Result;
use crate::hook::{hooked, number};

#[async_trait]
pub trait HeadStore: Send + Sync {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>>;

    /// Saves heads. A head of an earlier version never replaces one of a later.
    async fn save(&self, heads: Vec<(ConversationId, Head)>) -> Result<()>;
}

hooked! { HeadStore as "heads":
    read load(conversations: &[ConversationId]) of conversations.iter().map(number) => Vec<Option<Head>>;
    write save(heads: Vec<(ConversationId, Head)>) of heads.iter().map(|(of, _)| number(of)) => ();
}
