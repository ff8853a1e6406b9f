//! Explores every interleaving of the parties' steps: under the rule none ends badly, and under a
//! broken rule some does, which shows that the model detects it.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::interleavings::{Orders, Step, explore};
use crate::presence::BoatLife;
use crate::{BoatId, Incarnation, SessionId};

const NOW: Timestamp = Timestamp::from_millis(1_000);
const PLATFORM: Platform = Platform::Ios;

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn mail() -> Mail {
    Mail {
        id: MessageId::new(1).expect("positive"),
        accepted_at: NOW,
        body: Bytes::from_static(b"hello"),
    }
}

fn session(n: i64) -> NewSession {
    NewSession {
        key: SessionKey {
            user: user(1),
            session: SessionId::new(n).expect("positive"),
            life: BoatLife {
                boat: BoatId::new(&format!("boat-{n}")).expect("short"),
                incarnation: Incarnation(1),
            },
        },
        platform: PLATFORM,
        device: DeviceId::new(&format!("phone-{n}")).expect("short"),
    }
}

fn policies() -> Policies {
    Policies::uniform(MailboxPolicy {
        expire: Duration::from_secs(3_600),
        count_max: None,
    })
}

fn request() -> RouteRequest {
    RouteRequest {
        user: user(1),
        platforms: vec![PLATFORM],
        forced_platforms: Vec::new(),
        mail: Some(mail()),
        denied_boats: DeniedBoats::default(),
        now: NOW,
    }
}

fn connect(mailbox: &mut Mailbox, n: i64) -> ConnectAnswer {
    connect_under(&policies(), mailbox, n)
}

fn connect_under(policies: &Policies, mailbox: &mut Mailbox, n: i64) -> ConnectAnswer {
    let request = ConnectRequest {
        user: user(1),
        entry: session(n),
        denied_boats: DeniedBoats::default(),
        now: NOW,
    };
    let answer = mailbox.connect(&request, policies, 1);
    answer.expect("people are never refused")
}

// R1 and R2: one message, one device that comes online.

/// A carrier that routes one message, and a device that connects and drains once.
#[derive(Clone)]
struct Arrival {
    mailbox: Mailbox,
    bodies: Bodies,
    /// Carrier's state: sessions it must push to.
    live: Vec<SessionEntry>,
    /// Carrier's state, if look and store are two steps: no session was live.
    was_absent: bool,
    shown_count: u32,
    drained_ids: Vec<MessageId>,
}

impl Arrival {
    fn new() -> Arrival {
        Arrival {
            mailbox: Mailbox::new(user(1)),
            bodies: Bodies::default(),
            live: Vec::new(),
            was_absent: false,
            shown_count: 0,
            drained_ids: Vec::new(),
        }
    }

    fn route_or_store(&mut self) {
        let (answer, changes) = self.mailbox.route(&request(), &policies());
        self.bodies.apply(&changes, Some(&mail()));
        self.live = answer.live;
    }

    fn look(&mut self) {
        self.live = self
            .mailbox
            .live(&DeniedBoats::default())
            .cloned()
            .collect();
        self.was_absent = self.live.is_empty();
    }

    fn store_where_nobody_was(&mut self) {
        if self.was_absent {
            // A bare append, as by a store that stores even if a session is live by now.
            let forced_request = RouteRequest {
                forced_platforms: vec![PLATFORM],
                ..request()
            };
            let (_, changes) = self.mailbox.route(&forced_request, &policies());
            self.bodies.apply(&changes, Some(&mail()));
        }
    }

    fn push(&mut self) {
        self.shown_count += u32::try_from(self.live.len()).expect("few");
    }

    fn connect(&mut self) {
        connect(&mut self.mailbox, 1);
    }

    fn page(&mut self) {
        let page = self
            .mailbox
            .page(PLATFORM, None, 50, &policies(), &self.bodies, NOW);
        self.drained_ids = page.mails.iter().map(|mail| mail.id).collect();
        self.shown_count += u32::try_from(self.drained_ids.len()).expect("few");
    }

    fn acknowledge(&mut self) {
        let ids = std::mem::take(&mut self.drained_ids);
        let changes = self.mailbox.acknowledge(PLATFORM, &ids, NOW);
        self.bodies.apply(&changes, None);
    }

    /// Online and drained, but not shown the message, which waits until the next login.
    fn waits_unseen(self) -> bool {
        self.shown_count == 0
    }
}

