//! Contract tests of every log. A backend runs [`all`] over its [`World`]; the suite waits where
//! backends differ in timing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::keys::{self, Topic};
use tokio::time::{Instant, sleep, timeout};

use super::{Consumer, NewRecord, Partition, Polled, Producer, Queue, Record};
use crate::Kind;
use crate::hook::Hooked;
use crate::hook::tests::passing;

/// One installation, new and empty, whose topic `message` has four partitions.
#[async_trait]
pub(crate) trait World: Send {
    fn queue(&self) -> Arc<dyn Queue>;

    /// Ends all our processes at once, as in a power failure; `queue` then returns a new one on the
    /// same installation. Consumers from before do nothing more.
    async fn crash(&mut self);

    /// Longest allowed time between two polls of a member, if a test can afford to wait for it.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }
}

/// Another world, its log behind a hook.
pub(crate) struct BehindAHook<W>(pub(crate) W);

#[async_trait]
impl<W: World + Sync> World for BehindAHook<W> {
    fn queue(&self) -> Arc<dyn Queue> {
        Hooked::new(self.0.queue(), &passing())
    }

    async fn crash(&mut self) {
        self.0.crash().await;
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.0.poll_interval()
    }
}

/// Time within which an expected event must happen: real groups need seconds to agree, and much more
/// on a busy machine.
const EVENT_TIMEOUT: Duration = Duration::from_secs(120);

/// Time to watch for an event that must not happen.
const QUIET_PERIOD: Duration = Duration::from_millis(50);

type Check<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Runs each check in a world of its own.
fn checks<W, F>(make: &F) -> Vec<Check<'_>>
where
    W: World,
    F: Fn() -> Pin<Box<dyn Future<Output = W> + Send>> + Sync,
{
    macro_rules! each {
        ($($check:ident),* $(,)?) => {
            vec![$(Box::pin(async move { $check(make().await).await })),*]
        };
    }
    each![
        acknowledged_records_survive_a_crash,
        records_come_back_as_they_were_published,
        each_key_keeps_its_order,
        a_bad_record_fails_alone,
        commits_only_move_forward,
        returning_member_continues_at_its_commit,
        after_a_crash_nothing_uncommitted_is_skipped,
        groups_read_on_their_own,
        other_topics_are_not_disturbed,
        two_members_share,
        a_revoked_partition_delivers_and_commits_no_more,
        pause_holds_back_and_resume_lets_go,
        a_dropped_poll_loses_nothing,
        a_member_that_does_not_poll_leaves_its_group,
        a_member_that_hangs_is_noticed_by_one_that_sleeps,
        operators_read_without_a_group,
    ]
}

/// Number of worlds created in all.
#[cfg(feature = "kafka")]
pub(crate) const WORLDS: usize = 16;

pub(crate) async fn all<W, F>(make: F)
where
    W: World,
    F: Fn() -> Pin<Box<dyn Future<Output = W> + Send>> + Sync,
{
    for check in checks(&make) {
        check.await;
    }
}

/// Runs several checks at a time, for backends that spend most of the time waiting.
#[cfg(feature = "kafka")]
pub(crate) async fn all_at_once<W, F>(make: F)
where
    W: World,
    F: Fn() -> Pin<Box<dyn Future<Output = W> + Send>> + Sync,
{
    use futures_util::StreamExt;
    let checks = futures_util::stream::iter(checks(&make));
    checks.buffer_unordered(6).collect::<()>().await;
}

fn at(number: u32) -> Partition {
    Partition {
        topic: Topic::Message,
        number,
    }
}

fn record(partition: Partition, key: &str, value: String) -> NewRecord {
    NewRecord {
        partition,
        key: Bytes::copy_from_slice(key.as_bytes()),
        headers: Vec::new(),
        value: value.into(),
    }
}

/// `count` records for one partition, with values 0, 1, 2 …
fn numbered(partition: Partition, count: usize) -> Vec<NewRecord> {
    (0..count)
        .map(|n| record(partition, "key", n.to_string()))
        .collect()
}

async fn publish(producer: &Arc<dyn Producer>, records: Vec<NewRecord>) -> Vec<u64> {
    let answers = producer.publish(records).await;
    answers.into_iter().map(|offset| offset.unwrap()).collect()
}

