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
use protocol::drain::{DrainFacts, DrainStep, ROOM_INTERVAL, Room, time_to_send};
use protocol::ticket::ResumeTicket;
use protocol::{Code, Refusal, SessionId};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, info, warn};

use crate::boat::{Boat, Phase};
use crate::connection::Connection;

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

/// Follows the orders of operators, until dropped. There is no deadline: the operator can see that
/// the boat waits for room.
pub(crate) async fn follow_orders(boat: &Boat) -> Infallible {
    let mut orders = boat.drain_orders.subscribe();
    loop {
        let order = *orders.borrow_and_update();
        let execution = async {
            match order {
                DrainOrder::Cancel => {
                    if boat.phase() != Phase::Serving {
                        info!("drain cancelled: accepting clients again");
                        boat.set_phase(Phase::Serving);
                    }
                }
                DrainOrder::Drain { pace } => {
                    announce(boat).await;
                    let pace = pace.unwrap_or(boat.config.drain_pace);
                    send_everybody_away(boat, pace, None).await;
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

/// Empties the boat and signs every session off, within its deadline; listeners stay open until all
/// clients are sent away.
pub(crate) async fn leave(boat: &Boat, listeners: impl Sized) {
    boat.begin_leaving();
    let deadline = Instant::now() + boat.config.drain_deadline;
    let departure = timeout_at(deadline, async {
        announce(boat).await;
        let time_left = deadline.saturating_duration_since(Instant::now());
        let send_deadline = Instant::now() + time_to_send(time_left);
        send_everybody_away(boat, boat.config.drain_pace, Some(send_deadline)).await;
        // Balancers keep sending newcomers for a while: until here those got a refusal, not a
        // reset.
        drop(listeners);
        boat.tasks.close();
        boat.tasks.wait().await;
        while !boat.lanes.are_idle() {
            sleep(IDLE_POLL_INTERVAL).await;
        }
    });
    if departure.await.is_err() {
        warn!(
            left = boat.connections.len(),
            "drain deadline reached: closing the remaining connections"
        );
        boat.abandon();
    }
}

/// Turns not ready; newcomers are refused once balancers had time to notice.
async fn announce(boat: &Boat) {
    if boat.phase() == Phase::Serving {
        let notice = match boat.connections.len() {
            0 => Duration::ZERO,
            _ => boat.config.drain_notice,
        };
        let ends_at = Instant::now() + notice;
        boat.set_phase(Phase::Notice { ends_at });
    }
    if let Phase::Notice { ends_at } = boat.phase() {
        sleep_until(ends_at).await;
    }
    boat.set_phase(Phase::Draining);
}

async fn send_everybody_away(boat: &Boat, pace: NonZeroU32, deadline: Option<Instant>) {
    let connections = boat.connections.all();
    info!(clients = connections.len(), "drain started");
    let clients = u32::try_from(connections.len()).unwrap_or(u32::MAX);
    // Each client picks a random moment within this.
    let spread = (boat.config.drain_spread).min(SPREAD_PER_CLIENT.saturating_mul(clients));
    let text = "this boat is shutting down; reconnect to reach another";
    let refusal = Refusal::new(Code::Draining, text).retry_after(spread);
    send_away(boat, connections, &refusal, pace, deadline).await;
}

/// Sends clients elsewhere at the pace at which other boats have room for them, each with a resume
/// ticket if a station issues one.
pub(crate) async fn send_away(
    boat: &Boat,
    connections: Vec<Arc<Connection>>,
    refusal: &Refusal,
    pace: NonZeroU32,
    deadline: Option<Instant>,
) {
    if connections.is_empty() {
        return;
    }
    let _waits = Waits(boat);
    let time_left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // Silent discovery may use a part of the time, no more.
    let room_timeout =
        time_left.map_or(ROOM_INTERVAL, |time_left| ROOM_INTERVAL.min(time_left / 4));
    let _ = timeout(room_timeout, read_room(boat)).await;
    tokio::select! {
        biased;
        // Room is read before clients are sent to it.
        never = follow_room(boat) => match never {},
        () = send_by_room(boat, connections, refusal, pace, deadline) => {}
    }
}

/// Clears the boat's `waits` flag, however a drain ends.
struct Waits<'a>(&'a Boat);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set_waits(false);
    }
}

async fn send_by_room(
    boat: &Boat,
    mut rest: Vec<Arc<Connection>>,
    refusal: &Refusal,
    pace: NonZeroU32,
    deadline: Option<Instant>,
) {
    let bounds = boat.config.drain_bounds(pace);
    let mut lanes = TicketLanes::new(boat);
    let mut ticket_calls = FuturesUnordered::new();
    let mut warned_at: Option<Instant> = None;
    rest.retain(|connection| !connection.lock().session.is_ending());
    while !rest.is_empty() {
        let facts = DrainFacts {
            clients: rest.len(),
            room: boat.room(),
            time_left: deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())),
        };
        let step = boat.drain.lock().step(&bounds, &facts, boat.now());
        let pause = match step {
            DrainStep::Go { clients, pause } => {
                boat.set_waits(false);
                let batch = take_batch(&mut rest, clients);
                let lane = lanes.next();
                ticket_calls.push(drain_batch(boat, batch, lane, refusal));
                pause
            }
            DrainStep::Wait { pause } => {
                boat.set_waits(true);
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
            // Slow stations reduce the pace only once too many of their answers are outstanding.
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

/// Lanes whose stations issue tickets.
struct TicketLanes {
    lanes: Vec<usize>,
    next_index: usize,
}

impl TicketLanes {
    fn new(boat: &Boat) -> TicketLanes {
        TicketLanes {
            lanes: (0..boat.lanes.len()).collect(),
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

/// Sends a batch away. Returns the lane if its station issued no tickets.
async fn drain_batch(
    boat: &Boat,
    batch: Vec<Arc<Connection>>,
    lane: Option<usize>,
    refusal: &Refusal,
) -> Option<usize> {
    let tickets = resume_tickets(boat, lane, &batch).await;
    let silent_lane = lane.filter(|_| tickets.is_none());
    let mut tickets = tickets.unwrap_or_default();
    for connection in &batch {
        let ticket = tickets.remove(&connection.id());
        connection.update(|session| session.drain(refusal.clone(), ticket, boat.now()));
    }
    silent_lane
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

async fn follow_room(boat: &Boat) -> Infallible {
    loop {
        sleep(ROOM_INTERVAL).await;
        let _ = timeout(ROOM_INTERVAL, read_room(boat)).await;
    }
}

async fn read_room(boat: &Boat) {
    let Some(life) = boat.life() else { return };
    match boat.registry.loads().await {
        Ok(loads) => boat.set_room(Room::beside(&life, &loads)),
        Err(error) => {
            debug!(%error, source = %error.source, "cannot look up the load of other boats")
        }
    }
}

/// Resume tickets by session; `None`: the station issued none.
async fn resume_tickets(
    boat: &Boat,
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
    let call = boat.stations.resume_tickets(lane, &sessions);
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