#[test]
fn no_order_of_route_and_connect_leaves_a_message_unseen() {
    // proves S0-72, S0-75, S0-76
    let carrier: &[Step<Arrival>] = &[Arrival::route_or_store, Arrival::push];
    let device: &[Step<Arrival>] = &[Arrival::connect, Arrival::page, Arrival::acknowledge];
    let orders = explore(&Arrival::new(), &[carrier, device], Arrival::waits_unseen);
    assert_eq!(orders, Orders { all: 10, bad: 0 });
}

#[test]
fn looking_and_storing_in_two_steps_loses_sight() {
    let carrier: &[Step<Arrival>] = &[
        Arrival::look,
        Arrival::store_where_nobody_was,
        Arrival::push,
    ];
    let device: &[Step<Arrival>] = &[Arrival::connect, Arrival::page, Arrival::acknowledge];
    let orders = explore(&Arrival::new(), &[carrier, device], Arrival::waits_unseen);
    assert!(orders.bad > 0, "{orders:?}");
}

#[test]
fn draining_before_the_session_is_registered_loses_sight() {
    // proves S0-74
    let carrier: &[Step<Arrival>] = &[Arrival::route_or_store, Arrival::push];
    let device: &[Step<Arrival>] = &[Arrival::page, Arrival::acknowledge, Arrival::connect];
    let orders = explore(&Arrival::new(), &[carrier, device], Arrival::waits_unseen);
    assert!(orders.bad > 0, "{orders:?}");
}

// Wake-up: a connected device did not take a push, and drains at the same time.

impl Arrival {
    fn force(&mut self) {
        let forced_request = RouteRequest {
            forced_platforms: vec![PLATFORM],
            ..request()
        };
        let (answer, changes) = self.mailbox.route(&forced_request, &policies());
        self.bodies.apply(&changes, Some(&mail()));
        self.live = answer.live;
    }

    /// A hint restarts the drain.
    fn hint(&mut self) {
        if !self.live.is_empty() {
            self.page();
        }
    }

    fn no_hint(&mut self) {
        self.live.clear();
    }
}

#[test]
fn a_forced_store_wakes_whoever_is_there() {
    let device: &[Step<Arrival>] = &[Arrival::connect, Arrival::page, Arrival::acknowledge];
    let carrier: &[Step<Arrival>] = &[Arrival::force, Arrival::hint];
    let orders = explore(&Arrival::new(), &[carrier, device], Arrival::waits_unseen);
    assert_eq!(orders, Orders { all: 10, bad: 0 });

    let silent: &[Step<Arrival>] = &[Arrival::force, Arrival::no_hint];
    let orders = explore(&Arrival::new(), &[silent, device], Arrival::waits_unseen);
    assert!(orders.bad > 0, "{orders:?}");
}

// R8: one user acknowledges while the message is appended for another; both share the body.

#[derive(Clone)]
struct SharedBody {
    one: Mailbox,
    other: Mailbox,
    bodies: Bodies,
    /// Count that each broken party reads before it writes.
    read_by_acker: u64,
    read_by_appender: u64,
    broken_count: u64,
    broken_body: bool,
}

impl SharedBody {
    fn new() -> SharedBody {
        let mut world = SharedBody {
            one: Mailbox::new(user(1)),
            other: Mailbox::new(user(2)),
            bodies: Bodies::default(),
            read_by_acker: 0,
            read_by_appender: 0,
            broken_count: 1,
            broken_body: true,
        };
        let (_, changes) = world.one.route(&request(), &policies());
        world.bodies.apply(&changes, Some(&mail()));
        world
    }

    fn acknowledge(&mut self) {
        let changes = self.one.acknowledge(PLATFORM, &[mail().id], NOW);
        self.bodies.apply(&changes, None);
    }

    fn append(&mut self) {
        let request = RouteRequest {
            user: user(2),
            ..request()
        };
        let (_, changes) = self.other.route(&request, &policies());
        self.bodies.apply(&changes, Some(&mail()));
    }

    fn body_is_missing(self) -> bool {
        let entry_count = self.one.waiting(PLATFORM) + self.other.waiting(PLATFORM);
        self.bodies.count(mail().id) != entry_count || self.bodies.get(mail().id).is_none()
    }

    fn acker_reads(&mut self) {
        self.one.acknowledge(PLATFORM, &[mail().id], NOW);
        self.read_by_acker = self.broken_count;
    }

    fn acker_writes(&mut self) {
        self.broken_count = self.read_by_acker - 1;
        self.broken_body &= self.broken_count > 0;
    }

    fn appender_reads(&mut self) {
        let request = RouteRequest {
            user: user(2),
            ..request()
        };
        self.other.route(&request, &policies());
        self.read_by_appender = self.broken_count;
    }

    fn appender_writes(&mut self) {
        self.broken_count = self.read_by_appender + 1;
        self.broken_body |= self.read_by_appender == 0;
    }

