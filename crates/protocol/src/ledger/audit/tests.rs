use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::id::snowflake;
use crate::ledger::{DeadReason, LedgerEntry, LedgerEvent};
use crate::{Platform, SendId, SessionId, UserId};

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

/// The n-th message, one every ten seconds.
fn message(n: u64) -> MessageId {
    MessageId::floor_of(snowflake::EPOCH + Duration::from_secs(600 + 10 * n))
}

fn web() -> Target {
    Target {
        user: user(2),
        platform: Platform::Web,
    }
}

fn entry(message: MessageId, target: Option<Target>, event: LedgerEvent) -> LedgerEntry {
    LedgerEntry {
        message,
        at: message.timestamp(),
        target,
        event,
    }
}

fn placed(n: u64, seq: u64) -> LedgerEntry {
    let event = LedgerEvent::Placed {
        conversation: ConversationId::private(user(1), user(2)).expect("two users"),
        seq: Seq(seq),
        from: user(1),
        send_id: SendId::from_bytes([n as u8; 16]),
        partition: 0,
        offset: n,
    };
    entry(message(n), None, event)
}

/// Possible fates of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Untouched,
    Unsettled,
    Acked,
    Stored,
    Retrying,
    Dead,
    Redriven,
}

fn entries(n: u64, fate: Fate) -> Vec<LedgerEntry> {
    let id = message(n);
    let web_entry = |event| entry(id, Some(web()), event);
    let letter = || "a".to_owned();
    let dead = || LedgerEvent::Dead {
        reason: DeadReason::MaxRetries,
        letter: letter(),
    };
    let mut entries = vec![placed(n, n + 1)];
    match fate {
        Fate::Untouched => return Vec::new(),
        Fate::Unsettled => return entries,
        Fate::Acked => entries.push(web_entry(LedgerEvent::Acked {
            session: SessionId::new(1).expect("positive"),
        })),
        Fate::Stored => entries.push(web_entry(LedgerEvent::StoredOffline)),
        Fate::Retrying => entries.push(web_entry(LedgerEvent::Retried {
            attempt: 1,
            tier: 1,
        })),
        Fate::Dead => entries.push(web_entry(dead())),
        Fate::Redriven => {
            entries.push(web_entry(dead()));
            entries.push(web_entry(LedgerEvent::Redriven { letter: letter() }));
        }
    }
    entries.push(entry(id, None, LedgerEvent::Settled));
    entries
}

fn audit(fates: &[Fate], in_flight: &InFlight) -> Audit {
    let mut audit = Audit::default();
    for (n, &fate) in (0..).zip(fates) {
        audit.add(&MessageLife::of(message(n), &entries(n, fate)), in_flight);
    }
    audit
}

fn is_open(fate: Fate) -> bool {
    match fate {
        Fate::Untouched | Fate::Unsettled | Fate::Retrying | Fate::Redriven => true,
        Fate::Acked | Fate::Stored | Fate::Dead => false,
    }
}

#[test]
fn a_retry_is_in_flight_only_while_a_record_carries_it() {
    let fates = [Fate::Retrying];
    let mut in_flight = InFlight::default();
    in_flight.add_targets(message(0), [web()]);
    assert_eq!(audit(&fates, &in_flight).total().in_flight_count, 1);
    let lost_audit = audit(&fates, &InFlight::default());
    assert_eq!(lost_audit.total().missing_ids, [message(0)]);
    assert!(!lost_audit.is_even());
    // A record for another target does not carry this one.
    let mut other = InFlight::default();
    other.add_targets(
        message(0),
        [Target {
            platform: Platform::Ios,
            ..web()
        }],
    );
    assert_eq!(audit(&fates, &other).total().missing_ids, [message(0)]);
}

#[test]
fn minutes_are_summed_by_the_id() {
    let audit = audit(&[Fate::Acked; 9], &InFlight::default());
    let counts: Vec<u64> = audit.minutes().map(|(_, b)| b.accepted_count).collect();
    assert_eq!(counts, [6, 3]);
}

#[test]
fn a_message_that_the_log_has_twice_counts_once() {
    let mut audit = Audit::default();
    let life = MessageLife::of(message(0), &entries(0, Fate::Acked));
    audit.add(&life, &InFlight::default());
    audit.add(&life, &InFlight::default());
    assert_eq!(audit.total().accepted_count, 1);
}

#[test]
fn two_messages_at_one_position_contradict() {
    let mut audit = Audit::default();
    for (n, seq) in [(0, 1), (1, 1), (2, 2)] {
        audit.add(
            &MessageLife::of(message(n), &[placed(n, seq)]),
            &InFlight::default(),
        );
    }
    let contradictions: Vec<_> = audit.contradictions().collect();
    assert!(
        matches!(contradictions[..], [Contradiction::SeqReused { seq: Seq(1), first, second, .. }]
            if (*first, *second) == (message(0), message(1))),
        "{contradictions:?}"
    );
    assert!(!audit.is_even());
}

#[test]
fn a_second_look_counts_what_had_moved() {
    let mut audit = audit(
        &[
            Fate::Acked,
            Fate::Untouched,
            Fate::Retrying,
            Fate::Untouched,
        ],
        &InFlight::default(),
    );
    assert_eq!(
        audit.total().missing_ids,
        [message(1), message(2), message(3)]
    );
    let mut in_flight = InFlight::default();
    in_flight.add_message(message(2));
    let mut second = Audit::default();
    for (n, fate) in [(1, Fate::Stored), (2, Fate::Retrying), (3, Fate::Untouched)] {
        second.add(&MessageLife::of(message(n), &entries(n, fate)), &in_flight);
    }
    audit.look_again(second);
    let total = audit.total();
    assert_eq!(
        (
            total.accepted_count,
            total.settled_count,
            total.in_flight_count,
            total.missing_ids
        ),
        (4, 2, 1, vec![message(3)])
    );
}

proptest! {
    /// accepted = settled + in flight + missing; missing is exactly what is open and not carried.
    #[test]
    fn the_balance_adds_up_and_names_what_is_lost(
        fates in proptest::collection::vec(
            (
                prop::sample::select(vec![
                    Fate::Untouched, Fate::Unsettled, Fate::Acked, Fate::Stored,
                    Fate::Retrying, Fate::Dead, Fate::Redriven,
                ]),
                any::<bool>(),
            ),
            0..40,
        ),
    ) {
        let mut in_flight = InFlight::default();
        for (n, &(_, is_carried)) in (0..).zip(&fates) {
            if is_carried {
                in_flight.add_message(message(n));
            }
        }
        let missing_ids: Vec<MessageId> = (0..)
            .zip(&fates)
            .filter(|(_, (fate, is_carried))| is_open(*fate) && !is_carried)
            .map(|(n, _)| message(n))
            .collect();
        let only_fates: Vec<Fate> = fates.iter().map(|&(fate, _)| fate).collect();
        let audit = audit(&only_fates, &in_flight);
        let total = audit.total();
        prop_assert_eq!(total.accepted_count, fates.len() as u64);
        prop_assert_eq!(
            total.accepted_count,
            total.settled_count + total.in_flight_count + total.missing_ids.len() as u64
        );
        prop_assert_eq!(&total.missing_ids, &missing_ids);
        prop_assert_eq!(audit.is_even(), missing_ids.is_empty());
    }
}
