//! Says slowly and again to the stations which sessions this boat holds: what the store has lost comes
//! back, and what it has displaced is closed.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Reassert, Reasserted};
use backend::clock::Entropy;
use protocol::mailbox::{ReassertAnswer, signed_in_again};
use protocol::presence::SessionKey;
use protocol::{Code, Refusal};
use tokio::time::sleep;
use tracing::debug;

use crate::boat::Boat;
use crate::connection::Connection;

/// Goes through all sessions once per interval, until dropped.
pub(crate) async fn sweep(boat: Arc<Boat>) {
    loop {
        pass(&boat, boat.config.sweep_interval).await;
    }
}

/// Asserts every session once, spread over about `interval`.
pub(crate) async fn pass(boat: &Boat, interval: Duration) {
    let shards = boat.connections.by_shard();
    let pause = interval / shards.len() as u32;
    for (lane, connections) in shards.enumerate() {
        sleep(jittered(&*boat.entropy, pause)).await;
        for batch in connections.chunks(boat.config.batch_items_max) {
            reassert(boat, lane % boat.lanes.len(), batch).await;
        }
    }
}

async fn reassert(boat: &Boat, lane: usize, connections: &[Arc<Connection>]) {
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
    for (connection, answer) in connections.into_iter().zip(answers) {
        match answer {
            Reasserted::Answer(ReassertAnswer::Known { mail_waits }) => {
                boat.metrics.known.increment(1);
                if std::mem::take(&mut connection.lock().in_doubt) {
                    // Known perhaps only since the assertion whose answer was lost.
                    connection.update(|session| session.resync(boat.now()));
                } else if mail_waits {
                    // A hint, or the removal of what was acknowledged, was lost on its way.
                    connection.update(|session| session.hint());
                }
            }
            Reasserted::Answer(ReassertAnswer::Restored { .. }) => {
                debug!(session = connection.id().get(), "registered again");
                boat.metrics.restored.increment(1);
                connection.lock().in_doubt = false;
                connection.update(|session| session.resync(boat.now()));
            }
            Reasserted::Answer(ReassertAnswer::Displaced) => {
                boat.metrics.displaced.increment(1);
                let refusal = Refusal::new(Code::Displaced, "signed in elsewhere on this platform");
                connection.update(|session| session.close(refusal, boat.now()));
            }
            Reasserted::Answer(ReassertAnswer::Replaced) => {
                boat.metrics.replaced.increment(1);
                connection.update(|session| session.close(signed_in_again(), boat.now()));
            }
            Reasserted::Unavailable => connection.lock().in_doubt = true,
        }
    }
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
