//! Whoever muted a conversation is not told of what is said in it.

use std::sync::Arc;

use backend::Kind;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use protocol::notify::{Failure, Notification};

use crate::provider::ProviderError;

/// Asks how users arranged their conversations.
#[derive(Clone)]
pub(super) struct Mutes {
    pub(super) conversations: Arc<dyn ConversationStore>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Mutes {
    /// # Errors
    /// `Muted` where they do not want to be told; `Unavailable` where the store does not say now, for who muted it
    /// would rather be told late.
    pub(super) async fn check(&self, notification: &Notification) -> Result<(), ProviderError> {
        let key = [(notification.target.user, notification.conversation)];
        let registers = match self.conversations.registers(&key).await {
            Ok(registers) => registers,
            Err(error) if error.kind == Kind::Unavailable => {
                let text = format!("whether they muted it is not known: {error}");
                return Err(ProviderError::new(Failure::Unavailable, text));
            }
            Err(error) => {
                // It will not say later either.
                tracing::warn!(%error, id = %notification.message, "nobody knows whether it is muted");
                return Ok(());
            }
        };
        let now = self.clock.now();
        match registers.iter().any(|found| found.arranged.is_muted(now)) {
            true => Err(ProviderError::new(Failure::Muted, "they muted it")),
            false => Ok(()),
        }
    }
}
