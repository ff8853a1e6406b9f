//! Runs random operations on a mailbox, on the pure rule and on the reference, for every backend:
//! all three must agree, and stored mail must be whole.

mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use protocol::mailbox::{
    Bodies, ConnectAnswer, ConnectRequest, HeldSession, Mail, Mailbox, MailboxPolicy, NewSession,
    Policies, ReassertAnswer, ReassertResult, RouteAnswer, RouteRequest, SessionCapacity,
};
use protocol::message::Target;
use protocol::presence::{BoatLife, DeniedBoats, SessionKey};
use protocol::{
    BoatId, DeviceId, Incarnation, MessageId, Platform, SessionId, Timestamp, UserId, keys,
};

use self::reference::{Reference, is};
use super::{IntegrityCheck, MailboxStore, contract};

const USERS: i64 = 2;
const MESSAGES: i64 = 12;
const PLATFORMS: [Platform; 2] = [Platform::Ios, contract::UNLIMITED];
/// More than a platform's capacity; the last session is on the first one's device.
const SESSIONS: i64 = 5;

/// Draws small capacities for the first platform, so that logins displace; the other has one.
pub(crate) fn capacities() -> impl Strategy<Value = SessionCapacity> {
    (1..=3_u32).prop_map(|sessions| {
        let capacity = SessionCapacity::default().with(PLATFORMS[0], sessions);
        capacity.expect("in bounds")
    })
}

/// A new backend under test, with the contract's settings.
#[async_trait]
pub(crate) trait Subject {
    fn store(&self) -> &dyn MailboxStore;

    fn policies(&self) -> &Policies;

    async fn audit(&self) -> IntegrityCheck;

    /// Restarts the backend; true if sessions and marks were lost.
    fn restart(&mut self) -> bool;
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Route {
        user: i64,
        message: i64,
        forced: bool,
        denied: bool,
    },
    /// Routes the same message to all users, twice, in one call.
    RouteAll(i64),
    Connect {
        target: Target,
        session: i64,
        incarnation: u64,
    },
    Reassert {
        target: Target,
        session: i64,
        incarnation: u64,
        /// Whether its boat knows the number of its login.
        knows: bool,
    },
    Disconnect {
        target: Target,
        session: i64,
        incarnation: u64,
    },
    Acknowledge(Target, Vec<i64>),
    Trim(Target, u32),
    Pass(u64),
    Restart,
}

fn targets() -> impl Strategy<Value = Target> {
    (1..=USERS, 0..PLATFORMS.len()).prop_map(|(n, platform)| Target {
        user: user(n),
        platform: PLATFORMS[platform],
    })
}

pub(crate) fn ops() -> impl Strategy<Value = Op> {
    let messages = 1..=MESSAGES;
    prop_oneof![
        6 => (1..=USERS, messages.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(user, message, forced, denied)| Op::Route { user, message, forced, denied }
        ),
        2 => messages.clone().prop_map(Op::RouteAll),
        3 => (targets(), 1..=SESSIONS, 1..3u64).prop_map(|(target, session, incarnation)| {
            Op::Connect { target, session, incarnation }
        }),
        4 => (targets(), 1..=SESSIONS, 1..3u64, 0..4u8).prop_map(|(target, session, incarnation, n)| {
            Op::Reassert { target, session, incarnation, knows: n > 0 }
        }),
        2 => (targets(), 1..=SESSIONS, 1..3u64).prop_map(|(target, session, incarnation)| {
            Op::Disconnect { target, session, incarnation }
        }),
        3 => (targets(), prop::collection::vec(messages, 0..4))
            .prop_map(|(target, ids)| Op::Acknowledge(target, ids)),
        1 => (targets(), 0..4u32).prop_map(|(target, max)| Op::Trim(target, max)),
        1 => (0..1_000u64).prop_map(Op::Pass),
        1 => Just(Op::Restart),
    ]
}

/// Id of user `n`. Both users share a bucket, and so their bodies.
fn user(n: i64) -> UserId {
    UserId::new([1, 37][n as usize - 1]).expect("positive")
}

fn life(incarnation: u64) -> BoatLife {
    BoatLife {
        boat: BoatId::new("boat").expect("short"),
        incarnation: Incarnation(incarnation),
    }
}

fn dead() -> DeniedBoats {
    Arc::new(BTreeSet::from([life(1)]))
}

