//! holes 4: large groups are reached a few members at a time, and private chats do not wait for
//! them.

use std::sync::Arc;

use std::collections::VecDeque;

use super::*;
use crate::GroupId;
use crate::group::{Audience, Group, GroupInfo, GroupSettings, Member, Role};
use crate::history::Version;

const OWNER: i64 = 1;

/// Bounds of members looked up at once and of open pushes, on which the memory budget rests.
const ROUTES_MAX: usize = 1024;
const PUSHES_MAX: usize = 8192;

/// A group of the users 1 to `members`.
fn group(members: i64) -> Arc<Group> {
    let version = Version {
        epoch: 1,
        offset: 1,
    };
    let member = |number| {
        Member::new(
            Some(if number == OWNER {
                Role::Owner
            } else {
                Role::Member
            }),
            Seq::ZERO,
            version,
        )
    };
    Arc::new(Group {
        info: GroupInfo::uncounted(GroupSettings::CLOSED, version),
        members: (1..=members)
            .map(|number| (user(number), member(number)))
            .collect(),
    })
}

fn task(group: &Arc<Group>, number: i64, n: i64) -> DeliveryTask {
    let group_id = GroupId::new(number).expect("a group");
    let mut message = placed(n, BOB, Options::CHAT);
    message.message.to = Recipient::Group(group_id);
    message.conversation = ConversationId::Group(group_id);
    let version = Version {
        epoch: 1,
        offset: 100,
    };
    DeliveryTask {
        rev: 0,
        obligations: vec![live_only(user(OWNER))],
        audience: Some(Audience::for_message(
            group.clone(),
            version,
            message.position.seq,
        )),
        placed: message,
        frame: Bytes::from_static(b"frame"),
        own_frames: Default::default(),
        retry_count: 0,
        first_at: Timestamp::from_millis(1),
        origin: None,
        letter: None,
        trace: None,
        earlier_entries: Vec::new(),
    }
}

/// The machine, and its open routes.
struct RouteMachine {
    delivery: Delivery,
    routes: VecDeque<Route>,
    settled_count: usize,
    ledger: usize,
}

impl RouteMachine {
    fn new() -> RouteMachine {
        RouteMachine {
            delivery: Delivery::new(DeliveryLimits::default()),
            routes: VecDeque::new(),
            settled_count: 0,
            ledger: 0,
        }
    }

    fn submit(&mut self, offset: u64, task: DeliveryTask) {
        let now = Timestamp::from_millis(1);
        self.delivery
            .handle_task(now, at(offset), task)
            .expect("room");
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(action) = self.delivery.poll_action() {
            match action {
                Action::Route(route) => self.routes.push_back(route),
                Action::Settled(settlement) => {
                    self.settled_count += 1;
                    self.ledger += settlement.ledger.len();
                }
                Action::Forget(_) | Action::Push { .. } | Action::Notice(_) => {}
            }
        }
    }

    fn answer(&mut self, live: impl Fn(UserId) -> Vec<SessionEntry>) -> UserId {
        let route = self.routes.pop_front().expect("a route");
        let answer = RouteAnswer {
            live: live(route.request.user),
            stored_platforms: Vec::new(),
            acknowledged_platforms: Vec::new(),
            dropped_count: 0,
        };
        let now = Timestamp::from_millis(1);
        self.delivery.handle_routed(now, route.token, Ok(answer));
        self.drain();
        route.request.user
    }
}

#[test]
fn each_member_is_asked_for_once_and_few_at_a_time() {
    const MEMBERS: i64 = 20_000;
    let (group, mut machine) = (group(MEMBERS), RouteMachine::new());
    for n in 1..=3 {
        machine.submit(n as u64, task(&group, 7, n));
    }
    let mut times: BTreeMap<UserId, usize> = BTreeMap::new();
    while !machine.routes.is_empty() {
        // In addition, one route a message for the sender's other sessions.
        assert!(
            machine.routes.len() <= ROUTES_MAX + 3,
            "{}",
            machine.routes.len()
        );
        assert!(
            machine
                .routes
                .iter()
                .all(|route| route.request.mail.is_none()),
            "no body for nobody"
        );
        *times.entry(machine.answer(|_| Vec::new())).or_default() += 1;
    }
    assert_eq!(times.len() as i64, MEMBERS);
    assert!(times.values().all(|count| *count == 3));
    assert_eq!(machine.settled_count, 3);
    assert!(
        machine.ledger < 12,
        "that sync serves them is said once a message"
    );
    assert!(machine.delivery.is_idle());
}

#[test]
fn a_private_message_waits_behind_one_call_at_most() {
    let (group, mut machine) = (group(100_000), RouteMachine::new());
    for n in 1..=512 {
        machine.submit(n as u64, task(&group, 7, n));
    }
    let message = placed(1_000, BOB, Options::CHAT);
    let private = DeliveryTask {
        obligations: obligations(&message, vec![Platform::Web]),
        audience: None,
        placed: message,
        ..task(&group, 7, 1_000)
    };
    machine.submit(1_000, private);
    let position = machine
        .routes
        .iter()
        .position(|route| !route.request.platforms.is_empty());
    let senders = 512;
    assert!(position.expect("it is asked for") <= ROUTES_MAX + senders);
}

#[test]
fn groups_take_turns() {
    let (large, small, mut machine) = (group(100_000), group(2_000), RouteMachine::new());
    for n in 1..=16 {
        machine.submit(n as u64, task(&large, 7, n));
    }
    machine.submit(100, task(&small, 8, 100));
    let mut answer_count = 0;
    while machine.settled_count == 0 {
        machine.answer(|_| Vec::new());
        answer_count += 1;
    }
    assert!(
        answer_count < 6_000,
        "{answer_count}: the small one does not wait for the large one"
    );
}

#[test]
fn pushes_that_are_open_hold_back_further_members() {
    let (group, mut machine) = (group(50_000), RouteMachine::new());
    machine.submit(1, task(&group, 7, 1));
    let live = |user: UserId| {
        vec![SessionEntry {
            session: session(user.get()),
            platform: Platform::Web,
            life: life("boat-1"),
            login: 1,
        }]
    };
    let mut answer_count = 0;
    while !machine.routes.is_empty() {
        machine.answer(live);
        answer_count += 1;
    }
    assert!(
        (PUSHES_MAX..=PUSHES_MAX + ROUTES_MAX + 1).contains(&answer_count),
        "{answer_count}"
    );
    // Unanswered pushes time out, and further members are looked up.
    let late = Timestamp::from_millis(1) + DeliveryLimits::default().push_deadline();
    machine.delivery.handle_timeout(late);
    machine.drain();
    assert!(!machine.routes.is_empty());
}

#[test]
fn partitions_given_away_take_their_audiences_along() {
    let (group, mut machine) = (group(5_000), RouteMachine::new());
    machine.submit(1, task(&group, 7, 1));
    machine.submit(2, task(&group, 8, 2));
    let partition = (at(1).topic, at(1).partition);
    machine
        .delivery
        .handle_revoked(Timestamp::from_millis(2), &[partition]);
    machine.drain();
    assert!(machine.delivery.is_idle());
    machine.routes.clear();
    machine.submit(3, task(&group, 7, 3));
    assert!(
        machine.routes.len() >= ROUTES_MAX,
        "their room is given back"
    );
}
