//! Recall, edit and reactions, as the writer of their conversation makes them.

use std::time::Duration;

use protocol::change::{ChangeKind, ChangeOf, MessageChange, OrderedChange};
use protocol::frame::ServerFrame;
use protocol::keys::Topic;
use protocol::ledger::LedgerEvent;
use protocol::message::Content;
use protocol::receipt::ReceiptKind;
use protocol::receipt::StatusWrite;
use protocol::record::MessageTask;
use protocol::{Code, Message, MessageId, Options, Platform, Seq};

use super::crashes::write_and_die;
use super::world::*;
use crate::Config;

fn recall() -> (ChangeKind, Content) {
    (ChangeKind::Recall, Content::text(""))
}

fn edit(text: &str) -> (ChangeKind, Content) {
    (ChangeKind::Edit, Content::text(text))
}

fn react(text: &str, on: bool) -> (ChangeKind, Content) {
    let reaction = text.parse().expect("short");
    (ChangeKind::React { reaction, on }, Content::text(""))
}

impl World {
    fn change_message(
        &self,
        (from, to): (i64, i64),
        subject: MessageId,
        (kind, content): (ChangeKind, Content),
    ) -> Message {
        Message {
            options: Options::NONE,
            content: Content {
                change: Some(Box::new(ChangeOf {
                    subject: Some(subject),
                    kind,
                })),
                ..content
            },
            ..self.message(from, to)
        }
    }

    async fn change(
        &self,
        pair: (i64, i64),
        subject: MessageId,
        change: (ChangeKind, Content),
    ) -> MessageId {
        let message = self.change_message(pair, subject, change);
        let id = message.id;
        self.accept(task(message)).await;
        id
    }

    async fn changes(&self) -> Vec<OrderedChange> {
        let changes = self.backends.changes.since(between(ALICE, BOB), 0, 1000);
        changes.await.expect("reads")
    }

    /// Changes pushed to sessions, in order: the rev, and the position of the message.
    fn pushed_changes(&self) -> Vec<(u64, u64)> {
        let frames = self.boat.frames().into_iter();
        frames
            .filter_map(|frame| match frame {
                ServerFrame::Changed { changed, .. } => Some((changed.rev, changed.seq.0)),
                _ => None,
            })
            .collect()
    }
}

/// Stations of several settings write into one log, and carriers of any settings read it.
#[tokio::test(start_paused = true)]
async fn a_recall_is_judged_by_the_bounds_in_its_own_record() {
    let mut world = World::new().await;
    let message = world.send(ALICE, BOB).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.bounds.change_within = Duration::from_secs(1);
    world.change((ALICE, BOB), message, recall()).await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await, []);
    world.bounds.change_within = Duration::from_secs(10);
    world.change((ALICE, BOB), message, recall()).await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await.len(), 1);
}