    fn broken_body_is_missing(self) -> bool {
        self.broken_count != self.other.waiting(PLATFORM) || !self.broken_body
    }
}

#[test]
fn no_order_of_acknowledge_and_append_loses_the_body() {
    // proves S1-48
    let acker: &[Step<SharedBody>] = &[SharedBody::acknowledge, SharedBody::acknowledge];
    let appender: &[Step<SharedBody>] = &[SharedBody::append, SharedBody::append];
    let orders = explore(
        &SharedBody::new(),
        &[acker, appender],
        SharedBody::body_is_missing,
    );
    assert_eq!(orders, Orders { all: 6, bad: 0 });
}

#[test]
fn counting_in_two_steps_loses_the_body() {
    let acker: &[Step<SharedBody>] = &[SharedBody::acker_reads, SharedBody::acker_writes];
    let appender: &[Step<SharedBody>] = &[SharedBody::appender_reads, SharedBody::appender_writes];
    let orders = explore(
        &SharedBody::new(),
        &[acker, appender],
        SharedBody::broken_body_is_missing,
    );
    assert!(orders.bad > 0, "{orders:?}");
}

// R4: logins on one platform, and kicks that arrive late and in any order.

#[derive(Clone)]
struct Logins {
    mailbox: Mailbox,
    /// Open connections, on any boat.
    open: Vec<SessionKey>,
    kicks: Vec<SessionKey>,
    /// In registration order.
    logins: Vec<SessionKey>,
    policies: Policies,
}

impl Logins {
    /// A platform with this session capacity.
    fn with_room_for(sessions: u32) -> Logins {
        let mut policies = policies();
        let capacity = policies.sessions.with(PLATFORM, sessions);
        policies.sessions = capacity.expect("in bounds");
        Logins {
            mailbox: Mailbox::new(user(1)),
            open: Vec::new(),
            kicks: Vec::new(),
            logins: Vec::new(),
            policies,
        }
    }

    fn log_in(&mut self, n: i64) {
        // The boat has the session in its map before it calls.
        self.open.push(session(n).key);
        let answer = connect_under(&self.policies, &mut self.mailbox, n);
        self.kicks.extend(answer.displaced_sessions);
        self.logins.push(session(n).key);
    }

    fn first(&mut self) {
        self.log_in(1);
    }

    fn second(&mut self) {
        self.log_in(2);
    }

    fn third(&mut self) {
        self.log_in(3);
    }

    fn fourth(&mut self) {
        self.log_in(4);
    }

    fn oldest_kick(&mut self) {
        if !self.kicks.is_empty() {
            let kick = self.kicks.remove(0);
            self.close(&kick);
        }
    }

    fn newest_kick(&mut self) {
        if let Some(kick) = self.kicks.pop() {
            self.close(&kick);
        }
    }

    fn close(&mut self, key: &SessionKey) {
        self.open.retain(|open| open != key);
        self.mailbox.disconnect(key);
    }

    /// The broken kick: names only the user and the platform.
    fn kick_whole_platform(&mut self) {
        if self.kicks.pop().is_some() {
            self.open.clear();
            for key in registered_sessions(&self.mailbox) {
                self.mailbox.disconnect(&key);
            }
        }
    }

    /// The first session's boat sweeps, and closes the session if another login displaced it.
    fn sweep(&mut self) {
        let first = session(1);
        if self.open.contains(&first.key) {
            let answer = self.mailbox.reassert(
                &first.clone().into(),
                &DeniedBoats::default(),
                &self.policies,
                1,
                NOW,
            );
            if answer == ReassertAnswer::Displaced {
                self.close(&first.key);
            }
        }
    }

    /// Runs the remaining kicks. Returns whether the open sessions are not exactly the last logins, up to
    /// capacity.
    fn has_another_winner(mut self) -> bool {
        while !self.kicks.is_empty() {
            self.newest_kick();
        }
        self.lacks_its_winner()
    }

    fn lacks_its_winner(self) -> bool {
        let room = self.policies.sessions.of(PLATFORM);
        let winners = &self.logins[self.logins.len().saturating_sub(room)..];
        self.open != winners || registered_sessions(&self.mailbox) != winners
    }
}

fn registered_sessions(mailbox: &Mailbox) -> Vec<SessionKey> {
    let key = |entry: &SessionEntry| entry.clone().into_key(user(1));
    mailbox.live(&DeniedBoats::default()).map(key).collect()
}

