//! What the embedded stores want done now and then: old records of the log and expired mail removed.

use std::sync::Arc;
use std::time::Duration;

use backend::clock::Clock;
use backend::mailbox::EmbeddedMailbox;
use backend::queue::EmbeddedQueue;
use tokio_util::sync::CancellationToken;

/// How often.
const EVERY: Duration = Duration::from_secs(60);
/// Mailboxes looked at between two pauses, so that a walk over millions holds nobody up.
const MAILBOXES: usize = 200;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub(super) struct Upkeep {
    queue: Arc<EmbeddedQueue>,
    mailbox: Arc<EmbeddedMailbox>,
    clock: Arc<dyn Clock>,
}

impl Upkeep {
    pub(super) fn new(
        queue: Arc<EmbeddedQueue>,
        mailbox: Arc<EmbeddedMailbox>,
        clock: Arc<dyn Clock>,
    ) -> Upkeep {
        Upkeep {
            queue,
            mailbox,
            clock,
        }
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let forever = async {
            loop {
                tokio::time::sleep(EVERY).await;
                if let Err(error) = self.once().await {
                    tracing::warn!(%error, "old records or expired mail could not be removed");
                }
            }
        };
        stop.run_until_cancelled(forever).await;
    }

    async fn once(&self) -> backend::Result<()> {
        self.queue.trim(self.clock.now()).await?;
        let mut next = self.mailbox.sweep(None, MAILBOXES, self.clock.now())?;
        while next.is_some() {
            tokio::time::sleep(PAUSE).await;
            next = self.mailbox.sweep(next, MAILBOXES, self.clock.now())?;
        }
        Ok(())
    }
}
