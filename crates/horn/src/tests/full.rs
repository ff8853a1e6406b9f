//! A horn without room for more.

use std::collections::BTreeMap;

use async_trait::async_trait;
use backend::hook::{Calls, Fault, Faults, Hooked};
use parking_lot::Mutex;
use protocol::notify::NotifyFailure;
use tokio::time::Instant;

use super::*;
use crate::{ProviderError, ProviderPush};

const THROTTLE_PAUSE: Duration = Duration::from_secs(300);

/// Provider that throttles for five minutes, and takes everything after that.
struct ThrottlingProvider {
    begin: Instant,
    attempts: Mutex<BTreeMap<MessageId, Vec<u32>>>,
    sent_ids: Mutex<Vec<MessageId>>,
}

#[async_trait]
impl Provider for ThrottlingProvider {
    fn name(&self) -> &'static str {
        "throttling"
    }

    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError> {
        let id = push.notification.message;
        (self.attempts.lock().entry(id).or_default()).push(push.attempt);
        if self.begin.elapsed() < THROTTLE_PAUSE {
            let mut error = ProviderError::new(NotifyFailure::Throttled, "later");
            error.retry_after = Some(THROTTLE_PAUSE);
            return Err(error);
        }
        self.sent_ids.lock().push(id);
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

/// Runs a throttled provider against `count` notifications, more than the horn has room for, and
/// returns its record.
async fn run_throttled(config: Config, count: usize) -> Arc<ThrottlingProvider> {
    let desk = Desk::new();
    crowd(&desk, count).await;
    let provider = Arc::new(ThrottlingProvider {
        begin: Instant::now(),
        attempts: Mutex::default(),
        sent_ids: Mutex::default(),
    });
    let horn = desk.horn(config, provider.clone()).await;
    tokio::time::sleep(THROTTLE_PAUSE * 2).await;
    horn.stop().await;
    provider
}

#[tokio::test(start_paused = true)]
async fn a_full_horn_stays_in_its_group_and_counts_its_attempts() {
    let config = Config::default();
    let count = config.pending_max + 104;
    let provider = run_throttled(config, count).await;
    let sent_ids = provider.sent_ids.lock();
    let mut distinct = sent_ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(
        (sent_ids.len(), distinct.len()),
        (count, count),
        "once each"
    );
    let attempts = provider.attempts.lock();
    let retries: Vec<_> = attempts.values().filter(|tries| tries.len() > 1).collect();
    assert_eq!(retries.len(), Config::default().concurrency);
    assert!(retries.iter().all(|tries| **tries == [1, 2]), "{retries:?}");
}

#[tokio::test(start_paused = true)]
async fn bytes_fill_a_horn_as_notifications_do() {
    let config = Config {
        pending_bytes_max: 1,
        concurrency: 1,
        ..Config::default()
    };
    let provider = run_throttled(config, 3000).await;
    assert_eq!(provider.sent_ids.lock().len(), 3000);
}

const LEDGER: Calls = Calls::to("ledger");
/// Dead letters.
const LETTERS: Calls = Calls::to("queue")
    .named("publish")
    .of_kind("notification-dead");

/// Parts that never answer these calls, until the fault ends.
fn hanging_parts(desk: &Desk, calls: &[Calls]) -> (Arc<Faults>, Parts) {
    let faults = Arc::new(Faults::default());
    for call in calls {
        faults.begin(*call, Fault::Hang);
    }
    let (hook, parts) = (faults.hook(), desk.parts());
    let parts = Parts {
        queue: Hooked::new(parts.queue.clone(), &hook),
        ledger: Hooked::new(parts.ledger.clone(), &hook),
        ..parts
    };
    (faults, parts)
}

#[tokio::test(start_paused = true)]
async fn hanging_ledger_blocks_no_calls_and_keeps_the_group() {
    let desk = Desk::new();
    let (faults, parts) = hanging_parts(&desk, &[LEDGER]);
    let provider = Arc::new(crate::Recorder::new(100));
    let shutdown = CancellationToken::new();
    let start = start_with(Config::default(), parts, provider.clone(), shutdown.clone());
    let horn_handle = start.await.expect("starts");
    let horn = Horn {
        handle: horn_handle,
        shutdown,
    };
    let first = desk.publish(mail(1)).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    desk.publish(mail(2)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(provider.recorded().len(), 2, "the second one is called");
    assert_eq!(desk.committed(first).await, 0);
    faults.end(LEDGER);
    desk.wait_for_commit(first, 2).await;
    assert_eq!(provider.recorded().len(), 2, "nobody is told again");
    horn.stop().await;
}

/// Provider that refuses the notifications of partition 0.
struct Choosy;

#[async_trait]
impl Provider for Choosy {
    fn name(&self) -> &'static str {
        "choosy"
    }

    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError> {
        match partition_of(&control_key(push.notification.target.user), 2) {
            0 => Err(ProviderError::new(NotifyFailure::Refused, "no")),
            _ => Ok(()),
        }
    }
}

// Regression: outcomes with and without letters were one call, so that nothing was committed while
// letters had no answer.
#[tokio::test(start_paused = true)]
async fn letters_that_have_no_answer_keep_back_no_other_outcomes() {
    const MIN_PER_PARTITION: u64 = 300;
    let desk = Desk::new();
    let (faults, parts) = hanging_parts(&desk, &[LETTERS]);
    let shutdown = CancellationToken::new();
    let start = start_with(quick(), parts, Arc::new(Choosy), shutdown.clone());
    let horn_handle = start.await.expect("starts");
    let horn = Horn {
        handle: horn_handle,
        shutdown,
    };
    let mut counts: BTreeMap<Partition, u64> = BTreeMap::new();
    let mut number = 0;
    while counts.len() < 2 || counts.values().any(|count| *count < MIN_PER_PARTITION) {
        number += 1;
        let mut notification = mail(number);
        notification.target.user = user(1 + number);
        *counts.entry(desk.publish(notification).await).or_default() += 1;
    }
    let [(stuck, stuck_count), (free, free_count)] = counts.into_iter().collect::<Vec<_>>()[..]
    else {
        panic!("two partitions");
    };
    desk.wait_for_commit(free, free_count).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(desk.committed(stuck).await, 0);
    faults.end(LETTERS);
    desk.wait_for_commit(stuck, stuck_count).await;
    let topic = Topic::NotificationDead;
    let letters = desk.queue.bounds(Partition { topic, number: 0 }).await;
    assert_eq!(letters.expect("there").1, stuck_count, "once each");
    horn.stop().await;
}

// Outcomes that log and ledger do not take come again; a stop does not wait for them for ever.
#[tokio::test(start_paused = true)]
async fn a_horn_ends_though_letters_and_outcomes_have_no_answer() {
    let desk = Desk::new();
    let (_, parts) = hanging_parts(&desk, &[LEDGER, LETTERS]);
    let shutdown = CancellationToken::new();
    let start = start_with(quick(), parts, Arc::new(Choosy), shutdown.clone());
    let horn_handle = start.await.expect("starts");
    crowd(&desk, 20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Horn {
        handle: horn_handle,
        shutdown,
    }
    .stop()
    .await;
}
