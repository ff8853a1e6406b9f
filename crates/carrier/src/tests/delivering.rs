use std::collections::BTreeMap;
use std::time::Duration;

use api::task::Value;
use protocol::delivery::DeliveryLimits;
use protocol::frame::ServerFrame;
use protocol::keys::Topic;
use protocol::ledger::LedgerEvent;
use protocol::{Platform, Seq};
use tokio::time::Instant;

use super::world::*;

// proves S1-61: online, so it is delivered; its place is told to the session that sent it.
#[tokio::test(start_paused = true)]
async fn a_message_is_delivered_and_its_sender_learns_its_place() {
    let world = World::new().await;
    world
        .sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)
        .await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let message = world.message(ALICE, BOB);
    let id = message.id;
    world
        .accept(from_session(message.clone(), 10, &world.life))
        .await;
    world.wait_until_committed().await;

    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(
        world.boat.pushed_to(10),
        [0i64; 0],
        "not to the session that sent it"
    );
    let [ServerFrame::Message(placed)] = &world.boat.frames()[..] else {
        panic!("{:?}", world.boat.frames());
    };
    assert_eq!((&placed.message, placed.position.seq), (&message, Seq(1)));
    let [ServerFrame::Placed(echo)] = &world.boat.notice_frames(10)[..] else {
        panic!("{:?}", world.boat.notice_frames(10));
    };
    assert_eq!((echo.send_id, echo.id), (message.send_id, id));

    assert_eq!(world.conversation(BOB, ALICE).await, [(Seq(1), id)]);
    let head = world
        .backends
        .heads
        .load(&[between(ALICE, BOB)])
        .await
        .expect("heads");
    assert_eq!(head[0].expect("written").seq, Seq(1));
    let key = (user(BOB), between(ALICE, BOB));
    let list_rows = world
        .backends
        .conversations
        .get(&[key])
        .await
        .expect("lists");
    assert_eq!(list_rows[0].expect("listed").row.last_id, id);
    assert_eq!(
        world.waiting(BOB, Platform::Web).await,
        0,
        "never in the mailbox"
    );

    let web = Some(target(BOB, Platform::Web));
    let events = world.events(id).await;
    assert!(
        matches!(events[0].1, LedgerEvent::Placed { seq: Seq(1), .. }),
        "{events:?}"
    );
    assert!(matches!(&events[1], (t, LedgerEvent::Pushed { .. }) if *t == web));
    assert!(matches!(&events[2], (t, LedgerEvent::Acked { .. }) if *t == web));
    assert_eq!(events[3], (None, LedgerEvent::Settled));
    assert_eq!(events.len(), 4);
}

// proves S1-11, S1-61: offline, so it is stored, and horn gets a task.
#[tokio::test(start_paused = true)]
async fn an_absent_receiver_gets_it_stored_and_horn_a_task() {
    let world = World::new().await;
    world.register_device(BOB, Platform::Ios).await;
    world.register_device(BOB, Platform::Web).await;
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Ios).await, 1);
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    let tasks = world.records(Topic::Notification).await;
    let mut targets: Vec<_> = tasks
        .into_iter()
        .map(|record| api::task::NotificationTask::decode(record.value).expect("a task"))
        .map(|task| (task.notification.message, task.notification.target.platform))
        .collect();
    targets.sort();
    assert_eq!(targets, [(id, Platform::Ios), (id, Platform::Web)]);
}

