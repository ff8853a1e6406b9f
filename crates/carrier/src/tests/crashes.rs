//! T-C1: a carrier that ends between any two effects, as the stores and the log see it.

use std::sync::Arc;

use api::codec::EventFrames;
use api::trace::Spans;
use backend::hook::Fault;
use backend::queue::Polled;
use protocol::keys::Topic;
use protocol::message_row::MessageRow;
use protocol::record::MessageTask;
use protocol::{Platform, Seq};

use super::world::*;
use crate::decoded_record;
use crate::records::Records;
use crate::writer::Writer;
use crate::{Config, GROUP};

/// Reads and writes everything that waits on `message`, and dies before it delivers or commits
/// anything.
pub(super) async fn write_and_die(world: &World) -> usize {
    write_some_and_die(world, usize::MAX).await
}

/// Same with the first `batch_max` records of each poll.
pub(super) async fn write_some_and_die(world: &World, batch_max: usize) -> usize {
    let mut consumer = world
        .backends
        .queue
        .subscribe(GROUP, Topic::Message)
        .await
        .expect("a member");
    let config = Config {
        name: "doomed".to_owned(),
        ..world.config.clone()
    };
    let records = Records::new(&world.backends, &config);
    let mut writer = Writer::new(
        &world.backends,
        &Config::default(),
        records,
        Arc::new(EventFrames),
        Spans::default(),
    );
    let mut delivered_count = 0;
    while let Ok(poll) =
        tokio::time::timeout(std::time::Duration::from_millis(10), consumer.poll(100)).await
    {
        let Polled::Records(records) = poll.expect("the log is well") else {
            continue;
        };
        let decoded_records: Vec<_> = records
            .into_iter()
            .take(batch_max)
            .map(|record| Arc::new(decoded_record::decode(record, 3).expect("ours")))
            .collect();
        let outcome = writer.write(&decoded_records, usize::MAX).await;
        assert!(outcome.halt.is_none(), "written: {:?}", outcome.halt);
        delivered_count += outcome.batch.deliver.len();
    }
    delivered_count
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_writing_changes_no_place_and_loses_nothing() {
    let mut world = World::without_carrier(Config::default()).await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let mut sent_ids = Vec::new();
    for _ in 0..30 {
        sent_ids.push(world.send(ALICE, BOB).await);
    }
    for _ in 0..3 {
        assert_eq!(write_and_die(&world).await, 30);
    }
    sent_ids.push(world.send(ALICE, BOB).await);
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let ids: Vec<i64> = sent_ids.iter().map(|id| id.get()).collect();
    assert_eq!(world.boat.pushed_to(20), ids);
    let expected: Vec<_> = (1..).map(Seq).zip(sent_ids).collect();
    assert_eq!(world.conversation(BOB, ALICE).await, expected);
}

// holes 2: a letter without a place was redriven, and later its own record is read again.
#[tokio::test(start_paused = true)]
async fn a_redriven_letter_survives_replay_of_its_record() {
    let mut world = World::without_carrier(Config::default()).await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let message = world.message(ALICE, BOB);
    let id = message.id;
    world.accept(task(message.clone())).await;
    let next_id = world.send(ALICE, BOB).await;
    let redriven_task = MessageTask {
        letter: Some("message-0-0".to_owned()),
        ..task(message)
    };
    world.faults.begin(ROWS.about(id.get()), Fault::Conflict);
    assert_eq!(write_and_die(&world).await, 1);
    world.accept(redriven_task).await;
    world.faults.end(ROWS.about(id.get()));
    for _ in 0..2 {
        write_and_die(&world).await;
    }
    let last = world.send(ALICE, BOB).await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let expected = [(Seq(1), next_id), (Seq(2), id), (Seq(3), last)];
    assert_eq!(world.conversation(BOB, ALICE).await, expected);
    let ids = [next_id, id, last].map(|id| id.get());
    assert_eq!(world.boat.pushed_to(20), ids);
}

#[tokio::test(start_paused = true)]
async fn rows_without_a_head_are_found_and_keep_their_places() {
    let mut world = World::without_carrier(Config::default()).await;
    let mut sent_ids = Vec::new();
    for _ in 0..5 {
        sent_ids.push(world.send(ALICE, BOB).await);
    }
    // The rows were written, and the head was not.
    let decoded_records: Vec<_> = world
        .records(Topic::Message)
        .await
        .into_iter()
        .map(|record| decoded_record::decode(record, 3).expect("ours"))
        .collect();
    let (mut seq, mut prev) = (Seq::ZERO, None);
    for source_record in decoded_records {
        let protocol::record::Work::Message(task) = &source_record.task.work else {
            panic!("a message");
        };
        seq = seq.next();
        let placed = protocol::Placed {
            message: task.message.clone(),
            conversation: between(ALICE, BOB),
            position: protocol::Position { seq, prev },
        };
        prev = Some(task.message.id);
        let version = protocol::history::Version {
            epoch: world.backends.queue.epoch(),
            offset: source_record.source.offset,
        };
        let rows = MessageRow::from_placed(&placed, seq.0, version);
        let save = world.backends.messages.save(rows).await;
        save.expect("written");
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let expected: Vec<_> = (1..).map(Seq).zip(sent_ids).collect();
    assert_eq!(world.conversation(ALICE, BOB).await, expected);
    let head = world
        .backends
        .heads
        .load(&[between(ALICE, BOB)])
        .await
        .expect("heads");
    assert_eq!(head[0].expect("written").seq, Seq(5));
}
