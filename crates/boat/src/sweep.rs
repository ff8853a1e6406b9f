//! Says slowly and again to the stations which sessions this boat holds: what the store has lost comes
//! back, and what it has displaced is closed.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, Reassert, ReassertOutcome, Reasserted};
use backend::clock::Entropy;
use protocol::mailbox::{ReassertAnswer, signed_in_again};
use protocol::presence::{Losses, RESYNC_REST, SessionKey, syncs_restored};
use protocol::revocation::closing;
use protocol::{Code, Refusal};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::boat::Boat;
use crate::connection::Connection;
use crate::registration::REASSERT_WITHIN;

/// Goes through all sessions once per interval, until dropped. After one that the store had forgotten the next
/// ones are not left to the slow pass, and where those were forgotten, too, none is: nobody delivers to them
/// meanwhile.
pub(crate) async fn sweep(boat: Arc<Boat>) {
    let mut rested_at = Instant::now();
    let mut losses = Losses::default();
    loop {
        let used = boat.connections.shards_used().max(1) as u32;
        let interval = (boat.config.sweep_interval).min(boat.config.sweep_pause_max * used);
        let life = boat.life();
        let ending = go_over(&boat, interval, Some((rested_at, &mut losses)), || false).await;
        if boat.life() != life {
            // Under a new life every session is registered anew, and that is done already.
            let all = boat.assertions.time_of(boat.connections.len());
            rested_at = rested_at.max(Instant::now() + (REASSERT_WITHIN + all) * 2);
            losses = Losses::default();
        } else if ending == Ending::Loss {
            warn!("the mailbox store has lost sessions: all are asserted again");
            boat.metrics.losses.increment(1);
            pass(&boat, boat.config.restore_spread, || false).await;
            rested_at = Instant::now() + RESYNC_REST;
            losses = Losses::default();
        }
    }
}

/// Asserts every session once, spread over about `interval`, or until `is_over`.
pub(crate) async fn pass(boat: &Boat, interval: Duration, is_over: impl Fn() -> bool) {
    go_over(boat, interval, None, is_over).await;
}

/// End of a pass over all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    /// The store has lost sessions.
    Loss,
}

/// As `pass`; with `seeks` it ends early where what is asserted from a time on tells of a loss.
async fn go_over(
    boat: &Boat,
    interval: Duration,
    mut seeks: Option<(Instant, &mut Losses)>,
    is_over: impl Fn() -> bool,
) -> Ending {
    let pause = interval / boat.connections.shards_used().max(1) as u32;
    let mut is_empty = true;
    for (lane, connections) in boat.connections.by_shard().enumerate() {
        if connections.is_empty() {
            continue;
        }
        is_empty = false;
        if !seeks.as_ref().is_some_and(|(_, losses)| losses.hurries()) {
            sleep(jittered(&*boat.entropy, pause)).await;
        }
        let mut found = Found::default();
        for batch in connections.chunks(boat.config.batch_items_max) {
            if is_over() {
                return Ending::Whole;
            }
            reassert(boat, lane % boat.lanes.len(), batch, &mut found).await;
        }
        // A store that is not well is not asked for everything again and again, but another one is.
        if let Some((since, losses)) = &mut seeks
            && (found.is_new || losses.hurries() || Instant::now() >= *since)
        {
            losses.handle_answers(found.answered, found.forgotten, boat.connections.len());
            if losses.is_loss() {
                return Ending::Loss;
            }
        }
    }
    if is_empty {
        sleep(pause).await;
    }
    Ending::Whole
}

/// What the store said of sessions; who got no answer says nothing of it.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) answered: usize,
    forgotten: usize,
    /// Under a marker that the boat had not met: another store answers.
    is_new: bool,
}

