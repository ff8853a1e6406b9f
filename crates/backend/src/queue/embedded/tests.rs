use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tempfile::TempDir;

use super::super::Polled;
use super::super::contract::{self, BehindAHook, World};
use super::*;
use crate::Kind;
use crate::clock::SystemClock;
use crate::embedded::EngineOptions;
use crate::embedded::engine::tests::copy_dir;

const AT: Partition = Partition {
    topic: Topic::Message,
    number: 0,
};

/// In memory, where time may be paused. A store on disk has threads, and members of real time.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

fn config() -> QueueConfig {
    QueueConfig {
        poll_interval_max: POLL_INTERVAL,
        partitions: 4,
        ..QueueConfig::default()
    }
}

fn open(engine: &Engine) -> EmbeddedQueue {
    EmbeddedQueue::open(engine.clone(), config(), Arc::new(SystemClock)).unwrap()
}

fn open_on_disk(dir: &TempDir) -> EmbeddedQueue {
    let engine = Engine::open(dir.path(), EngineOptions::default()).unwrap();
    let patient = QueueConfig {
        poll_interval_max: QueueConfig::default().poll_interval_max,
        ..config()
    };
    EmbeddedQueue::open(engine, patient, Arc::new(SystemClock)).unwrap()
}

struct InMemory {
    engine: Engine,
    queue: EmbeddedQueue,
}

impl InMemory {
    fn new() -> InMemory {
        let engine = Engine::memory();
        InMemory {
            queue: open(&engine),
            engine,
        }
    }
}

#[async_trait]
impl World for InMemory {
    fn queue(&self) -> Arc<dyn Queue> {
        Arc::new(self.queue.clone())
    }

    async fn crash(&mut self) {
        self.engine = self.engine.crash(0).unwrap();
        self.queue = open(&self.engine);
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(POLL_INTERVAL)
    }
}

struct OnDisk {
    dir: TempDir,
    queue: EmbeddedQueue,
}

impl OnDisk {
    fn new() -> OnDisk {
        let dir = TempDir::new().unwrap();
        let queue = open_on_disk(&dir);
        OnDisk { dir, queue }
    }
}

#[async_trait]
impl World for OnDisk {
    fn queue(&self) -> Arc<dyn Queue> {
        Arc::new(self.queue.clone())
    }

    async fn crash(&mut self) {
        self.dir = copy_dir(self.dir.path());
        self.queue = open_on_disk(&self.dir);
    }
}

// proves S1-02
#[tokio::test(start_paused = true)]
async fn keeps_the_contract_in_memory() {
    contract::all(|| Box::pin(async { InMemory::new() })).await;
}

#[tokio::test(start_paused = true)]
async fn keeps_the_contract_behind_a_hook() {
    contract::all(|| Box::pin(async { BehindAHook(InMemory::new()) })).await;
}

// proves S1-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_the_contract_on_disk() {
    contract::all(|| Box::pin(async { OnDisk::new() })).await;
    crate::test_servers::ran("queue", "embedded");
}