#[test]
fn no_order_of_kicks_and_logins_closes_the_newest() {
    let parties: [&[Step<Logins>]; 5] = [
        &[Logins::first],
        &[Logins::second],
        &[Logins::third],
        &[Logins::newest_kick, Logins::oldest_kick],
        &[Logins::sweep],
    ];
    let orders = explore(
        &Logins::with_room_for(1),
        &parties,
        Logins::has_another_winner,
    );
    assert_eq!(orders, Orders { all: 360, bad: 0 });
}

#[test]
fn no_order_of_kicks_and_logins_closes_more_than_the_oldest() {
    let parties: [&[Step<Logins>]; 6] = [
        &[Logins::first],
        &[Logins::second],
        &[Logins::third],
        &[Logins::fourth],
        &[Logins::newest_kick, Logins::oldest_kick],
        &[Logins::sweep],
    ];
    for room in 1..=3 {
        let world = Logins::with_room_for(room);
        let orders = explore(&world, &parties, Logins::has_another_winner);
        assert_eq!(orders, Orders { all: 2_520, bad: 0 }, "room for {room}");
    }
}

#[test]
fn a_kick_without_a_session_closes_the_newest() {
    let parties: [&[Step<Logins>]; 4] = [
        &[Logins::first],
        &[Logins::second],
        &[Logins::third],
        &[Logins::kick_whole_platform, Logins::kick_whole_platform],
    ];
    let orders = explore(
        &Logins::with_room_for(1),
        &parties,
        Logins::lacks_its_winner,
    );
    assert!(orders.bad > 0, "{orders:?}");
}

// One device that gave up a connection and opened another: its sign-ins are admitted in any order.

#[derive(Clone)]
struct OneDevice {
    mailbox: Mailbox,
    /// Number of the connection that the device holds; none once it has to stay away.
    holds: Option<i64>,
    connection_count: i64,
    /// Sessions ended by the registrations so far, and whether for good.
    kicks: Vec<(SessionKey, bool)>,
}

impl OneDevice {
    /// The first connection is given up, the second held; both have said hello.
    fn new() -> OneDevice {
        OneDevice {
            mailbox: Mailbox::new(user(1)),
            holds: Some(2),
            connection_count: 2,
            kicks: Vec::new(),
        }
    }

    fn session(n: i64) -> NewSession {
        NewSession {
            device: DeviceId::new("phone").expect("short"),
            ..session(n)
        }
    }

    fn admit(&mut self, n: i64) {
        let request = ConnectRequest {
            user: user(1),
            entry: OneDevice::session(n),
            denied_boats: DeniedBoats::default(),
            now: NOW,
        };
        let answer = self.mailbox.connect(&request, &policies(), 1);
        let answer = answer.expect("one at a time");
        let displaced_kicks = answer.displaced_sessions.into_iter().map(|key| (key, true));
        let replaced_kicks = answer.replaced_sessions.into_iter().map(|key| (key, false));
        self.kicks.extend(displaced_kicks.chain(replaced_kicks));
    }

    fn admit_first(&mut self) {
        self.admit(1);
    }

    fn admit_second(&mut self) {
        self.admit(2);
    }

    /// The first connection's boat notices that the client is gone.
    fn leave_first(&mut self) {
        self.mailbox.disconnect(&OneDevice::session(1).key);
    }

    /// The held connection's boat sweeps.
    fn sweep(&mut self) {
        let Some(connection) = self.holds else { return };
        let (denied_boats, session) = (DeniedBoats::default(), OneDevice::session(connection));
        let answer =
            self.mailbox
                .reassert(&session.clone().into(), &denied_boats, &policies(), 1, NOW);
        match answer {
            ReassertAnswer::Displaced => self.end(&session.key, true),
            ReassertAnswer::Replaced => self.end(&session.key, false),
            ReassertAnswer::Known { .. } | ReassertAnswer::Restored { .. } => {}
        }
    }

    fn kick(&mut self) {
        if !self.kicks.is_empty() {
            let (key, for_good) = self.kicks.remove(0);
            self.end(&key, for_good);
        }
    }

    /// The device learns only of the connection it holds, and connects again if it may.
    fn end(&mut self, key: &SessionKey, for_good: bool) {
        self.mailbox.disconnect(key);
        if self
            .holds
            .is_none_or(|connection| OneDevice::session(connection).key != *key)
        {
            return;
        }
        self.holds = None;
        if !for_good {
            self.connection_count += 1;
            self.holds = Some(self.connection_count);
            self.admit(self.connection_count);
        }
    }

    /// The broken rule: a device that loses its platform stays away for good.
    fn kick_for_good(&mut self) {
        self.kicks.iter_mut().for_each(|kick| kick.1 = true);
        self.kick();
    }

