//! The machine against a small world of values: a mailbox that is a map, and boats that answer as
//! the test tells them.

mod audiences;
mod offline;
mod online;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::ledger::LedgerEvent;
use crate::mailbox::RouteAnswer;
use crate::message::{Content, Target};
use crate::presence::{BoatLife, SessionEntry, SessionKey};
use crate::{
    BoatId, ConversationId, DeviceId, Incarnation, Message, MessageId, Options, Placed, Platform,
    Position, Recipient, SendId, Seq, SessionId, Timestamp, UserId,
};

const ALICE: i64 = 1;
const BOB: i64 = 2;

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn session(n: i64) -> SessionId {
    SessionId::new(n).expect("positive")
}

fn life(name: &str) -> BoatLife {
    BoatLife {
        boat: BoatId::new(name).expect("a name"),
        incarnation: Incarnation(1),
    }
}

fn id(n: i64) -> MessageId {
    MessageId::new(n).expect("positive")
}

fn target(user_number: i64, platform: Platform) -> Target {
    Target {
        user: user(user_number),
        platform,
    }
}

fn at(offset: u64) -> Source {
    Source {
        topic: crate::keys::Topic::Message,
        partition: 0,
        offset,
    }
}

fn placed(n: i64, to: i64, options: Options) -> Placed {
    let conversation = ConversationId::private(user(ALICE), user(to)).expect("two users");
    Placed {
        message: Message {
            id: id(n),
            from: user(ALICE),
            to: Recipient::User(user(to)),
            accepted_at: Timestamp::from_millis(1_000),
            device: DeviceId::new("phone").expect("a name"),
            send_id: SendId::from_bytes([n as u8; 16]),
            options,
            content: Content::text("hello"),
        },
        conversation,
        position: Position {
            seq: Seq(n as u64),
            prev: None,
        },
    }
}

struct World {
    now: Timestamp,
    delivery: Delivery,
    live: BTreeMap<UserId, Vec<SessionEntry>>,
    stored_mail: BTreeSet<(Target, MessageId)>,
    mailbox_fails: Option<RouteFailure>,
    next_offset: u64,
    // Actions handed out.
    routes: Vec<Route>,
    pushes: Vec<Push>,
    notices: Vec<Notice>,
    forgotten: Vec<SessionKey>,
    settlements: Vec<Settlement>,
}

impl World {
    fn new() -> World {
        World::with(DeliveryLimits::default())
    }

    fn with(limits: DeliveryLimits) -> World {
        World {
            now: Timestamp::from_millis(10_000),
            delivery: Delivery::new(limits),
            live: BTreeMap::new(),
            stored_mail: BTreeSet::new(),
            mailbox_fails: None,
            next_offset: 0,
            routes: Vec::new(),
            pushes: Vec::new(),
            notices: Vec::new(),
            forgotten: Vec::new(),
            settlements: Vec::new(),
        }
    }

    /// `number` is both the session's name and its login.
    fn sign_in(&mut self, user_number: i64, platform: Platform, number: i64) {
        self.sign_in_as(user_number, platform, number, number as u64);
    }

    fn sign_in_as(&mut self, user_number: i64, platform: Platform, number: i64, login: u64) {
        let entry = SessionEntry {
            session: session(number),
            platform,
            life: life("boat-1"),
            login,
        };
        self.live.entry(user(user_number)).or_default().push(entry);
    }

    fn sign_out(&mut self, number: i64) {
        for sessions in self.live.values_mut() {
            sessions.retain(|entry| entry.session != session(number));
        }
    }

    /// Delivers a message of Alice for the first time.
    fn send(&mut self, n: i64, to: i64, platforms: &[Platform], options: Options) {
        let message = placed(n, to, options);
        let task = DeliveryTask {
            rev: 0,
            obligations: obligations(&message, platforms.to_vec()),
            placed: message,
            frame: Bytes::from_static(b"frame"),
            audience: None,
            own_frames: Default::default(),
            retry_count: 0,
            first_at: self.now,
            origin: None,
            letter: None,
            trace: None,
            earlier_entries: Vec::new(),
        };
        self.submit(task);
    }

