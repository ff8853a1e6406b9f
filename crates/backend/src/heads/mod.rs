//! The head of each conversation, kept for its single writer.

use async_trait::async_trait;
use protocol::ConversationId;
use protocol::conversation::Head;

use crate::Result;

#[async_trait]
pub trait HeadStore: Send + Sync {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>>;

    /// A head of an earlier version never replaces one of a later.
    async fn save(&self, heads: Vec<(ConversationId, Head)>) -> Result<()>;
}
