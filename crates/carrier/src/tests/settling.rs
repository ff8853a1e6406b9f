//! A log that takes some records and not others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use backend::Kind;
use backend::hook::{Hook, Hooked, Op};
use backend::queue::{NewRecord, Partition};
use bytes::Bytes;
use operator::dead_letters::{Filter, Letter, Selection};
use operator::desk::TaskOutcome;
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use protocol::{MessageId, Platform, Timestamp};
use tokio::time::Instant;

use super::world::*;
use crate::Config;
use crate::executor_queue::SettleWork;
use crate::records::Records;
use crate::settler::Settler;

/// A record of `topic message` whose only effect is a retry under a key.
fn retry(offset: u64, key: &'static str) -> SettleWork {
    let partition = |topic| Partition { topic, number: 0 };
    SettleWork {
        source: Source {
            topic: Topic::Message,
            partition: 0,
            offset,
        },
        records: vec![NewRecord {
            partition: partition(Topic::Retry(1)),
            key: Bytes::from_static(key.as_bytes()),
            headers: Vec::new(),
            value: Bytes::from(offset.to_string()),
        }],
        ledger: Vec::new(),
    }
}

async fn settle(settler: &mut Settler) -> Vec<u64> {
    settler.begin(Instant::now());
    let settled = settler.settled().await;
    settled.into_iter().map(|source| source.offset).collect()
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_overtake_an_earlier_one_of_its_key() {
    let world = World::without_carrier(Config::default()).await;
    let records = Records::new(
        world.backends.queue.clone(),
        "carrier-1",
        world.config.retry_bytes_max,
    );
    let mut settler = Settler::new(&world.backends, &world.config, records);
    let faults = &world.faults;
    faults.refuse_records(|record| (record.key == "one").then_some(Kind::Unavailable));
    [retry(1, "one"), retry(2, "two"), retry(3, "one")]
        .into_iter()
        .for_each(|effects| settler.add(effects));
    assert_eq!(settle(&mut settler).await, [2]);
    faults.accept_records();
    [retry(4, "one"), retry(5, "two")]
        .into_iter()
        .for_each(|effects| settler.add(effects));
    assert_eq!(settle(&mut settler).await, [5], "4 waits for 1 and 3");
    tokio::time::sleep(Duration::from_secs(10)).await;
    settler.add(retry(6, "one"));
    assert_eq!(settle(&mut settler).await, [1, 3, 4, 6]);
    let published = world.records(Topic::Retry(1)).await;
    let values: Vec<&[u8]> = published.iter().map(|record| &record.value[..]).collect();
    assert_eq!(values, [b"2", b"5", b"1", b"3", b"4", b"6"]);
    assert_eq!(settler.len(), 0);
}

/// Runs the settler for this time, and returns when each record was settled.
async fn drive(settler: &mut Settler, time: Duration) -> BTreeMap<u64, Duration> {
    let begin = Instant::now();
    let mut settled = BTreeMap::new();
    while begin.elapsed() < time {
        settler.begin(Instant::now());
        tokio::select! {
            biased;
            // Answers of the last moment count.
            sources = settler.settled() => {
                let offsets = sources.into_iter().map(|source| source.offset);
                settled.extend(offsets.map(|offset| (offset, begin.elapsed())));
            }
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    settled
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test(start_paused = true)]
async fn a_partition_that_hangs_holds_what_names_it_and_nothing_else() {
    let world = World::without_carrier(Config::default()).await;
    let records = Records::new(
        world.backends.queue.clone(),
        "carrier-1",
        world.config.retry_bytes_max,
    );
    let mut settler = Settler::new(&world.backends, &world.config, records);
    let away = Partition {
        topic: Topic::Retry(1),
        number: 2,
    };
    let faults = &world.faults;
    faults.without_leader(Some(away));
    let mut hanging = retry(0, "away");
    hanging.records[0].partition = away;
    let healthy = (1..=10).map(|offset| {
        let mut effects = retry(offset, "well");
        effects.records[0].partition.number = (offset % 2) as u32;
        effects
    });
    let mut effects: Vec<SettleWork> = [hanging].into_iter().chain(healthy).collect();
    effects.push(SettleWork::none(Source {
        offset: 11,
        ..effects[0].source
    }));
    effects.into_iter().for_each(|effects| settler.add(effects));
    let settled = drive(&mut settler, TEN_MINUTES).await;
    let offsets: Vec<u64> = settled.keys().copied().collect();
    assert_eq!(offsets, (1..=11).collect::<Vec<_>>());
    assert!(settled.values().all(|at| *at < Duration::from_millis(100)));
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 10);

    faults.without_leader(None);
    let settled = drive(&mut settler, Duration::from_secs(20)).await;
    assert_eq!(settled.into_keys().collect::<Vec<_>>(), [0]);
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 11);
    assert_eq!(settler.len(), 0);
}

/// Takes `latency` for every 128 entries, as a store that writes so many at a time, and nothing
/// while it is away.
struct SlowLedger {
    away: AtomicBool,
    rows: AtomicUsize,
    latency: Duration,
}

#[async_trait]
impl Hook for SlowLedger {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        if self.away.load(Ordering::SeqCst) {
            return Err(backend::Error::unavailable("ledger", "away"));
        }
        for rows in op.subjects.chunks(128) {
            tokio::time::sleep(self.latency).await;
            self.rows.fetch_add(rows.len(), Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Settles 16,384 records with ledger entries after an outage of a minute. Returns how many are
/// settled a minute later, and the rows written.
async fn after_an_outage(latency: Duration) -> (usize, usize) {
    let mut world = World::without_carrier(Config::default()).await;
    let ledger = Arc::new(SlowLedger {
        away: AtomicBool::new(true),
        rows: AtomicUsize::new(0),
        latency,
    });
    let hook: Arc<dyn Hook> = ledger.clone();
    world.backends.ledger = Hooked::new(world.backends.ledger.clone(), &hook);
    let records = Records::new(
        world.backends.queue.clone(),
        "carrier-1",
        world.config.retry_bytes_max,
    );
    let mut settler = Settler::new(&world.backends, &world.config, records);
    for offset in 0..16_384 {
        let mut effects = retry(offset, "ledger");
        effects.records.clear();
        effects.ledger.push(LedgerEntry {
            message: MessageId::new(1 + offset as i64).expect("positive"),
            at: Timestamp::from_millis(0),
            target: None,
            event: LedgerEvent::Settled,
        });
        settler.add(effects);
    }
    let early = drive(&mut settler, Duration::from_secs(60)).await;
    assert!(early.is_empty(), "{} without a ledger", early.len());
    ledger.away.store(false, Ordering::SeqCst);
    let settled = drive(&mut settler, Duration::from_secs(60)).await;
    (settled.len(), ledger.rows.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn what_the_ledger_missed_is_written_in_parts() {
    let once = after_an_outage(Duration::from_millis(40)).await;
    assert_eq!(once, (16_384, 16_384));
    // So slow that the first portions miss their deadline: 2,048 rows take eight seconds.
    let (settled, rows) = after_an_outage(Duration::from_millis(500)).await;
    assert!(settled > 10_000, "{settled} of 16,384");
    assert!(rows < 20_000, "{rows} rows of 16,384");
}

async fn letters(world: &World) -> Vec<Letter> {
    let desk = world.dead_letters();
    let page = desk.list(&Filter::default(), None, 10).await;
    page.expect("readable").letters
}

async fn redrive_all(world: &World) -> TaskOutcome {
    let all = Selection::Filter {
        filter: Filter::default(),
        limit: 10,
    };
    let done = world.redrive(&all).await.expect("redriven");
    done[0].outcome
}

fn is_of(record: &NewRecord, retry: bool) -> bool {
    matches!(record.partition.topic, Topic::Retry(_)) == retry
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_log_never_takes_is_a_letter() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let faults = &world.faults;
    faults.refuse_records(|record| is_of(record, true).then_some(Kind::Conflict));
    let id = world.send(ALICE, BOB).await;
    world.until_quiet().await;
    let [letter] = &letters(&world).await[..] else {
        panic!("one letter");
    };
    assert_eq!(letter.reason, DeadReason::TooLarge);
    assert_eq!(
        (letter.message, &letter.targets[..]),
        (Some(id), &["2/web".to_owned()][..])
    );
    let events = world.events(id).await;
    let dead = |event: &LedgerEvent| matches!(event, LedgerEvent::Dead { letter: l, .. } if *l == letter.id);
    let target = Some(target(BOB, Platform::Web));
    assert!(
        events
            .iter()
            .any(|(whose, event)| *whose == target && dead(event)),
        "{events:?}"
    );

    faults.accept_records();
    world
        .sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)
        .await;
    assert_eq!(redrive_all(&world).await, TaskOutcome::ToRetry);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(21), [id.get()]);
}

// The letter of such a retry is as large: it goes without its body, and its origin still has the
// message.
#[tokio::test(start_paused = true)]
async fn a_letter_that_the_log_never_takes_goes_without_its_body() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let faults = &world.faults;
    let refused = |record: &NewRecord| is_of(record, true) || !record.value.is_empty();
    faults.refuse_records(move |record| refused(record).then_some(Kind::Conflict));
    let id = world.send(ALICE, BOB).await;
    world.until_quiet().await;
    let [letter] = &letters(&world).await[..] else {
        panic!("one letter");
    };
    assert_eq!((letter.message, letter.bytes), (Some(id), 0));

    faults.accept_records();
    world
        .sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)
        .await;
    assert_eq!(redrive_all(&world).await, TaskOutcome::ToMessage);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(21), [id.get()]);
}

#[tokio::test(start_paused = true)]
async fn what_the_log_takes_in_no_shape_is_given_up_and_stands_in_the_ledger() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    world.know(3, Platform::Ios).await;
    let faults = &world.faults;
    faults.refuse_records(|_| Some(Kind::Conflict));
    let pushed = world.send(ALICE, BOB).await;
    let notified = world.send(ALICE, 3).await;
    world.until_quiet().await;
    let dead = |event: &LedgerEvent| matches!(event, LedgerEvent::Dead { .. });
    assert!(
        world
            .events(pushed)
            .await
            .iter()
            .any(|(_, event)| dead(event))
    );
    let untold =
        |event: &LedgerEvent| matches!(event, LedgerEvent::NotificationSent { ok: false, .. });
    assert!(
        world
            .events(notified)
            .await
            .iter()
            .any(|(_, event)| untold(event))
    );
    assert_eq!(world.waiting(3, Platform::Ios).await, 1);
    let taken = Arc::new(AtomicBool::new(false));
    let seen = taken.clone();
    faults.refuse_records(move |_| {
        seen.store(true, Ordering::SeqCst);
        None
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!taken.load(Ordering::SeqCst), "nothing is tried again");
}
