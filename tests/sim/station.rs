//! Stations: calls of boats, each a sequence of effects; a crash may come between any two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::admission::{
    MEMBERSHIP_CACHE_TTL, SendLimits, SendOrder, Verdict, accepted_message, admit, judge,
    message_task, needs_membership,
};
use protocol::bounds::Bounds;
use protocol::delivery::Origin;
use protocol::frame::{Accepted, Ack, Acked, Send, ServerFrame, SyncPage, SyncRequest};
use protocol::id::Snowflake;
use protocol::keys::{self, Topic};
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::mailbox::{
    ConnectRequest, DedupeKey, FirstSend, MailCursor, NewSession, ReassertAnswer,
    replaced_session_refusal,
};
use protocol::message::Target;
use protocol::presence::{BoatLife, SessionKey};
use protocol::reading::{not_a_member, stranger};
use protocol::receipt::ReceiptMoves;
use protocol::record::{KickoutTask, Task, Work};
use protocol::session::{Admission, Outgoing, Page};
use protocol::{
    Code, ConversationId, DeviceId, GroupId, MessageId, Platform, Recipient, Refusal, SendId,
    SessionId, Timestamp, UserId,
};
use rand::Rng;

use crate::boat::{BoatEvent, Notice};
use crate::cache::RegisterMove;
use crate::effects::{Answer, Effect};
use crate::plan::Sabotage;
use crate::reading::OpenQuestion;
use crate::world::{Event, World};

/// Time a boat waits for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Duration of a slow answer: longer than the boat waits.
const SLOW_ANSWER_TIME: Duration = Duration::from_secs(6);
pub(crate) const LIST_MARGIN: Duration = Duration::from_secs(10);
/// Most facts of a question that are each read at a time of their own. The others are all read when
/// the question is answered.
const SEPARATE_READS: usize = 6;
/// Id of the installation.
const CLUSTER_ID: u64 = 7;
/// Time ahead of the clock up to which ids are reserved.
const ID_RESERVATION: Duration = Duration::from_secs(5);

pub(crate) struct Station {
    pub(crate) life: u64,
    ids: Snowflake,
    /// Members of groups as last read, and the time until which the station trusts that.
    cached_members: BTreeMap<(GroupId, UserId), Timestamp>,
    /// Error of the station's clock, in milliseconds.
    skew: i64,
}

/// Call of a boat.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Admit(protocol::frame::Hello),
    Submit(Vec<Send>),
    Receipts(Ack),
    FetchMail {
        cursor: Option<MailCursor>,
        limit: u32,
    },
    RemoveMail(Vec<MessageId>),
    Sync(SyncRequest),
    Leave,
    Reassert,
}

/// Answers, as the session takes them.
pub(crate) enum Reply {
    Admitted(Result<Admission, Refusal>),
    Submitted(Vec<Result<Accepted, Refusal>>),
    Receipts(Result<Acked, Refusal>),
    Page(Result<Page, Refusal>),
    Sync(u32, Result<Outgoing, Refusal>),
    Reasserted(ReassertAnswer),
}

/// A call under way.
pub(crate) struct StationCall {
    boat: usize,
    boat_life: u64,
    life: BoatLife,
    session: SessionId,
    pub(crate) user: Option<UserId>,
    /// The question that is being answered.
    question: Option<OpenQuestion>,
    /// Moves of registers by receipts, whether each status is new, and the answer to them.
    pub(crate) moves: Option<(ReceiptMoves, Vec<bool>, Acked)>,
    /// Cache entry from before registers moved; `None` once the reads are in the cache.
    pub(crate) register_move: Option<RegisterMove>,
    device: Option<DeviceId>,
    pub(crate) platform: Platform,
    pub(crate) station: usize,
    station_life: u64,
    call: Call,
    /// True once the boat has its answer, or gave up.
    is_answered: bool,
    /// True once the station has no more steps to do.
    is_done: bool,
    step: u8,
    /// Results of earlier steps, from here to the end.
    sends: Vec<SendRecord>,
    mark: usize,
    mail_waits: Option<bool>,
    displaced_sessions: Vec<SessionKey>,
    replaced_sessions: Vec<SessionKey>,
    admission: Option<Admission>,
}