    fn submit(&mut self, task: DeliveryTask) {
        let source = at(self.next_offset);
        self.next_offset += 1;
        self.delivery
            .handle_task(self.now, source, task)
            .expect("there is room");
        self.drain();
    }

    /// Task that a retry topic brings back.
    fn retry_task(settlement: &Settlement, retry: &Retry) -> DeliveryTask {
        DeliveryTask {
            obligations: retry.obligations.clone(),
            audience: None,
            retry_count: retry.retry_count,
            origin: None,
            ..settlement.task.clone()
        }
    }

    fn retry_all(&mut self) {
        for settlement in std::mem::take(&mut self.settlements) {
            for retry in &settlement.retries {
                self.now = self.now.max(retry.due_at);
                self.submit(World::retry_task(&settlement, retry));
            }
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.delivery.poll_action() {
            match action {
                Action::Route(route) => {
                    let answer = self.route(&route);
                    self.routes.push(route.clone());
                    self.delivery.handle_routed(self.now, route.token, answer);
                }
                Action::Push { push, .. } => self.pushes.push(push),
                Action::Forget(key) => {
                    if let Some(sessions) = self.live.get_mut(&key.user) {
                        sessions.retain(|entry| entry.session != key.session);
                    }
                    self.forgotten.push(key);
                }
                Action::Notice(notice) => self.notices.push(notice),
                Action::Settled(settlement) => self.settlements.push(*settlement),
            }
        }
    }

    fn route(&mut self, route: &Route) -> Result<RouteAnswer, RouteFailure> {
        if let Some(failure) = self.mailbox_fails {
            return Err(failure);
        }
        let request = &route.request;
        let live = self.live.get(&request.user).cloned().unwrap_or_default();
        let mut stored_platforms = Vec::new();
        for platform in &request.platforms {
            let is_live = live.iter().any(|entry| entry.platform == *platform);
            if let Some(mail) = &request.mail
                && (!is_live || request.forced_platforms.contains(platform))
            {
                let target = Target {
                    user: request.user,
                    platform: *platform,
                };
                self.stored_mail.insert((target, mail.id));
                stored_platforms.push(*platform);
            }
        }
        Ok(RouteAnswer {
            live,
            stored_platforms,
            acknowledged_platforms: Vec::new(),
            dropped_count: 0,
        })
    }

    /// Answers every open push of a session, oldest first, and returns their number.
    fn answer(&mut self, number: i64, outcome: PushOutcome) -> usize {
        let all = std::mem::take(&mut self.pushes);
        let (session_pushes, other_pushes): (Vec<Push>, Vec<Push>) =
            all.into_iter().partition(|p| p.session == session(number));
        self.pushes = other_pushes;
        let count = session_pushes.len();
        for push in session_pushes {
            self.delivery.handle_outcome(self.now, push.token, outcome);
            self.drain();
        }
        count
    }

    fn pushed_to(&self) -> Vec<i64> {
        self.pushes.iter().map(|push| push.session.get()).collect()
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.delivery.handle_timeout(self.now);
        self.drain();
    }

    fn only_settlement(&self) -> &Settlement {
        assert_eq!(self.settlements.len(), 1, "{:?}", self.settlements);
        &self.settlements[0]
    }

    fn is_stored(&self, user_number: i64, platform: Platform, n: i64) -> bool {
        let target = target(user_number, platform);
        self.stored_mail.contains(&(target, id(n)))
    }
}

/// Terminal events of a settlement, with their targets.
fn ends(settlement: &Settlement) -> Vec<(Option<Target>, &LedgerEvent)> {
    let entries = settlement.ledger.iter();
    entries
        .filter(|entry| is_end(&entry.event))
        .map(|entry| (entry.target, &entry.event))
        .collect()
}

fn is_end(event: &LedgerEvent) -> bool {
    matches!(
        event,
        LedgerEvent::Acked { .. }
            | LedgerEvent::Written { .. }
            | LedgerEvent::StoredOffline
            | LedgerEvent::ReachableBySync
            | LedgerEvent::Dropped
            | LedgerEvent::Dead { .. }
    )
}
