//! The carrier: the real placement rule, delivery machine and offsets over stores that take their time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::task::{DeliverTask, MessageTask, Task, Work};
use protocol::conversation::{ConversationRow, Head, Placement, Ruling, Standing};
use protocol::delivery::{
    self, Action, Delivery, Offsets, Outcome, Owed, PushToken, RouteToken, Source,
};
use protocol::frame::ServerFrame;
use protocol::history::{PrivateRow, Version};
use protocol::keys::{self, Topic};
use protocol::ledger::{Event as LedgerEvent, LedgerEntry};
use protocol::mailbox::RouteRequest;
use protocol::presence::{BoatLife, Denied};
use protocol::session::{Push, Token};
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, Placed, Position, Timestamp};
use rand::Rng;

use crate::boat::{BoatEvent, Notice};
use crate::effects::{Answer, Effect, Place};
use crate::plan::Sabotage;
use crate::world::{Event, World};

/// How long the carrier is down after a crash.
const DOWN: Duration = Duration::from_millis(900);
/// Records taken at a time.
const BATCH: usize = 4;

pub(crate) struct Carrier {
    /// Counts its starts; names its push tokens.
    pub(crate) life: u32,
    up: bool,
    pub(crate) denied: Denied,
    partitions: u32,
    delivery: Delivery,
    offsets: Offsets,
    positions: BTreeMap<Place, u64>,
    heads: BTreeMap<ConversationId, Head>,
    /// A batch is being written: the next one waits.
    writing: bool,
    /// Questions to the mailbox, in order.
    routes: VecDeque<Step>,
    timer: Option<Timestamp>,
}

/// A thing for the mailbox, in the order in which the machine wanted it.
#[derive(Debug)]
enum Step {
    Route {
        token: RouteToken,
        request: RouteRequest,
    },
    Forget(protocol::presence::SessionKey),
}

/// A message that has its place.
#[derive(Debug)]
pub(crate) struct Written {
    source: Source,
    task: delivery::Task,
}

/// What a polled batch comes to, written step by step.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    rows: Vec<PrivateRow>,
    heads: BTreeMap<ConversationId, Head>,
    conversations: Vec<ConversationRow>,
    deliveries: Vec<Written>,
    /// Settled without a delivery.
    dropped: Vec<(Source, Vec<LedgerEntry>)>,
}