/// A send on its way into the log.
struct SendRecord {
    send_id: SendId,
    conversation: Option<ConversationId>,
    /// Whether the writer may still refuse the send after its acceptance.
    may_be_refused: bool,
    outcome: Result<(MessageId, Timestamp), Refusal>,
    /// Record to publish.
    task: Option<Arc<Task>>,
}

#[derive(Default)]
pub(crate) struct Calls {
    open: BTreeMap<i64, StationCall>,
}

#[derive(Debug)]
pub(crate) enum CallEvent {
    Step {
        call: i64,
    },
    /// A fact is read for a question.
    Read {
        call: i64,
    },
    Timeout {
        call: i64,
    },
}

impl Station {
    pub(crate) fn new() -> Station {
        Station {
            life: 0,
            ids: Snowflake::new(0, Timestamp::ZERO),
            cached_members: BTreeMap::new(),
            skew: 0,
        }
    }
}

impl World {
    pub(crate) fn start_station(&mut self, index: usize) {
        let stations = self.stations.len() as u64;
        // Clocks differ by less than a client waits before it resends.
        let skew = self.rng.random_range(-450..=450);
        let station = &mut self.stations[index];
        station.life += 1;
        // A new node number at each start, as a lease hands them out.
        let node = (station.life * stations + index as u64) % 1024;
        station.ids = Snowflake::new(node as u16, Timestamp::ZERO);
        station.cached_members.clear();
        station.skew = skew;
    }

    pub(crate) fn crash_station(&mut self, index: usize) {
        self.start_station(index);
    }

    pub(crate) fn call(&mut self, boat: usize, session: SessionId, call: Call) {
        let caller = &self.boats[boat];
        let Some(machine) = caller.session(session) else {
            return;
        };
        let station = session.get() as usize % self.stations.len();
        let open = StationCall {
            boat,
            boat_life: caller.life,
            life: caller.life(),
            session,
            user: machine.user(),
            question: None,
            moves: None,
            register_move: None,
            device: machine.device().cloned(),
            platform: machine.platform(),
            station,
            station_life: self.stations[station].life,
            call,
            is_answered: false,
            is_done: false,
            step: 0,
            sends: Vec::new(),
            mark: 0,
            mail_waits: None,
            displaced_sessions: Vec::new(),
            replaced_sessions: Vec::new(),
            admission: None,
        };
        let id = self.next_serial();
        self.calls.open.insert(id, open);
        let is_lost = self.rng.random_bool(self.plan.call_loss / 2.0);
        let hop = self.hop();
        if !is_lost {
            self.after(hop, Event::Call(CallEvent::Step { call: id }));
        }
        self.after(CALL_TIMEOUT, Event::Call(CallEvent::Timeout { call: id }));
    }

    pub(crate) fn call_event(&mut self, event: CallEvent) {
        match event {
            CallEvent::Step { call } => {
                let Some(mut open) = self.calls.open.remove(&call) else {
                    return;
                };
                if self.stations[open.station].life != open.station_life {
                    // The station died with the call.
                    self.give_up(&mut open);
                } else if self.step(&mut open) {
                    let early = self.sabotage == Some(Sabotage::DrainBeforeOnline)
                        && open.mail_waits.is_some()
                        && open.step == 1;
                    let late = self.sabotage == Some(Sabotage::OldCopyKept);
                    let fills = open.step == 2 && open.question.is_some();
                    let wait = match (early, late && fills) {
                        (true, _) => self.up_to(Duration::from_millis(400)),
                        (_, true) => self.up_to(Duration::from_secs(10)),
                        (false, false) => self.step_time(),
                    };
                    self.after(wait, Event::Call(CallEvent::Step { call }));
                    if open.step == 1 && open.question.is_some() {
                        self.read_between(call, wait);
                    }
                    self.calls.open.insert(call, open);
                } else if !std::mem::replace(&mut open.is_done, true) && !open.is_answered {
                    // The answer was lost: the boat will give up.
                    self.calls.open.insert(call, open);
                }
            }
            CallEvent::Read { call } => {
                let Some(mut open) = self.calls.open.remove(&call) else {
                    return;
                };
                let lives = self.stations[open.station].life == open.station_life;
                if let (true, Some(user), Call::Sync(request), Some(mut question)) =
                    (lives, open.user, &open.call, open.question.take())
                {
                    self.read_fact(user, &request.query, &mut question);
                    open.question = Some(question);
                }
                self.calls.open.insert(call, open);
            }
            CallEvent::Timeout { call } => {
                if let Some(mut open) = self.calls.open.remove(&call) {
                    self.give_up(&mut open);
                    if !open.is_done {
                        // The station may still work on the call.
                        self.calls.open.insert(call, open);
                    }
                }
            }
        }
    }

