//! Credentials that changed in their files: brokers are asked with them first, and then whoever has clients makes
//! them anew.

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

/// Between two questions with credentials that brokers refuse, or while none answers.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Number of the credentials that brokers took last; told when it rises.
pub(super) type Renewals = watch::Receiver<u64>;

/// The tasks that look at the files and ask the brokers.
pub(super) struct Renewal {
    taken: watch::Sender<u64>,
    _tasks: [Option<AbortOnDropHandle<()>>; 2],
}

impl Renewal {
    /// `Conflict` for files that cannot be used.
    pub(super) fn start(config: &Arc<KafkaConfig>, layout: &Arc<Layout>) -> Result<Renewal> {
        let credentials = config.credentials()?;
        let taken = watch::Sender::new(0);
        let keep = credentials.keep();
        let asking = {
            let (config, layout, taken) = (config.clone(), layout.clone(), taken.clone());
            let mut changes = credentials.changes();
            async move {
                while changes.changed().await.is_ok() {
                    while let Err(error) = ask(&config, &layout).await {
                        let source = &error.source;
                        tracing::warn!(
                            %error, %source,
                            "brokers do not take new credentials; clients of before stay"
                        );
                        sleep(ASK_AGAIN).await;
                    }
                    // Clients read the files themselves: what changed meanwhile is asked about next.
                    taken.send_modify(|number| *number += 1);
                }
            }
        };
        let asking = keep
            .is_some()
            .then(|| AbortOnDropHandle::new(tokio::spawn(asking)));
        Ok(Renewal {
            taken,
            _tasks: [keep, asking],
        })
    }

    pub(super) fn renewals(&self) -> Renewals {
        self.taken.subscribe()
    }
}

/// Asks a broker with the files' content of now.
async fn ask(config: &Arc<KafkaConfig>, layout: &Arc<Layout>) -> Result<()> {
    let (config, group) = (config.clone(), layout.reader());
    blocking(move || {
        use rdkafka::consumer::Consumer;
        let client = reader::connect(&config, &group)?;
        let asked = client.fetch_metadata(None, config.request_timeout);
        let asked = asked.map_err(|error| failed("asking with new credentials", error));
        asked
            .map(drop)
            .map_err(|error| reader::explained(&client, error))
    })
    .await
}
