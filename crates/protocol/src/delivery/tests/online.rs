use super::*;
use crate::ledger::FailureCause;

#[test]
fn a_live_session_gets_it_and_the_sender_learns_its_place() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    let message = placed(1, BOB, Options::CHAT);
    let origin = Origin {
        session: session(10),
        life: life("boat-1"),
    };
    world.submit(DeliveryTask {
        rev: 0,
        obligations: obligations(&message, vec![Platform::Web]),
        placed: message,
        frame: Bytes::from_static(b"frame"),
        audience: None,
        own_frames: Default::default(),
        retry_count: 0,
        first_at: world.now,
        origin: Some(origin),
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    });
    assert_eq!(world.pushed_to(), [20]);
    assert!(matches!(
        &world.notices[..],
        [Notice { session, event: SessionEvent::Placed(echo), .. }]
            if session.get() == 10 && echo.position.seq == Seq(1)
    ));
    assert_eq!(world.settlements, [], "nothing is settled before the ack");
    world.answer(20, PushOutcome::Done);
    let web = Some(target(BOB, Platform::Web));
    let settlement = world.only_settlement();
    let ack_event = LedgerEvent::Acked {
        session: session(20),
    };
    assert_eq!(ends(settlement), [(web, &ack_event)]);
    assert_eq!((settlement.retries.len(), &settlement.letter), (0, &None));
    assert_eq!(settlement.notifications, []);
    assert!(matches!(
        settlement.ledger.last().expect("entries").event,
        LedgerEvent::Settled
    ));
    assert!(world.delivery.is_idle());
}

// proves S1-27, S1-14, S1-24: what succeeded is not done again, the rest is published again with
// retry_count + 1. The session that gave no ack is left to its boat, which knows how far away it is.
#[test]
fn only_the_platform_that_did_not_acknowledge_is_tried_again() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.sign_in(BOB, Platform::Ios, 21);
    let platforms = [Platform::Ios, Platform::Web, Platform::Desktop];
    world.send(1, BOB, &platforms, Options::CHAT);
    world.answer(20, PushOutcome::Done);
    world.answer(21, PushOutcome::NoAck);
    assert!(world.is_stored(BOB, Platform::Desktop, 1));
    let settlement = world.only_settlement();
    let [retry] = &settlement.retries[..] else {
        panic!("{:?}", settlement.retries);
    };
    assert_eq!(
        retry.obligations,
        [Obligation {
            user: user(BOB),
            platforms: vec![Platform::Ios],
            live: false
        }]
    );
    assert_eq!((retry.retry_count, retry.tier), (1, 1));
    assert_eq!(retry.due_at, world.now + Duration::from_secs(1));
    assert_eq!(retry.cause, FailureCause::NoAck);
    assert_eq!(world.notices, []);
}

// proves S1-20, S1-21: the newest login decides, whose session has the smallest id here.
#[test]
fn every_session_of_a_platform_gets_it_and_the_newest_decides() {
    for (newest, is_decided) in [(PushOutcome::Done, true), (PushOutcome::NoAck, false)] {
        let mut world = World::new();
        world.sign_in_as(BOB, Platform::Web, 22, 1);
        world.sign_in_as(BOB, Platform::Web, 20, 3);
        world.sign_in_as(BOB, Platform::Web, 21, 2);
        world.send(1, BOB, &[Platform::Web], Options::CHAT);
        assert_eq!(world.pushed_to(), [20, 21, 22]);
        let older = if is_decided {
            PushOutcome::NoAck
        } else {
            PushOutcome::Done
        };
        world.answer(22, older);
        world.answer(21, older);
        assert_eq!(world.settlements, []);
        world.answer(20, newest);
        assert_eq!(world.only_settlement().retries.is_empty(), is_decided);
    }
}

// proves S1-16: the entry of a session that its boat does not know is removed, and the message handled
// again before the record settles.
#[test]
fn an_unknown_session_is_forgotten_and_routed_again() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    world.answer(20, PushOutcome::NoSession);
    assert_eq!(world.forgotten.len(), 1);
    assert_eq!(world.forgotten[0].session, session(20));
    assert!(world.is_stored(BOB, Platform::Web, 1));
    let settlement = world.only_settlement();
    assert_eq!(settlement.retries, []);
    assert_eq!(settlement.notifications.len(), 1);
}

