//! The carrier: the real writer, delivery machine and offset tracker over slow stores.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::codec::EventFrames;
use protocol::cache::Invalidation;
use protocol::conversation::Head;
use protocol::delivery::{
    self, Action, Delivery, DeliveryLimits, OffsetTracker, PushOutcome, PushToken, RouteFailure,
    RouteToken, Source,
};
use protocol::keys::{self, Topic};
use protocol::ledger::LedgerEvent;
use protocol::mailbox::RouteRequest;
use protocol::presence::{BoatLife, DeniedBoats};
use protocol::record::{Task, Work, retry_task};
use protocol::session::Token;
use protocol::writer::{self, Facts, RetryFailure};
use protocol::{ConversationId, Timestamp};
use rand::Rng;

use crate::boat::{BoatEvent, Notice};
use crate::effects::{Answer, Effect, Place};
use crate::letters::Burial;
use crate::plan::{Sabotage, StoreKey};
use crate::world::{Event, World};
use crate::writer::Batch;

/// Downtime of the carrier after a crash.
const RESTART_DELAY: Duration = Duration::from_millis(900);
/// Records taken from a partition in one poll.
const POLL_BATCH_SIZE: usize = 4;

pub(crate) struct Carrier {
    /// Counts its starts; names its push tokens.
    pub(crate) life: u32,
    is_up: bool,
    pub(crate) denied_boats: DeniedBoats,
    partitions: u32,
    pub(crate) delivery: Delivery,
    pub(crate) offsets: OffsetTracker,
    positions: BTreeMap<Place, u64>,
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    /// True while a batch is being written; the next one waits.
    pub(crate) is_writing: bool,
    /// Steps for the mailbox, in order.
    routes: VecDeque<Step>,
    /// End of an outage in which no cache entry can be invalidated, though stations read them.
    invalidation_outage_end: Timestamp,
    timer: Option<Timestamp>,
    /// Times of scheduled polls of the retry topics, one poll each.
    retries_due: BTreeSet<Timestamp>,
    /// Due times of the retries that the carrier has read.
    retry_due_times: BTreeMap<(Place, u64), Timestamp>,
}

/// Step for the mailbox, in the order of the machine's actions.
#[derive(Debug)]
enum Step {
    Route {
        token: RouteToken,
        request: RouteRequest,
    },
    Forget(protocol::presence::SessionKey),
    /// Invalidates cache entries before the route of the delivery.
    ForgetCopies(Vec<Invalidation>),
}

#[derive(Debug)]
pub(crate) enum CarrierEvent {
    Up,
    Poll {
        life: u32,
    },
    Write {
        life: u32,
        batch: Box<Batch>,
    },
    Mailbox {
        life: u32,
    },
    /// Planted bug: invalidate cache entries after the route.
    LateForget {
        life: u32,
        invalidations: Vec<Invalidation>,
    },
    /// Planted bug: store by the presence that an earlier step saw.
    LateStore {
        life: u32,
        token: RouteToken,
        request: Box<RouteRequest>,
        presence: Box<protocol::mailbox::RouteAnswer>,
    },
    Outcome {
        life: u32,
        number: u64,
        outcome: protocol::session::Outcome,
    },
    Unreachable {
        life: u32,
        number: u64,
    },
    Settle {
        life: u32,
        step: u8,
        settlement: Box<delivery::Settlement>,
    },
    Commit {
        life: u32,
    },
    Bury {
        life: u32,
        step: u8,
        burial: Box<Burial>,
    },
    BoatLost {
        life: BoatLife,
    },
    Denied {
        life: BoatLife,
    },
    Timer {
        life: u32,
    },
}

