use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::task::Value;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::presence::{BoatLife, SessionKey};
use protocol::record::{KickoutTask, Task, Work};
use protocol::{Code, Incarnation, Platform, Refusal};

use tokio::time::Instant;

use super::world::*;
use crate::Config;

pub(super) fn kickout(world: &World, sessions: Vec<SessionKey>) -> Task {
    let task = KickoutTask {
        sessions,
        refusal: Refusal::new(Code::Displaced, "signed in elsewhere"),
    };
    Task::new(Work::Kickout(task), world.now())
}

// proves S1-62, S1-22: exactly the named session is ended, and told why.
// proves S1 Pitfall B: so it ends nobody who came since, wherever in the log it stands.
#[tokio::test(start_paused = true)]
async fn a_kickout_ends_exactly_the_sessions_it_names() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world
        .sign_in(BOB, Platform::Ios, 21, Manner::Acknowledges)
        .await;
    let task = kickout(&world, vec![world.key(BOB, 20)]);
    world.publish(Topic::Message, &task).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.closed_sessions(), [20]);
    let notices = world.boat.notices.lock().clone();
    let Some(api::v1::notice::Notice::Close(refusal)) = &notices[0].notice else {
        panic!("{notices:?}");
    };
    assert_eq!(refusal.code, u32::from(Code::Displaced.number()));
    let sessions = world
        .backends
        .mailbox
        .sessions(&[user(BOB)], Default::default())
        .await;
    let remaining_sessions: Vec<i64> = sessions[0]
        .as_ref()
        .expect("well")
        .iter()
        .map(|s| s.session.get())
        .collect();
    assert_eq!(remaining_sessions, [21]);
}

#[tokio::test(start_paused = true)]
async fn a_kickout_waits_for_a_boat_that_comes_back() {
    let mut world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let door = world.door.take();
    drop(door);
    let task = kickout(&world, vec![world.key(BOB, 20)]);
    world.publish(Topic::Message, &task).await;
    world
        .wait_until("a retry", async || {
            !world.records(Topic::Retry(1)).await.is_empty()
        })
        .await;
    world.reopen_boat();
    world.wait_until_committed().await;
    assert_eq!(world.boat.closed_sessions(), [20]);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kickout_of_a_boat_that_is_over_is_done() {
    let mut world = World::new().await;
    let ghost = SessionKey {
        life: BoatLife {
            boat: protocol::BoatId::new("boat-9").expect("short"),
            incarnation: Incarnation(1),
        },
        ..world.key(BOB, 20)
    };
    world
        .publish(Topic::Message, &kickout(&world, vec![ghost]))
        .await;
    world.wait_until_committed().await;
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kickout_that_never_succeeds_is_a_dead_letter() {
    let mut world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    // Unreachable, with a lease: it may live.
    world.door = None;
    let task = kickout(&world, vec![world.key(BOB, 20)]);
    world.publish(Topic::Message, &task).await;
    world
        .wait_until("a letter", async || {
            !world.records(Topic::Dead).await.is_empty()
        })
        .await;
    let page = world
        .dead_letters()
        .list(&Default::default(), None, 10)
        .await
        .expect("readable");
    assert_eq!(page.letters[0].reason, DeadReason::MaxRetries);
    assert_eq!(page.letters[0].retry_count, 6);
}

async fn kick_many(world: &World, sessions: std::ops::Range<i64>) {
    for number in sessions {
        let task = kickout(world, vec![world.key(number, number)]);
        world.publish(Topic::Message, &task).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_does_not_answer_kickouts_holds_no_messages() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.boat.hangs.store(true, Ordering::SeqCst);
    kick_many(&world, 1000..1300).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("pushed", async || world.boat.pushed_to(20) == [id.get()])
        .await;
    assert!(start.elapsed() < Duration::from_millis(200));
    // Each waits a second, 64 at a time, and is tried again.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(world.records(Topic::Retry(1)).await.len() >= 300);
    world.boat.hangs.store(false, Ordering::SeqCst);
    world.wait_until_committed().await;
    assert_eq!(world.boat.closed_sessions().len(), 300);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn kickouts_that_find_no_room_are_put_off_and_not_counted() {
    let world = World::with(Config {
        kickouts_max: 8,
        ..Config::default()
    })
    .await;
    world.boat.hangs.store(true, Ordering::SeqCst);
    kick_many(&world, 1000..1200).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let records = world.records(Topic::Retry(1)).await;
    assert!(records.len() >= 100, "{}", records.len());
    for record in records {
        let task = Task::decode(record.value).expect("a task");
        assert_eq!(task.retry_count, 0);
    }
    world.boat.hangs.store(false, Ordering::SeqCst);
    world.wait_until_committed().await;
    let closed_sessions: BTreeSet<i64> = world.boat.closed_sessions().into_iter().collect();
    assert_eq!(closed_sessions, (1000..1200).collect());
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}