fn record(value: impl Into<Bytes>) -> NewRecord {
    NewRecord {
        partition: AT,
        key: Bytes::from_static(b"key"),
        headers: Vec::new(),
        value: value.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn records_are_invisible_until_they_are_durable() {
    let world = InMemory::new();
    let mut consumer = world
        .queue
        .subscribe("carrier", Topic::Message)
        .await
        .unwrap();
    assert!(matches!(
        consumer.poll(9).await.unwrap(),
        Polled::Assigned(_)
    ));
    world.engine.hold_syncs();
    let producer = world.queue.producer();
    let mut publish = producer.publish(vec![record("a")]);
    assert!((&mut publish).now_or_never().is_none(), "not acknowledged");
    assert!(consumer.poll(9).now_or_never().is_none(), "not delivered");
    assert_eq!(world.queue.bounds(AT).await.unwrap(), (0, 0));
    assert!(world.queue.read(AT, 0, 9).await.unwrap().is_empty());
    let second_queue = open(&world.engine.crash(0).unwrap());
    assert!(publish.await[0].is_err());
    assert_eq!(second_queue.bounds(AT).await.unwrap(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_gave_up_still_has_its_record_delivered() {
    let world = InMemory::new();
    world.engine.hold_syncs();
    let producer = world.queue.producer();
    let mut publish = producer.publish(vec![record("a")]);
    assert!((&mut publish).now_or_never().is_none());
    drop(publish);
    world.engine.release_syncs();
    let mut consumer = world
        .queue
        .subscribe("carrier", Topic::Message)
        .await
        .unwrap();
    consumer.poll(9).await.unwrap();
    let Polled::Records(records) = consumer.poll(9).await.unwrap() else {
        panic!("a record was published");
    };
    assert_eq!(records[0].value, "a");
}

#[tokio::test]
async fn a_failed_fsync_acknowledges_nothing_and_refuses_the_next() {
    let world = OnDisk::new();
    let producer = world.queue.producer();
    assert_eq!(
        producer.publish(vec![record("a")]).await[0]
            .as_ref()
            .unwrap(),
        &0
    );
    world.queue.state.engine.fail_syncs();
    for _ in 0..2 {
        let answers = producer.publish(vec![record("b"), record("c")]).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind, Kind::Unavailable);
        }
    }
    assert_eq!(world.queue.bounds(AT).await.unwrap(), (0, 1));
    assert_eq!(world.queue.read(AT, 0, 9).await.unwrap().len(), 1);
}

/// A clock that a test sets.
struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn append_times_do_not_go_back_with_the_clock() {
    let clock = Arc::new(HandClock(AtomicI64::new(7_200_000)));
    let queue = EmbeddedQueue::open(Engine::memory(), config(), clock.clone()).unwrap();
    for now in [7_200_000, 5, 7_200_001] {
        clock.0.store(now, Ordering::Relaxed);
        let answers = queue.producer().publish(vec![record("a")]).await;
        assert!(answers[0].is_ok());
    }
    let records = queue.read(AT, 0, 9).await.unwrap();
    let times: Vec<i64> = records.iter().map(|r| r.appended_at.millis()).collect();
    assert_eq!(times, [7_200_000, 7_200_000, 7_200_001]);
}

#[tokio::test(start_paused = true)]
async fn partition_count_is_fixed_and_large_records_are_refused() {
    let world = InMemory::new();
    let other_config = QueueConfig {
        partitions: 8,
        ..config()
    };
    let clock = Arc::new(SystemClock);
    let outcome = EmbeddedQueue::open(world.engine.clone(), other_config, clock);
    assert_eq!(outcome.err().unwrap().kind, Kind::Conflict);
    let large = vec![0; config().record_bytes_max];
    let answers = world
        .queue
        .producer()
        .publish(vec![record(large), record("b")])
        .await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind, Kind::Conflict);
    assert_eq!(answers[1].as_ref().unwrap(), &0);
}

#[tokio::test(start_paused = true)]
async fn records_beyond_the_tail_are_read_from_the_store() {
    let world = InMemory::new();
    let records = (0..3000u32)
        .map(|n| record(n.to_be_bytes().to_vec()))
        .collect();
    world.queue.producer().publish(records).await;
    let mut received_records = Vec::new();
    let mut consumer = world
        .queue
        .subscribe("carrier", Topic::Message)
        .await
        .unwrap();
    while received_records.len() < 3000 {
        if let Polled::Records(records) = consumer.poll(700).await.unwrap() {
            received_records.extend(records);
        }
    }
    for (n, record) in (0..3000u32).zip(&received_records) {
        assert_eq!(
            (record.offset, &record.value[..]),
            (u64::from(n), &n.to_be_bytes()[..])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_poll_returns_about_as_many_bytes_as_configured() {
    let engine = Engine::memory();
    let small = QueueConfig {
        poll_bytes: 1000,
        ..config()
    };
    let queue = EmbeddedQueue::open(engine, small, Arc::new(SystemClock)).unwrap();
    let records = (0..10)
        .map(|_| record(vec![7; 450]))
        .chain([record(vec![7; 5000])]);
    queue.producer().publish(records.collect()).await;
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 11 {
        if let Polled::Records(records) = consumer.poll(100).await.unwrap() {
            sizes.push(records.len());
        }
    }
    assert_eq!(sizes, [2, 2, 2, 2, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn retention_removes_what_every_group_has_passed_and_is_old() {
    let world = InMemory::new();
    let queue = &world.queue;
    let producer = queue.producer();
    producer
        .publish((0..2500).map(|_| record("a")).collect())
        .await;
    let mut dead = record("dead");
    dead.partition.topic = Topic::Dead;
    producer.publish(vec![dead]).await;
    let now = SystemClock.now();
    let week = now + config().retention;
    let mut carrier = queue.subscribe("carrier", Topic::Message).await.unwrap();
    carrier.poll(1).await.unwrap();
    assert_eq!(queue.trim(week).await.unwrap(), 0, "carrier has not passed");
    carrier.commit(&[(AT, 2400)]).await.unwrap();
    assert_eq!(
        queue.trim(week - Duration::from_secs(60)).await.unwrap(),
        0,
        "young"
    );
    let mut slow = queue.subscribe("audit", Topic::Message).await.unwrap();
    slow.poll(1).await.unwrap();
    slow.commit(&[(AT, 10)]).await.unwrap();
    assert_eq!(queue.trim(week).await.unwrap(), 10);
    slow.commit(&[(AT, 2500)]).await.unwrap();
    assert_eq!(queue.trim(week).await.unwrap(), 2390);
    assert_eq!(queue.bounds(AT).await.unwrap(), (2400, 2500));
    let first_records = queue.read(AT, 0, 1).await.unwrap();
    assert_eq!(
        first_records[0].offset, 2400,
        "reading before the first begins there"
    );
    carrier.commit(&[(AT, 2500)]).await.unwrap();
    assert_eq!(
        queue.trim(now + config().retention_unread).await.unwrap(),
        101,
        "and the dead"
    );

    // Offsets continue after a restart even though no record is left to show where they were.
    let second_queue = open(&world.engine.crash(usize::MAX).unwrap());
    assert_eq!(second_queue.bounds(AT).await.unwrap(), (2500, 2500));
    assert_eq!(
        second_queue.producer().publish(vec![record("b")]).await[0]
            .as_ref()
            .unwrap(),
        &2500
    );
    assert_eq!(
        second_queue.committed("audit", AT).await.unwrap(),
        Some(2500)
    );
}

#[tokio::test(start_paused = true)]
async fn operations_outlast_the_letters_that_they_are_about() {
    let world = InMemory::new();
    let in_topic = |topic| {
        let mut record = record("a");
        record.partition = Partition { topic, number: 0 };
        record
    };
    let records = [Topic::Dead, Topic::Operation].map(in_topic);
    world.queue.producer().publish(records.to_vec()).await;
    let unread = config().retention_unread;
    let trim = async |age: Duration| world.queue.trim(SystemClock.now() + age).await.unwrap();
    assert_eq!(trim(unread).await, 1, "the letter");
    assert_eq!(trim(unread * 2 - Duration::from_secs(60)).await, 0);
    assert_eq!(trim(unread * 2).await, 1, "and what was done with it");
}

#[test]
fn offsets_that_were_refused_are_given_again() {
    let engine = Engine::memory();
    let log = PartitionLog::open(&engine, AT, 1 << 20).unwrap();
    for n in 0..3 {
        assert_eq!(log.append(Bytes::from_static(b"record")), n);
    }
    log.make_visible(1);
    log.truncate_from(1);
    assert_eq!(log.append(Bytes::from_static(b"other")), 1);
    assert_eq!(log.bounds(), (0, 1));
}

/// Not a test but a measurement:
/// `cargo test --release -p backend publish_throughput -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, in release"]
#[allow(clippy::print_stdout, clippy::disallowed_methods)]
async fn publish_throughput() {
    for publishers in [1, 16, 128, 512] {
        let world = OnDisk::new();
        let total = if publishers == 1 { 5_000 } else { 200_000 };
        let each = total / publishers;
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut consumer = world
            .queue
            .subscribe("carrier", Topic::Message)
            .await
            .unwrap();
        let consumer_task = tokio::spawn(async move {
            let mut received_count = 0;
            while received_count < each * publishers {
                if let Polled::Records(records) = consumer.poll(500).await.unwrap() {
                    received_count += records.len();
                }
            }
        });
        let publisher_tasks: Vec<_> = (0..publishers)
            .map(|n| {
                let producer = world.queue.producer();
                tokio::spawn(async move {
                    let mut waits = Vec::with_capacity(each);
                    for _ in 0..each {
                        let mut record = record(vec![7u8; 256]);
                        record.partition.number = n as u32 % 4;
                        let sent_at = Instant::now();
                        let answers = producer.publish(vec![record]).await;
                        answers[0].as_ref().unwrap();
                        waits.push(sent_at.elapsed());
                    }
                    waits
                })
            })
            .collect();
        let mut waits = Vec::new();
        for publisher in publisher_tasks {
            waits.extend(publisher.await.unwrap());
        }
        consumer_task.await.unwrap();
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        waits.sort();
        println!(
            "{publishers:>4} publishers: {:>7.0} records/s, {:.1} µs CPU a record, p50 {:?}, p99 {:?}",
            waits.len() as f64 / seconds,
            cpu * 1e6 / waits.len() as f64,
            waits[waits.len() / 2],
            waits[waits.len() * 99 / 100],
        );
    }
}

/// User and system time of this process, from /proc (in hundredths of a second).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let fields = after_name.split(' ').skip(11).take(2);
    fields
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}