#[test]
fn a_store_that_keeps_naming_a_dead_session_ends_in_a_retry() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    for _ in 0..=DeliveryLimits::default().reroutes_max {
        assert_eq!(world.settlements, []);
        // The deletion did not hold.
        let entries = world.live.clone();
        assert_eq!(world.pushed_to(), [20]);
        let push = world.pushes.remove(0);
        world
            .delivery
            .handle_outcome(world.now, push.token, PushOutcome::NoSession);
        while let Some(action) = world.delivery.poll_action() {
            match action {
                Action::Route(route) => {
                    world.live = entries.clone();
                    let answer = world.route(&route);
                    world.delivery.handle_routed(world.now, route.token, answer);
                }
                Action::Push { push, .. } => world.pushes.push(push),
                Action::Settled(settlement) => world.settlements.push(*settlement),
                Action::Forget(_) | Action::Notice(_) => {}
            }
        }
    }
    assert_eq!(world.only_settlement().retries[0].retry_count, 1);
}

#[test]
fn a_session_without_room_is_stored_for_and_hinted() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    world.answer(20, PushOutcome::Full);
    assert!(world.is_stored(BOB, Platform::Web, 1));
    assert!(matches!(
        &world.notices[..],
        [Notice { session, event: SessionEvent::Hint, .. }] if session.get() == 20
    ));
    assert_eq!(world.only_settlement().retries, []);
}

#[test]
fn a_silent_boat_fails_the_push_at_its_deadline() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    let deadline = world.now + Duration::from_secs(3);
    assert_eq!(world.delivery.poll_timeout(), Some(deadline));
    world.pass(Duration::from_millis(2_999));
    assert_eq!(world.settlements, []);
    world.pass(Duration::from_millis(1));
    let settlement = world.only_settlement().clone();
    assert_eq!(settlement.retries[0].cause, FailureCause::BoatUnreachable);
    assert_eq!(world.delivery.poll_timeout(), None);
    // A late answer changes nothing.
    assert_eq!(world.answer(20, PushOutcome::Done), 1);
    assert_eq!(world.settlements, [settlement]);
}

#[test]
fn a_boat_that_is_lost_fails_all_its_pushes_at_once() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    (1..=3).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    world.delivery.handle_boat_lost(world.now, &life("boat-2"));
    world.drain();
    assert_eq!(world.settlements, []);
    world.delivery.handle_boat_lost(world.now, &life("boat-1"));
    world.drain();
    assert_eq!(world.settlements.len(), 3);
}

#[test]
fn only_the_senders_other_sessions_get_it() {
    let mut world = World::new();
    world.sign_in(ALICE, Platform::Ios, 10);
    world.sign_in(ALICE, Platform::Web, 11);
    let message = placed(1, BOB, Options::CHAT);
    world.submit(DeliveryTask {
        rev: 0,
        obligations: obligations(&message, Vec::new()),
        placed: message,
        frame: Bytes::from_static(b"frame"),
        audience: None,
        own_frames: Default::default(),
        retry_count: 0,
        first_at: world.now,
        origin: Some(Origin {
            session: session(10),
            life: life("boat-1"),
        }),
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    });
    assert_eq!(world.pushed_to(), [11]);
    world.answer(11, PushOutcome::Done);
    assert_eq!(world.only_settlement().retries, []);
}

#[test]
fn a_sender_session_that_misses_it_syncs_and_stores_nothing() {
    for outcome in [
        PushOutcome::NoAck,
        PushOutcome::Full,
        PushOutcome::NoSession,
    ] {
        let mut world = World::new();
        world.sign_in(ALICE, Platform::Web, 11);
        world.send(1, BOB, &[], Options::CHAT);
        world.answer(11, outcome);
        assert!(world.stored_mail.is_empty());
        assert_eq!(world.only_settlement().retries, []);
        let syncs = (world.notices.iter()).any(|notice| notice.event == SessionEvent::Resync);
        assert_eq!(syncs, outcome == PushOutcome::Full, "{outcome:?}");
    }
}

#[test]
fn a_session_of_the_sender_on_a_boat_out_of_reach_syncs_later() {
    let mut world = World::new();
    world.sign_in(ALICE, Platform::Web, 11);
    world.send(1, BOB, &[], Options::CHAT);
    for _ in 0..3 {
        world.answer(11, PushOutcome::Unreachable);
        world.retry_all();
    }
    assert_eq!(world.only_settlement().retries, []);
    assert!(matches!(
        &world.notices[..],
        [Notice { session, event: SessionEvent::Resync, .. }] if session.get() == 11
    ));
}