fn new_session(target: Target, session: i64, incarnation: u64) -> NewSession {
    NewSession {
        key: SessionKey {
            user: target.user,
            session: SessionId::new(session).expect("positive"),
            life: life(incarnation),
        },
        platform: target.platform,
        device: DeviceId::new(&format!("phone-{}", session % (SESSIONS - 1))).expect("short"),
    }
}

/// Login numbers of one sign-in: each has its own, in the same order.
#[derive(Clone, Copy)]
struct ToldLogins {
    store: u64,
    rule: u64,
    reference: u64,
}

pub(crate) struct MailboxComparison<S> {
    subject: S,
    rule: BTreeMap<UserId, Mailbox>,
    bodies: Bodies,
    reference: Reference,
    start: Timestamp,
    now: Timestamp,
    logins: BTreeMap<UserId, u64>,
    /// What each session was told at its last sign-in.
    login_numbers: BTreeMap<(UserId, SessionId), ToldLogins>,
    marker: Option<u64>,
}

impl<S: Subject> MailboxComparison<S> {
    pub(crate) fn new(subject: S, start: Timestamp) -> MailboxComparison<S> {
        assert_eq!(keys::bucket_of(user(1)), keys::bucket_of(user(2)));
        MailboxComparison {
            subject,
            rule: (1..=USERS)
                .map(|n| (user(n), Mailbox::new(user(n))))
                .collect(),
            bodies: Bodies::default(),
            reference: Reference::default(),
            start,
            now: start,
            logins: BTreeMap::new(),
            login_numbers: BTreeMap::new(),
            marker: None,
        }
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.subject.policies().of(platform)
    }

    fn rule(&mut self, user: UserId) -> &mut Mailbox {
        self.rule.get_mut(&user).expect("a user")
    }

    /// Message `n`; the order of acceptance differs from the order of ids.
    fn message(&self, n: i64) -> Mail {
        let age = Duration::from_secs(((n * 7) % 5) as u64 * 900);
        Mail {
            id: MessageId::new(n).expect("positive"),
            accepted_at: self.start - age,
            body: Bytes::from(format!("body {n}")),
        }
    }

    pub(crate) async fn step(&mut self, op: Op) {
        match op {
            Op::Route {
                user: n,
                message: m,
                forced,
                denied,
            } => {
                let request = RouteRequest {
                    user: user(n),
                    platforms: vec![PLATFORMS[(m % 2) as usize]],
                    forced_platforms: if forced { PLATFORMS.to_vec() } else { vec![] },
                    mail: Some(self.message(m)),
                    denied_boats: if denied {
                        dead()
                    } else {
                        DeniedBoats::default()
                    },
                    now: self.now,
                };
                self.route(vec![request]).await;
            }
            Op::RouteAll(m) => {
                let request = |n| RouteRequest {
                    user: user(n),
                    platforms: PLATFORMS.to_vec(),
                    forced_platforms: Vec::new(),
                    mail: Some(self.message(m)),
                    denied_boats: DeniedBoats::default(),
                    now: self.now,
                };
                let requests = (1..=USERS).chain(1..=USERS).map(request).collect();
                self.route(requests).await;
            }
            Op::Connect {
                target,
                session,
                incarnation,
            } => self.connect(target, session, incarnation).await,
            Op::Reassert {
                target,
                session,
                incarnation,
                knows,
            } => self.reassert(target, session, incarnation, knows).await,
            Op::Disconnect {
                target,
                session,
                incarnation,
            } => {
                let key = new_session(target, session, incarnation).key;
                self.reference.disconnect(&key);
                self.rule(target.user).disconnect(&key);
                let answers = self.subject.store().disconnect(vec![key]).await;
                assert!(matches!(answers[..], [Ok(())]));
            }
            Op::Acknowledge(target, ids) => {
                let ids: Vec<MessageId> = ids.into_iter().map(|n| self.message(n).id).collect();
                let removed_ids = self.reference.acknowledge(target, &ids, self.now);
                let now = self.now;
                let changes = self
                    .rule(target.user)
                    .acknowledge(target.platform, &ids, now);
                assert_eq!(changes.len(), removed_ids.len());
                self.bodies.apply(&changes, None);
                let acks = vec![(target, ids)];
                let answer = self.subject.store().acknowledge(acks, self.now).await;
                assert_eq!(answer[0].as_ref().expect("acknowledged"), &removed_ids);
            }
            Op::Trim(target, max) => {
                let policy = MailboxPolicy {
                    count_max: Some(max),
                    ..self.policy(target.platform)
                };
                let removed_count = self.reference.trim(target, policy, self.now);
                let now = self.now;
                let changes = self.rule(target.user).trim(target.platform, policy, now);
                self.bodies.apply(&changes, None);
                assert_eq!(changes.len() as u32, removed_count);
                let answer = self.subject.store().trim(target, policy, self.now).await;
                assert_eq!(answer.expect("trimmed"), removed_count);
            }
            Op::Pass(seconds) => self.now = self.now + Duration::from_secs(seconds),
            Op::Restart => {
                if self.subject.restart() {
                    self.reference.forget_presence();
                    self.rule.values_mut().for_each(Mailbox::lose_presence);
                    self.logins.clear();
                    // Numbers are times: none is given twice.
                    self.now = self.now + Duration::from_secs(1);
                }
            }
        }
    }

