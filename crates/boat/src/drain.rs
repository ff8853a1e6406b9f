//! Leaving and emptying: not ready, no new clients, those aboard are sent away in paced batches and may finish; then a boat
//! that leaves signs everything off, and one that was emptied waits.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use api::station::ResumeSession;
use parking_lot::Mutex;
use protocol::drain::{DrainFacts, DrainStep, ROOM_AGE_MAX, ROOM_EVERY, Room, time_to_send};
use protocol::ticket::ResumeTicket;
use protocol::{Code, Refusal, SessionId};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, info, warn};

use crate::boat::{Boat, Phase};
use crate::connection::Connection;

/// How often the lanes are looked at while they empty.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A client more, and the others' return is spread over so much more time.
const SPREAD_EACH: Duration = Duration::from_millis(2);
/// For tickets to resume with: clients have their tokens without them.
const TICKETS_WITHIN: Duration = Duration::from_millis(500);
/// Between two warnings that no other boat has room.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// An operator's order to empty the boat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainOrder {
    /// Clients a second at most, in place of the setting.
    pub(crate) pace: Option<NonZeroU32>,
}

/// Follows the orders of operators, until dropped. Without a deadline: whoever ordered it can see that it waits.
pub(crate) async fn obey(boat: &Boat) -> Infallible {
    let mut orders = boat.drain_orders.subscribe();
    loop {
        let order = *orders.borrow_and_update();
        match order {
            None if boat.phase() != Phase::Serving => {
                info!("clients are taken again");
                boat.set_phase(Phase::Serving);
            }
            None => {}
            Some(order) => {
                let emptying = async {
                    announce(boat).await;
                    let pace = order.pace.unwrap_or(boat.config.drain_pace);
                    send_everybody_away(boat, pace, None).await;
                    pending::<()>().await;
                };
                tokio::select! {
                    () = emptying => {}
                    _ = orders.changed() => {}
                }
                boat.set_waits(false);
                continue;
            }
        }
        if orders.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Empties the boat and has everything signed off, within its deadline; listeners stay open until all are sent away.
pub(crate) async fn leave(boat: &Boat, listeners: impl Sized) {
    let end = Instant::now() + boat.config.drain_deadline;
    let finished = timeout_at(end, async {
        announce(boat).await;
        let left = end.saturating_duration_since(Instant::now());
        let all_sent = Instant::now() + time_to_send(left);
        send_everybody_away(boat, boat.config.drain_pace, Some(all_sent)).await;
        // Balancers go on sending newcomers for a while: they were refused, and not dropped.
        drop(listeners);
        boat.tasks.close();
        boat.tasks.wait().await;
        while !boat.lanes.are_idle() {
            sleep(LOOK_AGAIN).await;
        }
    });
    if finished.await.is_err() {
        warn!(
            left = boat.connections.len(),
            "what is left is dropped: the time to leave is over"
        );
        boat.abandon();
    }
}

/// Not ready from here on; newcomers are refused once balancers had time to see that.
async fn announce(boat: &Boat) {
    if boat.phase() == Phase::Serving {
        boat.set_phase(Phase::Notice);
        if boat.connections.len() > 0 {
            sleep(boat.config.drain_notice).await;
        }
    }
    boat.set_phase(Phase::Draining);
}

async fn send_everybody_away(boat: &Boat, pace: NonZeroU32, until: Option<Instant>) {
    let connections = boat.connections.all();
    info!(clients = connections.len(), "leaving");
    let clients = u32::try_from(connections.len()).unwrap_or(u32::MAX);
    // Each client takes a moment within it, at random.
    let spread = (boat.config.drain_spread).min(SPREAD_EACH.saturating_mul(clients));
    let text = "this boat leaves; reconnect to reach another";
    let refusal = Refusal::new(Code::Draining, text).retry_after(spread);
    send_away(boat, connections, &refusal, pace, until).await;
}

/// Has clients go elsewhere, at the pace at which the others have room for them, each with a ticket to resume with. The
/// pause before a batch is also the time in which a station makes its tickets; a lane whose station did not is not asked
/// again.
pub(crate) async fn send_away(
    boat: &Boat,
    connections: Vec<Arc<Connection>>,
    refusal: &Refusal,
    pace: NonZeroU32,
    until: Option<Instant>,
) {
    if connections.is_empty() {
        return;
    }
    let others = OtherBoats::new(boat);
    others.read().await;
    tokio::select! {
        () = send_by_room(boat, &others, connections, refusal, pace, until) => {}
        never = others.follow() => match never {},
    }
    boat.set_waits(false);
}

async fn send_by_room(
    boat: &Boat,
    others: &OtherBoats<'_>,
    mut rest: Vec<Arc<Connection>>,
    refusal: &Refusal,
    pace: NonZeroU32,
    until: Option<Instant>,
) {
    boat.drain.lock().set_bounds(boat.config.drain_bounds(pace));
    let mut lanes: Vec<usize> = (0..boat.lanes.len()).collect();
    let mut next = Instant::now();
    let mut warned: Option<Instant> = None;
    let mut place = 0;
    loop {
        let facts = DrainFacts {
            clients: rest.len(),
            room: others.room(),
            left: until.map(|until| until.saturating_duration_since(Instant::now())),
        };
        if rest.is_empty() {
            return;
        }
        let step = boat.drain.lock().step(&facts, boat.now());
        let (clients, pause) = match step {
            DrainStep::Go { clients, pause } => (clients, pause),
            DrainStep::Wait { pause } => {
                boat.set_waits(true);
                if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
                    warned = Some(Instant::now());
                    let clients = rest.len();
                    warn!(clients, "no other boat has room: these clients wait aboard");
                }
                sleep(pause).await;
                rest.retain(|connection| !connection.lock().session.is_closed());
                continue;
            }
        };
        boat.set_waits(false);
        let batch = take(&mut rest, clients);
        let lane = lanes.get(place % lanes.len().max(1)).copied();
        let (tickets, ()) = tokio::join!(resume_tickets(boat, lane, &batch), sleep_until(next));
        if tickets.is_none() {
            lanes.retain(|it| Some(*it) != lane);
        }
        next = Instant::now() + pause;
        place += 1;
        let mut tickets = tickets.unwrap_or_default();
        for connection in &batch {
            let ticket = tickets.remove(&connection.id());
            connection.update(|session| session.drain(refusal.clone(), ticket, boat.now()));
        }
    }
}

/// The next of those that are still there.
fn take(rest: &mut Vec<Arc<Connection>>, count: usize) -> Vec<Arc<Connection>> {
    let mut batch = Vec::with_capacity(count.min(rest.len()));
    while batch.len() < count
        && let Some(connection) = rest.pop()
    {
        if !connection.lock().session.is_closed() {
            batch.push(connection);
        }
    }
    batch
}

/// Room beside this boat, as discovery said last.
struct OtherBoats<'a> {
    boat: &'a Boat,
    room: Mutex<Option<(Instant, Room)>>,
}