#[test]
fn a_lane_keeps_order_and_its_window() {
    let mut world = World::with(DeliveryLimits {
        lane_window: 4,
        ..DeliveryLimits::default()
    });
    world.sign_in(BOB, Platform::Web, 20);
    (1..=10).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    let mut pushed_ids = Vec::new();
    while !world.pushes.is_empty() {
        assert!(world.pushes.len() <= 4);
        let push = world.pushes.remove(0);
        pushed_ids.push(push.message.get());
        world
            .delivery
            .handle_outcome(world.now, push.token, PushOutcome::Done);
        world.drain();
    }
    assert_eq!(pushed_ids, (1..=10).collect::<Vec<i64>>());
    assert_eq!(world.delivery.load().lanes, 0, "idle lanes are forgotten");
}

// The histogram of acknowledgements used to count windows of a hundred milliseconds, not
// acknowledgements.
#[test]
fn each_acknowledgement_says_how_long_it_took() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    (1..=20).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    let latency = Duration::from_millis(30);
    world.now = world.now + latency;
    let pushes = std::mem::take(&mut world.pushes);
    assert_eq!(pushes.len(), 20);
    for push in pushes {
        let mut answer = || {
            let delivery = &mut world.delivery;
            delivery.handle_outcome(world.now, push.token, PushOutcome::Done)
        };
        assert_eq!(answer(), Some(latency));
        assert_eq!(answer(), None, "a second answer is none");
    }
}

#[test]
fn legs_behind_a_dead_session_are_not_pushed() {
    let mut world = World::with(DeliveryLimits {
        lane_window: 2,
        ..DeliveryLimits::default()
    });
    world.sign_in(BOB, Platform::Web, 20);
    (1..=6).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    assert_eq!(world.answer(20, PushOutcome::NoAck), 2);
    assert_eq!(world.pushes, []);
    assert_eq!(world.settlements.len(), 6);
}

#[test]
fn a_lane_that_is_full_stores_and_hints_instead_of_growing() {
    let mut world = World::with(DeliveryLimits {
        lane_window: 2,
        lane_max: 3,
        ..DeliveryLimits::default()
    });
    world.sign_in(BOB, Platform::Web, 20);
    (1..=5).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    let stored_ids: Vec<i64> = world.stored_mail.iter().map(|(_, id)| id.get()).collect();
    assert_eq!(stored_ids, [4, 5]);
    assert_eq!(world.settlements.len(), 2);
}

// proves S1-17 in part: counted in steps, 10 % of clients that never acknowledge take no turn from the others.
#[test]
fn dead_clients_do_not_hold_the_lanes_of_the_others() {
    let rounds_with = |dead: i64| {
        let mut world = World::new();
        let users = 100;
        (0..users).for_each(|n| world.sign_in(BOB + n, Platform::Web, 100 + n));
        let mut next = 1;
        let mut rounds = 0;
        let mut ack_count = 0;
        // Each round sends every user a message, and live users acknowledge their open pushes.
        while ack_count < (users - dead) * 50 {
            rounds += 1;
            for n in 0..users {
                if n < dead || next <= users * 50 {
                    world.send(next, BOB + n, &[Platform::Web], Options::CHAT);
                    next += 1;
                }
            }
            for n in dead..users {
                ack_count += world.answer(100 + n, PushOutcome::Done) as i64;
            }
        }
        rounds
    };
    assert_eq!(rounds_with(0), 50);
    assert_eq!(rounds_with(10), 50);
}

fn private_task(n: i64, to: i64) -> DeliveryTask {
    let message = placed(n, to, Options::CHAT);
    DeliveryTask {
        rev: 0,
        obligations: obligations(&message, Vec::new()),
        placed: message,
        frame: Bytes::new(),
        audience: None,
        own_frames: Default::default(),
        retry_count: 0,
        first_at: Timestamp::from_millis(1_000_000),
        origin: None,
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    }
}

#[test]
fn beyond_the_budget_a_task_is_handed_back() {
    let mut world = World::with(DeliveryLimits {
        in_flight_min: 2,
        in_flight_max: 2,
        ..DeliveryLimits::default()
    });
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    world.send(2, BOB, &[Platform::Web], Options::CHAT);
    assert_eq!(world.delivery.room(), 0);
    let task = private_task(3, BOB);
    let back = world.delivery.handle_task(world.now, at(9), task.clone());
    assert_eq!(back, Err(task));
}

