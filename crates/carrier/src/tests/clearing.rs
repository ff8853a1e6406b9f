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
    async fn cleared(&self, who: i64) -> (Seq, u64) {
        let key = [(user(who), between(ALICE, BOB))];
        let listed = self.backends.conversations.get(&key).await.expect("lists");
        let listed = listed[0].expect("a row");
        (listed.cleared.seq, listed.cleared.incoming)
    }

    fn refused(&self, session: i64) -> Vec<Code> {
        let told = self.boat.told_frames(session).into_iter();
        told.filter_map(|frame| match frame {
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
    world.until_quiet().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let before = world.now();
    let clear = world.clear(ALICE, BOB, newest).await;
    world.until_quiet().await;
    assert_eq!(world.cleared(ALICE).await, (Seq(2), 1));
    assert_eq!(world.cleared(BOB).await, (Seq::ZERO, 0));
    let key = [(user(ALICE), between(ALICE, BOB))];
    let listed = world.backends.conversations.get(&key).await.expect("lists");
    let touched = listed[0].expect("a row").touched;
    assert!(touched >= before, "a list of before finds it");
    assert!(world.boat.pushed_to(10).contains(&clear.get()));
    assert!(!world.boat.pushed_to(20).contains(&clear.get()));
    let is_told = |frame: &ServerFrame| matches!(frame, ServerFrame::Listed(word) if word.id == clear && word.kind == ListEventKind::Cleared(Seq(2)));
    assert!(world.boat.frames().iter().any(is_told));
    let listed = LedgerEvent::Listed {
        conversation: between(ALICE, BOB),
    };
    let events = world.events(clear).await;
    assert!(events.contains(&(None, listed)) && events.contains(&(None, LedgerEvent::Settled)));
    assert_eq!(
        world.conversation(ALICE, BOB).await.len(),
        2,
        "what was said stays"
    );
    // Once more, to no effect.
    world.clear(ALICE, BOB, newest).await;
    world.until_quiet().await;
    assert_eq!(world.refused(ALICE), []);
}

// proves S4-19, S4-21, S4-22: something came that the device had not seen, before it was offline or meanwhile.
#[tokio::test(start_paused = true)]
async fn a_message_that_the_device_had_not_seen_keeps_the_conversation() {
    let world = World::new().await;
    let seen = world.send(BOB, ALICE).await;
    // Scenario 1: the chat goes on on another device. Scenario 2: a message comes before the
    // request is handled.
    world.send(ALICE, BOB).await;
    world.send(BOB, ALICE).await;
    let command = world.clear(ALICE, BOB, seen).await;
    let never = MessageId::new(77).expect("positive");
    world.clear(ALICE, BOB, never).await;
    world.until_quiet().await;
    assert_eq!(world.cleared(ALICE).await, (Seq::ZERO, 0));
    assert_eq!(world.refused(ALICE), [Code::NotFound; 2]);
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
    let seen = world.send(BOB, ALICE).await;
    world.clear(ALICE, BOB, seen).await;
    world.send(BOB, ALICE).await;
    let late = world.send(BOB, ALICE).await;
    world.clear(BOB, ALICE, seen).await;
    for _ in 0..3 {
        write_and_die(&world).await;
        assert_eq!(
            world.cleared(ALICE).await,
            (Seq(2), 2),
            "the next message brings it back"
        );
        assert_eq!(
            world.cleared(BOB).await,
            (Seq::ZERO, 0),
            "one came that was not seen"
        );
    }
    world.carrier = Some(world.start().await);
    world.until_quiet().await;
    assert_eq!(world.cleared(ALICE).await, (Seq(2), 2));
    let key = [(user(ALICE), between(ALICE, BOB))];
    let listed = world.backends.conversations.get(&key).await.expect("lists");
    assert_eq!(listed[0].expect("a row").row.last_id, late);
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
    let never = MessageId::new(77).expect("positive");
    let nothing = world.about_list(ALICE, BOB, never, ChangeKind::Hide);
    world.accept(from_session(nothing, 10, &world.life)).await;
    let second = world.send(BOB, ALICE).await;
    let again = world.about_list(ALICE, BOB, second, ChangeKind::Hide);
    let again_id = again.id;
    world.accept(from_session(again, 10, &world.life)).await;
    world.until_quiet().await;
    let conversations = &world.backends.conversations;
    let talk = between(ALICE, BOB);
    let hidden = async |who| {
        let hidden = conversations.hidden(user(who), talk, 0, 9).await;
        hidden.expect("reads")
    };
    let of_alice = hidden(ALICE).await;
    let seqs: Vec<Seq> = of_alice.iter().map(|(_, seq)| *seq).collect();
    assert_eq!(seqs, [Seq(1), Seq(2)]);
    assert_eq!(hidden(BOB).await, []);
    let registers = conversations.registers(&[(user(ALICE), talk)]).await;
    assert_eq!(registers.expect("reads")[0].hidden, of_alice[1].0);
    let is_told = |of: MessageId, seq: u64| {
        let word = |frame: &ServerFrame| matches!(frame, ServerFrame::Listed(word) if word.id == of && word.kind == ListEventKind::Hidden(Seq(seq)));
        world.boat.frames().iter().any(word)
    };
    assert!(is_told(again_id, 2));
    assert!(!world.boat.pushed_to(20).contains(&again_id.get()));
    assert_eq!(world.refused(10), [Code::NotFound]);
    let listed = LedgerEvent::Listed { conversation: talk };
    assert!(world.events(id).await.contains(&(None, listed)));
    assert_eq!(world.conversation(ALICE, BOB).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_word_arranges_a_conversation() {
    let world = World::new().await;
    let newest = world.send(BOB, ALICE).await;
    let pinned = ListArrangement {
        pinned: true,
        muted_until: Some(world.now()),
    };
    for arranged in [ListArrangement::default(), pinned] {
        let kind = ChangeKind::Arrange(arranged);
        let message = world.about_list(ALICE, BOB, newest, kind);
        world.accept(task(message)).await;
    }
    world.until_quiet().await;
    let keys = [ALICE, BOB].map(|who| (user(who), between(ALICE, BOB)));
    let listed = world
        .backends
        .conversations
        .get(&keys)
        .await
        .expect("lists");
    let arranged: Vec<_> = listed
        .into_iter()
        .flatten()
        .map(|row| row.arranged)
        .collect();
    assert_eq!(arranged, [pinned, ListArrangement::default()]);
}