/// Each change has its place, every session online gets it, and nothing is stored for users who are
/// away.
#[tokio::test(start_paused = true)]
async fn changes_get_places_of_their_own_and_are_told_to_who_is_there() {
    let world = World::new().await;
    world
        .sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)
        .await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.register_device(BOB, Platform::Ios).await;
    let (first, second) = (world.send(ALICE, BOB).await, world.send(BOB, ALICE).await);
    let edit_id = world.change((ALICE, BOB), first, edit("better")).await;
    let reaction_id = world.change((BOB, ALICE), first, react("👍", true)).await;
    let recall_id = world.change((BOB, ALICE), second, recall()).await;
    world.wait_until_committed().await;

    let changes = world.changes().await;
    let places: Vec<_> = changes
        .iter()
        .map(|change| (change.rev, change.seq.0, change.asked.id))
        .collect();
    assert_eq!(
        places,
        [(1, 1, edit_id), (2, 1, reaction_id), (3, 2, recall_id)]
    );
    assert_eq!(
        changes[0].asked.change,
        MessageChange::Edit(Content::text("better"))
    );
    assert_eq!(
        world.conversation(ALICE, BOB).await,
        [(Seq(1), first), (Seq(2), second)],
        "a change takes no place of a message"
    );
    // Sessions of both users, including those that asked.
    for number in [10, 20] {
        let pushed_ids = world.boat.pushed_to(number);
        for change_id in [edit_id, reaction_id, recall_id] {
            assert!(
                pushed_ids.contains(&change_id.get()),
                "{number}: {pushed_ids:?}"
            );
        }
    }
    assert_eq!(world.pushed_changes().len(), 6);
    assert_eq!(
        world.waiting(BOB, Platform::Ios).await,
        1,
        "the message alone"
    );
    let events = world.events(recall_id).await;
    let is_changed = |event: &LedgerEvent| matches!(event, LedgerEvent::Changed { rev: 3, .. });
    assert!(
        events.iter().any(|(_, event)| is_changed(event)),
        "{events:?}"
    );
    assert!(events.contains(&(None, LedgerEvent::Settled)));

    let keys = [ALICE, BOB].map(|user_id| (user(user_id), between(ALICE, BOB)));
    let list_rows = world
        .backends
        .conversations
        .get(&keys)
        .await
        .expect("lists");
    for (list_row, incoming) in list_rows.into_iter().flatten().zip([1, 1]) {
        assert_eq!((list_row.row.rev, list_row.row.end.seq), (3, Seq(2)));
        assert_eq!(list_row.row.end.incoming, incoming);
        assert_eq!(list_row.row.last_id, second);
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_changes_are_refused_and_take_no_place() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let message_id = world.send(ALICE, BOB).await;
    let message = world.change_message((BOB, ALICE), message_id, recall());
    let (id, send_id) = (message.id, message.send_id);
    world.accept(from_session(message, 20, &world.life)).await;
    let nowhere = MessageId::new(7).expect("positive");
    world.change((ALICE, BOB), nowhere, recall()).await;
    world
        .change((ALICE, BOB), message_id, edit("number 1"))
        .await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await, []);
    let notice_frames = world.boat.notice_frames(20);
    let is_refusal = |frame: &ServerFrame| {
        matches!(frame, ServerFrame::Refused { send_id: refused_id, refusal }
            if *refused_id == send_id && refusal.code == Code::Forbidden)
    };
    assert!(notice_frames.iter().any(is_refusal), "{notice_frames:?}");
    let events = world.events(id).await;
    let is_refusal_event = |event: &LedgerEvent| {
        matches!(
            event,
            LedgerEvent::Unchanged {
                refused: Some(_),
                ..
            }
        )
    };
    assert!(
        events.iter().any(|(_, event)| is_refusal_event(event)),
        "{events:?}"
    );
    assert!(events.contains(&(None, LedgerEvent::Settled)));
}

/// A message and its changes may come in one batch.
#[tokio::test(start_paused = true)]
async fn a_message_is_changed_right_after_it_was_sent() {
    let mut world = World::without_carrier(Config::default()).await;
    let id = world.send(ALICE, BOB).await;
    world.change((ALICE, BOB), id, edit("one")).await;
    world.change((ALICE, BOB), id, edit("two")).await;
    world.change((ALICE, BOB), id, recall()).await;
    world.change((ALICE, BOB), id, edit("three")).await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let revs: Vec<_> = world.changes().await.iter().map(|c| c.rev).collect();
    assert_eq!(revs, [1, 2, 3], "nothing comes after a recall");
    let overlays = world
        .backends
        .changes
        .altered(between(ALICE, BOB), Seq(1), Seq(1));
    let overlays = overlays.await.expect("reads");
    assert_eq!(overlays[&Seq(1)].content(&Content::text("")), None);
}