    /// Schedules reads of facts within the time of a step.
    fn read_between(&mut self, call: i64, time: Duration) {
        for _ in 0..SEPARATE_READS {
            let millis = self.dice.random_range(0..=time.as_millis() as u64);
            let wait = Duration::from_millis(millis);
            self.after(wait, Event::Call(CallEvent::Read { call }));
        }
    }

    fn step_time(&mut self) -> Duration {
        if self.rng.random_bool(self.plan.call_slow) {
            SLOW_ANSWER_TIME
        } else {
            self.hop()
        }
    }

    /// Answers for the station: the boat waited long enough, or the station is gone.
    fn give_up(&mut self, open: &mut StationCall) {
        let refusal = || {
            Refusal::new(
                Code::DeadlineExceeded,
                "no answer in time: it may have been done",
            )
        };
        let reply = match &open.call {
            Call::Admit(_) => Reply::Admitted(Err(refusal())),
            Call::Submit(sends) => Reply::Submitted(sends.iter().map(|_| Err(refusal())).collect()),
            Call::Receipts(_) => Reply::Receipts(Err(refusal())),
            Call::FetchMail { .. } => Reply::Page(Err(refusal())),
            Call::Sync(request) => Reply::Sync(request.request, Err(refusal())),
            Call::Reassert => {
                if !open.is_answered && self.boats[open.boat].life == open.boat_life {
                    self.boats[open.boat].replace_doubt(open.session, true);
                }
                return;
            }
            // A boat repeats it until a station answers. Worlds with sweeps go without: there it is
            // lost as where its lane is full.
            Call::RemoveMail(ids) => {
                let is_lost = !std::mem::replace(&mut open.is_answered, true) && !self.plan.sweeps;
                if is_lost && self.boats[open.boat].life == open.boat_life {
                    self.call(open.boat, open.session, Call::RemoveMail(ids.clone()));
                }
                return;
            }
            Call::Leave => return,
        };
        self.reply(open, reply);
    }

    /// Gives the boat its answer, once.
    fn reply(&mut self, open: &mut StationCall, reply: Reply) {
        if std::mem::replace(&mut open.is_answered, true)
            || self.boats[open.boat].life != open.boat_life
        {
            return;
        }
        let in_doubt = matches!(reply, Reply::Reasserted(_))
            && self.boats[open.boat].replace_doubt(open.session, false);
        let now = self.now;
        self.with_session(
            open.boat,
            open.session,
            |session| match reply {
                Reply::Admitted(answer) => session.handle_admitted(answer, now),
                Reply::Submitted(answers) => session.handle_submitted(answers, now),
                Reply::Receipts(answer) => session.handle_receipts(answer, now),
                Reply::Page(answer) => session.handle_page(answer, now),
                Reply::Sync(request, answer) => session.handle_answer(request, answer, now),
                Reply::Reasserted(ReassertAnswer::Known { mail_waits }) => {
                    if in_doubt {
                        session.resync(now);
                    } else if mail_waits {
                        session.hint();
                    }
                }
                Reply::Reasserted(ReassertAnswer::Restored { .. }) => session.resync(now),
                Reply::Reasserted(ReassertAnswer::Displaced) => {
                    session.close(displaced_refusal(), now);
                }
                Reply::Reasserted(ReassertAnswer::Replaced) => {
                    session.close(replaced_session_refusal(), now)
                }
            },
            true,
        );
    }