pub(crate) async fn reassert(
    boat: &Boat,
    lane: usize,
    connections: &[Arc<Connection>],
    found: &mut Found,
) {
    boat.assertions.take(connections.len()).await;
    let Some(life) = boat.life() else {
        return;
    };
    let (connections, sessions): (Vec<_>, Vec<_>) = (connections.iter())
        .filter_map(|connection| {
            let state = connection.lock();
            let session = &state.session;
            let user = session.user().filter(|_| session.is_open())?;
            let asserted = Reassert {
                key: SessionKey {
                    user,
                    session: session.id(),
                    life: life.clone(),
                },
                platform: session.platform(),
                device: session.device()?.clone(),
                issued_at: state.issued_at(),
                ticket: state.ticket,
            };
            Some((connection, asserted))
        })
        .unzip();
    if sessions.is_empty() {
        return;
    }
    let mut answers = boat.stations.reassert(lane, &sessions).await;
    if answers.is_err() {
        // The station may have done it all the same.
        for connection in &connections {
            connection.lock().in_doubt = true;
        }
        // One that cannot be reached rests now, and another is asked.
        answers = boat.stations.reassert(lane, &sessions).await;
    }
    let Ok(answers) = answers else {
        // Made good by the next pass.
        return;
    };
    for ((connection, answer), asserted) in connections.into_iter().zip(answers).zip(sessions) {
        let Reasserted { outcome, ticket } = answer;
        let is_refreshed = connection.lock().issued_at() != asserted.issued_at;
        if is_refreshed && ends_token(&outcome) {
            // A verdict on the token before: the next assertion shows the new one's ticket.
            continue;
        }
        if let Some(ticket) = ticket {
            connection.lock().replace_ticket(ticket);
        }
        let is_registered = matches!(
            &outcome,
            ReassertOutcome::Answer(ReassertAnswer::Known { .. } | ReassertAnswer::Restored { .. })
        );
        if is_registered && connection.lock().session.is_closed() {
            // Its sign-off may have been done before; a lane without room leaves it to whoever pushes there.
            let _ = boat.lanes.get(lane).leaves.push(Disconnect {
                key: asserted.key,
                ticket: ticket.or(asserted.ticket),
            });
            continue;
        }
        let is_answer = matches!(outcome, ReassertOutcome::Answer(_));
        found.answered += usize::from(is_answer);
        let was_unregistered = is_answer && {
            let mut state = connection.lock();
            state.renews = false;
            std::mem::take(&mut state.unregistered)
        };
        match outcome {
            ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits }) => {
                boat.metrics.known.increment(1);
                if std::mem::take(&mut connection.lock().in_doubt) {
                    // Known perhaps only since the assertion whose answer was lost.
                    connection.update(|session| session.resync(boat.now()));
                } else if mail_waits {
                    // A hint, or the removal of what was acknowledged, was lost on its way.
                    connection.update(|session| session.hint());
                }
            }
            ReassertOutcome::Answer(ReassertAnswer::Restored { marker, mail_waits }) => {
                debug!(session = connection.id().get(), "registered again");
                boat.metrics.restored.increment(1);
                found.forgotten += 1;
                let is_new = boat.is_new_marker(marker);
                found.is_new |= is_new;
                let was_in_doubt = std::mem::take(&mut connection.lock().in_doubt);
                if was_in_doubt || syncs_restored(boat.has_lease(), is_new) {
                    connection.update(|session| session.resync(boat.now()));
                } else if mail_waits {
                    connection.update(|session| session.hint());
                }
            }
            // An earlier session is registered: a sign-in that is a later one says which of them is to go.
            ReassertOutcome::Answer(ReassertAnswer::Displaced | ReassertAnswer::Replaced)
                if was_unregistered =>
            {
                let text = "an earlier session of yours is still registered; sign in again";
                let refusal = Refusal::new(Code::Unavailable, text);
                connection.update(|session| session.close(refusal, boat.now()));
            }
            ReassertOutcome::Answer(ReassertAnswer::Displaced) => {
                boat.metrics.displaced.increment(1);
                let refusal = Refusal::new(Code::Displaced, "signed in elsewhere on this platform");
                connection.update(|session| session.close(refusal, boat.now()));
            }
            ReassertOutcome::Answer(ReassertAnswer::Replaced) => {
                boat.metrics.replaced.increment(1);
                connection.update(|session| session.close(signed_in_again(), boat.now()));
            }
            ReassertOutcome::Unproved => {
                boat.metrics.unproved.increment(1);
                let text = "nothing proves any more that you have signed in; sign in again";
                let refusal = Refusal::new(Code::Reconnect, text);
                connection.update(|session| session.close(refusal, boat.now()));
            }
            ReassertOutcome::Unavailable => connection.lock().in_doubt = true,
            ReassertOutcome::Revoked => {
                boat.metrics.revoked.increment(1);
                connection.update(|session| session.close(closing(), boat.now()));
            }
        }
    }
}

/// True for a verdict on the token, not on the session.
fn ends_token(outcome: &ReassertOutcome) -> bool {
    matches!(
        outcome,
        ReassertOutcome::Unproved | ReassertOutcome::Revoked
    )
}

/// Between half of `mean` and half more than it.
pub(crate) fn jittered(entropy: &dyn Entropy, mean: Duration) -> Duration {
    mean / 2 + random_below(entropy, mean)
}

pub(crate) fn random_below(entropy: &dyn Entropy, end: Duration) -> Duration {
    match u64::try_from(end.as_micros()) {
        Ok(micros) if micros > 0 => Duration::from_micros(entropy.next() % micros),
        Ok(_) | Err(_) => Duration::ZERO,
    }
}