// T-C1 for changes: the writer dies after its effects, again and again, and each change keeps its
// place.
#[tokio::test(start_paused = true)]
async fn a_crash_after_writing_neither_loses_nor_repeats_a_change() {
    let mut world = World::without_carrier(Config::default()).await;
    let mut expected_ids = Vec::new();
    for n in 0..6 {
        let id = world.send(ALICE, BOB).await;
        expected_ids.push((n + 1, world.change((ALICE, BOB), id, edit("better")).await));
        expected_ids.push((
            n + 1,
            world.change((BOB, ALICE), id, react("👍", true)).await,
        ));
        // Once more, to no effect.
        world.change((BOB, ALICE), id, react("👍", true)).await;
    }
    for _ in 0..3 {
        write_and_die(&world).await;
    }
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let expected: Vec<_> = (1..)
        .zip(expected_ids)
        .map(|(rev, (seq, id))| (rev, seq, id))
        .collect();
    let changes: Vec<_> = world
        .changes()
        .await
        .iter()
        .map(|change| (change.rev, change.seq.0, change.asked.id))
        .collect();
    assert_eq!(changes, expected);
    let expected_pushes: Vec<_> = expected.iter().map(|(rev, seq, _)| (*rev, *seq)).collect();
    assert_eq!(
        world.pushed_changes(),
        expected_pushes,
        "each is told, in order"
    );
}

// proves S0-57: a recall marks both rows, however often its record comes; a receipt that comes late, and the message
// itself once more, leave it so.
#[tokio::test(start_paused = true)]
async fn both_rows_of_a_recalled_message_are_deleted_for_good() {
    let mut world = World::without_carrier(Config::default()).await;
    let (kept_id, recalled_id) = (world.send(ALICE, BOB).await, world.send(BOB, ALICE).await);
    world.change((BOB, ALICE), recalled_id, recall()).await;
    for _ in 0..2 {
        write_and_die(&world).await;
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let late = StatusWrite {
        owner: user(BOB),
        id: recalled_id,
        kind: ReceiptKind::Read,
        at: world.now(),
    };
    let messages = &world.backends.messages;
    messages.set_status(vec![late]).await.expect("writes");
    let keys = [ALICE, BOB].map(|user_id| [(user(user_id), recalled_id), (user(user_id), kept_id)]);
    let statuses = messages.status(keys.as_flattened()).await.expect("reads");
    let deletions: Vec<bool> = statuses.iter().map(|status| status.deleted).collect();
    assert_eq!(deletions, [true, false, true, false]);
}

// proves S0-61h in part: its sender takes a message back within a day of it, and not after.
#[tokio::test(start_paused = true)]
async fn a_sender_recalls_for_a_day() {
    let world = World::new().await;
    let (early, late) = (world.send(ALICE, BOB).await, world.send(ALICE, BOB).await);
    world.wait_until_committed().await;
    let day = Duration::from_secs(24 * 3600);
    tokio::time::advance(day - Duration::from_secs(60)).await;
    let recall_id = world.change((ALICE, BOB), early, recall()).await;
    world.wait_until_committed().await;
    tokio::time::advance(Duration::from_secs(120)).await;
    world.change((ALICE, BOB), late, recall()).await;
    world.wait_until_committed().await;
    let change_ids: Vec<_> = world.changes().await.iter().map(|c| c.asked.id).collect();
    assert_eq!(change_ids, [recall_id]);
}

/// A resend whose first try is in the log is the same change, whatever happened since.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_sent_again_is_made_once() {
    let world = World::new().await;
    let id = world.send(ALICE, BOB).await;
    let on = world.change_message((BOB, ALICE), id, react("👍", true));
    world.accept(task(on.clone())).await;
    world.change((BOB, ALICE), id, react("👍", false)).await;
    world.wait_until_committed().await;
    let mut copy = world.change_message((BOB, ALICE), id, react("👍", true));
    copy.send_id = on.send_id;
    let unsure = MessageTask {
        unsure: true,
        age: Duration::from_secs(5),
        ..task(copy)
    };
    let repeat = MessageTask {
        maybe_repeat: true,
        ..task(on)
    };
    world.accept(unsure).await;
    world.accept(repeat).await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await.len(), 2);
}

/// The first try may reach the log after its resend, and after later changes: nothing marks it as a
/// possible repeat.
#[tokio::test(start_paused = true)]
async fn a_first_try_that_comes_late_changes_nothing_more() {
    let world = World::new().await;
    let id = world.send(ALICE, BOB).await;
    let on = world.change_message((BOB, ALICE), id, react("👍", true));
    let resend = MessageTask {
        maybe_repeat: true,
        ..task(on.clone())
    };
    world.accept(resend).await;
    world.change((BOB, ALICE), id, react("👍", false)).await;
    world.accept(task(on)).await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await.len(), 2);
}