    async fn route(&mut self, requests: Vec<RouteRequest>) {
        for (request, answer) in requests
            .iter()
            .zip(self.subject.store().route_or_store(requests.clone()).await)
        {
            let mut answer = answer.expect("routed");
            let rule = self.rule.get_mut(&request.user).expect("a user");
            let (mut rule_answer, changes) = rule.route(request, self.subject.policies());
            self.bodies.apply(&changes, request.mail.as_ref());
            // Login numbers differ: the store's continue from users who left.
            let logins = rule_answer.live.iter_mut().zip(&answer.live);
            logins.for_each(|(rule_answer, entry)| rule_answer.login = entry.login);
            assert_eq!(answer, rule_answer);
            let policy = |p| self.subject.policies().of(p);
            let expected = match request.platforms.as_slice() {
                [platform] => self.reference.route(request, policy(*platform)),
                platforms => {
                    let each = |platform: &Platform| RouteRequest {
                        platforms: vec![*platform],
                        ..request.clone()
                    };
                    let answers = platforms
                        .iter()
                        .map(|platform| self.reference.route(&each(platform), policy(*platform)));
                    answers
                        .reduce(|one, other| RouteAnswer {
                            live: one.live,
                            stored_platforms: [one.stored_platforms, other.stored_platforms]
                                .concat(),
                            acknowledged_platforms: [
                                one.acknowledged_platforms,
                                other.acknowledged_platforms,
                            ]
                            .concat(),
                            dropped_count: one.dropped_count + other.dropped_count,
                        })
                        .expect("two platforms")
                }
            };
            let live = std::mem::take(&mut answer.live);
            assert_eq!(answer, expected, "{request:?}");
            let live: Vec<_> = live.into_iter().map(|e| (e.session, e.life)).collect();
            let reference_sessions = self.reference.user_sessions(request.user);
            let reference_sessions: Vec<_> = reference_sessions
                .map(|(key, ..)| (key.session, key.life.clone()))
                .collect();
            assert_eq!(live, reference_sessions);
        }
    }

    async fn connect(&mut self, target: Target, session: i64, incarnation: u64) {
        let entry = new_session(target, session, incarnation);
        let mut is_known = self.reference.sessions.iter();
        let is_known = is_known.any(|(k, ..)| is(k, &entry.key));
        let room = self.subject.policies().sessions.of(target.platform);
        let removals = self.reference.connect(&entry, room);
        let request = ConnectRequest {
            user: target.user,
            entry: entry.clone(),
            denied_boats: DeniedBoats::default(),
            now: self.now,
        };
        let answer = self.subject.store().connect(request.clone()).await;
        let answer = answer.expect("connected").expect("room");
        let marker = *self.marker.get_or_insert(answer.marker);
        let rule = self.rule.get_mut(&target.user).expect("a user");
        let rule_answer = rule.connect(&request, self.subject.policies(), marker);
        let rule_answer = rule_answer.expect("room");
        let numbers = ToldLogins {
            store: answer.login,
            rule: rule_answer.login,
            reference: self.reference.login_number(&entry.key),
        };
        (self.login_numbers).insert((target.user, entry.key.session), numbers);
        assert_eq!(
            (&answer.displaced_sessions, &answer.replaced_sessions),
            (&removals.0, &removals.1)
        );
        let rule_answer = ConnectAnswer {
            login: answer.login,
            ..rule_answer
        };
        assert_eq!(answer, rule_answer);
        let last = self.logins.entry(target.user).or_default();
        assert!(is_known || answer.login > *last);
        assert!(is_known || answer.login >= self.now.millis() as u64);
        *last = answer.login.max(*last);
        let policy = self.policy(target.platform);
        let waits = !self.reference.page(target, policy, self.now).is_empty();
        assert_eq!(answer.mail_waits, waits);
    }

