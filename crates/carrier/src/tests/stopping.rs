use std::sync::Arc;
use std::time::Duration;

use backend::queue::{Polled, Record};
use protocol::keys::Topic;
use protocol::{Platform, Seq};
use tokio::time::timeout;

use super::retrying::retry_of;
use super::world::*;
use crate::decoded_record::source_of;
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
        .until("pushed", async || world.boat.pushed.lock().len() == 20)
        .await;
    world.stop().await;
    // Only records that now wait in the retry topic are left; a stop does not wait for those.
    assert_eq!(world.uncommitted().await, 10);
    assert_eq!(world.boat.pushed_to(30).len(), 10);
    world.carrier = Some(world.start().await);
    world.until_quiet().await;
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
        .until("pushed", async || world.boat.pushed_to(20).len() == 1)
        .await;
    let begun = tokio::time::Instant::now();
    world.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(
        world.uncommitted().await,
        1,
        "not finished, so not committed"
    );
    world.boat.set(20, Manner::Acknowledges);
    world.carrier = Some(world.start().await);
    world.until_quiet().await;
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
    for who in &users {
        world
            .sign_in(*who, Platform::Web, 100 + who, Manner::Acknowledges)
            .await;
    }
    let mut second = None;
    let mut sent: Vec<(i64, i64)> = Vec::new();
    for round in 0..80 {
        for who in &users {
            sent.push((*who, world.send(ALICE, *who).await.get()));
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
    world.until_quiet().await;
    assert!(second.is_some());
    for who in users {
        let mine: Vec<i64> = sent
            .iter()
            .filter(|(to, _)| *to == who)
            .map(|(_, id)| *id)
            .collect();
        let rows = world.conversation(who, ALICE).await;
        let ids: Vec<i64> = rows.iter().map(|(_, id)| id.get()).collect();
        assert_eq!(ids, mine, "dense and in order");
        let pushed = world.boat.pushed_to(100 + who);
        assert!(
            mine.iter().all(|id| pushed.contains(id)),
            "everybody got everything"
        );
    }
}

/// One retry never settles: those behind it are held until they are too many.
#[tokio::test(start_paused = true)]
async fn a_tier_polls_no_partition_with_too_many_uncommitted_records() {
    const PATIENCE: Duration = Duration::from_secs(5);
    let world = World::without_carrier(Config::default()).await;
    let tier = Topic::Retry(1);
    let retry = retry_of(&world, BOB, Duration::from_secs(1));
    world.publish(tier, &retry).await;
    let consumer = world.backends.queue.subscribe(GROUP, tier).await;
    let progress = Arc::new(PartitionOffsets::default());
    let (shard, _batches, _abandons) = ExecutorHandle::new();
    let mut line = PartitionConsumer::new(
        consumer.expect("a member"),
        progress.clone(),
        shard,
        &world.backends,
        Arc::new(world.config.clone()),
    );
    let polled = line.consumer.poll(9).await.expect("polled");
    let Polled::Assigned(partitions) = polled else {
        panic!("{polled:?}");
    };
    line.assign(partitions);
    let waiting = world.records(tier).await.remove(0);
    let number = |number: usize| Record {
        offset: waiting.offset + 1 + number as u64,
        ..waiting.clone()
    };
    let begun: Vec<Record> = (0..=UNCOMMITTED_MAX).map(number).collect();
    progress.begin(&begun);
    line.pause_where(|_| false);
    let polled = timeout(PATIENCE, line.consumer.poll(9)).await;
    assert!(polled.is_err(), "{polled:?}");
    progress.settle([source_of(&begun[0])]);
    line.pause_where(|_| false);
    let polled = timeout(PATIENCE, line.consumer.poll(9)).await;
    assert!(matches!(polled, Ok(Ok(Polled::Records(_)))), "{polled:?}");
}
