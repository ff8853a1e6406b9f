//! Provider of notifications: the seam to third parties, and the meaning of each of their answers.

mod record;
mod signature;
mod webhook;

use std::time::Duration;

use async_trait::async_trait;
use protocol::TraceContext;
use protocol::notify::{Notification, NotifyFailure};
use thiserror::Error;

pub use self::record::Recorder;
pub use self::signature::{Secret, SecretError};
pub use self::webhook::{Webhook, WebhookError};

/// One attempt to notify one target of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPush {
    pub notification: Notification,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Trace of this attempt.
    pub trace: Option<TraceContext>,
}

impl ProviderPush {
    /// Id of the notification, the same in each attempt and after a crash:
    /// `<message>-<user>-<platform>`.
    pub fn id(&self) -> String {
        let target = self.notification.target;
        let message = self.notification.message;
        format!("{message}-{}-{}", target.user, target.platform)
    }
}

/// Failure of a provider to take a push.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ProviderError {
    pub failure: NotifyFailure,
    /// Time for which the provider asks not to be called.
    pub retry_after: Option<Duration>,
    /// Text for a person; never a token or a secret.
    pub text: String,
}

impl ProviderError {
    pub fn new(failure: NotifyFailure, text: impl Into<String>) -> ProviderError {
        ProviderError {
            failure,
            retry_after: None,
            text: text.into(),
        }
    }
}

/// Service that can notify a user. Called concurrently; a call may be dropped at any time, and the
/// same push may come again.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Name in ledger and metrics: `webhook`.
    fn name(&self) -> &'static str;

    /// Returns once the provider has taken the push, or refused it.
    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError>;
}
