use super::*;
use crate::delivery::settle::{PartFailure, settle};
use crate::keys::Topic;
use crate::ledger::audit::{InFlight, MessageFate};
use crate::ledger::trace::{MessageLife, OpenObligation};
use crate::ledger::{DeadReason, FailureCause, LedgerEntry};

// proves S1-11, S1-19: nobody is there, so it is stored by platform, and a notification task is made.
#[test]
fn an_absent_user_is_stored_for_and_told() {
    let mut world = World::new();
    world.send(1, BOB, &[Platform::Ios, Platform::Web], Options::CHAT);
    assert!(world.is_stored(BOB, Platform::Ios, 1));
    assert!(world.is_stored(BOB, Platform::Web, 1));
    let settlement = world.only_settlement();
    let notified_targets: Vec<Target> = settlement.notifications.iter().map(|n| n.target).collect();
    assert_eq!(
        notified_targets,
        [target(BOB, Platform::Ios), target(BOB, Platform::Web)]
    );
}

#[test]
fn whom_nobody_knows_finds_it_by_sync() {
    let mut world = World::new();
    world.send(1, BOB, &[], Options::CHAT);
    assert!(world.stored_mail.is_empty());
    let settlement = world.only_settlement();
    assert_eq!(ends(settlement), [(None, &LedgerEvent::ReachableBySync)]);
    assert_eq!(settlement.notifications, []);
}

#[test]
fn acknowledged_messages_are_neither_pushed_nor_notified() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    let message = placed(1, BOB, Options::CHAT);
    let task = DeliveryTask {
        rev: 0,
        obligations: vec![Obligation {
            user: user(BOB),
            platforms: vec![Platform::Web],
            live: false,
        }],
        placed: message,
        frame: Bytes::new(),
        audience: None,
        own_frames: Default::default(),
        retry_count: 1,
        first_at: world.now,
        origin: None,
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    };
    world
        .delivery
        .handle_task(world.now, at(0), task)
        .expect("room");
    let Some(Action::Route(route)) = world.delivery.poll_action() else {
        panic!("routed first");
    };
    let mut answer = world.route(&route).expect("the mailbox is well");
    answer.acknowledged_platforms = vec![Platform::Web];
    world
        .delivery
        .handle_routed(world.now, route.token, Ok(answer));
    world.drain();
    assert_eq!(world.pushes, []);
    assert_eq!(world.only_settlement().notifications, []);
}

// proves S1-25, S1-23: below `offline_after` it is tried live, at it the receiver counts as offline.
#[test]
fn after_three_retries_the_receiver_counts_as_offline() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    for retry_count in 1..=3 {
        assert_eq!(world.pushed_to(), [20]);
        world.answer(20, PushOutcome::NoAck);
        assert_eq!(
            world.only_settlement().retries[0].retry_count,
            retry_count,
            "{:?}",
            world.settlements
        );
        world.notices.clear();
        world.retry_all();
    }
    assert_eq!(world.pushes, []);
    assert!(world.is_stored(BOB, Platform::Web, 1));
    let settlement = world.only_settlement();
    assert_eq!(settlement.retries, []);
    assert_eq!(settlement.notifications.len(), 1);
    assert!(matches!(
        &world.notices[..],
        [Notice {
            event: SessionEvent::Hint,
            ..
        }]
    ));
}

// proves S1-29: what fails more often than allowed is a dead letter; S1 Pitfall H: it is the offline store
// that failed it, for by then the receiver counts as offline.
#[test]
fn a_mailbox_that_always_refuses_ends_in_a_dead_letter() {
    let mut world = World::new();
    world.mailbox_fails = Some(RouteFailure::Refused);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    let mut retries = Vec::new();
    let letter = loop {
        let settlement = world.only_settlement();
        if let Some(letter) = &settlement.letter {
            assert_eq!(settlement.retries, []);
            break letter.clone();
        }
        retries.push((
            settlement.retries[0].retry_count,
            settlement.retries[0].tier,
        ));
        world.retry_all();
    };
    assert_eq!(retries, [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 5)]);
    assert_eq!(letter.reason, DeadReason::MaxRetries);
    assert_eq!(letter.cause, FailureCause::MailboxRefused);
    assert_eq!(letter.name, at(6).letter(&[target(BOB, Platform::Web)]));
    assert_eq!(letter.obligations[0].user, user(BOB));
    assert_eq!(letter.obligations[0].platforms, [Platform::Web]);
}

