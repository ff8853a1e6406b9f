//! Cleaning of the embedded stores: removes old records of the log, expired mail, old entries of
//! the ledger, and members who left a group long ago.

use std::sync::Arc;
use std::time::Duration;

use backend::clock::Clock;
use backend::groups::EmbeddedGroups;
use backend::ledger::LedgerStore;
use backend::mailbox::EmbeddedMailbox;
use backend::queue::EmbeddedQueue;
use protocol::MessageId;
use tokio_util::sync::CancellationToken;

/// Interval of cleaning.
const ROUND_INTERVAL: Duration = Duration::from_secs(60);
/// Mailboxes swept between two pauses, so that a walk over millions holds nobody up.
const MAILBOXES: usize = 200;
/// Rows of the ledger removed between two pauses.
const LEDGER_ROWS: usize = 1000;
/// Departed members removed between two pauses.
const LEFT: usize = 1000;
const SWEEP_PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub(super) struct Upkeep {
    pub(super) queue: Arc<EmbeddedQueue>,
    pub(super) mailbox: Arc<EmbeddedMailbox>,
    pub(super) ledger: Arc<dyn LedgerStore>,
    pub(super) groups: Arc<EmbeddedGroups>,
    /// Age at which the ledger forgets messages, and groups forget departed members: longer than
    /// the log keeps records.
    pub(super) ledger_retention: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

impl Upkeep {
    pub(super) async fn run(self, stop: CancellationToken) {
        let forever = async {
            loop {
                tokio::time::sleep(ROUND_INTERVAL).await;
                // Each step by itself: a row that cannot be read stops only one of them.
                let (log, mail) = (self.queue.trim(self.clock.now()).await, self.sweep().await);
                for result in [
                    log.map(drop),
                    mail,
                    self.forget_ledger().await,
                    self.forget_left().await,
                ] {
                    if let Err(error) = result {
                        tracing::warn!(%error, "cannot remove expired data");
                    }
                }
            }
        };
        stop.run_until_cancelled(forever).await;
    }

    async fn sweep(&self) -> backend::Result<()> {
        let mut next = self.mailbox.sweep(None, MAILBOXES, self.clock.now())?;
        while next.is_some() {
            tokio::time::sleep(SWEEP_PAUSE).await;
            next = self.mailbox.sweep(next, MAILBOXES, self.clock.now())?;
        }
        Ok(())
    }

    async fn forget_ledger(&self) -> backend::Result<()> {
        let first_kept = MessageId::floor_of(self.clock.now() - self.ledger_retention);
        while self.ledger.forget(first_kept, LEDGER_ROWS).await? > 0 {
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
        Ok(())
    }

    async fn forget_left(&self) -> backend::Result<()> {
        let old = self.clock.now() - self.ledger_retention;
        while self.groups.forget_left(old, LEFT)? == LEFT {
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use backend::clock::{SeededEntropy, SystemClock};
    use backend::embedded::Engine;
    use backend::ledger::EmbeddedLedger;
    use backend::mailbox::MailboxConfig;
    use backend::queue::QueueConfig;
    use protocol::Timestamp;
    use protocol::ledger::{LedgerEntry, LedgerEvent};

    use super::*;

    const RETENTION: Duration = Duration::from_secs(3600);

    fn settled_entry(at: Timestamp) -> LedgerEntry {
        LedgerEntry {
            message: MessageId::floor_of(at),
            at,
            target: None,
            event: LedgerEvent::Settled,
        }
    }

    // More than one step of old messages, and one that is not old.
    #[tokio::test]
    async fn the_ledger_forgets_what_is_older_than_its_retention() {
        let (engine, clock) = (Engine::memory(), Arc::new(SystemClock));
        let queue = EmbeddedQueue::open(engine.clone(), QueueConfig::default(), clock.clone());
        let entropy = SeededEntropy::new(1);
        let mailbox = EmbeddedMailbox::open(engine.clone(), &MailboxConfig::default(), &entropy);
        let groups = Arc::new(EmbeddedGroups::new(engine.clone(), clock.clone()));
        let ledger = Arc::new(EmbeddedLedger::open(engine).expect("a ledger"));
        let upkeep = Upkeep {
            queue: Arc::new(queue.expect("a log")),
            mailbox: Arc::new(mailbox.expect("a mailbox")),
            ledger: ledger.clone(),
            groups,
            ledger_retention: RETENTION,
            clock: clock.clone(),
        };
        let (kept_from, minute) = (clock.now() - RETENTION, Duration::from_secs(60));
        let count = LEDGER_ROWS as u64 + 1;
        let old = (0..count).map(|n| settled_entry(kept_from - minute - Duration::from_millis(n)));
        let (old, young) = (
            old.collect::<Vec<_>>(),
            settled_entry(kept_from + RETENTION),
        );
        let mut ids: Vec<_> = old.iter().map(|entry| entry.message).collect();
        ids.push(young.message);
        ledger.append(old).await.expect("appended");
        ledger.append(vec![young.clone()]).await.expect("appended");

        upkeep.forget_ledger().await.expect("done");
        let mut entries = ledger.trace(&ids).await.expect("readable");
        assert_eq!(entries.pop(), Some(vec![young]));
        assert_eq!(entries.concat(), []);
    }
}
