//! Leaving and emptying: the boat is not ready, refuses new clients, sends those aboard away in
//! paced batches and lets them finish; then a boat that leaves signs everything off, and one that
//! was emptied waits.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use api::boat::DrainOrder;
use api::station::ResumeSession;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::drain::{
    DrainBounds, DrainFacts, DrainStep, ROOM_AGE_MAX, ROOM_INTERVAL, Room, time_to_send,
};
use protocol::ticket::ResumeTicket;
use protocol::{Code, Refusal, SessionId};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, info, warn};

use super::Leaving;
use crate::connection::Connection;
use crate::status::{Phase, RETURN_SPREAD};

/// Interval of checks whether the lanes are empty.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Extra spread of reconnects per client.
const SPREAD_PER_CLIENT: Duration = Duration::from_millis(2);
/// Wait for resume tickets: clients can do without, as they have their tokens.
const TICKET_TIMEOUT: Duration = Duration::from_millis(500);
/// Batches that wait for their tickets at a time.
const MAX_TICKET_BATCHES: usize = 16;
/// Interval of warnings that no other boat has room.
const WARN_INTERVAL: Duration = Duration::from_secs(30);

impl Leaving {
    /// Follows the orders of operators, until dropped. There is no deadline: the operator can see
    /// that the boat waits for room.
    pub(crate) async fn follow_orders(&self) -> Infallible {
        let mut orders = self.orders.subscribe();
        loop {
            let order = *orders.borrow_and_update();
            let execution = async {
                match order {
                    DrainOrder::Cancel => {
                        if self.status.phase() != Phase::Serving {
                            info!("drain cancelled: accepting clients again");
                            self.status.set_phase(Phase::Serving);
                        }
                    }
                    DrainOrder::Drain { pace } => {
                        self.announce().await;
                        let pace = pace.unwrap_or(self.bounds.pace);
                        self.send_everybody_away(pace, None).await;
                    }
                }
                pending::<()>().await;
            };
            tokio::select! {
                biased;
                // A new order cancels the one before, however much that has left to do.
                _ = orders.changed() => {}
                () = execution => {}
            }
        }
    }

    /// Empties the boat and signs every session off, within its deadline; listeners stay open until
    /// all clients are sent away.
    pub(crate) async fn leave(&self, listeners: impl Sized) {
        self.status.begin_leaving();
        let deadline = Instant::now() + self.deadline;
        let departure = timeout_at(deadline, async {
            self.announce().await;
            let time_left = deadline.saturating_duration_since(Instant::now());
            let send_deadline = Instant::now() + time_to_send(time_left);
            self.send_everybody_away(self.bounds.pace, Some(send_deadline))
                .await;
            // Balancers keep sending newcomers for a while: until here those got a refusal, not a
            // reset.
            drop(listeners);
            self.uplink.tasks.close();
            self.uplink.tasks.wait().await;
            while !self.uplink.queues.are_idle() {
                sleep(IDLE_POLL_INTERVAL).await;
            }
        });
        if departure.await.is_err() {
            warn!(
                left = self.connections.len(),
                "drain deadline reached: closing the remaining connections"
            );
            self.connections.abandon();
        }
    }

    /// Turns not ready; newcomers are refused once balancers had time to notice.
    async fn announce(&self) {
        if self.status.phase() == Phase::Serving {
            let notice = match self.connections.len() {
                0 => Duration::ZERO,
                _ => self.notice,
            };
            let ends_at = Instant::now() + notice;
            self.status.set_phase(Phase::Notice { ends_at });
        }
        if let Phase::Notice { ends_at } = self.status.phase() {
            sleep_until(ends_at).await;
        }
        self.status.set_phase(Phase::Draining);
    }

    async fn send_everybody_away(&self, pace: NonZeroU32, deadline: Option<Instant>) {
        let connections = self.connections.all();
        info!(clients = connections.len(), "drain started");
        let clients = u32::try_from(connections.len()).unwrap_or(u32::MAX);
        // Each client picks a random moment within this.
        let spread = RETURN_SPREAD.min(SPREAD_PER_CLIENT.saturating_mul(clients));
        let text = "this boat is shutting down; reconnect to reach another";
        let refusal = Refusal::new(Code::Draining, text).retry_after(spread);
        self.send_away(connections, &refusal, pace, deadline).await;
    }

