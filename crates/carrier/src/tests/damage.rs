//! Unreadable rows of a store are the fault of one conversation, not of its neighbours.

use std::time::Duration;

use backend::embedded::{Table, WriteBatch};
use bytes::Bytes;
use operator::dead_letters::rules::TaskOutcome;
use operator::dead_letters::{Filter, Selection};
use protocol::keys::Topic;
use protocol::ledger::{DeadReason, LedgerEvent};
use protocol::record::MessageTask;
use protocol::{MessageId, Platform, Seq};

use super::world::*;

/// Replaces a row by an unreadable one, and returns the row before.
pub(super) fn damage(world: &World, table: Table, key: &[u8]) -> Option<Bytes> {
    let old_value = world.engine.get(table, key).expect("readable");
    let mut batch = WriteBatch::new();
    batch.put(table, key.to_vec(), Bytes::from_static(b"\xffdamaged"));
    world.engine.write(batch).expect("written");
    old_value
}

fn repair(world: &World, table: Table, key: &[u8], old_value: Option<Bytes>) {
    let mut batch = WriteBatch::new();
    match old_value {
        Some(value) => batch.put(table, key.to_vec(), value),
        None => batch.remove(table, key.to_vec()),
    }
    world.engine.write(batch).expect("written");
}

pub(super) fn row_key(owner: i64, id: MessageId) -> Vec<u8> {
    [owner.to_be_bytes(), id.get().to_be_bytes()].concat()
}

/// List key of a private conversation: kind 0.
fn list_key(owner: i64, peer: i64) -> Vec<u8> {
    [&owner.to_be_bytes()[..], &[0], &peer.to_be_bytes()].concat()
}

/// Sends from many users to one, so that each partition has some, and waits until all is done.
async fn send_all(world: &World, senders: std::ops::Range<i64>) -> Vec<MessageId> {
    let mut sent_ids = Vec::new();
    for sender in senders {
        sent_ids.push(world.send(sender, BOB).await);
    }
    world.wait_until_committed().await;
    sent_ids
}

async fn redrive_all(world: &World) -> Vec<TaskOutcome> {
    let all = Selection::Filter {
        filter: Filter {
            reason: Some(DeadReason::StoreRejected),
            redriven: Some(false),
            ..Filter::default()
        },
        limit: 100,
    };
    let outcomes = world.redrive(&all).await.expect("redriven");
    world.wait_until_committed().await;
    outcomes
        .into_iter()
        .map(|redrive| redrive.outcome)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_damaged_head_holds_its_own_conversation_only() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let key = between(12, BOB).to_key();
    let old_value = damage(&world, Table::Head, &key);
    let sent_ids = send_all(&world, 10..20).await;
    let undelivered_id = sent_ids[2].get();
    let mut pushed_ids = world.boat.pushed_to(20);
    pushed_ids.sort_unstable();
    let other_ids: Vec<i64> = sent_ids
        .iter()
        .map(|id| id.get())
        .filter(|id| *id != undelivered_id)
        .collect();
    assert_eq!(pushed_ids, other_ids);
    assert_eq!(world.records(Topic::Dead).await.len(), 1);

    repair(&world, Table::Head, &key, old_value);
    let next = world.send(12, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(redrive_all(&world).await, [TaskOutcome::ToMessage]);
    let expected = [(Seq(1), next), (Seq(2), sent_ids[2])];
    assert_eq!(world.conversation(12, BOB).await, expected);
    assert_eq!(world.boat.pushed_to(20)[9..], [next.get(), undelivered_id]);
}

// A copy is compared with its row.
#[tokio::test(start_paused = true)]
async fn a_damaged_row_holds_the_record_that_needs_it_only() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let message = world.message(ALICE, BOB);
    world.accept(task(message.clone())).await;
    let second = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    damage(&world, Table::Private, &row_key(ALICE, message.id));
    let copy = MessageTask {
        maybe_repeat: true,
        ..task(message.clone())
    };
    world.accept(copy).await;
    let third = world.send(ALICE, BOB).await;
    let other_ids = send_all(&world, 10..20).await;
    let mut pushed_ids = world.boat.pushed_to(20);
    assert_eq!(
        pushed_ids[..3],
        [message.id, second, third].map(MessageId::get)
    );
    pushed_ids[3..].sort_unstable();
    assert_eq!(
        pushed_ids[3..],
        other_ids.iter().map(|id| id.get()).collect::<Vec<_>>()
    );
    assert_eq!(world.records(Topic::Dead).await.len(), 1);
}

