//! Taking a conversation from one's list, and arranging it: judged by its place in the log.

use std::time::Duration;

use protocol::change::{ChangeKind, ChangeOf, ListArrangement};
use protocol::frame::{ListEventKind, ServerFrame};
use protocol::ledger::LedgerEvent;
use protocol::message::Content;
use protocol::{Code, Message, MessageId, Options, Platform, Seq};

use super::crashes::write_and_die;
use super::world::*;
use crate::Config;

impl World {
    pub(super) fn about_list(
        &self,
        from: i64,
        to: i64,
        newest: MessageId,
        kind: ChangeKind,
    ) -> Message {
        Message {
            options: Options::NONE,
            content: Content {
                change: Some(Box::new(ChangeOf {
                    subject: Some(newest),
                    kind,
                })),
                ..Content::text("")
            },
            ..self.message(from, to)
        }
    }

    async fn clear(&self, from: i64, to: i64, newest: MessageId) -> MessageId {
        let message = self.about_list(from, to, newest, ChangeKind::Clear);
        let id = message.id;
        self.accept(from_session(message, from, &self.life)).await;
        id
    }

    /// Position up to which a user took the conversation from the list.
    async fn cleared_position(&self, user_id: i64) -> (Seq, u64) {
        let key = [(user(user_id), between(ALICE, BOB))];
        let list_rows = self.backends.conversations.get(&key).await.expect("lists");
        let list_rows = list_rows[0].expect("a row");
        (list_rows.cleared.seq, list_rows.cleared.incoming)
    }

    fn refusal_codes(&self, session: i64) -> Vec<Code> {
        let frames = self.boat.notice_frames(session).into_iter();
        frames
            .filter_map(|frame| match frame {
                ServerFrame::Refused { refusal, .. } => Some(refusal.code),
                _ => None,
            })
            .collect()
    }
}

// proves S4-17, S4-18, S4-20:
// up to the newest message that the device had, for its user alone, and told to
// the user's devices.
#[tokio::test(start_paused = true)]
async fn a_conversation_goes_from_one_users_list() {
    let world = World::new().await;
    world
        .sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)
        .await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.send(ALICE, BOB).await;
    let newest = world.send(BOB, ALICE).await;
    world.wait_until_committed().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let list_version = world.now();
    let clear = world.clear(ALICE, BOB, newest).await;
    world.wait_until_committed().await;
    assert_eq!(world.cleared_position(ALICE).await, (Seq(2), 1));
    assert_eq!(world.cleared_position(BOB).await, (Seq::ZERO, 0));
    let key = [(user(ALICE), between(ALICE, BOB))];
    let list_rows = world.backends.conversations.get(&key).await.expect("lists");
    let touched_at = list_rows[0].expect("a row").touched;
    assert!(touched_at >= list_version, "a list of before finds it");
    assert!(world.boat.pushed_to(10).contains(&clear.get()));
    assert!(!world.boat.pushed_to(20).contains(&clear.get()));
    let is_announced = |frame: &ServerFrame| matches!(frame, ServerFrame::Listed(word) if word.id == clear && word.kind == ListEventKind::Cleared(Seq(2)));
    assert!(world.boat.frames().iter().any(is_announced));
    let listed_event = LedgerEvent::Listed {
        conversation: between(ALICE, BOB),
    };
    let events = world.events(clear).await;
    assert!(
        events.contains(&(None, listed_event)) && events.contains(&(None, LedgerEvent::Settled))
    );
    assert_eq!(
        world.conversation(ALICE, BOB).await.len(),
        2,
        "what was said stays"
    );
    // Once more, to no effect.
    world.clear(ALICE, BOB, newest).await;
    world.wait_until_committed().await;
    assert_eq!(world.refusal_codes(ALICE), []);
}

// proves S4-19, S4-21, S4-22: something came that the device had not seen, before it was offline or meanwhile.
#[tokio::test(start_paused = true)]
async fn an_unseen_message_keeps_the_conversation_listed() {
    let world = World::new().await;
    let seen_id = world.send(BOB, ALICE).await;
    // Scenario 1: the chat goes on on another device. Scenario 2: a message comes before the
    // request is handled.
    world.send(ALICE, BOB).await;
    world.send(BOB, ALICE).await;
    let command = world.clear(ALICE, BOB, seen_id).await;
    let unknown_id = MessageId::new(77).expect("positive");
    world.clear(ALICE, BOB, unknown_id).await;
    world.wait_until_committed().await;
    assert_eq!(world.cleared_position(ALICE).await, (Seq::ZERO, 0));
    assert_eq!(world.refusal_codes(ALICE), [Code::NotFound; 2]);
    let events = world.events(command).await;
    let is_expired = |event: &LedgerEvent| {
        matches!(
            event,
            LedgerEvent::Unchanged {
                refused: Some(_),
                ..
            }
        )
    };
    assert!(events.iter().any(|(_, event)| is_expired(event)));
}