// proves S1 Pitfall B: each conversation of a user in its order, whatever comes in between.
#[tokio::test(start_paused = true)]
async fn messages_of_many_senders_keep_their_order_without_gaps() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let mut sends = Vec::new();
    for _ in 0..100 {
        for from in [1, 3, 4, 5, 6] {
            sends.push((from, world.send(from, BOB).await));
        }
    }
    world.wait_until_committed().await;
    for from in [1, 3, 4, 5, 6] {
        let sender_ids = sends.iter().filter(|(sender, _)| *sender == from);
        let expected: Vec<_> = (1..).map(Seq).zip(sender_ids.map(|(_, id)| *id)).collect();
        assert_eq!(world.conversation(BOB, from).await, expected);
        let pushed_ids = world.boat.pushed_to(20);
        let expected_ids: Vec<i64> = expected.iter().map(|(_, id)| id.get()).collect();
        let live_ids: Vec<i64> = pushed_ids
            .into_iter()
            .filter(|id| expected_ids.contains(id))
            .collect();
        assert_eq!(live_ids, expected_ids, "live, in order");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_room_gets_it_from_its_mailbox_after_a_hint() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Full).await;
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    assert_eq!(world.boat.hinted_sessions(), [20]);
}

// proves S1-16, S1-36: what its boat does not know is removed at that moment, and the message stored.
#[tokio::test(start_paused = true)]
async fn a_session_that_its_boat_does_not_know_is_forgotten() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.boat.drop_session(20);
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    let sessions = world
        .backends
        .mailbox
        .sessions(&[user(BOB)], Default::default())
        .await;
    assert_eq!(sessions[0].as_ref().expect("well").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_senders_other_devices_see_what_was_sent() {
    let world = World::new().await;
    world
        .sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)
        .await;
    world
        .sign_in(ALICE, Platform::Web, 11, Manner::Acknowledges)
        .await;
    world
        .sign_in(ALICE, Platform::Desktop, 12, Manner::Silent)
        .await;
    let message = world.message(ALICE, BOB);
    let id = message.id;
    world.accept(from_session(message, 10, &world.life)).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(11), [id.get()]);
    assert_eq!(
        world.boat.closed_sessions(),
        [0; 0],
        "ended by its boat, if at all"
    );
    assert_eq!(world.waiting(ALICE, Platform::Desktop).await, 0);
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_boat_that_is_gone_is_believed_dead_once_nobody_reaches_it() {
    let mut world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    world.sink_boat();
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

// proves S1-10 from the carrier's side: a boat without a lease that answers is used as before.
#[tokio::test(start_paused = true)]
async fn a_boat_that_lost_its_lease_is_still_delivered_to() {
    let mut world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.lease = None;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(world.waiting(BOB, Platform::Web).await, 0);
}

// The carrier keeps the address of a boat that counts as over: nobody else would name it.
#[tokio::test(start_paused = true)]
async fn a_boat_that_counted_as_over_is_delivered_to_once_it_answers() {
    let mut world = World::new().await;
    (world.sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)).await;
    world.sink_boat();
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.waiting(BOB, Platform::Web).await, 1, "it is over");
    (world.sign_in(BOB, Platform::Web, 21, Manner::Acknowledges)).await;
    world.reopen_boat();
    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(21), [0i64; 0], "nobody asked it yet");
    tokio::time::sleep(Duration::from_secs(300)).await;
    (world.sign_in(BOB, Platform::Web, 22, Manner::Acknowledges)).await;
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(22), [id.get()]);
}