// Groups of 500 in all sixteen thousand records would be eight million routes at once.
#[test]
fn users_and_bytes_are_bounded_and_one_task_always_begins() {
    let limits = |users, bytes| DeliveryLimits {
        users_in_flight_max: users,
        bytes_in_flight_max: bytes,
        ..DeliveryLimits::default()
    };
    let defaults = DeliveryLimits::default();
    assert_eq!(defaults.users_in_flight_max, 262_144);
    assert_eq!(defaults.bytes_in_flight_max, 64 << 20);
    let users = private_task(1, BOB).obligations.len();
    for limits in [limits(users + 1, usize::MAX), limits(usize::MAX, 8)] {
        let mut world = World::with(limits);
        world.sign_in(BOB, Platform::Web, 20);
        for n in 1..=2 {
            assert!(world.delivery.room() > 0, "before {n}");
            let mut task = private_task(n, BOB);
            task.frame = Bytes::from_static(b"frame");
            let result = world.delivery.handle_task(world.now, at(n as u64), task);
            assert_eq!(result, Ok(()));
        }
        assert_eq!(world.delivery.room(), 0);
        let task = private_task(3, BOB);
        let back = world.delivery.handle_task(world.now, at(9), task.clone());
        assert_eq!(back, Err(task));
        let partition = (crate::keys::Topic::Message, 0);
        world.delivery.handle_revoked(world.now, &[partition]);
        let load = world.delivery.load();
        assert_eq!((load.users, load.bytes), (0, 0));
        assert!(world.delivery.room() > 0);
    }
}

#[test]
fn records_of_a_revoked_partition_end_without_a_settlement() {
    let mut world = World::with(DeliveryLimits {
        lane_window: 1,
        ..DeliveryLimits::default()
    });
    world.sign_in(BOB, Platform::Web, 20);
    (1..=3).for_each(|n| world.send(n, BOB, &[Platform::Web], Options::CHAT));
    let partition = (crate::keys::Topic::Message, 0);
    world.delivery.handle_revoked(world.now, &[partition]);
    world.drain();
    assert!(world.delivery.is_idle());
    world.answer(20, PushOutcome::Done);
    assert_eq!(world.settlements, []);
    let load = world.delivery.load();
    assert_eq!((load.pushes, load.lanes), (0, 0));
}

// R7: later messages do not overtake one that is routed again.
#[test]
fn a_message_that_is_routed_again_keeps_its_place_in_the_lane() {
    let mut world = World::new();
    world.sign_in(BOB, Platform::Web, 20);
    world.send(1, BOB, &[Platform::Web], Options::CHAT);
    world.send(2, BOB, &[Platform::Web], Options::CHAT);
    // The client reconnected as a new session; its old one is gone.
    world.sign_out(20);
    world.sign_in(BOB, Platform::Web, 21);
    let mut routes = std::collections::VecDeque::new();
    let message = placed(3, BOB, Options::CHAT);
    let task = DeliveryTask {
        rev: 0,
        obligations: vec![Obligation {
            user: user(BOB),
            platforms: vec![Platform::Web],
            live: true,
        }],
        placed: message,
        frame: Bytes::new(),
        audience: None,
        own_frames: Default::default(),
        retry_count: 0,
        first_at: world.now,
        origin: None,
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    };
    world
        .delivery
        .handle_task(world.now, at(9), task)
        .expect("room");
    for push in std::mem::take(&mut world.pushes) {
        let outcome = PushOutcome::NoSession;
        world
            .delivery
            .handle_outcome(world.now, push.token, outcome);
    }
    // The mailbox answers only now, in the order in which it was asked.
    while let Some(action) = world.delivery.poll_action() {
        if let Action::Route(route) = action {
            routes.push_back(route);
        }
    }
    assert_eq!(routes.len(), 3);
    for route in routes {
        let answer = world.route(&route);
        world.delivery.handle_routed(world.now, route.token, answer);
        world.drain();
    }
    let order: Vec<i64> = world.pushes.iter().map(|push| push.message.get()).collect();
    assert_eq!(order, [1, 2, 3]);
    assert!(world.pushes.iter().all(|push| push.session == session(21)));
}