// proves S4-23: and however often the writer dies in between, with later messages placed already.
#[tokio::test(start_paused = true)]
async fn a_clearing_means_the_same_when_it_comes_again() {
    let mut world = World::without_carrier(Config::default()).await;
    world.send(BOB, ALICE).await;
    let seen_id = world.send(BOB, ALICE).await;
    world.clear(ALICE, BOB, seen_id).await;
    world.send(BOB, ALICE).await;
    let last_id = world.send(BOB, ALICE).await;
    world.clear(BOB, ALICE, seen_id).await;
    for _ in 0..3 {
        write_and_die(&world).await;
        assert_eq!(
            world.cleared_position(ALICE).await,
            (Seq(2), 2),
            "the next message brings it back"
        );
        assert_eq!(
            world.cleared_position(BOB).await,
            (Seq::ZERO, 0),
            "one came that was not seen"
        );
    }
    world.carrier = Some(world.start().await);
    world.wait_until_committed().await;
    assert_eq!(world.cleared_position(ALICE).await, (Seq(2), 2));
    let key = [(user(ALICE), between(ALICE, BOB))];
    let list_rows = world.backends.conversations.get(&key).await.expect("lists");
    assert_eq!(list_rows[0].expect("a row").row.last_id, last_id);
}

/// Hidden for the user who asked, and announced to nobody else, however often the record comes.
#[tokio::test(start_paused = true)]
async fn a_message_is_hidden_from_one_user() {
    let mut world = World::without_carrier(Config::default()).await;
    let first = world.send(BOB, ALICE).await;
    let hide = world.about_list(ALICE, BOB, first, ChangeKind::Hide);
    let id = hide.id;
    world.accept(from_session(hide, 10, &world.life)).await;
    write_and_die(&world).await;
    world.carrier = Some(world.start().await);
    world
        .sign_in(ALICE, Platform::Ios, 10, Manner::Acknowledges)
        .await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    let unknown_id = MessageId::new(77).expect("positive");
    let hide_unknown = world.about_list(ALICE, BOB, unknown_id, ChangeKind::Hide);
    world
        .accept(from_session(hide_unknown, 10, &world.life))
        .await;
    let second = world.send(BOB, ALICE).await;
    let second_hide = world.about_list(ALICE, BOB, second, ChangeKind::Hide);
    let second_hide_id = second_hide.id;
    world
        .accept(from_session(second_hide, 10, &world.life))
        .await;
    world.wait_until_committed().await;
    let conversations = &world.backends.conversations;
    let talk = between(ALICE, BOB);
    let hide_marks = async |user_id| {
        let hide_marks = conversations.hidden(user(user_id), talk, 0, 9).await;
        hide_marks.expect("reads")
    };
    let alice_marks = hide_marks(ALICE).await;
    let seqs: Vec<Seq> = alice_marks.iter().map(|(_, seq)| *seq).collect();
    assert_eq!(seqs, [Seq(1), Seq(2)]);
    assert_eq!(hide_marks(BOB).await, []);
    let registers = conversations.registers(&[(user(ALICE), talk)]).await;
    assert_eq!(registers.expect("reads")[0].hidden, alice_marks[1].0);
    let is_announced = |hide_id: MessageId, seq: u64| {
        let word = |frame: &ServerFrame| matches!(frame, ServerFrame::Listed(word) if word.id == hide_id && word.kind == ListEventKind::Hidden(Seq(seq)));
        world.boat.frames().iter().any(word)
    };
    assert!(is_announced(second_hide_id, 2));
    assert!(!world.boat.pushed_to(20).contains(&second_hide_id.get()));
    assert_eq!(world.refusal_codes(10), [Code::NotFound]);
    let listed_event = LedgerEvent::Listed { conversation: talk };
    assert!(world.events(id).await.contains(&(None, listed_event)));
    assert_eq!(world.conversation(ALICE, BOB).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_word_arranges_a_conversation() {
    let world = World::new().await;
    let newest = world.send(BOB, ALICE).await;
    let pin = ListArrangement {
        pinned: true,
        muted_until: Some(world.now()),
    };
    for arrangement in [ListArrangement::default(), pin] {
        let kind = ChangeKind::Arrange(arrangement);
        let message = world.about_list(ALICE, BOB, newest, kind);
        world.accept(task(message)).await;
    }
    world.wait_until_committed().await;
    let keys = [ALICE, BOB].map(|user_id| (user(user_id), between(ALICE, BOB)));
    let list_rows = world
        .backends
        .conversations
        .get(&keys)
        .await
        .expect("lists");
    let arrangements: Vec<_> = list_rows
        .into_iter()
        .flatten()
        .map(|row| row.arranged)
        .collect();
    assert_eq!(arrangements, [pin, ListArrangement::default()]);
}