impl Carrier {
    pub(crate) fn new(partitions: u32, limits: DeliveryLimits) -> Carrier {
        Carrier {
            life: 0,
            is_up: false,
            denied_boats: DeniedBoats::default(),
            partitions,
            delivery: Delivery::new(limits),
            offsets: OffsetTracker::default(),
            positions: BTreeMap::new(),
            heads: BTreeMap::new(),
            is_writing: false,
            routes: VecDeque::new(),
            invalidation_outage_end: Timestamp::ZERO,
            timer: None,
            retries_due: BTreeSet::new(),
            retry_due_times: BTreeMap::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.delivery.is_idle() && !self.is_writing
    }
}

impl World {
    pub(crate) fn start_carrier(&mut self) {
        let life = self.carrier.life + 1;
        let denied_boats = self.carrier.denied_boats.clone();
        let old_heads = std::mem::take(&mut self.carrier.heads);
        self.carrier = Carrier::new(self.carrier.partitions, self.plan.limits());
        self.carrier.denied_boats = denied_boats;
        self.carrier.life = life;
        self.carrier.is_up = true;
        self.carrier.positions = self.disk.committed_offsets.clone();
        if self.sabotage == Some(Sabotage::ReuseOfSeq) {
            // Heads as they were before the last message.
            self.carrier.heads = old_heads
                .into_iter()
                .map(|(c, head)| {
                    (
                        c,
                        Head {
                            seq: protocol::Seq(head.seq.0.saturating_sub(1)),
                            ..head
                        },
                    )
                })
                .collect();
        }
        self.wake_carrier();
    }

    pub(crate) fn crash_carrier(&mut self) {
        self.carrier.life += 1;
        self.carrier.is_up = false;
        self.after(RESTART_DELAY, Event::Carrier(CarrierEvent::Up));
    }

    /// True once every message of the log is committed.
    pub(crate) fn carrier_caught_up(&self) -> bool {
        let mut logs = self
            .disk
            .log
            .iter()
            .filter(|((topic, _), _)| *topic == Topic::Message);
        logs.all(|(place, log)| {
            self.disk
                .committed_offsets
                .get(place)
                .copied()
                .unwrap_or_default()
                >= log.len() as u64
        })
    }

    /// Schedules a poll of the log, which may have new records.
    pub(crate) fn wake_carrier(&mut self) {
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(hop, Event::Carrier(CarrierEvent::Poll { life }));
    }

    pub(crate) fn append(&mut self, topic: Topic, key: &[u8], task: Task) {
        let place = (topic, keys::partition_of(key, self.carrier.partitions));
        self.apply(Effect::Append {
            place,
            task: Arc::new(task),
        });
    }

    pub(crate) fn append_task(&mut self, topic: Topic, task: Arc<Task>) {
        let key = match &task.work {
            Work::Message(message) => {
                keys::record_key(message.message.conversation().expect("two users"))
            }
            Work::Deliver(deliver) => keys::record_key(deliver.placed.conversation),
            Work::Kickout(kickout) => keys::control_key(kickout.sessions[0].user),
        };
        let place = (topic, keys::partition_of(&key, self.carrier.partitions));
        self.apply(Effect::Append { place, task });
    }

    /// Sets the offsets of messages back to this share of what is committed, and starts anew there.
    pub(crate) fn set_offsets_back(&mut self, share: f64) {
        let committed = self.disk.committed_offsets.clone();
        for (place, committed) in committed {
            if place.0 == Topic::Message {
                let next = (committed as f64 * share) as u64;
                self.apply(Effect::SetBack { place, next });
            }
        }
        self.flush();
        if self.plan.is_embedded {
            self.crash_all()
        } else {
            self.crash_carrier()
        }
    }

    /// Makes every record appended so far durable.
    pub(crate) fn flush(&mut self) {
        let mark = self.disk.mark();
        self.disk.flush(mark);
        self.wake_carrier();
    }

