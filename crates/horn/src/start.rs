//! Assembles a horn, and ends it in order.

use std::sync::Arc;

use backend::clock::{Clock, Entropy};
use backend::conversations::ConversationStore;
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use protocol::keys::Topic;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::GROUP;
use crate::config::{Config, ProviderKind};
use crate::consumer::Horn;
use crate::provider::{Provider, Recorder, Secret, SecretError, Webhook, WebhookError};

/// Newest notifications that provider `record` keeps.
const RECORDED_MAX: usize = 1024;

/// Dependencies of a horn.
#[derive(Clone)]
pub struct Parts {
    pub queue: Arc<dyn Queue>,
    pub ledger: Arc<dyn LedgerStore>,
    pub conversations: Arc<dyn ConversationStore>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

/// Reason why a horn does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("horn.provider is webhook: set horn.url to its address")]
    NoUrl,
    #[error("cannot call the webhook")]
    Webhook(#[from] WebhookError),
    #[error("cannot sign webhook calls")]
    Secret(#[from] SecretError),
    #[error("a backend is unavailable")]
    Part(#[from] backend::Error),
}

/// A running horn.
#[derive(Debug)]
pub struct HornHandle {
    tasks: TaskTracker,
    recorder: Option<Arc<Recorder>>,
}

impl HornHandle {
    /// Waits until the horn has ended: calls in flight have their outcome, and it is committed.
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }

    /// Recorded notifications, if the provider is `record`.
    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.as_ref()
    }
}

/// Starts a horn with the provider of its settings; it runs until `shutdown`.
///
/// # Errors
/// A setting that cannot be, a secret that cannot be read, a log that does not answer.
pub async fn start(
    config: Config,
    parts: Parts,
    shutdown: CancellationToken,
) -> Result<HornHandle, StartError> {
    match config.provider {
        ProviderKind::Record => {
            let recorder = Arc::new(Recorder::new(RECORDED_MAX));
            let mut handle = start_with(config, parts, recorder.clone(), shutdown).await?;
            handle.recorder = Some(recorder);
            Ok(handle)
        }
        ProviderKind::Webhook => {
            let url = config.url.as_ref().ok_or(StartError::NoUrl)?.expose();
            let secret = config
                .secret_file
                .as_deref()
                .map(Secret::read)
                .transpose()?;
            let webhook = Webhook::open(url, secret, config.timeout, parts.clock.clone())?;
            start_with(config, parts, Arc::new(webhook), shutdown).await
        }
    }
}

/// Starts a horn with a provider of the caller's.
///
/// # Errors
/// A log that does not answer.
pub async fn start_with(
    config: Config,
    parts: Parts,
    provider: Arc<dyn Provider>,
    shutdown: CancellationToken,
) -> Result<HornHandle, StartError> {
    let consumer = parts.queue.subscribe(GROUP, Topic::Notification).await?;
    let tasks = TaskTracker::new();
    tasks.spawn(Horn::new(&config, parts, provider).run(consumer, shutdown));
    tasks.close();
    Ok(HornHandle {
        tasks,
        recorder: None,
    })
}