    async fn reassert(&mut self, target: Target, session: i64, incarnation: u64, knows: bool) {
        let entry = new_session(target, session, incarnation);
        let numbers = self.login_numbers.get(&(target.user, entry.key.session));
        let numbers = numbers.copied().filter(|_| knows);
        let held_session = |login| HeldSession {
            session: entry.clone(),
            login,
        };
        let room = self.subject.policies().sessions.of(target.platform);
        let login = numbers.map(|numbers| numbers.reference);
        let expected = self.reference.reassert(&entry, login, room);
        let request = vec![(
            target.user,
            held_session(numbers.map(|numbers| numbers.store)),
        )];
        let answers = self
            .subject
            .store()
            .reassert(request, DeniedBoats::default(), self.now);
        let answer = answers.await.remove(0).expect("answered");
        if let ReassertAnswer::Restored { marker, .. } = answer {
            self.marker.get_or_insert(marker);
        }
        let marker = self.marker.unwrap_or_default();
        let rule = self.rule.get_mut(&target.user).expect("a user");
        let (none, policies) = (DeniedBoats::default(), self.subject.policies());
        let held_session = held_session(numbers.map(|numbers| numbers.rule));
        let rule_answer = rule.reassert(&held_session, &none, policies, marker, self.now);
        assert_eq!(answer, rule_answer);
        let answer = match answer {
            ReassertAnswer::Known { .. } => ReassertResult::Known,
            ReassertAnswer::Restored { .. } => ReassertResult::Restored,
            ReassertAnswer::Displaced => ReassertResult::Displaced,
            ReassertAnswer::Replaced => ReassertResult::Replaced,
        };
        assert_eq!(answer, expected);
        // A restored session may have a login of its own, which no answer reports.
        let users = [target.user];
        let sessions = self
            .subject
            .store()
            .sessions(&users, DeniedBoats::default());
        let live = sessions.await.remove(0).expect("answered");
        let last = self.logins.entry(target.user).or_default();
        *last = live.iter().map(|entry| entry.login).fold(*last, u64::max);
    }

    /// I10.
    pub(crate) async fn audit(&self) {
        let audit = self.subject.audit().await;
        assert_eq!(audit.wrong, Vec::<String>::new());
        assert_eq!(audit.bodies, self.reference.bodies().len() as u64);
    }

    /// Compares waiting mail with the rule and the reference.
    pub(crate) async fn check(&self) {
        for n in 1..=USERS {
            for platform in PLATFORMS {
                let target = Target {
                    user: user(n),
                    platform,
                };
                let expected = self.reference.page(target, self.policy(platform), self.now);
                let mut mails = Vec::new();
                let mut cursor = None;
                loop {
                    let page = self.subject.store().page(target, cursor, 2, self.now).await;
                    let page = page.expect("paged");
                    let rule = self.rule.get(&target.user).expect("a user");
                    let policies = self.subject.policies();
                    let rule_page =
                        rule.page(platform, cursor, 2, policies, &self.bodies, self.now);
                    assert_eq!(page, rule_page);
                    assert_eq!(page.bodiless, []);
                    mails.extend(page.mails);
                    match page.next {
                        Some(next) => cursor = Some(next),
                        None => break,
                    }
                }
                assert_eq!(mails, expected);
                let count = self.subject.store().waiting(target).await.expect("counted");
                assert_eq!(count, self.reference.mails(target).len() as u64);
                self.check_whereabouts(target).await;
            }
        }
    }
    async fn check_whereabouts(&self, target: Target) {
        let rule = self.rule.get(&target.user).expect("a user");
        let policies = self.subject.policies();
        let ids = (1..=MESSAGES).map(|n| self.message(n).id);
        let queries: Vec<_> = ids.map(|id| (target, id)).collect();
        let location = self.subject.store().find(&queries, self.now).await;
        for ((target, id), location) in queries.into_iter().zip(location) {
            let expected = rule.find(target.platform, id, policies, self.now);
            assert_eq!(location.expect("found"), expected);
        }
    }
}