    pub(crate) fn carrier_event(&mut self, event: CarrierEvent) {
        let now = self.carrier_moment();
        match event {
            CarrierEvent::Up => {
                if !self.carrier.is_up {
                    self.start_carrier();
                }
                return;
            }
            CarrierEvent::BoatLost { life } => {
                self.carrier.delivery.handle_boat_lost(now, &life);
            }
            CarrierEvent::Denied { life } => {
                Arc::make_mut(&mut self.carrier.denied_boats).insert(life);
                return;
            }
            CarrierEvent::Poll { life } if self.is_carrier(life) => self.poll_log(),
            CarrierEvent::Write { life, batch } if self.is_carrier(life) => {
                self.write_step(batch);
            }
            CarrierEvent::Write { life, batch } if self.older_heads.contains_key(&life) => {
                return self.older_step(life, batch);
            }
            CarrierEvent::Mailbox { life } if self.is_carrier(life) => self.mailbox_step(),
            CarrierEvent::LateForget {
                life,
                invalidations,
            } if self.is_carrier(life) => {
                self.invalidate_entries(&invalidations);
            }
            CarrierEvent::LateStore {
                life,
                token,
                request,
                presence,
            } if self.is_carrier(life) => {
                self.store_late(token, *request, *presence);
            }
            CarrierEvent::Outcome {
                life,
                number,
                outcome,
            } if self.is_carrier(life) => {
                let outcome = match outcome {
                    protocol::session::Outcome::Done => PushOutcome::Done,
                    protocol::session::Outcome::NoAck => PushOutcome::NoAck,
                    protocol::session::Outcome::NoSession => PushOutcome::NoSession,
                    protocol::session::Outcome::Full => PushOutcome::Full,
                };
                let token = PushToken::from_number(number);
                self.carrier.delivery.handle_outcome(now, token, outcome);
            }
            CarrierEvent::Unreachable { life, number } if self.is_carrier(life) => {
                let token = PushToken::from_number(number);
                self.carrier
                    .delivery
                    .handle_outcome(now, token, PushOutcome::Unreachable);
            }
            CarrierEvent::Settle {
                life,
                step,
                settlement,
            } if self.is_carrier(life) => {
                self.settle_step(step, settlement);
            }
            CarrierEvent::Commit { life } if self.is_carrier(life) => self.commit(),
            CarrierEvent::Bury { life, step, burial } if self.is_carrier(life) => {
                self.bury_step(step, burial);
            }
            CarrierEvent::Timer { life } if self.is_carrier(life) => {
                self.carrier.timer = None;
                self.carrier.delivery.handle_timeout(now);
            }
            _ => return,
        }
        self.drive_carrier();
    }

    fn is_carrier(&self, life: u32) -> bool {
        self.carrier.is_up && self.carrier.life == life
    }

    pub(crate) fn drive_carrier(&mut self) {
        while let Some(action) = self.carrier.delivery.poll_action() {
            self.delivery_action(action);
        }
        let Some(at) = self.carrier.delivery.poll_timeout() else {
            return;
        };
        let at = self.right_time(at);
        if self.carrier.timer.is_none_or(|timer| at < timer) {
            self.carrier.timer = Some(at);
            let life = self.carrier.life;
            self.at(at, Event::Carrier(CarrierEvent::Timer { life }));
        }
    }

    /// Takes the next records of each partition that are durable and due.
    fn poll_log(&mut self) {
        if self.carrier.is_writing {
            return;
        }
        let mut records = Vec::new();
        for partition in 0..self.carrier.partitions {
            self.poll_messages((Topic::Message, partition), &mut records);
            for tier in 1..=keys::RETRY_TIERS {
                self.poll_retries((Topic::Retry(tier), partition));
            }
        }
        if !records.is_empty() {
            self.carrier.is_writing = true;
            let batch = Batch::of(self.carrier.life, records);
            self.write_later(Box::new(batch));
        }
    }

    fn take(&mut self, place: Place) -> Option<(Source, Arc<Task>)> {
        if self.carrier.delivery.room() == 0 {
            return None;
        }
        let position = self.carrier.positions.entry(place).or_default();
        let record = self.disk.record(place, *position)?.clone();
        *position += 1;
        let source = Source {
            topic: place.0,
            partition: place.1,
            offset: record.offset,
        };
        self.carrier.offsets.begin(source);
        if self.sabotage == Some(Sabotage::CommitBeforeSettle) {
            self.apply(Effect::Commit {
                place,
                next: record.offset + 1,
            });
        }
        Some((source, record.task))
    }

    fn poll_messages(&mut self, place: Place, records: &mut Vec<(Source, Arc<Task>)>) {
        for _ in 0..POLL_BATCH_SIZE {
            let Some((source, task)) = self.take(place) else {
                return;
            };
            let Work::Kickout(kickout) = &task.work else {
                records.push((source, task));
                continue;
            };
            for key in &kickout.sessions {
                let close = Notice::Close(kickout.refusal.clone());
                self.notify(key.life.clone(), key.session, close);
                self.apply(Effect::Disconnect(key.clone()));
            }
            self.carrier.offsets.settle(source);
            self.commit_later();
        }
    }