fn values(records: &[Record]) -> Vec<String> {
    records
        .iter()
        .map(|record| String::from_utf8(record.value.to_vec()).unwrap())
        .collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// A member, its assignment and the records it received.
struct Member {
    consumer: Box<dyn Consumer>,
    partitions: BTreeSet<Partition>,
    records: Vec<Record>,
    /// Start of the last poll.
    polled_at: Instant,
}

impl Member {
    async fn join(queue: &Arc<dyn Queue>, group: &str) -> Member {
        Member {
            consumer: queue.subscribe(group, Topic::Message).await.unwrap(),
            partitions: BTreeSet::new(),
            records: Vec::new(),
            polled_at: Instant::now(),
        }
    }

    /// Polls once, giving up after a short time.
    async fn step(&mut self) -> Option<Polled> {
        self.polled_at = Instant::now();
        let outcome = timeout(QUIET_PERIOD, self.consumer.poll(100))
            .await
            .ok()?
            .unwrap();
        match &outcome {
            Polled::Records(records) => {
                for record in records {
                    assert!(self.partitions.contains(&record.partition), "not its own");
                }
                self.records.extend(records.iter().cloned());
            }
            Polled::Assigned(partitions) => self.partitions.extend(partitions),
            Polled::Revoked(partitions) | Polled::Lost(partitions) => {
                self.partitions
                    .retain(|partition| !partitions.contains(partition));
            }
        }
        Some(outcome)
    }

    /// Polls until it has seen `count` records in all.
    async fn receive(&mut self, count: usize) -> &[Record] {
        let wait = async {
            while self.records.len() < count {
                self.step().await;
            }
        };
        let outcome = timeout(EVENT_TIMEOUT, wait).await;
        assert!(
            outcome.is_ok(),
            "{} of {count} records came",
            self.records.len()
        );
        assert_eq!(self.records.len(), count, "more than were published");
        &self.records
    }

    async fn hold(&mut self, count: usize) {
        let wait = async {
            while self.partitions.len() != count {
                self.step().await;
            }
        };
        let outcome = timeout(EVENT_TIMEOUT, wait).await;
        assert!(outcome.is_ok(), "holds {:?}, not {count}", self.partitions);
    }
}

/// Polls both members until each holds two partitions.
async fn share(a: &mut Member, b: &mut Member) {
    let rebalance = async {
        while (a.partitions.len(), b.partitions.len()) != (2, 2) {
            a.step().await;
            b.step().await;
        }
    };
    timeout(EVENT_TIMEOUT, rebalance)
        .await
        .expect("four partitions, two each");
    assert!(a.partitions.is_disjoint(&b.partitions));
}

async fn acknowledged_records_survive_a_crash(mut world: impl World) {
    let producer = world.queue().producer();
    let epoch = world.queue().epoch();
    let offsets = publish(&producer, numbered(at(1), 20)).await;
    assert!(offsets.is_sorted_by(|a, b| a < b));
    let more = publish(&producer, numbered(at(1), 3)).await;
    assert!(more[0] > offsets[19]);
    world.crash().await;
    let queue = world.queue();
    let read_back = queue.read(at(1), 0, 100).await.unwrap();
    assert_eq!(values(&read_back), [numbers(0..20), numbers(0..3)].concat());
    let read_back: Vec<u64> = read_back.iter().map(|record| record.offset).collect();
    assert_eq!(read_back, [offsets, more].concat());
    assert_eq!(queue.epoch(), epoch);
    let new_offsets = publish(&queue.producer(), numbered(at(1), 1)).await;
    assert!(
        new_offsets[0] > read_back[22],
        "an offset is never given twice"
    );
}

async fn records_come_back_as_they_were_published(world: impl World) {
    let queue = world.queue();
    let mut new = record(at(0), "", String::new());
    new.headers = vec![
        ("reason".into(), Bytes::from_static(b"expired")),
        ("empty".into(), Bytes::new()),
    ];
    new.value = Bytes::from(vec![0, 159, 146, 150]);
    new.key = Bytes::from_static(&[1, 0, 255]);
    publish(
        &queue.producer(),
        vec![new.clone(), record(at(0), "k", String::new())],
    )
    .await;
    let mut member = Member::join(&queue, "carrier").await;
    let records = member.receive(2).await.to_vec();
    assert_eq!(records[0].key, new.key);
    assert_eq!(records[0].value, new.value);
    assert_eq!(records[0].headers, new.headers);
    assert_eq!(records[0].header("reason").unwrap(), "expired");
    assert_eq!(records[0].header("other"), None);
    assert!(records[1].value.is_empty());
    assert!(records[1].appended_at >= records[0].appended_at);
    let read = queue.read(at(0), records[0].offset, 10).await.unwrap();
    assert_eq!(read, records);
}

async fn each_key_keeps_its_order(world: impl World) {
    let queue = world.queue();
    let partitions = queue.partitions(Topic::Message);
    assert_eq!(partitions, 4, "what the suite needs");
    let publishers = (0..8).map(|publisher| {
        let producer = queue.producer();
        tokio::spawn(async move {
            let key = format!("key-{publisher}");
            let partition = at(keys::partition_of(key.as_bytes(), partitions));
            for n in 0..25 {
                publish(&producer, vec![record(partition, &key, n.to_string())]).await;
            }
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let mut member = Member::join(&queue, "carrier").await;
    let mut by_key: BTreeMap<Bytes, Vec<String>> = BTreeMap::new();
    let mut last: BTreeMap<Partition, u64> = BTreeMap::new();
    for record in member.receive(8 * 25).await {
        let previous = last.insert(record.partition, record.offset);
        assert!(previous.is_none_or(|previous| previous < record.offset));
        let value = values(std::slice::from_ref(record)).remove(0);
        by_key.entry(record.key.clone()).or_default().push(value);
    }
    assert_eq!(by_key.len(), 8);
    assert!(by_key.values().all(|values| *values == numbers(0..25)));
    for publisher in publishers {
        publisher.await.unwrap();
    }
}

async fn a_bad_record_fails_alone(world: impl World) {
    let queue = world.queue();
    let answers = queue
        .producer()
        .publish(vec![
            record(at(0), "k", "0".into()),
            record(at(9999), "k", "nowhere".into()),
            record(at(0), "k", "1".into()),
        ])
        .await;
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
    let records = queue.read(at(0), 0, 9).await.unwrap();
    assert_eq!(values(&records), numbers(0..2));
    assert!(queue.producer().publish(Vec::new()).await.is_empty());
}

async fn commits_only_move_forward(world: impl World) {
    let queue = world.queue();
    let offsets = publish(&queue.producer(), numbered(at(2), 10)).await;
    let mut member = Member::join(&queue, "carrier").await;
    member.hold(4).await;
    assert_eq!(queue.committed("carrier", at(2)).await.unwrap(), None);
    let consumer = &mut member.consumer;
    for (commit, expected) in [(5, 5), (3, 5), (5, 5), (7, 7)] {
        consumer.commit(&[(at(2), offsets[commit])]).await.unwrap();
        let offset = queue.committed("carrier", at(2)).await.unwrap();
        assert_eq!(offset, Some(offsets[expected]));
    }
    let outcome = consumer.commit(&[(at(2), offsets[9] + 2)]).await;
    assert_eq!(outcome.unwrap_err().kind, Kind::Conflict, "not in the log");
    assert_eq!(queue.committed("carrier", at(1)).await.unwrap(), None);
    assert_eq!(queue.committed("horn", at(2)).await.unwrap(), None);
}

async fn returning_member_continues_at_its_commit(world: impl World) {
    let queue = world.queue();
    let producer = queue.producer();
    publish(&producer, numbered(at(0), 10)).await;
    publish(&producer, numbered(at(3), 2)).await;
    let mut member = Member::join(&queue, "carrier").await;
    let records = member.receive(12).await.to_vec();
    let fourth = records
        .iter()
        .filter(|r| r.partition == at(0))
        .nth(4)
        .unwrap();
    member
        .consumer
        .commit(&[(at(0), fourth.offset)])
        .await
        .unwrap();
    drop(member);
    let mut second_member = Member::join(&queue, "carrier").await;
    let records = second_member.receive(6 + 2).await;
    let from_partition = |partition| -> Vec<Record> {
        let from_partition = records.iter().filter(|r| r.partition == partition);
        from_partition.cloned().collect()
    };
    assert_eq!(values(&from_partition(at(0))), numbers(4..10));
    assert_eq!(values(&from_partition(at(3))), numbers(0..2));
}

async fn after_a_crash_nothing_uncommitted_is_skipped(mut world: impl World) {
    let queue = world.queue();
    let offsets = publish(&queue.producer(), numbered(at(0), 10)).await;
    let mut member = Member::join(&queue, "carrier").await;
    member.receive(10).await;
    member
        .consumer
        .commit(&[(at(0), offsets[6])])
        .await
        .unwrap();
    world.crash().await;
    drop(member);
    let queue = world.queue();
    // The crash may lose a commit but never advance it.
    let offset = queue.committed("carrier", at(0)).await.unwrap();
    assert!(offset.is_none_or(|next| next <= offsets[6]));
    let from = offset.unwrap_or(offsets[0]);
    let expected: Vec<u64> = offsets.iter().copied().filter(|&o| o >= from).collect();
    let mut member = Member::join(&queue, "carrier").await;
    let received_offsets = member.receive(expected.len()).await;
    let received_offsets: Vec<u64> = received_offsets
        .iter()
        .map(|record| record.offset)
        .collect();
    assert_eq!(received_offsets, expected);
}

/// One name, two topics: members that join or leave on one topic go unnoticed on the other.
async fn other_topics_are_not_disturbed(world: impl World) {
    let queue = world.queue();
    let offsets = publish(&queue.producer(), numbered(at(1), 2)).await;
    let mut member = Member::join(&queue, "carrier").await;
    member.hold(4).await;
    member.receive(2).await;
    let retries = Topic::Retry(1);
    let mut other = queue.subscribe("carrier", retries).await.unwrap();
    let join = async {
        loop {
            let change = member.step().await;
            assert!(change.is_none(), "{change:?}");
            match timeout(QUIET_PERIOD, other.poll(10))
                .await
                .map(Result::unwrap)
            {
                Ok(Polled::Assigned(partitions)) if !partitions.is_empty() => break partitions,
                Ok(_) | Err(_) => {}
            }
        }
    };
    let partitions = timeout(EVENT_TIMEOUT, join)
        .await
        .expect("it gets its share");
    assert!(partitions.iter().all(|p| p.topic == retries));
    assert_eq!(partitions.len() as u32, queue.partitions(retries));
    let commits = [(at(1), offsets[1])];
    member.consumer.commit(&commits).await.unwrap();
    let committed_offset = async |partition| queue.committed("carrier", partition).await.unwrap();
    assert_eq!(committed_offset(at(1)).await, Some(offsets[1]));
    assert_eq!(committed_offset(partitions[0]).await, None);
    drop(other);
    let change = member.step().await;
    assert!(change.is_none(), "{change:?}");
}

async fn groups_read_on_their_own(world: impl World) {
    let queue = world.queue();
    publish(&queue.producer(), numbered(at(1), 5)).await;
    let mut carrier = Member::join(&queue, "carrier").await;
    let mut horn = Member::join(&queue, "horn").await;
    let end = carrier.receive(5).await[4].offset + 1;
    carrier.consumer.commit(&[(at(1), end)]).await.unwrap();
    assert_eq!(values(horn.receive(5).await), numbers(0..5));
}

async fn two_members_share(world: impl World) {
    let queue = world.queue();
    let mut a = Member::join(&queue, "carrier").await;
    a.hold(4).await;
    let mut b = Member::join(&queue, "carrier").await;
    share(&mut a, &mut b).await;
    let producer = queue.producer();
    for number in 0..4 {
        publish(&producer, numbered(at(number), 10)).await;
    }
    a.receive(20).await;
    b.receive(20).await;
    assert!(a.step().await.is_none() && b.step().await.is_none());
    drop(a);
    b.hold(4).await;
    // Nothing was committed, so the records of the other member are redelivered, once.
    b.receive(20 + 20).await;
}

async fn a_revoked_partition_delivers_and_commits_no_more(world: impl World) {
    let queue = world.queue();
    let producer = queue.producer();
    let mut offsets = Vec::new();
    for number in 0..4 {
        offsets.push(publish(&producer, numbered(at(number), 10)).await);
    }
    // Mock brokers refuse a member whose SyncGroup arrives after the leader's. The member rejoins,
    // and meanwhile they refuse commits (real brokers accept them) until the group has moved on
    // without the waiting member: `Conflict`.
    for attempt in 0..8 {
        if commits_settled_offsets(&queue, &format!("carrier-{attempt}"), &offsets).await {
            return;
        }
    }
    panic!("no group took a commit between the word and the next poll");
}

/// Returns `false` if the group dropped the member before its commit.
async fn commits_settled_offsets(
    queue: &Arc<dyn Queue>,
    group: &str,
    offsets: &[Vec<u64>],
) -> bool {
    let producer = queue.producer();
    let mut a = Member::join(queue, group).await;
    a.receive(40).await;
    let mut b = Member::join(queue, group).await;
    let revoked_partitions = timeout(EVENT_TIMEOUT, async {
        loop {
            if let Some(Polled::Revoked(partitions)) = a.step().await {
                return partitions;
            }
        }
    });
    let revoked_partitions = revoked_partitions
        .await
        .expect("a is asked to give some up");
    // Settled offsets may be committed between *revoked* and the next poll.
    let commits: Vec<(Partition, u64)> = revoked_partitions
        .iter()
        .map(|&partition| (partition, offsets[partition.number as usize][3]))
        .collect();
    match a.consumer.commit(&commits).await {
        Ok(()) => {}
        Err(error) if error.kind == Kind::Conflict => return false,
        Err(error) => panic!("{error:?}"),
    }
    share(&mut a, &mut b).await;
    // The other member continues exactly there.
    let expected = 7 * b.partitions.len();
    for record in b.receive(expected).await {
        let next = offsets[record.partition.number as usize][3];
        assert!(record.offset >= next);
    }
    let moved_partition = *b.partitions.first().unwrap();
    let (_, end) = queue.bounds(moved_partition).await.unwrap();
    let refusal = a
        .consumer
        .commit(&[(moved_partition, end)])
        .await
        .unwrap_err();
    assert_eq!(refusal.kind, Kind::Conflict);
    let offset = queue.committed(group, moved_partition).await.unwrap();
    assert_eq!(offset, Some(offsets[moved_partition.number as usize][3]));
    let old_count = a.records.len();
    for number in 0..4 {
        publish(&producer, numbered(at(number), 1)).await;
    }
    // `step` checks that the member holds the partition of each record.
    a.receive(old_count + a.partitions.len()).await;
    b.receive(expected + b.partitions.len()).await;
    true
}

async fn pause_holds_back_and_resume_lets_go(world: impl World) {
    let queue = world.queue();
    let producer = queue.producer();
    let mut member = Member::join(&queue, "carrier").await;
    member.hold(4).await;
    member.consumer.pause(&[at(0)]);
    publish(&producer, numbered(at(0), 5)).await;
    publish(&producer, numbered(at(1), 5)).await;
    let records = member.receive(5).await;
    assert!(records.iter().all(|record| record.partition == at(1)));
    assert!(member.step().await.is_none(), "paused");
    member.consumer.resume(&[at(0)]);
    let records = member.receive(10).await;
    assert_eq!(values(&records[5..]), numbers(0..5));
}

async fn a_dropped_poll_loses_nothing(world: impl World) {
    let queue = world.queue();
    let mut member = Member::join(&queue, "carrier").await;
    member.hold(4).await;
    let producer = queue.producer();
    let publisher = tokio::spawn(async move {
        for n in 0..200 {
            publish(&producer, vec![record(at(n % 4), "key", n.to_string())]).await;
            if n % 10 == 0 {
                // No sleep: paused time would stand still while the other polls again and again.
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    let mut offsets_by_partition: BTreeMap<Partition, Vec<u64>> = BTreeMap::new();
    let mut count = 0;
    let all = async {
        while count < 200 {
            // Dropped as soon as the poll has to wait.
            let outcome = tokio::select! {
                biased;
                outcome = member.consumer.poll(3) => outcome.unwrap(),
                () = tokio::task::yield_now() => continue,
            };
            if let Polled::Records(records) = outcome {
                assert!(records.len() <= 3);
                count += records.len();
                for record in records {
                    offsets_by_partition
                        .entry(record.partition)
                        .or_default()
                        .push(record.offset);
                }
            }
        }
    };
    timeout(EVENT_TIMEOUT, all).await.expect("all records come");
    publisher.await.unwrap();
    for (partition, offsets) in offsets_by_partition {
        let log_offsets = queue.read(partition, 0, 1000).await.unwrap();
        let log_offsets: Vec<u64> = log_offsets.iter().map(|record| record.offset).collect();
        assert_eq!(offsets, log_offsets, "each once, in order");
    }
}

async fn a_member_that_does_not_poll_leaves_its_group(world: impl World) {
    let Some(interval) = world.poll_interval() else {
        return;
    };
    let queue = world.queue();
    let offsets = publish(&queue.producer(), numbered(at(0), 10)).await;
    let mut a = Member::join(&queue, "carrier").await;
    a.receive(10).await;
    let mut b = Member::join(&queue, "carrier").await;
    b.hold(4).await;
    // From the start of the poll: its end, which the group counts from, may lie before any moment
    // that is read here.
    assert!(a.polled_at.elapsed() >= interval);
    let outcome = a.consumer.commit(&[(at(0), offsets[5])]).await;
    assert_eq!(outcome.unwrap_err().kind, Kind::Conflict);
    b.receive(10).await;
    // The member learns of it at its next poll, and gets a share again.
    let Some(Polled::Lost(partitions)) = a.step().await else {
        panic!("a is not told")
    };
    assert_eq!(partitions.len(), 4);
    share(&mut a, &mut b).await;
}

// Regression: a member that fell asleep while nobody was late was never woken, which left the
// partition without a reader for good.
async fn a_member_that_hangs_is_noticed_by_one_that_sleeps(world: impl World) {
    let Some(interval) = world.poll_interval() else {
        return;
    };
    let queue = world.queue();
    // The sleeper joined first, so a record wakes it first, while the other one is still polling.
    let mut sleeper = Member::join(&queue, "carrier").await;
    let mut hung_member = Member::join(&queue, "carrier").await;
    share(&mut hung_member, &mut sleeper).await;
    let hung_partition = *hung_member.partitions.first().unwrap();
    let sleeper_task = tokio::spawn(async move {
        while sleeper.partitions.len() < 4 {
            if let Polled::Assigned(more) = sleeper.consumer.poll(100).await.unwrap() {
                sleeper.partitions.extend(more);
            }
        }
    });
    // The member hangs once it has the record.
    let poll_task = tokio::spawn(async move {
        hung_member.consumer.poll(100).await.unwrap();
        hung_member
    });
    sleep(Duration::from_millis(50)).await;
    publish(&queue.producer(), numbered(hung_partition, 1)).await;
    let _hung_member = poll_task.await.unwrap();
    let outcome = timeout(EVENT_TIMEOUT + 3 * interval, sleeper_task).await;
    outcome.expect("the sleeper takes over").unwrap();
}

async fn operators_read_without_a_group(world: impl World) {
    let queue = world.queue();
    let (first, end) = queue.bounds(at(0)).await.unwrap();
    assert_eq!(first, end, "empty");
    assert!(queue.read(at(0), 0, 10).await.unwrap().is_empty());
    let offsets = publish(&queue.producer(), numbered(at(0), 10)).await;
    let (first, end) = queue.bounds(at(0)).await.unwrap();
    assert_eq!((first, end), (offsets[0], offsets[9] + 1));
    let read = queue.read(at(0), offsets[3], 4).await.unwrap();
    assert_eq!(values(&read), numbers(3..7));
    assert!(queue.read(at(0), end, 10).await.unwrap().is_empty());
    assert!(queue.read(at(1), 0, 10).await.unwrap().is_empty());
    assert!(queue.bounds(at(9999)).await.is_err());
    assert!(queue.read(at(9999), 0, 1).await.is_err());
}