    /// An answer on its way may be lost like any other call.
    pub(crate) fn reply_if_it_arrives(&mut self, open: &mut StationCall, reply: Reply) {
        if !self.rng.random_bool(self.plan.call_loss / 2.0) {
            self.reply(open, reply);
        }
    }

    /// Runs one step of a call. Returns true if another follows.
    fn step(&mut self, open: &mut StationCall) -> bool {
        let step = open.step;
        open.step += 1;
        match open.call.clone() {
            Call::Admit(hello) => self.admit_step(open, step, &hello),
            Call::Submit(sends) => self.submit_step(open, step, &sends),
            Call::Receipts(ack) => self.receipts_step(open, step, &ack),
            Call::FetchMail { cursor, limit } => {
                let page = self.mail_page(open, cursor, limit);
                self.reply_if_it_arrives(open, Reply::Page(Ok(page)));
                false
            }
            Call::RemoveMail(ids) => {
                self.remove_mail(open, ids);
                open.is_answered = true;
                false
            }
            Call::Sync(request) if step == 0 => {
                let mut question = OpenQuestion::new(self.station_wall(open.station));
                let user = open.user.expect("admitted");
                self.read_fact(user, &request.query, &mut question);
                open.question = Some(question);
                true
            }
            Call::Sync(_) if step == 2 => {
                let user = open.user.expect("admitted");
                if let Some(question) = open.question.take() {
                    self.fill_cache(user, question);
                }
                false
            }
            Call::Sync(request) => {
                let user = open.user.expect("admitted");
                let mut question = open.question.take().expect("begun");
                let answer = self.read_rest(user, &request.query, &mut question);
                open.question = Some(question).filter(OpenQuestion::has_fills);
                let frame = answer.map(|answer| {
                    let page = SyncPage {
                        request: request.request,
                        answer,
                    };
                    Outgoing::Frame(ServerFrame::Page(page))
                });
                self.reply_if_it_arrives(open, Reply::Sync(request.request, frame));
                open.question.is_some()
            }
            Call::Leave => {
                if let Some(user) = open.user {
                    self.apply(Effect::Disconnect(key(open, user)));
                }
                false
            }
            Call::Reassert => {
                self.reassert(open);
                false
            }
        }
    }

    fn admit_step(
        &mut self,
        open: &mut StationCall,
        step: u8,
        hello: &protocol::frame::Hello,
    ) -> bool {
        let user: UserId = hello
            .token
            .parse()
            .expect("the simulator's tokens are users");
        let early = self.sabotage == Some(Sabotage::DrainBeforeOnline);
        match step {
            0 if early => {
                let mailbox = self.disk.mailboxes.get(&user);
                open.mail_waits = Some(mailbox.is_some_and(|m| m.waiting(hello.platform) > 0));
                true
            }
            0 => self.admit_step(open, 1, hello),
            1 => {
                let session = NewSession {
                    key: key(open, user),
                    platform: hello.platform,
                    device: hello.device.clone(),
                };
                let request = ConnectRequest {
                    user,
                    entry: session,
                    denied_boats: Default::default(),
                    now: self.now,
                };
                let Answer::Connected(answer) = self.apply(Effect::Connect(request)) else {
                    unreachable!("a connect is answered")
                };
                open.step = 2;
                open.displaced_sessions = answer.displaced_sessions;
                open.replaced_sessions = answer.replaced_sessions;
                open.admission = Some(Admission {
                    user,
                    marker: answer.marker,
                    recovered: hello.marker.is_none_or(|marker| marker == answer.marker),
                    mail_waits: open.mail_waits.unwrap_or(answer.mail_waits),
                    cluster: CLUSTER_ID,
                    server_time: self.station_wall(open.station),
                    expires_at: Timestamp::MAX,
                });
                true
            }
            2 => {
                self.apply(Effect::DeviceSeen {
                    user,
                    platform: hello.platform,
                });
                true
            }
            _ => {
                if let Some(admission) = open.admission {
                    self.reply_if_it_arrives(open, Reply::Admitted(Ok(admission)));
                }
                for (sessions, refusal) in [
                    (&open.displaced_sessions, displaced_refusal()),
                    (&open.replaced_sessions, replaced_session_refusal()),
                ] {
                    if sessions.is_empty() {
                        continue;
                    }
                    let kickout = KickoutTask {
                        sessions: sessions.clone(),
                        refusal,
                    };
                    let task = Task::new(Work::Kickout(kickout), self.now);
                    self.append(Topic::Message, &keys::control_key(user), task);
                    self.flush();
                }
                false
            }
        }
    }

