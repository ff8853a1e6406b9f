//! Renewal of credentials whose files changed: the brokers are asked first, and only credentials
//! they accept make the owners of clients replace them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::config::KafkaConfig;
use super::layout::Layout;
use super::reader;
use super::report::{blocking, failed};
use crate::Result;

/// Pause between attempts while brokers refuse the new credentials or none answers.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Number of the credentials that brokers last accepted; watchers see each increase.
pub(super) type Renewals = watch::Receiver<u64>;

/// Tasks that watch the files and ask the brokers.
pub(super) struct CredentialRenewal {
    version: watch::Sender<u64>,
    _tasks: [Option<AbortOnDropHandle<()>>; 2],
}

impl CredentialRenewal {
    /// Starts both tasks. `Conflict` for files that cannot be used.
    pub(super) fn start(
        config: &Arc<KafkaConfig>,
        layout: &Arc<Layout>,
    ) -> Result<CredentialRenewal> {
        let credentials = config.credentials()?;
        let version = watch::Sender::new(0);
        let reloader = credentials.spawn_reloader();
        let watcher = {
            let (config, layout, version) = (config.clone(), layout.clone(), version.clone());
            let mut changes = credentials.changes();
            async move {
                while changes.changed().await.is_ok() {
                    while let Err(error) = check_credentials(&config, &layout).await {
                        let source = &error.source;
                        tracing::warn!(
                            %error, %source,
                            "brokers rejected the new credentials; keeping the current clients"
                        );
                        sleep(RETRY_INTERVAL).await;
                    }
                    // Clients read the files themselves; a change made in the meantime is asked
                    // about next.
                    version.send_modify(|number| *number += 1);
                }
            }
        };
        let watcher = reloader
            .is_some()
            .then(|| AbortOnDropHandle::new(tokio::spawn(watcher)));
        Ok(CredentialRenewal {
            version,
            _tasks: [reloader, watcher],
        })
    }

    pub(super) fn renewals(&self) -> Renewals {
        self.version.subscribe()
    }
}

/// Asks a broker with the current content of the files.
async fn check_credentials(config: &Arc<KafkaConfig>, layout: &Arc<Layout>) -> Result<()> {
    let (config, group) = (config.clone(), layout.reader());
    blocking(move || {
        use rdkafka::consumer::Consumer;
        let client = reader::connect(&config, &group)?;
        let metadata = client.fetch_metadata(None, config.request_timeout);
        let metadata = metadata.map_err(|error| failed("asking with new credentials", error));
        metadata
            .map(drop)
            .map_err(|error| reader::add_reason(&client, error))
    })
    .await
}
