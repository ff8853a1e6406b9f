//! Leaving in order: not ready, no new clients, those aboard are told in paced batches and may finish,
//! then everything is signed off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::station::ResumeSession;
use protocol::ticket::ResumeTicket;
use protocol::{Code, Refusal, SessionId};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::boat::Boat;
use crate::connection::Connection;

/// How often the lanes are looked at while they empty.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A client more, and the others' return is spread over so much more time.
const SPREAD_EACH: Duration = Duration::from_millis(2);
/// For tickets to resume with: clients have their tokens without them.
const TICKETS_WITHIN: Duration = Duration::from_millis(500);

/// Empties the boat, within its deadline. Nobody comes aboard any more when this is called.
pub(crate) async fn empty(boat: &Arc<Boat>) {
    let connections = boat.connections.all();
    info!(clients = connections.len(), "leaving");
    let clients = u32::try_from(connections.len()).unwrap_or(u32::MAX);
    // Each client takes a moment within it, at random.
    let spread = (boat.config.drain_spread).min(SPREAD_EACH.saturating_mul(clients));
    let text = "this boat leaves; reconnect to reach another";
    let refusal = Refusal::new(Code::Draining, text).retry_after(spread);
    let finished = timeout(boat.config.drain_deadline, async {
        send_away(boat, &connections, &refusal).await;
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

/// Has clients go elsewhere, in paced batches, each with a ticket to resume with. The pause before a batch is also the
/// time in which a station makes its tickets; a lane whose station did not is not asked again.
pub(crate) async fn send_away(boat: &Boat, connections: &[Arc<Connection>], refusal: &Refusal) {
    let batch = (boat.config.drain_batch).clamp(1, boat.config.batch_items_max.max(1));
    let mut lanes: Vec<usize> = (0..boat.lanes.len()).collect();
    for (place, connections) in connections.chunks(batch).enumerate() {
        let pause = match place {
            0 => Duration::ZERO,
            _ => boat.config.drain_pause,
        };
        let lane = lanes.get(place % lanes.len().max(1)).copied();
        let (tickets, ()) = tokio::join!(resume_tickets(boat, lane, connections), sleep(pause));
        if tickets.is_none() {
            lanes.retain(|it| Some(*it) != lane);
        }
        let mut tickets = tickets.unwrap_or_default();
        for connection in connections {
            let ticket = tickets.remove(&connection.id());
            connection.update(|session| session.drain(refusal.clone(), ticket, boat.now()));
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