    fn submit_step(&mut self, open: &mut StationCall, step: u8, sends: &[Send]) -> bool {
        match step {
            0 => {
                open.sends = sends.iter().map(|send| self.prepare(open, send)).collect();
                true
            }
            1 => {
                self.publish(open);
                true
            }
            2 => {
                self.disk.flush(open.mark);
                self.judge_accepted(open);
                let answers = open
                    .sends
                    .iter()
                    .map(|send| {
                        send.outcome.clone().map(|(id, accepted_at)| Accepted {
                            send_id: send.send_id,
                            id,
                            accepted_at,
                        })
                    })
                    .collect();
                self.wake_carrier();
                self.reply_if_it_arrives(open, Reply::Submitted(answers));
                true
            }
            _ => {
                let from = open.user.expect("admitted");
                for send in &open.sends {
                    if let (Ok((id, _)), true) = (&send.outcome, send.task.is_some()) {
                        let key = DedupeKey {
                            from,
                            send_id: send.send_id,
                        };
                        let first_send = FirstSend {
                            id: *id,
                            conversation: send.conversation.expect("admitted"),
                        };
                        self.disk.apply(Effect::DedupeDone { key, first_send });
                    }
                }
                false
            }
        }
    }

    fn prepare(&mut self, open: &StationCall, send: &Send) -> SendRecord {
        let from = open.user.expect("admitted");
        let limits = SendLimits {
            body_bytes_max: 60 * 1024,
        };
        let mut record = SendRecord {
            send_id: send.send_id,
            conversation: None,
            may_be_refused: may_be_refused(send),
            outcome: Err(Refusal::new(Code::Unavailable, "ids cannot be made now")),
            task: None,
        };
        let conversation = match admit(from, send, &limits) {
            Ok(conversation) => conversation,
            Err(refusal) => {
                record.outcome = Err(refusal);
                return record;
            }
        };
        record.conversation = Some(conversation);
        let wall = self.station_wall(open.station);
        let now = Timestamp::from_millis(wall.millis() + self.stations[open.station].skew);
        self.apply(Effect::Reserve {
            station: open.station,
            reserved_until: now + ID_RESERVATION,
        });
        let Ok(next_id) = self.stations[open.station].ids.next(now) else {
            return record;
        };
        let dedupe = DedupeKey {
            from,
            send_id: send.send_id,
        };
        let first_send = FirstSend {
            id: next_id,
            conversation,
        };
        let begin = Effect::DedupeBegin {
            key: dedupe,
            candidate: first_send,
            now: self.now,
        };
        let Answer::Dedupe(answer) = self.apply(begin) else {
            unreachable!("answered")
        };
        let (id, doubt) = match judge(send, first_send, Some(answer)) {
            Ok(Verdict::Publish { id, doubt }) => (id, doubt),
            Ok(Verdict::Known(id)) => {
                record.outcome = Ok((id, id.timestamp()));
                return record;
            }
            Err(refusal) => {
                record.outcome = Err(refusal);
                return record;
            }
        };
        let device = open.device.clone().expect("admitted");
        let message = accepted_message(from, device, send, id);
        if doubt.is_first()
            && let Some(refusal) = self
                .membership_refusal(open.station, from, send)
                .or_else(|| self.early_refusal(&message))
        {
            record.outcome = Err(refusal);
            return record;
        }
        let origin = Origin {
            session: open.session,
            life: open.life.clone(),
        };
        let task = message_task(message, origin, doubt, Bounds::default(), wall);
        record.outcome = Ok((id, id.timestamp()));
        record.task = Some(Arc::new(task));
        record
    }

