use proptest::prelude::*;

use super::*;
use crate::Platform;
use crate::id::snowflake;
use crate::presence::BoatLife;

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn target(n: i64, platform: Platform) -> Target {
    Target {
        user: user(n),
        platform,
    }
}

fn session() -> SessionId {
    SessionId::new(9).expect("positive")
}

fn accepted() -> Timestamp {
    snowflake::EPOCH + Duration::from_secs(60)
}

fn message() -> MessageId {
    MessageId::floor_of(accepted())
}

fn entry(millis: u64, target: Option<Target>, event: LedgerEvent) -> LedgerEntry {
    LedgerEntry {
        message: message(),
        at: accepted() + Duration::from_millis(millis),
        target,
        event,
    }
}

fn placed(seq: u64) -> LedgerEvent {
    LedgerEvent::Placed {
        conversation: ConversationId::private(user(1), user(2)).expect("two users"),
        seq: Seq(seq),
        from: user(1),
        send_id: SendId::from_bytes([7; 16]),
        partition: 3,
        offset: 40,
    }
}

fn pushed(attempt: u32) -> LedgerEvent {
    LedgerEvent::Pushed {
        session: session(),
        life: BoatLife {
            boat: crate::BoatId::new("boat-1").expect("a name"),
            incarnation: crate::Incarnation(1),
        },
        attempt,
    }
}

fn dead(letter: &str) -> LedgerEvent {
    LedgerEvent::Dead {
        reason: DeadReason::MaxRetries,
        letter: letter.to_owned(),
    }
}

fn redriven(letter: &str) -> LedgerEvent {
    LedgerEvent::Redriven {
        letter: letter.to_owned(),
    }
}

fn retried() -> LedgerEvent {
    LedgerEvent::Retried {
        attempt: 1,
        tier: 2,
    }
}

fn life(entries: &[LedgerEntry]) -> MessageLife {
    MessageLife::of(message(), entries)
}

/// The verdict without an answer from any mailbox.
fn verdict(life: &MessageLife) -> Vec<String> {
    life.verdict(&BTreeMap::new())
}

const WEB: Platform = Platform::Web;

#[test]
fn the_verdict_tells_how_long_it_waited_offline() {
    let web = Some(target(2, WEB));
    let life = life(&[
        entry(2, None, placed(5)),
        entry(100, web, LedgerEvent::StoredOffline),
        entry(101, web, LedgerEvent::Notified),
        entry(102, None, LedgerEvent::Settled),
        entry(3100, web, LedgerEvent::Fetched { session: session() }),
    ]);
    assert_eq!(
        verdict(&life),
        [
            "placed at 5 in p:1:2 after 2 ms",
            "delivered to 2/web after 3.1 s, of which 3.0 s offline",
        ]
    );
    assert!(life.is_settled());
}

/// The ledger learns of a fetch late, or never: the mailbox knows better.
#[test]
fn the_mailbox_overrules_the_ledger() {
    let [two, three] = [target(2, WEB), target(3, WEB)];
    let notification = LedgerEvent::NotificationSent {
        provider: "webhook".to_owned(),
        ok: true,
    };
    let life = life(&[
        entry(2, None, placed(5)),
        entry(100, Some(two), LedgerEvent::StoredOffline),
        entry(101, Some(two), notification),
        entry(102, None, LedgerEvent::Settled),
        entry(103, Some(three), LedgerEvent::StoredOffline),
        entry(104, Some(three), LedgerEvent::Acked { session: session() }),
    ]);
    assert_eq!(Vec::from_iter(life.stored_for()), [two]);
    for (location, phrase) in [
        (Some(MailLocation::Waits), "not fetched yet"),
        (
            Some(MailLocation::Acknowledged),
            "acknowledged by a device since, not yet in the ledger",
        ),
        (
            Some(MailLocation::Absent),
            "no longer in the mailbox: fetched without a ledger entry, lost, or expired; history \
             should have it for the next sync",
        ),
        (
            None,
            "the mailbox does not answer, so it is unknown whether it still waits",
        ),
    ] {
        let mailboxes = location
            .map(|location| (two, location))
            .into_iter()
            .collect();
        let verdict = life.verdict(&mailboxes);
        let expected =
            format!("stored offline for 2/web after 100 ms, notified by webhook, {phrase}");
        assert_eq!(verdict[1], expected);
        assert_eq!(verdict[2], "delivered to 3/web after 104 ms");
    }
}

#[test]
fn a_message_without_entries_is_open() {
    assert_eq!(life(&[]).open(), [OpenObligation::Message]);
    assert_eq!(verdict(&life(&[])), ["accepted, not placed yet"]);
    // Left behind by a commit before the record settled.
    assert_eq!(
        life(&[entry(1, None, placed(1))]).open(),
        [OpenObligation::Message]
    );
}