    fn poll_retries(&mut self, place: Place) {
        loop {
            let position = self
                .carrier
                .positions
                .get(&place)
                .copied()
                .unwrap_or_default();
            let Some(head) = self.disk.record(place, position) else {
                return;
            };
            let Work::Deliver(deliver) = &head.task.work else {
                unreachable!("on a retry topic")
            };
            let due_at = deliver.due_at;
            let retry_at = self.due(place, position, due_at);
            if retry_at > self.now {
                let (life, now) = (self.carrier.life, self.now);
                self.carrier.retries_due.retain(|at| *at > now);
                if self.carrier.retries_due.insert(retry_at) {
                    self.at(retry_at, Event::Carrier(CarrierEvent::Poll { life }));
                }
                return;
            }
            let Some((source, task)) = self.take(place) else {
                return;
            };
            let Work::Deliver(deliver) = &task.work else {
                unreachable!("on a retry topic")
            };
            let mut facts = Facts::default();
            let work = loop {
                match writer::retry(&task, deliver, &facts, &EventFrames) {
                    Ok(work) => break work,
                    Err(RetryFailure::Missing(missing)) => self.answer(&missing, &mut facts),
                    Err(dead) => panic!("frames of retries are whole: {dead:?}"),
                }
            };
            let now = self.carrier_moment();
            let accepted = self.carrier.delivery.handle_task(now, source, work);
            assert!(accepted.is_ok(), "there was room");
        }
    }

    /// Time at which a retry is due; fixed when the carrier first reads its record.
    fn due(&mut self, place: Place, position: u64, due_at: Timestamp) -> Timestamp {
        let Topic::Retry(tier) = place.0 else {
            unreachable!("a retry topic")
        };
        let delay = self.plan.limits().tiers.delay(tier);
        let wait = delivery::retry_wait(due_at, self.carrier_wall(), delay);
        let retry_at = self.now + wait;
        *self
            .carrier
            .retry_due_times
            .entry((place, position))
            .or_insert(retry_at)
    }

    fn delivery_action(&mut self, action: Action) {
        match action {
            Action::Route(mut route) => {
                route.stamp(self.now, &self.carrier.denied_boats);
                if self.sabotage == Some(Sabotage::ForgottenLate) {
                    let (life, delay) = (self.carrier.life, self.up_to(Duration::from_secs(10)));
                    let outdated = route.invalidations;
                    let event = CarrierEvent::LateForget {
                        life,
                        invalidations: outdated,
                    };
                    self.after(delay, Event::Carrier(event));
                } else {
                    self.mailbox_later(Step::ForgetCopies(route.invalidations));
                }
                self.mailbox_later(Step::Route {
                    token: route.token,
                    request: route.request,
                });
            }
            Action::Forget(key) => self.mailbox_later(Step::Forget(key)),
            Action::Push { push, life, .. } => {
                let source = self.carrier.life;
                let token = Token::of(source, push.token).expect("never 0");
                let mut boats = self.boats.iter();
                let boat = boats.position(|boat| boat.life().boat == life.boat);
                self.witness.record_push(token, push.message);
                let hop = self.hop();
                let is_lost = self.rng.random_bool(self.plan.call_loss / 2.0);
                let (Some(boat), false) = (boat, is_lost) else {
                    return;
                };
                self.after(
                    hop,
                    Event::Boat(BoatEvent::Push {
                        boat,
                        life,
                        source,
                        push,
                    }),
                );
            }
            Action::Notice(notice) => self.send_notice(notice),
            Action::Settled(settlement) => self.settle_later(0, settlement),
        }
    }

    fn mailbox_later(&mut self, step: Step) {
        self.carrier.routes.push_back(step);
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(hop, Event::Carrier(CarrierEvent::Mailbox { life }));
    }

    fn mailbox_step(&mut self) {
        match self.carrier.routes.pop_front() {
            Some(Step::Forget(key)) => {
                self.apply(Effect::Disconnect(key));
            }
            Some(Step::ForgetCopies(invalidations)) => {
                if self.is_invalidation_down() {
                    // The delivery must not be routed before the invalidation.
                    if let Some(Step::Route { token, .. }) = self.carrier.routes.pop_front() {
                        let (now, failure) = (self.carrier_moment(), RouteFailure::Unavailable);
                        let delivery = &mut self.carrier.delivery;
                        delivery.handle_routed(now, token, Err(failure));
                    }
                    return;
                }
                self.invalidate_entries(&invalidations);
            }
            Some(Step::Route { token, request }) if self.refuses(StoreKey::Mail(request.user)) => {
                let (now, failure) = (self.carrier_moment(), RouteFailure::Refused);
                let delivery = &mut self.carrier.delivery;
                delivery.handle_routed(now, token, Err(failure));
            }
            Some(Step::Route { token, request })
                if self.sabotage == Some(Sabotage::CheckThenStore)
                    && request.forced_platforms.is_empty() =>
            {
                let presence_query = RouteRequest {
                    mail: None,
                    ..request.clone()
                };
                let Answer::Routed(presence) = self.apply(Effect::Route(presence_query)) else {
                    unreachable!("a route is answered")
                };
                let (life, delay) = (self.carrier.life, self.up_to(Duration::from_millis(400)));
                let event = CarrierEvent::LateStore {
                    life,
                    token,
                    request: Box::new(request),
                    presence: Box::new(presence),
                };
                self.after(delay, Event::Carrier(event));
            }
            Some(Step::Route { token, request }) => {
                let Answer::Routed(answer) = self.apply(Effect::Route(request)) else {
                    unreachable!("a route is answered")
                };
                let now = self.carrier_moment();
                self.carrier.delivery.handle_routed(now, token, Ok(answer));
            }
            None => {}
        }
    }