    /// Sends clients elsewhere at the pace at which other boats have room for them, each with a
    /// resume ticket if a station issues one.
    pub(crate) async fn send_away(
        &self,
        connections: Vec<Arc<Connection>>,
        refusal: &Refusal,
        pace: NonZeroU32,
        deadline: Option<Instant>,
    ) {
        if connections.is_empty() {
            return;
        }
        let _waits = Waits(self);
        let time_left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Silent discovery may use a part of the time, no more.
        let room_timeout =
            time_left.map_or(ROOM_INTERVAL, |time_left| ROOM_INTERVAL.min(time_left / 4));
        let _ = timeout(room_timeout, self.read_room()).await;
        tokio::select! {
            biased;
            // Room is read before clients are sent to it.
            never = self.follow_room() => match never {},
            () = self.send_by_room(connections, refusal, pace, deadline) => {}
        }
    }

    async fn send_by_room(
        &self,
        mut rest: Vec<Arc<Connection>>,
        refusal: &Refusal,
        pace: NonZeroU32,
        deadline: Option<Instant>,
    ) {
        let bounds = DrainBounds {
            pace,
            ..self.bounds
        };
        let mut lanes = TicketLanes::new(self.uplink.queues.len());
        let mut ticket_calls = FuturesUnordered::new();
        let mut warned_at: Option<Instant> = None;
        rest.retain(|connection| !connection.lock().session.is_ending());
        while !rest.is_empty() {
            let facts = DrainFacts {
                clients: rest.len(),
                room: self.room(),
                time_left: deadline
                    .map(|deadline| deadline.saturating_duration_since(Instant::now())),
            };
            let step = self
                .drain
                .lock()
                .step(&bounds, &facts, self.connections.now());
            let pause = match step {
                DrainStep::Go { clients, pause } => {
                    self.set_waiting(false);
                    let batch = take_batch(&mut rest, clients);
                    let lane = lanes.next();
                    ticket_calls.push(self.drain_batch(batch, lane, refusal));
                    pause
                }
                DrainStep::Wait { pause } => {
                    self.set_waiting(true);
                    rest.retain(|connection| !connection.lock().session.is_ending());
                    if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                        warned_at = Some(Instant::now());
                        let clients = rest.len();
                        warn!(
                            clients,
                            "drain is waiting: no other boat has room for these clients"
                        );
                    }
                    pause
                }
            };
            let next = Instant::now() + pause;
            while !rest.is_empty() {
                // Slow stations reduce the pace only once too many of their answers are
                // outstanding.
                let is_full = ticket_calls.len() >= MAX_TICKET_BATCHES;
                tokio::select! {
                    biased;
                    // Answers are few, and name the lanes to skip from now on.
                    Some(silent_lane) = ticket_calls.next() => lanes.remove(silent_lane),
                    () = sleep_until(next), if !is_full => break,
                }
            }
        }
        while ticket_calls.next().await.is_some() {}
    }

    /// Sends a batch away. Returns the lane if its station issued no tickets.
    async fn drain_batch(
        &self,
        batch: Vec<Arc<Connection>>,
        lane: Option<usize>,
        refusal: &Refusal,
    ) -> Option<usize> {
        let tickets = self.resume_tickets(lane, &batch).await;
        let silent_lane = lane.filter(|_| tickets.is_none());
        let mut tickets = tickets.unwrap_or_default();
        for connection in &batch {
            let ticket = tickets.remove(&connection.id());
            connection
                .update(|session| session.drain(refusal.clone(), ticket, self.connections.now()));
        }
        silent_lane
    }

    async fn follow_room(&self) -> Infallible {
        loop {
            sleep(ROOM_INTERVAL).await;
            let _ = timeout(ROOM_INTERVAL, self.read_room()).await;
        }
    }

    async fn read_room(&self) {
        let Some(life) = self.status.life() else {
            return;
        };
        match self.registry.loads().await {
            Ok(loads) => {
                *self.room.lock() = Some((Instant::now(), Room::beside(&life, &loads)));
            }
            Err(error) => {
                debug!(%error, source = %error.source, "cannot look up the load of other boats")
            }
        }
    }

    /// Room of other boats, while the last reading is still valid.
    fn room(&self) -> Option<Room> {
        let reading = *self.room.lock();
        reading.and_then(|(at, room)| (at.elapsed() < ROOM_AGE_MAX).then_some(room))
    }

    /// Resume tickets by session; `None`: the station issued none.
    async fn resume_tickets(
        &self,
        lane: Option<usize>,
        connections: &[Arc<Connection>],
    ) -> Option<BTreeMap<SessionId, ResumeTicket>> {
        let lane = lane?;
        let sessions: Vec<ResumeSession> = (connections.iter())
            .filter_map(|connection| resume_session(connection))
            .collect();
        if sessions.is_empty() {
            return Some(BTreeMap::new());
        }
        let call = self.uplink.stations.resume_tickets(lane, &sessions);
        let answer = timeout(TICKET_TIMEOUT, call).await;
        let tickets = match answer.unwrap_or_else(|_| Err(ticket_timeout())) {
            Ok(tickets) => tickets,
            Err(refusal) => {
                debug!(%refusal, "no resumption tickets for leaving clients");
                return None;
            }
        };
        let session_ids = sessions.iter().map(|session| session.session);
        let tickets = session_ids.zip(tickets);
        Some(
            tickets
                .filter_map(|(session, ticket)| Some((session, ticket?)))
                .collect(),
        )
    }

    /// Closes all connections of a boat that is cut off: its clients may be served elsewhere.
    pub(crate) fn close_all(&self) {
        let refusal = reconnect_refusal("this boat is cut off; reconnect to reach another");
        for connection in self.connections.all() {
            connection.update(|session| session.close(refusal.clone(), self.connections.now()));
        }
    }

    /// Sends a share of the clients away, as far as other boats have room, so that a boat that
    /// others had lost sight of is not left the fullest one.
    pub(crate) async fn send_share_away(&self) {
        if self.status.phase() != Phase::Serving {
            // All clients are leaving already.
            return;
        }
        let share = u64::from(self.reconnect_percent);
        let mut connections = self.connections.all();
        connections.retain(|_| self.entropy.next() % 100 < share);
        let refusal = reconnect_refusal("this boat was cut off for a while; reconnect and sync");
        let pace = self.bounds.pace;
        let departure = self.send_away(connections, &refusal, pace, None);
        let _ = timeout(self.deadline, departure).await;
    }
}

