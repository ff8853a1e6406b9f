//! Own messages: from the outbox to *read*.
//!
//! Each recipient has a lane. Sends not in flight wait there in order, and only the first may be
//! transmitted: sends behind a failed or refused one wait for it, and all others are pipelined up
//! to the server's window. A send that can never be accepted does not hold up its lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use protocol::frame::{Accepted, ClientFrame, Send};
use protocol::round_trip::RoundTrip;
use protocol::{
    Code, ConversationId, DeviceId, Message, MessageId, Placed, Position, Recipient, Refusal,
    SendId, Seq, Timestamp, UserId,
};

use super::send_tracker::SendTracker;
use super::snapshot::{FollowedRow, OutboxRow};
use super::{Change, Limits, Out, SendError, SendStatus};

/// Recipient as an ordered key: kind and number.
type LaneKey = (u8, i64);

/// Upper bound, with a margin, of a frame's bytes besides `data`.
const FRAME_OVERHEAD: usize = 512;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Outbox {
    device: DeviceId,
    entries: BTreeMap<u64, Entry>,
    /// Accepted sends, which have left the outbox.
    pub(super) tracker: SendTracker,
    by_send: BTreeMap<SendId, u64>,
    lanes: BTreeMap<LaneKey, Lane>,
    /// First sends of their lanes that may be transmitted.
    open: BTreeSet<u64>,
    timers: BTreeSet<(Timestamp, u64)>,
    /// Sends that wait for a store to be durable: its number, then the send's order.
    awaiting_store: VecDeque<(u64, u64)>,
    in_flight: usize,
    window: usize,
    frame_bytes_max: usize,
    /// Number of connections so far; an entry records the one it was last tried on.
    connection: u64,
    /// Of the present connection, to the answers of the station.
    round_trip: RoundTrip,
    orders: u64,
    /// Start of the current second, and the number of sends in it.
    second: Timestamp,
    in_second: u32,
}

#[derive(Debug)]
struct Entry {
    row: OutboxRow,
    phase: Phase,
    /// Transmissions so far; at least one if unknown.
    tries: u32,
    /// Tries that timed out or met a refusal that counts.
    failures: usize,
    tried_on: u64,
    /// Time of the first try on this connection that got no answer yet. The tries behind it do not
    /// count: most answers that come after a resend are late, and answer the first.
    asked_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Storing,
    Waiting,
    InFlight { deadline: Timestamp },
    Backoff { retry_at: Timestamp },
    Failed,
}

/// Sends to one recipient: those waiting, unless failed for good, and those in flight.
#[derive(Debug, Default)]
struct Lane {
    waiting_orders: BTreeSet<u64>,
    in_flight: BTreeSet<u64>,
    /// The lane's entry in `open`.
    open_order: Option<u64>,
}