#[test]
fn a_push_without_outcome_is_open_and_a_retry_too() {
    let web = target(2, WEB);
    let mut entries = vec![
        entry(1, None, placed(1)),
        entry(2, Some(web), pushed(0)),
        entry(3, None, LedgerEvent::Settled),
    ];
    assert_eq!(life(&entries).open(), [OpenObligation::Target(web)]);
    entries.push(entry(4, Some(web), retried()));
    assert_eq!(life(&entries).open(), [OpenObligation::Target(web)]);
    assert_eq!(
        verdict(&life(&entries))[1],
        "in flight to 2/web: waits in retry-2 for attempt 1"
    );
    entries.push(entry(
        5,
        Some(web),
        LedgerEvent::Acked { session: session() },
    ));
    assert!(life(&entries).is_settled());
}

#[test]
fn a_failure_of_the_senders_other_session_is_nobodys_loss() {
    let own = target(1, WEB);
    let life = life(&[
        entry(1, None, placed(1)),
        entry(2, Some(own), pushed(0)),
        entry(3, None, LedgerEvent::Settled),
    ]);
    assert!(life.is_settled());
}

#[test]
fn a_repeat_is_carried_by_the_first_one() {
    let first = MessageId::new(77).expect("positive");
    let repeat = life(&[entry(1, None, LedgerEvent::Repeat { of: first })]);
    assert!(repeat.is_settled());
    // The same id published twice: the second record has no effect on the first.
    let itself = life(&[entry(1, None, LedgerEvent::Repeat { of: message() })]);
    assert_eq!(itself.open(), [OpenObligation::Message]);
}

#[test]
fn a_dead_letter_is_an_end_until_it_is_redriven() {
    let web = target(2, WEB);
    let mut entries = vec![
        entry(1, None, placed(1)),
        entry(2, Some(web), dead("a")),
        entry(3, None, LedgerEvent::Settled),
    ];
    assert!(life(&entries).is_settled());
    entries.push(entry(9, Some(web), redriven("a")));
    assert_eq!(life(&entries).open(), [OpenObligation::Target(web)]);
    let mut dead_again = entries.clone();
    dead_again.push(entry(12, Some(web), dead("b")));
    assert!(life(&dead_again).is_settled());
    entries.push(entry(
        12,
        Some(web),
        LedgerEvent::Acked { session: session() },
    ));
    assert!(life(&entries).is_settled());
}

/// An operator removed one target before the redrive.
#[test]
fn a_target_that_a_redrive_leaves_out_stays_dead() {
    let [web, other] = [target(2, WEB), target(3, WEB)];
    let entries = [
        entry(1, None, placed(1)),
        entry(2, Some(web), dead("a")),
        entry(2, Some(other), dead("a")),
        entry(3, None, LedgerEvent::Settled),
        entry(9, Some(web), redriven("a")),
    ];
    assert_eq!(life(&entries).open(), [OpenObligation::Target(web)]);
}

// The desk logs a redrive when the carrier may already be done with the letter.
#[test]
fn a_redriven_letter_that_was_settled_meanwhile_is_settled() {
    let web = target(2, WEB);
    let mut entries = vec![
        entry(1, None, dead("a")),
        entry(1, None, LedgerEvent::Settled),
        entry(9, None, redriven("a")),
    ];
    assert_eq!(life(&entries).open(), [OpenObligation::Message]);
    entries.push(entry(5, None, placed(1)));
    assert_eq!(life(&entries).open(), [OpenObligation::Message]);
    entries.push(entry(6, Some(web), LedgerEvent::StoredOffline));
    entries.push(entry(6, None, LedgerEvent::Settled));
    assert!(life(&entries).is_settled());
}

#[test]
fn a_dead_letter_of_the_whole_ends_every_part() {
    let web = target(2, WEB);
    let mut entries = vec![
        entry(1, None, placed(1)),
        entry(2, Some(web), pushed(0)),
        entry(3, None, dead("a")),
        entry(4, None, LedgerEvent::Settled),
    ];
    assert!(life(&entries).is_settled());
    // Redriven: open as a whole until it settles again.
    entries.push(entry(10, None, redriven("a")));
    assert_eq!(
        life(&entries).open(),
        [OpenObligation::Message, OpenObligation::Target(web)]
    );
    entries.push(entry(11, Some(web), LedgerEvent::StoredOffline));
    assert_eq!(life(&entries).open(), [OpenObligation::Message]);
    entries.push(entry(12, None, LedgerEvent::Settled));
    assert!(life(&entries).is_settled());
}

#[test]
fn live_sessions_in_a_letter_of_targets_end_no_other_part() {
    let [web, other] = [target(2, WEB), target(3, WEB)];
    let life = life(&[
        entry(1, None, placed(1)),
        entry(2, Some(web), retried()),
        entry(3, Some(other), dead("a")),
        entry(3, None, dead("a")),
        entry(3, None, LedgerEvent::Settled),
    ]);
    assert_eq!(life.dead, None);
    assert_eq!(life.open(), [OpenObligation::Target(web)]);
}