// proves S1-17 in part, T-C3: clients that never answer take no time from the others. The boat says nothing of
// them, so each of their messages is in flight for seconds.
#[tokio::test(start_paused = true)]
async fn dead_clients_cost_the_others_no_time() {
    let slowest = async |dead: i64| {
        let world = World::new().await;
        for n in 0..50 {
            let manner = if n < dead {
                Manner::Lost
            } else {
                Manner::Acknowledges
            };
            world.sign_in(100 + n, Platform::Web, 100 + n, manner).await;
        }
        let mut sent_at = BTreeMap::new();
        for _ in 0..100 {
            for n in 0..50 {
                let id = world.send(ALICE, 100 + n).await;
                sent_at.insert(id.get(), Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let pushes = world.boat.pushes.lock();
        let pushed_at = world.boat.pushed_at.lock();
        let live = pushes.iter().zip(pushed_at.iter());
        let live = live.filter(|((session, _), _)| *session >= 100 + dead);
        let waits: Vec<Duration> = live.map(|((_, id), at)| *at - sent_at[id]).collect();
        assert_eq!(waits.len(), 100 * (50 - dead as usize));
        waits.into_iter().max().expect("many")
    };
    let (healthy, with_dead) = (slowest(0).await, slowest(5).await);
    assert!(
        with_dead <= healthy + Duration::from_millis(2),
        "{healthy:?}, {with_dead:?}"
    );
}

// proves S1-17 in part: fewer records are in flight while devices are slow, and as many as before once they are quick.
#[tokio::test(start_paused = true)]
async fn records_in_flight_follow_the_speed_of_the_devices() {
    const USERS: std::ops::Range<i64> = 100..140;
    let (min_in_flight, max_records) = (4, 32);
    let target = DeliveryLimits::default().ack_latency_target;
    let quick = Manner::AcknowledgesAfter(target / 20);
    let slow = Manner::AcknowledgesAfter(target + target / 2);
    let world = World::with(crate::Config {
        in_flight_min: min_in_flight,
        in_flight_max: max_records,
        ..crate::Config::default()
    })
    .await;
    for n in USERS {
        world.sign_in(n, Platform::Web, n, quick).await;
    }
    // Most records in flight at a time while all of these are delivered.
    let max_in_flight = async |records: usize| {
        for n in USERS.cycle().take(records) {
            world.send(ALICE, n).await;
        }
        world.boat.take_open_max();
        world.wait_until_committed().await;
        world.boat.take_open_max()
    };
    for (manner, expected) in [
        (quick, max_records),
        (slow, min_in_flight),
        (quick, max_records),
    ] {
        USERS.for_each(|n| world.boat.set(n, manner));
        max_in_flight(400).await;
        assert_eq!(max_in_flight(100).await, expected, "{manner:?}");
    }
}

// proves S1-20 in part, S1-21: of the sessions on a platform the one of the newest login decides, whatever their ids are.
#[tokio::test(start_paused = true)]
async fn the_newest_login_decides_and_not_the_largest_session() {
    for (newest, older, retries) in [
        (Manner::Acknowledges, Manner::Silent, 0),
        (Manner::Silent, Manner::Acknowledges, 1),
    ] {
        let world = World::new().await;
        (world.sign_in_with("one", BOB, Platform::Bot, 22, older)).await;
        (world.sign_in_with("other", BOB, Platform::Bot, 21, newest)).await;
        let id = world.send(ALICE, BOB).await;
        // Longer than a device has, shorter than the first retry waits.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        for number in [21, 22] {
            assert_eq!(world.boat.pushed_to(number), [id.get()], "to {number}");
        }
        assert_eq!(world.records(Topic::Retry(1)).await.len(), retries);
    }
}

#[tokio::test(start_paused = true)]
async fn several_shards_share_the_partitions_and_the_boats() {
    let mut world = World::with(crate::Config {
        shards: 3,
        ..crate::Config::default()
    })
    .await;
    let users: Vec<i64> = (BOB..BOB + 20).collect();
    for user_id in &users {
        world
            .sign_in(*user_id, Platform::Web, 100 + user_id, Manner::Acknowledges)
            .await;
    }
    let mut sends = Vec::new();
    for _ in 0..10 {
        for user_id in &users {
            sends.push((100 + user_id, world.send(ALICE, *user_id).await.get()));
        }
    }
    world.wait_until_committed().await;
    let mut pushes = world.boat.pushes.lock().clone();
    pushes.sort_unstable();
    sends.sort_unstable();
    assert_eq!(pushes, sends);
    world.stop().await;
}

/// The machine's clock is set back by an hour while a session says nothing.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_delays_no_deadline() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Silent).await;
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("it is pushed", async || {
            world.boat.pushed_to(20) == [id.get()]
        })
        .await;
    world.clock.step_back(Duration::from_secs(3600));
    let start = tokio::time::Instant::now();
    world
        .wait_until("the push is given up", async || {
            let events = world.events(id).await;
            let is_failure = |event: &LedgerEvent| matches!(event, LedgerEvent::Failed { .. });
            events.iter().any(|(_, event)| is_failure(event))
        })
        .await;
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}