    pub(crate) fn lose_invalidations(&mut self, duration: Duration) {
        self.carrier.invalidation_outage_end = self.now + duration;
    }

    /// True during an outage of invalidation; may begin one.
    pub(crate) fn is_invalidation_down(&mut self) -> bool {
        if self.plan.call_loss > 0.0 && self.rng.random_bool(self.plan.call_loss / 2.0) {
            let duration = self.up_to(Duration::from_secs(120));
            self.carrier.invalidation_outage_end = self.now + duration;
        }
        !self.is_healed && self.now < self.carrier.invalidation_outage_end
    }

    fn store_late(
        &mut self,
        token: RouteToken,
        mut request: RouteRequest,
        presence: protocol::mailbox::RouteAnswer,
    ) {
        let live_platforms: BTreeSet<_> =
            presence.live.iter().map(|entry| entry.platform).collect();
        request.forced_platforms = request
            .platforms
            .iter()
            .filter(|p| !live_platforms.contains(p))
            .copied()
            .collect();
        request.platforms = request.forced_platforms.clone();
        let Answer::Routed(new_answer) = self.apply(Effect::Route(request)) else {
            unreachable!("a route is answered")
        };
        let answer = protocol::mailbox::RouteAnswer {
            live: presence.live,
            ..new_answer
        };
        let now = self.carrier_moment();
        self.carrier.delivery.handle_routed(now, token, Ok(answer));
    }

    fn settle_later(&mut self, step: u8, settlement: Box<delivery::Settlement>) {
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(
            hop,
            Event::Carrier(CarrierEvent::Settle {
                life,
                step,
                settlement,
            }),
        );
    }

    /// Writes retries and the letter, then the ledger, then settles the offset.
    fn settle_step(&mut self, step: u8, settlement: Box<delivery::Settlement>) {
        match step {
            0 => {
                for retry in &settlement.retries {
                    let retry_record = retry_task(
                        &settlement.task,
                        &retry.obligations,
                        retry.retry_count,
                        retry.due_at,
                        retry.cause.text(),
                    );
                    self.judge
                        .check_retry(&self.plan, settlement.task.placed.message.id);
                    self.append_task(Topic::Retry(retry.tier), Arc::new(retry_record));
                }
                match &settlement.letter {
                    Some(part) if self.plan.letters.has_operator() => {
                        self.bury_part(&settlement, part);
                    }
                    Some(part) => {
                        let message = settlement.task.placed.message.id;
                        self.judge.record_death(message, part.reason);
                    }
                    None => {}
                }
                self.flush();
                self.settle_later(1, settlement);
            }
            1 => {
                let mut entries = settlement.ledger.clone();
                if self.sabotage == Some(Sabotage::StoredToldAsSynced) {
                    let stored_entries = entries
                        .iter_mut()
                        .filter(|e| e.event == LedgerEvent::StoredOffline);
                    stored_entries.for_each(|entry| entry.event = LedgerEvent::ReachableBySync);
                }
                self.apply(Effect::Ledger(entries));
                self.settle_later(2, settlement);
            }
            _ => {
                self.carrier.offsets.settle(settlement.source);
                self.commit_later();
            }
        }
    }

    pub(crate) fn commit_later(&mut self) {
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(hop, Event::Carrier(CarrierEvent::Commit { life }));
    }

    fn commit(&mut self) {
        for (place, next) in self.carrier.offsets.due() {
            self.apply(Effect::Commit { place, next });
            self.carrier.offsets.committed(place, next);
        }
        self.wake_carrier();
    }
}
