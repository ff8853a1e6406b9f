use std::sync::Arc;
use std::time::Duration;

use backend::queue::{Polled, Record};
use protocol::keys::Topic;
use protocol::{Platform, Seq};
use tokio::time::timeout;

use super::retrying::web_retry;
use super::world::*;
use crate::decoded_record::record_source;
use crate::executor_queue::ExecutorHandle;
use crate::offsets::PartitionOffsets;
use crate::partition_consumer::{PartitionConsumer, UNCOMMITTED_MAX};
use crate::{Config, GROUP};

// proves S1 Pitfall I: a stop finishes what is in flight, commits it, and leaves; the retry consumers too.
#[tokio::test(start_paused = true)]
async fn a_stop_finishes_and_commits_what_is_in_flight() {
    let mut world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    world
        .sign_in(3, Platform::Web, 30, Manner::Acknowledges)
        .await;
    for _ in 0..10 {
        world.send(ALICE, BOB).await;
        world.send(ALICE, 3).await;
    }
    world
        .wait_until("pushed", async || world.boat.pushes.lock().len() == 20)
        .await;
    world.stop().await;
    // Only records that now wait in the retry topic are left; a stop does not wait for those.
    assert_eq!(world.uncommitted().await, 10);
    assert_eq!(world.boat.pushed_to(30).len(), 10);
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 10);
    assert_eq!(
        world.boat.pushed_to(30).len(),
        10,
        "what was committed is not done again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever() {
    let mut world = World::with(Config {
        finish_wait: Duration::from_millis(100),
        ..Config::default()
    })
    .await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Lost).await;
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("pushed", async || world.boat.pushed_to(20).len() == 1)
        .await;
    let stop_at = tokio::time::Instant::now();
    world.stop().await;
    assert!(stop_at.elapsed() < Duration::from_secs(1));
    assert_eq!(
        world.uncommitted().await,
        1,
        "not finished, so not committed"
    );
    world.boat.set(20, Manner::Acknowledges);
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(20), [id.get(), id.get()]);
    assert_eq!(
        world.conversation(BOB, ALICE).await,
        [(Seq(1), id)],
        "it keeps its place"
    );
}

// R16: partitions move while messages flow; every place is given once, and everybody gets
// everything.
#[tokio::test(start_paused = true)]
async fn carriers_come_and_go_and_nothing_is_lost() {
    let mut world = World::new().await;
    let users: Vec<i64> = (2..12).collect();
    for user_id in &users {
        world
            .sign_in(*user_id, Platform::Web, 100 + user_id, Manner::Acknowledges)
            .await;
    }
    let mut second = None;
    let mut sends: Vec<(i64, i64)> = Vec::new();
    for round in 0..80 {
        for user_id in &users {
            sends.push((*user_id, world.send(ALICE, *user_id).await.get()));
        }
        match round {
            10 => second = Some(world.start().await),
            30 => world.stop().await,
            45 => world.carrier = Some(world.start().await),
            // The second one gets back partitions that it had before.
            60 => world.stop().await,
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    world.wait_until_committed().await;
    assert!(second.is_some());
    for user_id in users {
        let sent_ids: Vec<i64> = sends
            .iter()
            .filter(|(to, _)| *to == user_id)
            .map(|(_, id)| *id)
            .collect();
        let rows = world.conversation(user_id, ALICE).await;
        let ids: Vec<i64> = rows.iter().map(|(_, id)| id.get()).collect();
        assert_eq!(ids, sent_ids, "dense and in order");
        let pushed_ids = world.boat.pushed_to(100 + user_id);
        assert!(
            sent_ids.iter().all(|id| pushed_ids.contains(id)),
            "everybody got everything"
        );
    }
}

/// One retry never settles: those behind it are held until they are too many.
#[tokio::test(start_paused = true)]
async fn a_tier_polls_no_partition_with_too_many_uncommitted_records() {
    const POLL_TIMEOUT: Duration = Duration::from_secs(5);
    let world = World::without_carrier(Config::default()).await;
    let tier = Topic::Retry(1);
    let retry = web_retry(&world, BOB, Duration::from_secs(1));
    world.publish(tier, &retry).await;
    let subscription = world.backends.queue.subscribe(GROUP, tier).await;
    let offsets = Arc::new(PartitionOffsets::default());
    let (shard, _batches, _releases) = ExecutorHandle::new();
    let mut consumer = PartitionConsumer::new(
        subscription.expect("a member"),
        offsets.clone(),
        shard,
        &world.backends,
        Arc::new(world.config.clone()),
    );
    let poll = consumer.inner.poll(9).await.expect("polled");
    let Polled::Assigned(partitions) = poll else {
        panic!("{poll:?}");
    };
    consumer.assign(partitions);
    let queued_record = world.records(tier).await.remove(0);
    let number = |number: usize| Record {
        offset: queued_record.offset + 1 + number as u64,
        ..queued_record.clone()
    };
    let records: Vec<Record> = (0..=UNCOMMITTED_MAX).map(number).collect();
    offsets.begin(&records);
    consumer.pause_partitions(|_| false);
    let poll = timeout(POLL_TIMEOUT, consumer.inner.poll(9)).await;
    assert!(poll.is_err(), "{poll:?}");
    offsets.settle([record_source(&records[0])]);
    consumer.pause_partitions(|_| false);
    let poll = timeout(POLL_TIMEOUT, consumer.inner.poll(9)).await;
    assert!(matches!(poll, Ok(Ok(Polled::Records(_)))), "{poll:?}");
}