    /// Runs all kicks. Returns whether the device stays away though no other is there, or its connection is
    /// not the one registered.
    fn ends_shut_out(mut self) -> bool {
        for _ in 0..10 {
            self.kick();
        }
        assert_eq!(self.kicks, [], "it comes to an end");
        let key = self.holds.map(|key| OneDevice::session(key).key);
        key.is_none() || registered_sessions(&self.mailbox) != key.into_iter().collect::<Vec<_>>()
    }
}

#[test]
fn no_order_of_its_sign_ins_shuts_a_device_out() {
    // The held connection is swept only after it was admitted.
    let parties: [&[Step<OneDevice>]; 3] = [
        &[OneDevice::admit_first, OneDevice::leave_first],
        &[OneDevice::admit_second, OneDevice::sweep],
        &[OneDevice::kick, OneDevice::kick],
    ];
    let orders = explore(&OneDevice::new(), &parties, OneDevice::ends_shut_out);
    assert_eq!(orders, Orders { all: 90, bad: 0 });
}

#[test]
fn a_device_that_displaces_itself_ends_shut_out() {
    let parties: [&[Step<OneDevice>]; 3] = [
        &[OneDevice::admit_first, OneDevice::leave_first],
        &[OneDevice::admit_second],
        &[OneDevice::kick_for_good],
    ];
    let orders = explore(&OneDevice::new(), &parties, OneDevice::ends_shut_out);
    assert!(orders.bad > 0, "{orders:?}");
}

// R5: a boat lost its lease and registered anew; calls by it and others under its earlier life are
// still on their way.

#[derive(Clone)]
struct Renewal {
    mailbox: Mailbox,
    /// Whether the boat heard that its session lost its place, which nobody took.
    is_displaced: bool,
}

/// The session of boat 1 under a later life.
fn renewed_session() -> NewSession {
    let mut session = session(1);
    session.key.life.incarnation = Incarnation(2);
    session
}

impl Renewal {
    fn new() -> Renewal {
        let mut mailbox = Mailbox::new(user(1));
        connect(&mut mailbox, 1);
        Renewal {
            mailbox,
            is_displaced: false,
        }
    }

    fn reassert(&mut self, session: &NewSession) {
        let answer = self.mailbox.reassert(
            &session.clone().into(),
            &DeniedBoats::default(),
            &policies(),
            1,
            NOW,
        );
        self.is_displaced |= matches!(answer, ReassertAnswer::Displaced | ReassertAnswer::Replaced);
    }

    fn sweep_earlier_life(&mut self) {
        self.reassert(&session(1));
    }

    fn sweep_later_life(&mut self) {
        self.reassert(&renewed_session());
    }

    /// A peer met the registration under the earlier life, and found no such session there.
    fn forget_under_earlier_life(&mut self) {
        self.mailbox.disconnect(&session(1).key);
    }

    /// The broken rule: a later life is another boat.
    fn sweep_stranger(&mut self) {
        let mut stranger = renewed_session();
        stranger.key.life.boat = BoatId::new("boat-1b").expect("short");
        self.reassert(&stranger);
    }

    /// The broken removal: names the session, whatever life holds it.
    fn forget_under_any_life(&mut self) {
        let mut any = session(1).key;
        any.life.incarnation = Incarnation(u64::MAX);
        self.mailbox.disconnect(&any);
    }

    fn lost_its_session(self) -> bool {
        self.is_displaced || registered_sessions(&self.mailbox) != [renewed_session().key]
    }
}

#[test]
fn no_order_of_lives_costs_a_boat_its_session() {
    let parties: [&[Step<Renewal>]; 3] = [
        &[Renewal::sweep_earlier_life],
        &[Renewal::sweep_later_life, Renewal::sweep_later_life],
        &[Renewal::forget_under_earlier_life],
    ];
    let orders = explore(&Renewal::new(), &parties, Renewal::lost_its_session);
    assert_eq!(orders, Orders { all: 12, bad: 0 });
}

#[test]
fn ignoring_later_lives_costs_the_session() {
    let stranger: [&[Step<Renewal>]; 2] = [
        &[Renewal::sweep_stranger],
        &[Renewal::forget_under_earlier_life],
    ];
    let orders = explore(&Renewal::new(), &stranger, |world| world.is_displaced);
    assert!(orders.bad > 0, "{orders:?}");

    let any: [&[Step<Renewal>]; 2] = [
        &[Renewal::sweep_later_life],
        &[Renewal::forget_under_any_life],
    ];
    let orders = explore(&Renewal::new(), &any, Renewal::lost_its_session);
    assert!(orders.bad > 0, "{orders:?}");
}
