//! Who tells users: the seam to third parties, and how each of their answers is meant.

mod record;
mod signature;
mod webhook;

use std::time::Duration;

use async_trait::async_trait;
use protocol::TraceContext;
use protocol::notify::{Failure, Notification};
use thiserror::Error;

pub use self::record::Recorder;
pub use self::signature::{Secret, SecretError};
pub use self::webhook::{Webhook, WebhookError};

/// One attempt to tell one target of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub notification: Notification,
    /// Counted from 1.
    pub attempt: u32,
    /// Of this attempt.
    pub trace: Option<TraceContext>,
}

impl Push {
    /// Names the notification, the same in each attempt and after a crash: `<message>-<user>-<platform>`.
    pub fn id(&self) -> String {
        let target = self.notification.target;
        let message = self.notification.message;
        format!("{message}-{}-{}", target.user, target.platform)
    }
}

/// Why a provider did not take a push.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ProviderError {
    pub failure: Failure,
    /// How long it wants to be left alone.
    pub retry_after: Option<Duration>,
    /// For a person; never a token or a secret.
    pub text: String,
}

impl ProviderError {
    pub fn new(failure: Failure, text: impl Into<String>) -> ProviderError {
        ProviderError {
            failure,
            retry_after: None,
            text: text.into(),
        }
    }
}

/// Somebody who can tell a user. Called several times at once; a call may be dropped at any time, and
/// the same push may come again.
#[async_trait]
pub trait Provider: Send + Sync {
    /// For the ledger and metrics: `webhook`.
    fn name(&self) -> &'static str;

    /// Returns when the provider has taken it, or said why not.
    async fn send(&self, push: &Push) -> Result<(), ProviderError>;
}