impl Outbox {
    pub(super) fn new(
        device: DeviceId,
        rows: BTreeMap<u64, OutboxRow>,
        followed_rows: BTreeMap<u64, FollowedRow>,
        out: &mut Out,
    ) -> Outbox {
        let last_order = rows.keys().chain(followed_rows.keys()).max();
        let mut outbox = Outbox {
            device,
            orders: last_order.copied().unwrap_or_default(),
            entries: BTreeMap::new(),
            tracker: SendTracker::new(followed_rows),
            by_send: BTreeMap::new(),
            lanes: BTreeMap::new(),
            open: BTreeSet::new(),
            timers: BTreeSet::new(),
            awaiting_store: VecDeque::new(),
            in_flight: 0,
            window: 1,
            frame_bytes_max: usize::MAX,
            connection: 0,
            round_trip: RoundTrip::default(),
            second: Timestamp::ZERO,
            in_second: 0,
        };
        for row in rows.into_values() {
            let refusal = row.refusal.clone();
            out.status(
                row.send_id,
                refusal.map_or(SendStatus::Pending, SendStatus::Failed),
            );
            let phase = row
                .refusal
                .as_ref()
                .map_or(Phase::Waiting, |_| Phase::Failed);
            // A send may have been tried before the restart.
            outbox.insert(row, phase, 1);
        }
        outbox
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn next_order(&self) -> u64 {
        self.orders + 1
    }

    pub(super) fn add(
        &mut self,
        row: OutboxRow,
        limits: &Limits,
        out: &mut Out,
    ) -> Result<(), SendError> {
        if self.entries.len() >= limits.outbox_max {
            return Err(SendError::OutboxFull(self.entries.len()));
        }
        if self.by_send.contains_key(&row.send_id) || self.tracker.has(row.send_id) {
            return Err(SendError::Repeated);
        }
        self.orders = row.order;
        out.status(row.send_id, SendStatus::Pending);
        out.change(Change::Outbox(row.clone()));
        let batch = out.durable_with().unwrap_or_default();
        self.awaiting_store.push_back((batch, row.order));
        self.insert(row, Phase::Storing, 0);
        Ok(())
    }

    pub(super) fn stored(&mut self, batch: u64) {
        while let Some(&(needs, order)) = self.awaiting_store.front()
            && needs <= batch
        {
            self.awaiting_store.pop_front();
            if self.phase(order) == Some(Phase::Storing) {
                self.set_phase(order, Phase::Waiting);
            }
        }
    }

    pub(super) fn retry(&mut self, send_id: SendId, out: &mut Out) -> bool {
        let Some((order, entry)) = self.unsettled(send_id) else {
            return false;
        };
        if entry.phase != Phase::Failed {
            return false;
        }
        entry.failures = 0;
        entry.row.refusal = None;
        out.status(send_id, SendStatus::Pending);
        out.change(Change::Outbox(entry.row.clone()));
        self.set_phase(order, Phase::Waiting);
        true
    }

    pub(super) fn give_up(&mut self, send_id: SendId, live: bool, out: &mut Out) -> bool {
        let Some((order, entry)) = self.unsettled(send_id) else {
            return false;
        };
        let tried_here = entry.tried_on;
        self.remove(order);
        self.by_send.remove(&send_id);
        out.change(Change::Forget { order });
        if live && tried_here == self.connection {
            out.transmit(ClientFrame::GiveUp(send_id));
        }
        true
    }

    /// Begins with a new connection, whose hello was answered after this time.
    pub(super) fn connected(&mut self, window: u32, frame_bytes_max: u32, welcome: Duration) {
        self.connection += 1;
        self.round_trip = RoundTrip::default();
        self.round_trip.measure(welcome);
        self.window = window.max(1) as usize;
        self.frame_bytes_max = frame_bytes_max as usize;
    }

    /// Requeues everything under way, to be retried in order on the next connection.
    pub(super) fn disconnected(&mut self) {
        let resend_orders: Vec<u64> = (self.entries.iter())
            .filter(|(_, entry)| {
                matches!(entry.phase, Phase::InFlight { .. } | Phase::Backoff { .. })
            })
            .map(|(&order, _)| order)
            .collect();
        for order in resend_orders {
            if let Some(entry) = self.entries.get_mut(&order) {
                entry.asked_at = None;
            }
            self.set_phase(order, Phase::Waiting);
        }
        // The next sync brings the positions of accepted sends.
        self.tracker.disconnected();
    }

    /// Transmits the sends that may go. The caller makes sure of a live connection.
    pub(super) fn pump(&mut self, now: Timestamp, limits: &Limits, out: &mut Out) {
        self.count_from(now);
        while self.in_flight < self.window
            && self.in_second < limits.sends_per_second
            && let Some(&order) = self.open.first()
        {
            let size = (self.entries.get(&order)).map_or(0, |entry| entry.row.content.data.len());
            if size + FRAME_OVERHEAD > self.frame_bytes_max {
                let text = format!("{size} bytes; a frame has {}", self.frame_bytes_max);
                self.fail(order, Refusal::new(Code::TooLarge, text), out);
            } else {
                self.transmit(order, now, limits, out);
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(at, _)| *at);
        // A send could go, were it not for the rate.
        let is_paced = !self.open.is_empty() && self.in_flight < self.window;
        let next_second = is_paced.then(|| self.second + SECOND);
        let placement_deadline = self.tracker.deadline();
        timer
            .into_iter()
            .chain(next_second)
            .chain(placement_deadline)
            .min()
    }

    pub(super) fn timeout(&mut self, now: Timestamp, limits: &Limits, out: &mut Out) {
        while let Some(&(at, order)) = self.timers.first()
            && at <= now
        {
            match self.phase(order) {
                Some(Phase::InFlight { .. }) => self.unanswered(order, now, limits, out),
                Some(Phase::Backoff { .. }) => self.set_phase(order, Phase::Waiting),
                Some(Phase::Storing | Phase::Waiting | Phase::Failed) | None => {
                    self.timers.pop_first();
                }
            }
        }
    }

    fn unanswered(&mut self, order: u64, now: Timestamp, limits: &Limits, out: &mut Out) {
        let Some(entry) = self.entries.get_mut(&order) else {
            return;
        };
        if entry.failures >= limits.resend_after.len() {
            let text = format!("no answer to {} tries", entry.tries);
            self.fail(order, Refusal::new(Code::DeadlineExceeded, text), out);
        } else {
            entry.failures += 1;
            self.transmit(order, now, limits, out);
        }
    }

    pub(super) fn refused(
        &mut self,
        send_id: SendId,
        refusal: Refusal,
        now: Timestamp,
        limits: &Limits,
        out: &mut Out,
    ) {
        let Some((order, entry)) = self.unsettled(send_id) else {
            if self.tracker.came_to_nothing(send_id, &refusal, out) {
                return;
            }
            // The send was placed meanwhile: the boat must not wait for a resend.
            if refusal.code.retryable() {
                out.transmit(ClientFrame::GiveUp(send_id));
            }
            return;
        };
        if !matches!(entry.phase, Phase::InFlight { .. }) {
            return;
        }
        self.measure(order, now);
        if !refusal.code.retryable() {
            self.fail(order, refusal, out);
            return;
        }
        if refusal.code == Code::EarlierSendFailed && self.has_earlier(order) {
            self.set_phase(order, Phase::Waiting);
            return;
        }
        let is_paced = matches!(
            refusal.code,
            Code::WindowFull | Code::RateLimited | Code::Draining | Code::Full
        );
        let Some(entry) = self.entries.get_mut(&order) else {
            return;
        };
        let wait = if is_paced {
            limits.refused_wait
        } else if let Some(wait) = limits.resend_after.get(entry.failures) {
            entry.failures += 1;
            *wait
        } else {
            self.fail(order, refusal, out);
            return;
        };
        let retry_at = now + refusal.retry_after.unwrap_or(wait);
        self.set_phase(order, Phase::Backoff { retry_at });
    }

    pub(super) fn accepted(
        &mut self,
        acceptance: &Accepted,
        me: UserId,
        now: Timestamp,
        limits: &Limits,
        out: &mut Out,
    ) {
        let id = acceptance.id;
        let device = self.device.clone();
        let Some((order, entry)) = self.unsettled(acceptance.send_id) else {
            return;
        };
        let row = &entry.row;
        // The writer's final refusal may overtake the station's answer.
        if row
            .refusal
            .as_ref()
            .is_some_and(|why| !why.code.retryable())
        {
            return;
        }
        let message = Message {
            id,
            from: me,
            to: row.to,
            accepted_at: acceptance.accepted_at,
            device,
            send_id: acceptance.send_id,
            options: row.options,
            content: row.content.clone(),
        };
        let Some(conversation) = message.conversation() else {
            return;
        };
        self.measure(order, now);
        self.settle(order, id, conversation, out);
        // A change has no position of its own; the server says when it is done.
        if message.content.change.is_none() {
            (self.tracker).expect_place(order, message, now + limits.placement);
        }
        self.tracker.follow_fewer(limits, out);
        out.status(acceptance.send_id, SendStatus::Accepted { id });
    }

    /// Settles the send that got its position: it is accepted, even if the answer was lost. Returns
    /// the whole message if this device still has it.
    pub(super) fn placed(
        &mut self,
        send_id: SendId,
        id: MessageId,
        conversation: ConversationId,
        position: Position,
        limits: &Limits,
        out: &mut Out,
    ) -> Option<Placed> {
        if let Some((order, _)) = self.unsettled(send_id) {
            self.release(order, out);
            self.settle(order, id, conversation, out);
        }
        let message = self
            .tracker
            .placed(send_id, id, conversation, position, out);
        self.tracker.follow_fewer(limits, out);
        message
    }

    /// Settles a change that is done, if this device sent it: it is accepted, even if the answer
    /// was lost.
    pub(super) fn changed(&mut self, send_id: SendId, id: MessageId, seq: Seq, out: &mut Out) {
        if let Some((order, _)) = self.unsettled(send_id) {
            self.release(order, out);
            self.remove(order);
            self.by_send.remove(&send_id);
            out.change(Change::Forget { order });
            out.status(send_id, SendStatus::Placed { id, seq });
        } else {
            self.tracker.changed(send_id, seq, out);
        }
    }

    /// Gives up a finished send that was refused on this connection: the boat holds back later ones
    /// until it is resent or given up.
    fn release(&self, order: u64, out: &mut Out) {
        let connection = self.connection;
        let refused_here = self.entries.get(&order).filter(|entry| {
            entry.tried_on == connection
                && !matches!(entry.phase, Phase::Storing | Phase::InFlight { .. })
        });
        if let Some(entry) = refused_here {
            out.transmit(ClientFrame::GiveUp(entry.row.send_id));
        }
    }

    /// Moves an accepted send from the outbox to the followed ones.
    fn settle(&mut self, order: u64, id: MessageId, conversation: ConversationId, out: &mut Out) {
        if let Some(entry) = self.remove(order) {
            let send_id = entry.row.send_id;
            self.by_send.remove(&send_id);
            self.tracker.follow(order, send_id, conversation, id, out);
        }
    }

    fn transmit(&mut self, order: u64, now: Timestamp, limits: &Limits, out: &mut Out) {
        let (connection, round_trip) = (self.connection, self.round_trip);
        let Some(entry) = self.entries.get_mut(&order) else {
            return;
        };
        let wait = limits.resend_after.get(entry.failures);
        let wait = wait.copied().unwrap_or(limits.last_answer);
        let deadline = now + wait.max(round_trip.wait());
        entry.asked_at.get_or_insert(now);
        out.transmit(ClientFrame::Send(Send {
            send_id: entry.row.send_id,
            to: entry.row.to,
            options: entry.row.options,
            content: entry.row.content.clone(),
            attempt: entry.tries,
            age: now.since(entry.row.created_at),
            seen_seq: None,
            trace: None,
        }));
        entry.tries = entry.tries.saturating_add(1);
        entry.tried_on = connection;
        self.set_phase(order, Phase::InFlight { deadline });
        self.count_from(now);
        self.in_second += 1;
    }

    /// Takes the time of a send until its answer.
    fn measure(&mut self, order: u64, now: Timestamp) {
        let entry = self.entries.get_mut(&order);
        if let Some(asked_at) = entry.and_then(|entry| entry.asked_at.take()) {
            self.round_trip.measure(now.since(asked_at));
        }
    }

    /// Begins a new second once the last one is over.
    fn count_from(&mut self, now: Timestamp) {
        if now.since(self.second) >= SECOND || now < self.second {
            self.second = now;
            self.in_second = 0;
        }
    }

    fn fail(&mut self, order: u64, refusal: Refusal, out: &mut Out) {
        let Some(entry) = self.entries.get_mut(&order) else {
            return;
        };
        entry.row.refusal = Some(refusal.clone());
        // What a later retry takes says nothing of the line now.
        entry.asked_at = None;
        out.change(Change::Outbox(entry.row.clone()));
        out.status(entry.row.send_id, SendStatus::Failed(refusal));
        self.set_phase(order, Phase::Failed);
    }

    fn unsettled(&mut self, send_id: SendId) -> Option<(u64, &mut Entry)> {
        let order = *self.by_send.get(&send_id)?;
        self.entries.get_mut(&order).map(|entry| (order, entry))
    }

    fn phase(&self, order: u64) -> Option<Phase> {
        self.entries.get(&order).map(|entry| entry.phase)
    }

    fn has_earlier(&self, order: u64) -> bool {
        let Some(entry) = self.entries.get(&order) else {
            return false;
        };
        let Some(lane) = self.lanes.get(&lane_key(entry.row.to)) else {
            return false;
        };
        let has_before =
            |orders: &BTreeSet<u64>| orders.first().is_some_and(|first| *first < order);
        has_before(&lane.waiting_orders) || has_before(&lane.in_flight)
    }

    fn insert(&mut self, row: OutboxRow, phase: Phase, tries: u32) {
        let order = row.order;
        self.by_send.insert(row.send_id, order);
        self.entries.insert(
            order,
            Entry {
                row,
                phase: Phase::Storing,
                tries,
                failures: 0,
                tried_on: 0,
                asked_at: None,
            },
        );
        self.set_phase(order, phase);
    }

    /// Removes a send from everything but `by_send`.
    fn remove(&mut self, order: u64) -> Option<Entry> {
        self.leave_phase(order);
        let entry = self.entries.remove(&order)?;
        self.refresh(lane_key(entry.row.to));
        Some(entry)
    }

    fn set_phase(&mut self, order: u64, phase: Phase) {
        self.leave_phase(order);
        let Some(entry) = self.entries.get_mut(&order) else {
            return;
        };
        entry.phase = phase;
        let key = lane_key(entry.row.to);
        // A send that can never be accepted holds up nothing.
        let is_out = (entry.row.refusal.as_ref()).is_some_and(|refusal| !refusal.code.retryable());
        let lane = self.lanes.entry(key).or_default();
        match phase {
            Phase::InFlight { deadline } => {
                self.in_flight += 1;
                lane.in_flight.insert(order);
                self.timers.insert((deadline, order));
            }
            Phase::Backoff { retry_at: deadline } => {
                lane.waiting_orders.insert(order);
                self.timers.insert((deadline, order));
            }
            Phase::Failed if is_out => {}
            Phase::Storing | Phase::Waiting | Phase::Failed => {
                lane.waiting_orders.insert(order);
            }
        }
        self.refresh(key);
    }

    fn leave_phase(&mut self, order: u64) {
        let Some(entry) = self.entries.get(&order) else {
            return;
        };
        if let Some(lane) = self.lanes.get_mut(&lane_key(entry.row.to)) {
            lane.waiting_orders.remove(&order);
            if lane.in_flight.remove(&order) {
                self.in_flight -= 1;
            }
        }
        if let Phase::InFlight { deadline } | Phase::Backoff { retry_at: deadline } = entry.phase {
            self.timers.remove(&(deadline, order));
        }
    }

    /// Offers the first of a lane, if it may be transmitted.
    fn refresh(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        let first = lane.waiting_orders.first().copied().filter(|order| {
            let entry = self.entries.get(order);
            entry.is_some_and(|entry| entry.phase == Phase::Waiting)
        });
        if lane.open_order != first {
            if let Some(open_order) = lane.open_order {
                self.open.remove(&open_order);
            }
            self.open.extend(first);
            lane.open_order = first;
        }
        if lane.waiting_orders.is_empty() && lane.in_flight.is_empty() {
            self.lanes.remove(&key);
        }
    }
}

fn lane_key(to: Recipient) -> LaneKey {
    match to {
        Recipient::User(user) => (0, user.get()),
        Recipient::Group(group) => (1, group.get()),
    }
}
