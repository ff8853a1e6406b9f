use std::time::Duration;

use backend::embedded::{Table, WriteBatch};
use backend::hook::Fault;
use bytes::Bytes;
use protocol::frame::ServerFrame;
use protocol::keys::Topic;
use protocol::ledger::{DeadReason, LedgerEvent};
use protocol::record::MessageTask;
use protocol::{Platform, SendId, Seq};

use super::world::*;

#[tokio::test(start_paused = true)]
async fn the_same_id_published_twice_is_placed_once() {
    let world = World::new().await;
    world.register_device(BOB, Platform::Web).await;
    let message = world.message(ALICE, BOB);
    let repeat = MessageTask {
        maybe_repeat: true,
        ..from_session(message.clone(), 10, &world.life)
    };
    world.accept(task(message.clone())).await;
    world.accept(repeat.clone()).await;
    world.wait_until_committed().await;
    // And once more, when the first two are long done.
    world.accept(repeat).await;
    let next = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    let expected = [(Seq(1), message.id), (Seq(2), next)];
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
    assert_eq!(world.waiting(BOB, Platform::Web).await, 2);
    let echoes = world.boat.notice_frames(10);
    assert_eq!(
        echoes.len(),
        2,
        "each repeat is told where the first one stands"
    );
    assert!(
        echoes.iter().all(|echo| {
            matches!(echo, ServerFrame::Placed(echo) if echo.position.seq == Seq(1))
        })
    );
}

#[tokio::test(start_paused = true)]
async fn an_unsure_copy_is_dropped_and_its_sender_told_the_first_id() {
    let world = World::new().await;
    let first = world.message(ALICE, BOB);
    let mut copy = world.message(ALICE, BOB);
    copy.send_id = first.send_id;
    let unsure = MessageTask {
        unsure: true,
        age: Duration::from_secs(5),
        ..from_session(copy.clone(), 10, &world.life)
    };
    // In one batch, and in two.
    world.accept(task(first.clone())).await;
    world.accept(unsure.clone()).await;
    world.wait_until_committed().await;
    world.accept(unsure).await;
    world.wait_until_committed().await;
    assert_eq!(world.conversation(ALICE, BOB).await, [(Seq(1), first.id)]);
    let echoes = world.boat.notice_frames(10);
    assert_eq!(echoes.len(), 2);
    for echo in echoes {
        assert!(matches!(echo, ServerFrame::Placed(echo) if echo.id == first.id));
    }
    let events = world.events(copy.id).await;
    assert!(
        events.contains(&(None, LedgerEvent::Repeat { of: first.id })),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unsure_send_that_nobody_has_seen_is_placed() {
    let world = World::new().await;
    let message = world.message(ALICE, BOB);
    let unsure = MessageTask {
        unsure: true,
        age: Duration::from_secs(5),
        ..task(message.clone())
    };
    world.accept(unsure).await;
    let mut other = world.message(ALICE, BOB);
    other.send_id = SendId::from_bytes([99; 16]);
    world.accept(task(other.clone())).await;
    world.wait_until_committed().await;
    let expected = [(Seq(1), message.id), (Seq(2), other.id)];
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_id_from_a_clock_that_was_behind_still_gets_the_next_place() {
    let world = World::new().await;
    let early = world.message(ALICE, BOB);
    let late = world.send(ALICE, BOB).await;
    world.accept(task(early.clone())).await;
    world.wait_until_committed().await;
    let expected = [(Seq(1), late), (Seq(2), early.id)];
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
}

// T-S2: the partitions wait, in order, and nothing goes through a retry topic.
#[tokio::test(start_paused = true)]
async fn a_history_that_is_away_holds_messages_and_loses_none() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.faults.begin(ROWS, Fault::Unavailable);
    let mut sent_ids = Vec::new();
    for _ in 0..20 {
        sent_ids.push(world.send(ALICE, BOB).await);
        world.send(ALICE, 3).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        world.boat.pushed_to(20),
        [0i64; 0],
        "written first, then delivered"
    );
    assert_eq!(world.uncommitted().await, 40);
    world.faults.end(ROWS);
    world.wait_until_committed().await;
    let ids: Vec<i64> = sent_ids.iter().map(|id| id.get()).collect();
    assert_eq!(world.boat.pushed_to(20), ids);
    let expected: Vec<_> = (1..).map(Seq).zip(sent_ids).collect();
    assert_eq!(world.conversation(BOB, ALICE).await, expected);
    assert_eq!(world.records(Topic::Retry(1)).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_row_is_a_dead_letter_and_leaves_no_gap() {
    let world = World::new().await;
    let first = world.message(ALICE, BOB);
    let rejected_message = world.message(ALICE, BOB);
    let last = world.message(ALICE, BOB);
    world
        .faults
        .begin(ROWS.about(rejected_message.id.get()), Fault::Conflict);
    for message in [&first, &rejected_message, &last] {
        world.accept(task(message.clone())).await;
    }
    world.wait_until_committed().await;
    let expected = [(Seq(1), first.id), (Seq(2), last.id)];
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
    let page = world
        .dead_letters()
        .list(&Default::default(), None, 10)
        .await;
    let page = page.expect("readable");
    assert_eq!(page.letters.len(), 1);
    assert_eq!(page.letters[0].reason, DeadReason::StoreRejected);
    assert_eq!(page.letters[0].message, Some(rejected_message.id));
}

// A carrier that has only read a head that is behind does not go on with it once it is mended.
#[tokio::test(start_paused = true)]
async fn a_head_that_is_mended_in_the_store_is_gone_on_from() {
    let mut world = World::new().await;
    let first = world.message(ALICE, BOB);
    world.accept(task(first.clone())).await;
    let mut sent_ids = vec![first.id];
    let key = between(ALICE, BOB).to_key();
    let mut stale_head = None;
    for number in 2..=5 {
        sent_ids.push(world.send(ALICE, BOB).await);
        world.wait_until_committed().await;
        if number == 3 {
            stale_head = world.engine.get(Table::Head, &key).expect("reads");
        }
    }
    world.stop().await;
    let current_head = world.engine.get(Table::Head, &key).expect("reads");
    let engine = world.engine.clone();
    let write = |head: Option<Bytes>| {
        let mut batch = WriteBatch::new();
        batch.put(Table::Head, key.to_vec(), head.expect("a head"));
        engine.write(batch).expect("writes");
    };
    write(stale_head);
    world.carrier = Some(world.start().await);
    let repeat = from_session(first, 10, &world.life);
    world.accept(repeat).await;
    world.wait_until_committed().await;
    let notice_frames = world.boat.notice_frames(10);
    assert_eq!(
        notice_frames.len(),
        1,
        "the carrier has read the head: {notice_frames:?}"
    );

    write(current_head);
    sent_ids.push(world.send(ALICE, BOB).await);
    world.wait_until_committed().await;
    let expected: Vec<_> = (1..).map(Seq).zip(sent_ids).collect();
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
}