// The row and the head stand; a redrive of the letter does the rest.
#[tokio::test(start_paused = true)]
async fn a_damaged_list_row_makes_a_letter_that_keeps_its_place() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let key = list_key(BOB, 12);
    let old_value = damage(&world, Table::Conversation, &key);
    let sent_ids = send_all(&world, 10..20).await;
    assert_eq!(world.boat.pushed_to(20).len(), 9);

    repair(&world, Table::Conversation, &key, old_value);
    let next = world.send(12, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(redrive_all(&world).await, [TaskOutcome::ToMessage]);
    assert_eq!(
        world.boat.pushed_to(20)[9..],
        [next, sent_ids[2]].map(MessageId::get)
    );
    let expected = [(Seq(1), sent_ids[2]), (Seq(2), next)];
    assert_eq!(world.conversation(12, BOB).await, expected);
    assert_eq!(world.conversation(BOB, 12).await, expected);
    assert_eq!(world.records(Topic::Dead).await.len(), 1, "no other letter");
}

#[tokio::test(start_paused = true)]
async fn a_retry_whose_row_is_damaged_does_not_hold_its_tier() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Lost).await;
    let sent_ids = [world.send(12, BOB).await, world.send(13, BOB).await];
    world
        .wait_until("both wait for their retry", async || {
            world.records(Topic::Retry(1)).await.len() == 2
        })
        .await;
    let key = row_key(BOB, sent_ids[0]);
    let old_value = damage(&world, Table::Private, &key);
    world.boat.set(20, Manner::Acknowledges);
    world.wait_until_committed().await;
    let push_count = |id: MessageId| {
        let pushed_ids = world.boat.pushed_to(20);
        pushed_ids
            .into_iter()
            .filter(|&pushed_ids| pushed_ids == id.get())
            .count()
    };
    assert_eq!((push_count(sent_ids[0]), push_count(sent_ids[1])), (1, 2));
    // The death of the retry, not of the message: other platforms are left as they are.
    let ends = world.events(sent_ids[0]).await.into_iter();
    let dead = ends.filter(|(_, event)| matches!(event, LedgerEvent::Dead { .. }));
    let dead: Vec<_> = dead.map(|(event_target, _)| event_target).collect();
    assert_eq!(dead, [Some(target(BOB, Platform::Web))]);

    repair(&world, Table::Private, &key, old_value);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(redrive_all(&world).await, [TaskOutcome::ToRetry]);
    assert_eq!(push_count(sent_ids[0]), 2);
}

// One becomes a letter; the others of its tier go on.
#[tokio::test(start_paused = true)]
async fn a_retry_with_a_damaged_overlay_does_not_hold_its_tier() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Lost).await;
    let sent_ids = [world.send(12, BOB).await, world.send(13, BOB).await];
    world
        .wait_until("both wait for their retry", async || {
            world.records(Topic::Retry(1)).await.len() == 2
        })
        .await;
    // Conversation, the kind of a recall, position.
    let key = [&between(12, BOB).to_key()[..], &[0], &1u64.to_be_bytes()].concat();
    damage(&world, Table::Altered, &key);
    world.boat.set(20, Manner::Acknowledges);
    world.wait_until_committed().await;
    let pushed_ids = world.boat.pushed_to(20);
    let push_count = |id: MessageId| {
        pushed_ids
            .iter()
            .filter(|&&pushed_ids| pushed_ids == id.get())
            .count()
    };
    assert_eq!((push_count(sent_ids[0]), push_count(sent_ids[1])), (1, 2));
    assert_eq!(world.records(Topic::Dead).await.len(), 1);
}
