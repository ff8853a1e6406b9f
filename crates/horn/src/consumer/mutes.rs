//! Mutes: users get no notification of messages in a conversation they muted.

use std::sync::Arc;

use backend::Kind;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use protocol::notify::{Notification, NotifyFailure};

use crate::provider::ProviderError;

/// Looks up how users arranged their conversations.
#[derive(Clone)]
pub(super) struct Mutes {
    pub(super) conversations: Arc<dyn ConversationStore>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Mutes {
    /// Fails if the user must not be notified now.
    ///
    /// # Errors
    ///
    /// `Muted` if the user muted the conversation; `Unavailable` if the store does not answer now:
    /// a user who muted it would rather be notified late.
    pub(super) async fn check(&self, notification: &Notification) -> Result<(), ProviderError> {
        let key = [(notification.target.user, notification.conversation)];
        let registers = match self.conversations.registers(&key).await {
            Ok(registers) => registers,
            Err(error) if error.kind == Kind::Unavailable => {
                let text = format!("cannot tell whether the user muted the conversation: {error}");
                return Err(ProviderError::new(NotifyFailure::Unavailable, text));
            }
            Err(error) => {
                // A later lookup would fail as well.
                tracing::warn!(%error, id = %notification.message, "cannot tell whether the \
                                                                    conversation is muted");
                return Ok(());
            }
        };
        let now = self.clock.now();
        if registers
            .iter()
            .any(|register| register.arranged.is_muted(now))
        {
            Err(ProviderError::new(
                NotifyFailure::Muted,
                "the user muted the conversation",
            ))
        } else {
            Ok(())
        }
    }
}