// The sender's other session is on an unreachable boat, and the receiver's mailbox is away: two
// retries, one of which dies.
#[test]
fn a_dead_retry_of_the_sender_leaves_the_receiver_in_flight() {
    let (limits, now) = (DeliveryLimits::default(), Timestamp::from_millis(10_000));
    let web = target(BOB, Platform::Web);
    let failure = |user_number, platform, cause| PartFailure {
        user: user(user_number),
        platform,
        cause,
    };
    let mirror = failure(ALICE, None, FailureCause::BoatUnreachable);
    let untried_failure = failure(BOB, Some(web.platform), FailureCause::MailboxUnavailable);
    let message = placed(1, BOB, Options::CHAT);
    let event = LedgerEvent::Placed {
        conversation: message.conversation,
        seq: message.position.seq,
        from: message.message.from,
        send_id: message.message.send_id,
        partition: 0,
        offset: 0,
    };
    let task = DeliveryTask {
        rev: 0,
        obligations: obligations(&message, vec![web.platform]),
        placed: message,
        frame: Bytes::new(),
        audience: None,
        own_frames: Default::default(),
        retry_count: 0,
        first_at: now,
        origin: None,
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    };
    let first = settle(at(0), &task, &[mirror, untried_failure], now, &limits);
    let [_, carrying_retry] = &first.retries[..] else {
        panic!("{first:?}");
    };
    let last = DeliveryTask {
        retry_count: limits.retry_max,
        ..task.clone()
    };
    let source = Source {
        topic: Topic::Retry(5),
        ..at(4)
    };
    let dead = settle(source, &last, &[mirror], now, &limits);
    let letter = dead.letter.expect("no retry is left");
    assert_eq!(letter.name, "retry-5-0-4");

    let entry = |event| LedgerEntry {
        message: id(1),
        at: now,
        target: None,
        event,
    };
    let mut entries = vec![entry(event)];
    entries.extend(first.ledger.iter().cloned());
    entries.extend(dead.ledger);
    entries.push(entry(LedgerEvent::Settled));
    let life = MessageLife::of(id(1), &entries);
    assert_eq!(life.open(), [OpenObligation::Target(web)]);
    let mut in_flight = InFlight::default();
    in_flight.add_targets(
        id(1),
        carrying_retry
            .obligations
            .iter()
            .flat_map(Obligation::targets),
    );
    assert_eq!(MessageFate::of(&life, &in_flight), MessageFate::InFlight);
}

#[test]
fn a_mailbox_that_is_away_is_asked_again_without_counting() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Ios, 20);
    world.mailbox_fails = Some(RouteFailure::Unavailable);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    let mut tiers = Vec::new();
    for _ in 0..20 {
        let settlement = world.only_settlement();
        assert_eq!(settlement.letter, None);
        assert_eq!(settlement.retries[0].retry_count, 0);
        tiers.push(settlement.retries[0].tier);
        world.retry_all();
    }
    assert!(
        tiers.is_sorted() && tiers[0] == 1 && tiers[19] == 5,
        "{tiers:?}"
    );
    world.mailbox_fails = None;
    world.retry_all();
    assert!(world.is_stored(BOB, Platform::Web, 1));
    assert_eq!(world.pushed_to(), [20], "who lives is still looked for");
}

// proves S1-64 in part
#[test]
fn all_eight_options_do_what_they_name() {
    for bits in 0..8 {
        let options = Options::from_bits(bits).expect("three bits");
        let (acks, stores, tells) = (
            options.has(Options::NEEDS_ACK),
            options.has(Options::STORE_OFFLINE),
            options.has(Options::NOTIFY_OFFLINE),
        );

        // No live session.
        let mut world = World::new();
        world.send(1, BOB, &[Platform::Web], options);
        assert_eq!(world.is_stored(BOB, Platform::Web, 1), stores, "{bits}");
        let settlement = world.only_settlement();
        assert_eq!(settlement.notifications.len(), usize::from(tells), "{bits}");
        let end = match (stores, acks) {
            (true, _) => LedgerEvent::StoredOffline,
            (false, true) => LedgerEvent::ReachableBySync,
            (false, false) => LedgerEvent::Dropped,
        };
        let web = Some(target(BOB, Platform::Web));
        assert_eq!(ends(settlement), [(web, &end)], "{bits}");

        // A session that acknowledges.
        let mut world = World::new();
        world.sign_in(BOB, Platform::Web, 20);
        world.send(1, BOB, &[Platform::Web], options);
        assert_eq!(world.pushes[0].needs_ack, acks, "{bits}");
        world.answer(20, PushOutcome::Done);
        let session = session(20);
        let end = if acks {
            LedgerEvent::Acked { session }
        } else {
            LedgerEvent::Written { session }
        };
        let settlement = world.only_settlement();
        assert_eq!(ends(settlement), [(web, &end)], "{bits}");
        assert_eq!(settlement.notifications, [], "{bits}");

        // A session that is unreachable.
        let mut world = World::new();
        world.sign_in(BOB, Platform::Web, 20);
        world.send(1, BOB, &[Platform::Web], options);
        world.answer(20, PushOutcome::Unreachable);
        let retry_count = world.only_settlement().retries.len();
        assert_eq!(retry_count, usize::from(acks || stores), "{bits}");

        // A session that stays unreachable: the message ends as if no session lived.
        for _ in 0..3 {
            world.retry_all();
            world.answer(20, PushOutcome::Unreachable);
        }
        if acks || stores {
            assert_eq!(world.is_stored(BOB, Platform::Web, 1), stores, "{bits}");
            let settlement = world.only_settlement();
            assert_eq!(settlement.notifications.len(), usize::from(tells), "{bits}");
        }
    }
}

#[test]
fn a_bot_is_pushed_to_and_never_stored_for() {
    for outcome in [
        PushOutcome::NoAck,
        PushOutcome::Full,
        PushOutcome::NoSession,
    ] {
        let mut world = World::new();
        world.sign_in(BOB, Platform::Bot, 20);
        world.sign_in(BOB, Platform::Bot, 21);
        world.send(1, BOB, &[Platform::Bot, Platform::Web], Options::CHAT);
        assert_eq!(world.pushed_to(), [21, 20], "each run of it gets it");
        world.answer(20, PushOutcome::Done);
        for _ in 0..4 {
            world.answer(21, outcome);
            world.answer(20, outcome);
            world.retry_all();
        }
        assert!(world.delivery.is_idle());
        assert!(!world.is_stored(BOB, Platform::Bot, 1));
        assert!(world.is_stored(BOB, Platform::Web, 1));
    }
}