fn reconnect_refusal(text: &str) -> Refusal {
    Refusal::new(Code::Reconnect, text).retry_after(RETURN_SPREAD)
}

/// Clears the wait for room, however a drain ends.
struct Waits<'a>(&'a Leaving);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set_waiting(false);
    }
}

/// Lanes whose stations issue tickets.
struct TicketLanes {
    lanes: Vec<usize>,
    next_index: usize,
}

impl TicketLanes {
    fn new(count: usize) -> TicketLanes {
        TicketLanes {
            lanes: (0..count).collect(),
            next_index: 0,
        }
    }

    fn next(&mut self) -> Option<usize> {
        self.next_index += 1;
        let index = self.next_index % self.lanes.len().max(1);
        self.lanes.get(index).copied()
    }

    /// Removes a lane whose station issued no tickets.
    fn remove(&mut self, lane: Option<usize>) {
        self.lanes.retain(|it| Some(*it) != lane);
    }
}

/// Takes up to `count` connections that are not ending yet.
fn take_batch(rest: &mut Vec<Arc<Connection>>, count: usize) -> Vec<Arc<Connection>> {
    let mut batch = Vec::with_capacity(count.min(rest.len()));
    while batch.len() < count
        && let Some(connection) = rest.pop()
    {
        if !connection.lock().session.is_ending() {
            batch.push(connection);
        }
    }
    batch
}

fn ticket_timeout() -> Refusal {
    let text = format!("no answer within {TICKET_TIMEOUT:?}");
    Refusal::new(Code::DeadlineExceeded, text)
}

/// The request for a session's resume ticket; `None` unless the station gave it a ticket before.
fn resume_session(connection: &Connection) -> Option<ResumeSession> {
    let state = connection.lock();
    let session = &state.session;
    Some(ResumeSession {
        user: session.user().filter(|_| session.is_open())?,
        session: session.id(),
        platform: session.platform(),
        device: session.device()?.clone(),
        ticket: Some(state.ticket?),
    })
}