#[test]
fn a_dead_retry_of_live_sessions_ends_no_other_part() {
    let web = target(2, WEB);
    let life = life(&[
        entry(1, None, placed(1)),
        entry(2, Some(web), retried()),
        entry(3, None, dead("retry-2-0-4")),
        entry(3, None, LedgerEvent::Settled),
    ]);
    assert_eq!(life.dead, None);
    assert_eq!(life.open(), [OpenObligation::Target(web)]);
}

#[test]
fn a_redrive_of_live_sessions_reopens_no_message() {
    let web = target(2, WEB);
    let mut entries = vec![
        entry(1, None, placed(1)),
        entry(2, Some(web), dead("a")),
        entry(2, None, dead("a")),
        entry(2, None, dead("retry-2-0-4")),
        entry(3, None, LedgerEvent::Settled),
    ];
    assert!(life(&entries).is_settled());
    entries.push(entry(9, None, redriven("retry-2-0-4")));
    assert!(life(&entries).is_settled());
    entries.push(entry(9, Some(web), redriven("a")));
    entries.push(entry(9, None, redriven("a")));
    assert_eq!(life(&entries).open(), [OpenObligation::Target(web)]);
    entries.push(entry(12, Some(web), LedgerEvent::StoredOffline));
    assert!(life(&entries).is_settled());
}

/// A record without a place does not belong on a retry topic, and nobody tries it again.
#[test]
fn a_message_without_a_place_is_dead_on_a_retry_topic_too() {
    let mut entries = vec![
        entry(1, None, dead("retry-2-0-4")),
        entry(1, None, LedgerEvent::Settled),
    ];
    assert!(life(&entries).dead.is_some());
    assert!(life(&entries).is_settled());
    entries.push(entry(9, None, redriven("retry-2-0-4")));
    assert_eq!(life(&entries).open(), [OpenObligation::Message]);
}

#[test]
fn two_positions_of_one_message_are_told() {
    let life = life(&[
        entry(1, None, placed(1)),
        entry(1, None, placed(1)),
        entry(3, None, placed(2)),
        entry(4, None, LedgerEvent::Settled),
    ]);
    assert_eq!(life.further_places.len(), 1);
    assert!(verdict(&life)[0].starts_with("BROKEN"));
}

fn any_event() -> impl Strategy<Value = (Option<Target>, LedgerEvent)> {
    let someone = (2..4i64).prop_map(|n| target(n, WEB));
    let target_event = prop_oneof![
        Just(pushed(0)),
        Just(LedgerEvent::Failed {
            cause: FailureCause::NoAck,
            attempt: 0
        }),
        Just(retried()),
        Just(LedgerEvent::Acked { session: session() }),
        Just(LedgerEvent::StoredOffline),
        Just(LedgerEvent::Fetched { session: session() }),
        Just(LedgerEvent::ReachableBySync),
        Just(LedgerEvent::Dropped),
        Just(dead("a")),
        Just(redriven("a")),
    ];
    prop_oneof![
        4 => (someone, target_event).prop_map(|(target, event)| (Some(target), event)),
        1 => Just((None, placed(1))),
        1 => Just((None, LedgerEvent::Settled)),
        1 => Just((None, dead("a"))),
        1 => Just((None, dead("retry-2-0-4"))),
    ]
}

proptest! {
    /// The verdict depends neither on the order of simultaneous entries nor on duplicates.
    #[test]
    fn order_and_repeats_change_nothing_that_is_open(
        (events, other_order) in proptest::collection::vec(any_event(), 0..12)
            .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle())),
        repeat_index in any::<prop::sample::Index>(),
    ) {
        let at_once = |events: &[(Option<Target>, LedgerEvent)]| -> Vec<LedgerEntry> {
            events.iter().map(|(target, event)| entry(5, *target, event.clone())).collect()
        };
        let open = life(&at_once(&events)).open();
        prop_assert_eq!(&life(&at_once(&other_order)).open(), &open);
        if !events.is_empty() {
            let mut with_repeat = at_once(&events);
            with_repeat.push(with_repeat[repeat_index.index(events.len())].clone());
            prop_assert_eq!(&life(&with_repeat).open(), &open);
        }
    }

    /// A delivered target stays delivered, whatever entries follow.
    #[test]
    fn an_end_is_for_good(events in proptest::collection::vec(any_event(), 0..12)) {
        let web = target(2, WEB);
        let mut entries = vec![entry(0, Some(web), LedgerEvent::Acked { session: session() })];
        entries.extend(
            (1..).zip(events).map(|(millis, (target, event))| entry(millis, target, event)),
        );
        prop_assert!(!life(&entries).open().contains(&OpenObligation::Target(web)));
    }
}