#[derive(Debug)]
pub(crate) enum CarrierEvent {
    Up,
    Poll {
        life: u32,
    },
    Write {
        life: u32,
        step: u8,
        batch: Box<Batch>,
    },
    Mailbox {
        life: u32,
    },
    /// The planted bug: store what an earlier look found to be due.
    LateStore {
        life: u32,
        token: RouteToken,
        request: Box<RouteRequest>,
        seen: Box<protocol::mailbox::RouteAnswer>,
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
    pub(crate) fn new(partitions: u32) -> Carrier {
        Carrier {
            life: 0,
            up: false,
            denied: Denied::default(),
            partitions,
            delivery: Delivery::new(delivery::Limits::default()),
            offsets: Offsets::default(),
            positions: BTreeMap::new(),
            heads: BTreeMap::new(),
            writing: false,
            routes: VecDeque::new(),
            timer: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.delivery.is_idle() && !self.writing
    }
}

impl World {
    pub(crate) fn start_carrier(&mut self) {
        let life = self.carrier.life + 1;
        let denied = self.carrier.denied.clone();
        let old_heads = std::mem::take(&mut self.carrier.heads);
        self.carrier = Carrier::new(self.carrier.partitions);
        self.carrier.denied = denied;
        self.carrier.life = life;
        self.carrier.up = true;
        self.carrier.positions = self.disk.committed.clone();
        if self.sabotage == Some(Sabotage::ReuseOfSeq) {
            // As if the head had been kept before the last message.
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
        self.carrier.up = false;
        self.after(DOWN, Event::Carrier(CarrierEvent::Up));
    }

    /// Every message of the log is committed.
    pub(crate) fn carrier_caught_up(&self) -> bool {
        let mut logs = self
            .disk
            .log
            .iter()
            .filter(|((topic, _), _)| *topic == Topic::Message);
        logs.all(|(place, log)| {
            self.disk.committed.get(place).copied().unwrap_or_default() >= log.len() as u64
        })
    }

    /// Something new may stand in the log.
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

    /// All that was appended so far is on disk.
    pub(crate) fn flush(&mut self) {
        let mark = self.disk.mark();
        self.disk.flush(mark);
        self.wake_carrier();
    }

    pub(crate) fn carrier_event(&mut self, event: CarrierEvent) {
        let now = self.now;
        match event {
            CarrierEvent::Up => {
                if !self.carrier.up {
                    self.start_carrier();
                }
                return;
            }
            CarrierEvent::BoatLost { life } => {
                self.carrier.delivery.handle_boat_lost(now, &life);
            }
            CarrierEvent::Denied { life } => {
                Arc::make_mut(&mut self.carrier.denied).insert(life);
                return;
            }
            CarrierEvent::Poll { life } if self.is_carrier(life) => self.poll_log(),
            CarrierEvent::Write { life, step, batch } if self.is_carrier(life) => {
                self.write_step(step, batch);
            }
            CarrierEvent::Mailbox { life } if self.is_carrier(life) => self.mailbox_step(),
            CarrierEvent::LateStore {
                life,
                token,
                request,
                seen,
            } if self.is_carrier(life) => {
                self.store_late(token, *request, *seen);
            }
            CarrierEvent::Outcome {
                life,
                number,
                outcome,
            } if self.is_carrier(life) => {
                let outcome = match outcome {
                    protocol::session::Outcome::Done => Outcome::Done,
                    protocol::session::Outcome::NoAck => Outcome::NoAck,
                    protocol::session::Outcome::NoSession => Outcome::NoSession,
                    protocol::session::Outcome::Full => Outcome::Full,
                };
                let token = PushToken::from_number(number);
                self.carrier.delivery.handle_outcome(now, token, outcome);
            }
            CarrierEvent::Unreachable { life, number } if self.is_carrier(life) => {
                let token = PushToken::from_number(number);
                self.carrier
                    .delivery
                    .handle_outcome(now, token, Outcome::Unreachable);
            }
            CarrierEvent::Settle {
                life,
                step,
                settlement,
            } if self.is_carrier(life) => {
                self.settle_step(step, settlement);
            }
            CarrierEvent::Commit { life } if self.is_carrier(life) => self.commit(),
            CarrierEvent::Timer { life } if self.is_carrier(life) => {
                self.carrier.timer = None;
                self.carrier.delivery.handle_timeout(now);
            }
            _ => return,
        }
        self.drive_carrier();
    }

    fn is_carrier(&self, life: u32) -> bool {
        self.carrier.up && self.carrier.life == life
    }

    fn drive_carrier(&mut self) {
        while let Some(action) = self.carrier.delivery.poll_action() {
            self.delivery_action(action);
        }
        let Some(at) = self.carrier.delivery.poll_timeout() else {
            return;
        };
        if self.carrier.timer.is_none_or(|timer| at < timer) {
            self.carrier.timer = Some(at);
            let life = self.carrier.life;
            self.at(at, Event::Carrier(CarrierEvent::Timer { life }));
        }
    }

    /// The next records of each partition that are durable and due.
    fn poll_log(&mut self) {
        if self.carrier.writing {
            return;
        }
        let mut batch = Batch::default();
        for partition in 0..self.carrier.partitions {
            self.poll_messages((Topic::Message, partition), &mut batch);
            for tier in 1..=keys::RETRY_TIERS {
                self.poll_retries((Topic::Retry(tier), partition));
            }
        }
        if !batch.deliveries.is_empty() || !batch.dropped.is_empty() {
            self.carrier.writing = true;
            self.write_later(0, Box::new(batch));
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

    fn poll_messages(&mut self, place: Place, batch: &mut Batch) {
        for _ in 0..BATCH {
            let Some((source, task)) = self.take(place) else {
                return;
            };
            match &task.work {
                Work::Message(message) => self.place(source, &task, message, batch),
                Work::Kickout(kickout) => {
                    for key in &kickout.sessions {
                        let close = Notice::Close(kickout.refusal.clone());
                        self.notify(key.life.clone(), key.session, close);
                        self.apply(Effect::Disconnect(key.clone()));
                    }
                    batch.dropped.push((source, Vec::new()));
                }
                Work::Deliver(_) => unreachable!("only on retry topics"),
            }
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
            if deliver.due_at > self.now {
                let (due, life) = (deliver.due_at, self.carrier.life);
                return self.at(due, Event::Carrier(CarrierEvent::Poll { life }));
            }
            let Some((source, task)) = self.take(place) else {
                return;
            };
            let Work::Deliver(deliver) = &task.work else {
                unreachable!("on a retry topic")
            };
            let work = again(&task, deliver);
            let now = self.now;
            let taken = self.carrier.delivery.handle_task(now, source, work);
            assert!(taken.is_ok(), "there was room");
        }
    }

    /// Gives a message its place, by the rule, from the head and the rows of earlier records.
    fn place(&mut self, source: Source, task: &Task, work: &MessageTask, batch: &mut Batch) {
        let message = &work.message;
        let conversation = message.conversation().expect("two users");
        let version = Version {
            epoch: 1,
            offset: source.offset,
        };
        let head = batch
            .heads
            .get(&conversation)
            .or_else(|| self.carrier.heads.get(&conversation))
            .or_else(|| self.disk.heads.get(&conversation))
            .copied()
            .unwrap_or_default();
        if work.unsure
            && let Some(first) = self.find_send(work, version, batch)
            && first != message.id
        {
            return self.drop_copy(source, work, first, batch);
        }
        let ruling = match head.place(version, message.id) {
            Placement::New(position) => Ruling::Place(position),
            Placement::Redelivery | Placement::CheckRow => {
                let row = self.standing(message.from, message.id, batch);
                // An old id without a row may be a first try that reached the log after its resend, now or
                // before this redelivery.
                if row.is_none()
                    && let Some(first) = self.find_send(work, version, batch)
                {
                    return self.drop_copy(source, work, first, batch);
                }
                head.compare(version, row)
            }
        };
        let side = conversation.side_of(message.from);
        let position = match ruling {
            Ruling::Place(position) => {
                batch
                    .heads
                    .insert(conversation, head.moved_by(version, message.id, side));
                position
            }
            Ruling::Keep(position) => position,
            Ruling::Repeat(_) => return batch.dropped.push((source, Vec::new())),
            Ruling::Unplaced => return batch.dropped.push((source, Vec::new())),
            Ruling::Overtaken => {
                let what = format!("record {source} finds another writer ahead of it");
                return self.judge.found(what);
            }
        };
        let placed = Placed {
            message: message.clone(),
            conversation,
            position,
        };
        self.write_down(source, task, work, placed, version, batch);
    }

    fn write_down(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        placed: Placed,
        version: Version,
        batch: &mut Batch,
    ) {
        let sent = self.sent(&placed, batch);
        let rows = PrivateRow::pair_of(&placed, sent, version).expect("private");
        for row in &rows {
            batch.conversations.push(ConversationRow {
                owner: row.owner,
                conversation: placed.conversation,
                end: Tally {
                    seq: row.seq,
                    incoming: row.incoming,
                },
                rev: 0,
                last_id: placed.message.id,
                version: Timestamp::ZERO,
                source: version,
            });
        }
        let known = self
            .disk
            .platforms
            .get(&rows[1].owner)
            .cloned()
            .unwrap_or_default();
        batch.rows.extend(rows);
        let owed = delivery::owed(&placed, known);
        let targets = owed.iter().flat_map(Owed::targets);
        self.witness.owed(placed.message.id, targets);
        let frame = api::codec::encode_message(&placed);
        let origin = work.origin.as_ref().map(|o| delivery::Origin {
            session: o.session,
            life: o.life.clone(),
        });
        let noted = vec![self.placed_entry(source, &placed)];
        let task = delivery::Task {
            placed,
            rev: 0,
            frame,
            own_frames: BTreeMap::new(),
            owed,
            retry_count: task.retry_count,
            first_at: task.first_at,
            origin,
            letter: None,
            trace: None,
            noted,
        };
        batch.deliveries.push(Written { source, task });
    }

    fn placed_entry(&self, source: Source, placed: &Placed) -> LedgerEntry {
        let event = LedgerEvent::Placed {
            conversation: placed.conversation,
            seq: placed.position.seq,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: source.partition,
            offset: source.offset,
        };
        LedgerEntry {
            message: placed.message.id,
            at: self.now,
            target: None,
            event,
        }
    }

    fn standing(&self, from: protocol::UserId, id: MessageId, batch: &Batch) -> Option<Standing> {
        let pending = batch
            .rows
            .iter()
            .find(|row| row.owner == from && row.id == id);
        pending
            .or_else(|| self.disk.rows.get(&(from, id)))
            .map(Standing::from)
    }

    /// The how manieth of its sender a message is: as its row says, or as the head counts that it moved.
    fn sent(&self, placed: &Placed, batch: &Batch) -> u64 {
        let message = &placed.message;
        if let Some(standing) = self.standing(message.from, message.id, batch) {
            return standing.sent;
        }
        let side = placed.conversation.side_of(message.from);
        let head = batch.heads.get(&placed.conversation);
        head.zip(side).map_or(0, |(head, side)| head.sent_by(side))
    }

    /// The first message of the sender under this send_id.
    fn find_send(&self, work: &MessageTask, version: Version, batch: &Batch) -> Option<MessageId> {
        let message = &work.message;
        let since = MessageId::floor_of(message.accepted_at - work.age - Duration::from_secs(2));
        let fits = |row: &&PrivateRow| {
            row.owner == message.from
                && row.send_id == message.send_id
                && row.id >= since
                && row.version < version
        };
        let written = self
            .disk
            .rows
            .range((message.from, since)..)
            .map(|(_, row)| row)
            .find(fits);
        written
            .or_else(|| batch.rows.iter().find(fits))
            .map(|row| row.id)
    }

    fn drop_copy(
        &mut self,
        source: Source,
        work: &MessageTask,
        first: MessageId,
        batch: &mut Batch,
    ) {
        let (message, at) = (work.message.id, self.now);
        let entry = |event| LedgerEntry {
            message,
            at,
            target: None,
            event,
        };
        let told = vec![
            entry(LedgerEvent::Repeat { of: first }),
            entry(LedgerEvent::Settled),
        ];
        self.judge.repeat(message, first);
        self.echo(work, first, batch);
        batch.dropped.push((source, told));
    }

    /// Tells the sender of a dropped copy where the first one stands.
    fn echo(&mut self, work: &MessageTask, first: MessageId, batch: &Batch) {
        let from = work.message.from;
        let row = self.disk.rows.get(&(from, first));
        let row = row.or_else(|| batch.rows.iter().find(|r| r.owner == from && r.id == first));
        let (Some(row), Some(origin)) = (row.cloned(), work.origin.clone()) else {
            return;
        };
        let frame = ServerFrame::Placed(protocol::frame::PlacedEcho {
            send_id: work.message.send_id,
            id: first,
            conversation: row.conversation().expect("two users"),
            position: Position {
                seq: row.seq,
                prev: row.prev,
            },
        });
        let frame = api::codec::encode_server(&frame);
        self.notify(origin.life, origin.session, Notice::Frame(frame));
    }

    fn write_later(&mut self, step: u8, batch: Box<Batch>) {
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(
            hop,
            Event::Carrier(CarrierEvent::Write { life, step, batch }),
        );
    }

    /// Rows, then heads, then conversation rows, then delivery: a crash may come between any two.
    fn write_step(&mut self, step: u8, mut batch: Box<Batch>) {
        match step {
            0 => {
                self.apply(Effect::Rows(std::mem::take(&mut batch.rows)));
                self.write_later(1, batch);
            }
            1 => {
                for (conversation, head) in &batch.heads {
                    let (conversation, head) = (*conversation, *head);
                    self.apply(Effect::Head { conversation, head });
                    self.carrier.heads.insert(conversation, head);
                }
                self.write_later(2, batch);
            }
            2 => {
                let now = self.now;
                let rows = std::mem::take(&mut batch.conversations);
                let stamped = rows.into_iter().map(|row| ConversationRow {
                    version: now,
                    ..row
                });
                self.apply(Effect::ConversationRows(stamped.collect()));
                self.write_later(3, batch);
            }
            _ => {
                for Written { source, task } in batch.deliveries {
                    let now = self.now;
                    let taken = self.carrier.delivery.handle_task(now, source, task);
                    assert!(taken.is_ok(), "there was room");
                    self.drive_carrier();
                }
                for (source, told) in batch.dropped {
                    self.apply(Effect::Ledger(told));
                    self.carrier.offsets.settle(source);
                    self.commit_later();
                }
                self.carrier.writing = false;
                self.wake_carrier();
            }
        }
    }

    fn delivery_action(&mut self, action: Action) {
        match action {
            Action::Route(route) => {
                let request = RouteRequest {
                    user: route.user,
                    platforms: route.platforms,
                    forced: route.forced,
                    mail: route.mail,
                    denied: self.carrier.denied.clone(),
                    now: self.now,
                };
                self.mailbox_later(Step::Route {
                    token: route.token,
                    request,
                });
            }
            Action::Forget(key) => self.mailbox_later(Step::Forget(key)),
            Action::Push(push) => {
                let token = Token {
                    source: self.carrier.life,
                    number: push.token.number(),
                };
                let boat = self
                    .boats
                    .iter()
                    .position(|boat| boat.life().boat == push.life.boat);
                self.witness.pushed(token, push.message);
                let hop = self.hop();
                let lost = self.rng.random_bool(self.plan.call_loss / 2.0);
                let (Some(boat), false) = (boat, lost) else {
                    return;
                };
                let frame = Push {
                    token: Some(token),
                    id: push.message,
                    frame: push.frame,
                    needs_ack: push.needs_ack,
                };
                let (life, session) = (push.life, push.session);
                self.after(
                    hop,
                    Event::Boat(BoatEvent::Push {
                        boat,
                        life,
                        session,
                        push: frame,
                    }),
                );
            }
            Action::Notice(notice) => {
                let word = match notice.word {
                    delivery::Word::Placed(echo) => {
                        Notice::Frame(api::codec::encode_server(&ServerFrame::Placed(echo)))
                    }
                    delivery::Word::Refused { send_id, refusal } => {
                        let frame = ServerFrame::Refused { send_id, refusal };
                        Notice::Frame(api::codec::encode_server(&frame))
                    }
                    delivery::Word::Hint => Notice::Hint,
                    delivery::Word::Close(refusal) => Notice::Close(refusal),
                };
                self.notify(notice.life, notice.session, word);
            }
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
            Some(Step::Route { token, request })
                if self.sabotage == Some(Sabotage::CheckThenStore) && request.forced.is_empty() =>
            {
                let look = RouteRequest {
                    mail: None,
                    ..request.clone()
                };
                let Answer::Routed(seen) = self.apply(Effect::Route(look)) else {
                    unreachable!("a route is answered")
                };
                let (life, late) = (self.carrier.life, self.up_to(Duration::from_millis(400)));
                let event = CarrierEvent::LateStore {
                    life,
                    token,
                    request: Box::new(request),
                    seen: Box::new(seen),
                };
                self.after(late, Event::Carrier(event));
            }
            Some(Step::Route { token, request }) => {
                let Answer::Routed(answer) = self.apply(Effect::Route(request)) else {
                    unreachable!("a route is answered")
                };
                let now = self.now;
                self.carrier.delivery.handle_routed(now, token, Ok(answer));
            }
            None => {}
        }
    }

    fn store_late(
        &mut self,
        token: RouteToken,
        mut request: RouteRequest,
        seen: protocol::mailbox::RouteAnswer,
    ) {
        let there: BTreeSet<_> = seen.live.iter().map(|entry| entry.platform).collect();
        request.forced = request
            .platforms
            .iter()
            .filter(|p| !there.contains(p))
            .copied()
            .collect();
        request.platforms = request.forced.clone();
        let Answer::Routed(stored) = self.apply(Effect::Route(request)) else {
            unreachable!("a route is answered")
        };
        let answer = protocol::mailbox::RouteAnswer {
            live: seen.live,
            ..stored
        };
        let now = self.now;
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

    /// Retries and letters, then the ledger, then the offset.
    fn settle_step(&mut self, step: u8, settlement: Box<delivery::Settlement>) {
        match step {
            0 => {
                for retry in &settlement.retries {
                    let deliver = DeliverTask {
                        placed: settlement.task.placed.clone(),
                        rev: 0,
                        targets: retry.owed.iter().flat_map(Owed::targets).collect(),
                        live_users: retry
                            .owed
                            .iter()
                            .filter(|o| o.live)
                            .map(|o| o.user)
                            .collect(),
                        due_at: retry.due_at,
                        cause: format!("{:?}", retry.cause),
                        letter: None,
                    };
                    let task = Task {
                        retry_count: retry.retry_count,
                        first_at: settlement.task.first_at,
                        trace: None,
                        work: Work::Deliver(deliver),
                    };
                    self.judge
                        .retried(&self.plan, settlement.task.placed.message.id);
                    self.append_task(Topic::Retry(retry.tier), Arc::new(task));
                }
                if let Some(letter) = &settlement.letter {
                    self.judge
                        .dead(settlement.task.placed.message.id, letter.reason);
                }
                self.flush();
                self.settle_later(1, settlement);
            }
            1 => {
                let mut told = settlement.ledger.clone();
                if self.sabotage == Some(Sabotage::StoredToldAsSynced) {
                    let stored = told
                        .iter_mut()
                        .filter(|e| e.event == LedgerEvent::StoredOffline);
                    stored.for_each(|entry| entry.event = LedgerEvent::ReachableBySync);
                }
                self.apply(Effect::Ledger(told));
                self.settle_later(2, settlement);
            }
            _ => {
                self.carrier.offsets.settle(settlement.source);
                self.commit_later();
            }
        }
    }

    fn commit_later(&mut self) {
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

/// A retry as the machine takes it.
fn again(task: &Task, deliver: &DeliverTask) -> delivery::Task {
    let mut owed: Vec<Owed> = Vec::new();
    let users = deliver.targets.iter().map(|target| target.user);
    for user in users.chain(deliver.live_users.iter().copied()) {
        if owed.iter().all(|o| o.user != user) {
            let mine = deliver.targets.iter().filter(|target| target.user == user);
            owed.push(Owed {
                user,
                platforms: mine.map(|target| target.platform).collect(),
                live: deliver.live_users.contains(&user),
            });
        }
    }
    delivery::Task {
        rev: deliver.rev,
        placed: deliver.placed.clone(),
        frame: api::codec::encode_message(&deliver.placed),
        own_frames: BTreeMap::new(),
        owed,
        retry_count: task.retry_count,
        first_at: task.first_at,
        origin: None,
        letter: None,
        trace: None,
        noted: Vec::new(),
    }
}
