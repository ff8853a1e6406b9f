use std::time::Duration;

use protocol::{Platform, Seq};

use super::world::*;
use crate::Config;

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