    /// Refusal of a send from a user who, as far as the station knows, is no member. Its knowledge
    /// may be stale; the group's writer judges again.
    fn membership_refusal(&mut self, station: usize, from: UserId, send: &Send) -> Option<Refusal> {
        let group = needs_membership(send)?;
        let cached_members = &mut self.stations[station].cached_members;
        if cached_members.get(&(group, from)) > Some(&self.now) {
            return None;
        }
        let stored_group = self.disk.groups.get(&group);
        match stored_group.and_then(|stored_group| stored_group.members.get(&from)) {
            Some(member) if member.role.is_some() => {
                cached_members.insert((group, from), self.now + MEMBERSHIP_CACHE_TTL);
                None
            }
            Some(_) => Some(not_a_member()),
            None => Some(stranger(Some(self.disk.present(group).next().is_some()))),
        }
    }

    /// Publishes the whole batch, in the order of the session.
    fn publish(&mut self, open: &mut StationCall) {
        let mut order = SendOrder::default();
        for index in 0..open.sends.len() {
            let Some(conversation) = open.sends[index].conversation else {
                continue;
            };
            if let Err(refusal) = &open.sends[index].outcome {
                order.refused(open.session, conversation, refusal);
            }
            let Some(task) = open.sends[index].task.clone() else {
                continue;
            };
            if let Err(refusal) = order.check(open.session, conversation) {
                open.sends[index].outcome = Err(refusal);
                continue;
            }
            let fails = self.rng.random_bool(self.plan.call_loss / 4.0);
            // A failed publish may have appended the record.
            if !fails || self.rng.random() {
                self.append_task(Topic::Message, task);
            }
            if fails {
                let refusal = Refusal::new(Code::Unavailable, "the log is slow");
                order.refused(open.session, conversation, &refusal);
                open.sends[index].outcome = Err(refusal);
            }
        }
        open.mark = self.disk.mark();
    }

    fn judge_accepted(&mut self, open: &StationCall) {
        for send in &open.sends {
            if let Ok((id, _)) = send.outcome {
                self.judge
                    .record_acceptance(send.send_id, id, send.may_be_refused);
            }
        }
    }

    /// Sends a session a notice, best effort.
    pub(crate) fn notify(&mut self, life: BoatLife, session: SessionId, notice: Notice) {
        let Some(boat) = self
            .boats
            .iter()
            .position(|boat| boat.life().boat == life.boat)
        else {
            return;
        };
        if !self.rng.random_bool(self.plan.call_loss / 2.0) {
            let hop = self.hop();
            self.after(
                hop,
                Event::Boat(BoatEvent::Notice {
                    boat,
                    life,
                    session,
                    notice,
                }),
            );
        }
    }

    fn remove_mail(&mut self, open: &StationCall, ids: Vec<MessageId>) {
        let Some(user) = open.user else { return };
        let target = Target {
            user,
            platform: open.platform,
        };
        let now = self.now;
        ids.iter()
            .for_each(|&id| self.witness.record_ack(id, target));
        let Answer::Acknowledged(removed_ids) =
            self.apply(Effect::Acknowledge { target, ids, now })
        else {
            return;
        };
        let ledger_entry = |message| LedgerEntry {
            message,
            at: now,
            target: Some(target),
            event: LedgerEvent::Fetched {
                session: open.session,
            },
        };
        if self.sabotage == Some(Sabotage::FetchUntold) {
            return;
        }
        self.apply(Effect::Ledger(
            removed_ids.into_iter().map(ledger_entry).collect(),
        ));
    }

    fn reassert(&mut self, open: &mut StationCall) {
        let (Some(user), Some(device)) = (open.user, open.device.clone()) else {
            return;
        };
        let session = NewSession {
            key: key(open, user),
            platform: open.platform,
            device,
        };
        let Answer::Reasserted(answer) = self.apply(Effect::Reassert {
            user,
            session,
            now: self.now,
        }) else {
            return;
        };
        self.reply_if_it_arrives(open, Reply::Reasserted(answer));
    }
}

fn key(open: &StationCall, user: UserId) -> SessionKey {
    SessionKey {
        user,
        session: open.session,
        life: open.life.clone(),
    }
}

fn may_be_refused(send: &Send) -> bool {
    send.content.change.is_some() || matches!(send.to, Recipient::Group(_))
}

fn displaced_refusal() -> Refusal {
    Refusal::new(Code::Displaced, "signed in elsewhere on the same platform")
}