impl<'a> OtherBoats<'a> {
    fn new(boat: &'a Boat) -> OtherBoats<'a> {
        OtherBoats {
            boat,
            room: Mutex::new(None),
        }
    }

    fn room(&self) -> Option<Room> {
        let known = *self.room.lock();
        known.and_then(|(at, room)| (at.elapsed() < ROOM_AGE_MAX).then_some(room))
    }

    /// Reads once, for no longer than until the next time.
    async fn read(&self) {
        let Some(life) = self.boat.life() else { return };
        match timeout(ROOM_EVERY, self.boat.registry.loads()).await {
            Ok(Ok(loads)) => {
                let room = Room::beside(&life, &loads);
                *self.room.lock() = Some((Instant::now(), room));
            }
            Ok(Err(error)) => debug!(%error, source = %error.source, "room of others is not known"),
            Err(_) => debug!("room of others is not known: discovery is silent"),
        }
    }

    async fn follow(&self) -> Infallible {
        loop {
            sleep(ROOM_EVERY).await;
            self.read().await;
        }
    }
}

/// Tickets by session; `None`: no station made any.
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
    let answer = timeout(TICKETS_WITHIN, call).await;
    let tickets = match answer.unwrap_or_else(|_| Err(late())) {
        Ok(tickets) => tickets,
        Err(refusal) => {
            debug!(%refusal, "no tickets to resume with");
            return None;
        }
    };
    let of = sessions.iter().map(|session| session.session);
    let tickets = of.zip(tickets);
    Some(
        tickets
            .filter_map(|(of, ticket)| Some((of, ticket?)))
            .collect(),
    )
}

fn late() -> Refusal {
    let text = format!("no answer within {TICKETS_WITHIN:?}");
    Refusal::new(Code::DeadlineExceeded, text)
}

/// Asked for where the station gave the session a ticket.
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
