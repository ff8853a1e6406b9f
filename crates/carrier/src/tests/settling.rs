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
use operator::dead_letters::rules::TaskOutcome;
use operator::dead_letters::{Filter, Letter, Selection};
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
    let sources = settler.settled().await;
    sources.into_iter().map(|source| source.offset).collect()
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_overtake_an_earlier_one_of_its_key() {
    let world = World::without_carrier(Config::default()).await;
    let records = Records::new(&world.backends, &world.config);
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
    let retries = world.records(Topic::Retry(1)).await;
    let values: Vec<&[u8]> = retries.iter().map(|record| &record.value[..]).collect();
    assert_eq!(values, [b"2", b"5", b"1", b"3", b"4", b"6"]);
    assert_eq!(settler.len(), 0);
}

/// Runs the settler for this time, and returns when each record was settled.
async fn drive(settler: &mut Settler, time: Duration) -> BTreeMap<u64, Duration> {
    let start = Instant::now();
    let mut settle_times = BTreeMap::new();
    while start.elapsed() < time {
        settler.begin(Instant::now());
        tokio::select! {
            biased;
            // Answers of the last moment count.
            sources = settler.settled() => {
                let offsets = sources.into_iter().map(|source| source.offset);
                settle_times.extend(offsets.map(|offset| (offset, start.elapsed())));
            }
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    settle_times
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test(start_paused = true)]
async fn a_partition_that_hangs_holds_what_names_it_and_nothing_else() {
    let world = World::without_carrier(Config::default()).await;
    let records = Records::new(&world.backends, &world.config);
    let mut settler = Settler::new(&world.backends, &world.config, records);
    let down_partition = Partition {
        topic: Topic::Retry(1),
        number: 2,
    };
    let faults = &world.faults;
    faults.without_leader(Some(down_partition));
    let mut stuck_effects = retry(0, "away");
    stuck_effects.records[0].partition = down_partition;
    let healthy = (1..=10).map(|offset| {
        let mut effects = retry(offset, "well");
        effects.records[0].partition.number = (offset % 2) as u32;
        effects
    });
    let mut effects: Vec<SettleWork> = [stuck_effects].into_iter().chain(healthy).collect();
    effects.push(SettleWork::none(Source {
        offset: 11,
        ..effects[0].source
    }));
    effects.into_iter().for_each(|work| settler.add(work));
    let settle_times = drive(&mut settler, TEN_MINUTES).await;
    let offsets: Vec<u64> = settle_times.keys().copied().collect();
    assert_eq!(offsets, (1..=11).collect::<Vec<_>>());
    assert!(
        settle_times
            .values()
            .all(|at| *at < Duration::from_millis(100))
    );
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 10);

    faults.without_leader(None);
    let settle_times = drive(&mut settler, Duration::from_secs(20)).await;
    assert_eq!(settle_times.into_keys().collect::<Vec<_>>(), [0]);
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 11);
    assert_eq!(settler.len(), 0);
}

/// Takes `latency` for every 128 entries, as a store that writes so many at a time, and nothing
/// while it is away.
struct SlowLedger {
    is_away: AtomicBool,
    rows: AtomicUsize,
    latency: Duration,
}

