//! A horn that has no room for more.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use backend::queue::{Consumer, Producer};
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

/// A log whose topic of dead letters says nothing while it is away.
#[derive(Clone)]
struct LettersAway {
    queue: EmbeddedQueue,
    is_away: Arc<AtomicBool>,
}

#[async_trait]
impl Producer for LettersAway {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<backend::Result<u64>> {
        let mut topics = records.iter().map(|record| record.partition.topic);
        let has_letters = topics.any(|topic| topic == Topic::NotificationDead);
        if has_letters && self.is_away.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.queue.producer().publish(records).await
    }
}

#[async_trait]
impl Queue for LettersAway {
    fn producer(&self) -> Arc<dyn Producer> {
        Arc::new(self.clone())
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> backend::Result<Box<dyn Consumer>> {
        self.queue.subscribe(group, topic).await
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.queue.partitions(topic)
    }

    fn epoch(&self) -> u32 {
        self.queue.epoch()
    }

    async fn read(
        &self,
        partition: Partition,
        from: u64,
        max: usize,
    ) -> backend::Result<Vec<Record>> {
        self.queue.read(partition, from, max).await
    }

    async fn bounds(&self, partition: Partition) -> backend::Result<(u64, u64)> {
        self.queue.bounds(partition).await
    }

    async fn committed(&self, group: &str, partition: Partition) -> backend::Result<Option<u64>> {
        self.queue.committed(group, partition).await
    }
}

/// Refuses those whose notifications are in partition 0.
struct Choosy;

#[async_trait]
impl Provider for Choosy {
    fn name(&self) -> &'static str {
        "choosy"
    }

    async fn send(&self, push: &Push) -> Result<(), ProviderError> {
        match partition_of(&control_key(push.notification.target.user), 2) {
            0 => Err(ProviderError::new(Failure::Refused, "no")),
            _ => Ok(()),
        }
    }
}

// Outcomes with letters and without were one call: nothing was committed while letters had no answer.
#[tokio::test(start_paused = true)]
async fn letters_that_have_no_answer_keep_back_no_other_outcomes() {
    const EACH: u64 = 300;
    let desk = Desk::new();
    let queue = LettersAway {
        queue: desk.queue.clone(),
        is_away: Arc::new(AtomicBool::new(true)),
    };
    let is_away = queue.is_away.clone();
    let parts = Parts {
        queue: Arc::new(queue),
        ..desk.parts()
    };
    let shutdown = CancellationToken::new();
    let started = start_with(quick(), parts, Arc::new(Choosy), shutdown.clone());
    let running = started.await.expect("starts");
    let horn = Horn { running, shutdown };
    let mut counts: BTreeMap<Partition, u64> = BTreeMap::new();
    let mut number = 0;
    while counts.len() < 2 || counts.values().any(|count| *count < EACH) {
        number += 1;
        let mut notification = mail(number);
        notification.target.user = user(1 + number);
        *counts.entry(desk.publish(notification).await).or_default() += 1;
    }
    let [(held, of_held), (free, of_free)] = counts.into_iter().collect::<Vec<_>>()[..] else {
        panic!("two partitions");
    };
    desk.reaches(free, of_free).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(desk.committed(held).await, 0);
    is_away.store(false, Ordering::SeqCst);
    desk.reaches(held, of_held).await;
    let topic = Topic::NotificationDead;
    let letters = desk.queue.bounds(Partition { topic, number: 0 }).await;
    assert_eq!(letters.expect("there").1, of_held, "once each");
    horn.stop().await;
}

// What log and ledger do not take comes again; a stop does not wait for it for ever.
#[tokio::test(start_paused = true)]
async fn a_horn_ends_though_letters_and_outcomes_have_no_answer() {
    let desk = Desk::new();
    let ledger = SilentLedger {
        store: EmbeddedLedger::open(Engine::memory()).expect("opens"),
        hangs: AtomicBool::new(true),
    };
    let parts = Parts {
        ledger: Arc::new(ledger),
        queue: Arc::new(LettersAway {
            queue: desk.queue.clone(),
            is_away: Arc::new(AtomicBool::new(true)),
        }),
        ..desk.parts()
    };
    let shutdown = CancellationToken::new();
    let started = start_with(quick(), parts, Arc::new(Choosy), shutdown.clone());
    let running = started.await.expect("starts");
    crowd(&desk, 20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Horn { running, shutdown }.stop().await;
}