/// A message recalled while it waited for a retry goes out empty.
#[tokio::test(start_paused = true)]
async fn a_retry_says_what_the_message_says_by_then() {
    let world = World::new().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Lost).await;
    let ids = [world.send(ALICE, BOB).await, world.send(ALICE, BOB).await];
    world
        .wait_until("a retry", async || {
            !world.records(Topic::Retry(1)).await.is_empty()
        })
        .await;
    world.change((ALICE, BOB), ids[0], recall()).await;
    world.change((ALICE, BOB), ids[1], edit("better")).await;
    world.boat.set(20, Manner::Acknowledges);
    let old_count = world.boat.frames().len();
    world.wait_until_committed().await;
    let frames = world.boat.frames().split_off(old_count);
    let texts: Vec<_> = frames
        .iter()
        .filter_map(|frame| match frame {
            ServerFrame::Message(placed) => Some(placed.message.content.data.clone()),
            _ => None,
        })
        .collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| &text[..]).collect();
    assert_eq!(texts, [&b""[..], b"better"]);
}

/// A boat that cannot be reached is tried again; a session without room syncs.
#[tokio::test(start_paused = true)]
async fn a_session_without_room_for_a_change_syncs() {
    let world = World::new().await;
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    world.sign_in(BOB, Platform::Web, 20, Manner::Full).await;
    world.sign_in(ALICE, Platform::Web, 10, Manner::Lost).await;
    world.change((ALICE, BOB), id, recall()).await;
    world
        .wait_until("resynced", async || {
            world.boat.resynced_sessions().contains(&20)
        })
        .await;
    world.boat.set(10, Manner::Acknowledges);
    world.wait_until_committed().await;
    assert!(world.boat.pushed_to(10).len() > 1, "tried again");
    assert_eq!(world.waiting(BOB, Platform::Web).await, 0);
    assert_eq!(world.records(Topic::Dead).await.len(), 0);
}

/// Changes older than a record that comes again count for the records behind it in the batch.
#[tokio::test(start_paused = true)]
async fn a_batch_of_old_and_new_changes_knows_what_stands() {
    let mut world = World::new().await;
    let id = world.send(ALICE, BOB).await;
    world.change((ALICE, BOB), id, react("👍", true)).await;
    world.wait_until_committed().await;
    world.stop().await;
    world.change((ALICE, BOB), id, react("👎", true)).await;
    write_and_die(&world).await;
    world.change((ALICE, BOB), id, react("👍", false)).await;
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    let revs: Vec<_> = world.changes().await.iter().map(|c| c.rev).collect();
    assert_eq!(revs, [1, 2, 3]);
    let overlays = world
        .backends
        .changes
        .altered(between(ALICE, BOB), Seq(1), Seq(1));
    let marks = overlays.await.expect("reads")[&Seq(1)]
        .marks()
        .expect("marks");
    let reactions: Vec<_> = marks
        .reactions
        .iter()
        .map(|(text, _)| text.as_str())
        .collect();
    assert_eq!(reactions, ["👎"]);
}

/// A letter of a change that had its place is delivered again, and not made again.
#[tokio::test(start_paused = true)]
async fn a_letter_of_a_change_is_made_once() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let id = world.send(ALICE, BOB).await;
    let on = world.change_message((BOB, ALICE), id, react("👍", true));
    world.accept(task(on.clone())).await;
    world.change((BOB, ALICE), id, react("👍", false)).await;
    world.wait_until_committed().await;
    let redrive = MessageTask {
        letter: Some("message-0-1".to_owned()),
        ..task(on.clone())
    };
    world.accept(redrive).await;
    world.wait_until_committed().await;
    assert_eq!(world.changes().await.len(), 2);
    let pushed_ids = world.boat.pushed_to(20);
    assert_eq!(
        pushed_ids
            .iter()
            .filter(|pushed_ids| **pushed_ids == on.id.get())
            .count(),
        2
    );
}