#[async_trait]
impl Hook for SlowLedger {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        if self.is_away.load(Ordering::SeqCst) {
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
async fn settle_after_outage(latency: Duration) -> (usize, usize) {
    let mut world = World::without_carrier(Config::default()).await;
    let ledger = Arc::new(SlowLedger {
        is_away: AtomicBool::new(true),
        rows: AtomicUsize::new(0),
        latency,
    });
    let hook: Arc<dyn Hook> = ledger.clone();
    world.backends.ledger = Hooked::new(world.backends.ledger.clone(), &hook);
    let records = Records::new(&world.backends, &world.config);
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
    let premature = drive(&mut settler, Duration::from_secs(60)).await;
    assert!(premature.is_empty(), "{} without a ledger", premature.len());
    ledger.is_away.store(false, Ordering::SeqCst);
    let settle_times = drive(&mut settler, Duration::from_secs(60)).await;
    (settle_times.len(), ledger.rows.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn the_ledger_backlog_is_written_in_parts() {
    let counts = settle_after_outage(Duration::from_millis(40)).await;
    assert_eq!(counts, (16_384, 16_384));
    // So slow that the first portions miss their deadline: 2,048 rows take eight seconds.
    let (settled_count, rows) = settle_after_outage(Duration::from_millis(500)).await;
    assert!(settled_count > 10_000, "{settled_count} of 16,384");
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
    let outcomes = world.redrive(&all).await.expect("redriven");
    outcomes[0].outcome
}

fn is_kind(record: &NewRecord, retry: bool) -> bool {
    matches!(record.partition.topic, Topic::Retry(_)) == retry
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_the_log_never_takes_is_a_letter() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let faults = &world.faults;
    faults.refuse_records(|new_record| is_kind(new_record, true).then_some(Kind::Conflict));
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    let [letter] = &letters(&world).await[..] else {
        panic!("one letter");
    };
    assert_eq!(letter.reason, DeadReason::TooLarge);
    assert_eq!(
        (letter.message, &letter.targets[..]),
        (Some(id), &["2/web".to_owned()][..])
    );
    let events = world.events(id).await;
    let is_dead = |event: &LedgerEvent| matches!(event, LedgerEvent::Dead { letter: l, .. } if *l == letter.id);
    let target = Some(target(BOB, Platform::Web));
    assert!(
        events
            .iter()
            .any(|(event_target, event)| *event_target == target && is_dead(event)),
        "{events:?}"
    );

    faults.accept_records();
    world
        .sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)
        .await;
    assert_eq!(redrive_all(&world).await, TaskOutcome::ToRetry);
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(21), [id.get()]);
}

// The letter of such a retry is as large: it goes without its body, and its origin still has the
// message.
#[tokio::test(start_paused = true)]
async fn a_letter_that_the_log_never_takes_goes_without_its_body() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let faults = &world.faults;
    let is_too_large = |record: &NewRecord| is_kind(record, true) || !record.value.is_empty();
    faults.refuse_records(move |record| is_too_large(record).then_some(Kind::Conflict));
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    let [letter] = &letters(&world).await[..] else {
        panic!("one letter");
    };
    assert_eq!((letter.message, letter.bytes), (Some(id), 0));

    faults.accept_records();
    world
        .sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)
        .await;
    assert_eq!(redrive_all(&world).await, TaskOutcome::ToMessage);
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(21), [id.get()]);
}

#[tokio::test(start_paused = true)]
async fn records_refused_in_every_form_are_given_up_and_ledgered() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    world.register_device(3, Platform::Ios).await;
    let faults = &world.faults;
    faults.refuse_records(|_| Some(Kind::Conflict));
    let pushed_id = world.send(ALICE, BOB).await;
    let notified_id = world.send(ALICE, 3).await;
    world.wait_until_committed().await;
    let is_dead = |event: &LedgerEvent| matches!(event, LedgerEvent::Dead { .. });
    assert!(
        world
            .events(pushed_id)
            .await
            .iter()
            .any(|(_, event)| is_dead(event))
    );
    let is_failed_notification =
        |event: &LedgerEvent| matches!(event, LedgerEvent::NotificationSent { ok: false, .. });
    assert!(
        world
            .events(notified_id)
            .await
            .iter()
            .any(|(_, event)| is_failed_notification(event))
    );
    assert_eq!(world.waiting(3, Platform::Ios).await, 1);
    let was_tried = Arc::new(AtomicBool::new(false));
    let was_tried_again = was_tried.clone();
    faults.refuse_records(move |_| {
        was_tried_again.store(true, Ordering::SeqCst);
        None
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!was_tried.load(Ordering::SeqCst), "nothing is tried again");
}
