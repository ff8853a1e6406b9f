//! A horn that has no room for more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::notify::Failure;
use tokio::time::Instant;

use super::*;
use crate::{ProviderError, Push};

const PAUSE: Duration = Duration::from_secs(300);

/// Wants to be left alone for five minutes, and takes everything after them.
struct Throttling {
    begin: Instant,
    attempts: Mutex<BTreeMap<MessageId, Vec<u32>>>,
    sent: Mutex<Vec<MessageId>>,
}

#[async_trait]
impl Provider for Throttling {
    fn name(&self) -> &'static str {
        "throttling"
    }

    async fn send(&self, push: &Push) -> Result<(), ProviderError> {
        let id = push.notification.message;
        (self.attempts.lock().entry(id).or_default()).push(push.attempt);
        if self.begin.elapsed() < PAUSE {
            let mut error = ProviderError::new(Failure::Throttled, "later");
            error.retry_after = Some(PAUSE);
            return Err(error);
        }
        self.sent.lock().push(id);
        Ok(())
    }
}

async fn crowd(desk: &Desk, count: usize) {
    for number in 0..count {
        let mut notification = mail(number as i64 + 1);
        notification.target.user = user(2 + number as i64 % 7);
        desk.publish(notification).await;
    }
}

/// What a provider that throttles is asked, and what it takes, of more than a horn has room for.
async fn throttled(config: Config, count: usize) -> Arc<Throttling> {
    let desk = Desk::new();
    crowd(&desk, count).await;
    let provider = Arc::new(Throttling {
        begin: Instant::now(),
        attempts: Mutex::default(),
        sent: Mutex::default(),
    });
    let horn = desk.horn(config, provider.clone()).await;
    tokio::time::sleep(PAUSE * 2).await;
    horn.stop().await;
    provider
}

#[tokio::test(start_paused = true)]
async fn a_full_horn_stays_in_its_group_and_counts_its_attempts() {
    let config = Config::default();
    let count = config.pending_max + 104;
    let provider = throttled(config, count).await;
    let sent = provider.sent.lock();
    let mut distinct = sent.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!((sent.len(), distinct.len()), (count, count), "once each");
    let attempts = provider.attempts.lock();
    let again: Vec<_> = attempts.values().filter(|tries| tries.len() > 1).collect();
    assert_eq!(again.len(), Config::default().concurrency);
    assert!(again.iter().all(|tries| **tries == [1, 2]), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn bytes_fill_a_horn_as_notifications_do() {
    let config = Config {
        pending_bytes_max: 1,
        concurrency: 1,
        ..Config::default()
    };
    let provider = throttled(config, 3000).await;
    assert_eq!(provider.sent.lock().len(), 3000);
}

/// A ledger that says nothing while it hangs.
struct SilentLedger {
    store: EmbeddedLedger,
    hangs: AtomicBool,
}

#[async_trait]
impl LedgerStore for SilentLedger {
    async fn append(&self, entries: Vec<LedgerEntry>) -> backend::Result<()> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.store.append(entries).await
    }

    async fn trace(&self, messages: &[MessageId]) -> backend::Result<Vec<Vec<LedgerEntry>>> {
        self.store.trace(messages).await
    }

    async fn forget(&self, before: MessageId, limit: usize) -> backend::Result<usize> {
        self.store.forget(before, limit).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_hangs_stops_no_calls_and_costs_no_place_in_the_group() {
    let desk = Desk::new();
    let ledger = Arc::new(SilentLedger {
        store: EmbeddedLedger::open(Engine::memory()).expect("opens"),
        hangs: AtomicBool::new(true),
    });
    let parts = Parts {
        ledger: ledger.clone(),
        ..desk.parts()
    };
    let provider = Arc::new(crate::Recorder::new(100));
    let shutdown = CancellationToken::new();
    let started = start_with(Config::default(), parts, provider.clone(), shutdown.clone());
    let running = started.await.expect("starts");
    let horn = Horn { running, shutdown };
    let first = desk.publish(mail(1)).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    desk.publish(mail(2)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(provider.recorded().len(), 2, "the second one is called");
    assert_eq!(desk.committed(first).await, 0);
    ledger.hangs.store(false, Ordering::SeqCst);
    desk.reaches(first, 2).await;
    assert_eq!(provider.recorded().len(), 2, "nobody is told again");
    horn.stop().await;
}
