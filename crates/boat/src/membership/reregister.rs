//! Re-registers this boat's sessions with the stations in slow, repeated passes: sessions that the
//! store lost come back, and those it displaced are closed.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, Reassert, ReassertOutcome, Reasserted};
use backend::clock::Entropy;
use protocol::mailbox::{ReassertAnswer, replaced_session_refusal};
use protocol::pause::between;
use protocol::presence::{LossDetector, RESYNC_INTERVAL, SessionKey, syncs_restored};
use protocol::{Code, Refusal};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::Config;
use crate::connection::Connection;
use crate::connection::connections::Connections;
use crate::metrics::MembershipMetrics;
use crate::status::BoatStatus;
use crate::uplink::Uplink;
use crate::uplink::pace::Pace;

/// Time in which all sessions are asserted after a lost lease, approximately.
pub(super) const REASSERT_PERIOD: Duration = Duration::from_secs(2);

/// Asserts sessions to the stations.
pub(crate) struct Reregistration {
    pub(super) uplink: Arc<Uplink>,
    pub(super) connections: Arc<Connections>,
    status: Arc<BoatStatus>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) metrics: MembershipMetrics,
    /// Pace of assertions.
    pace: Pace,
    sweep_interval: Duration,
    sweep_pause_max: Duration,
    restore_spread: Duration,
}

/// End of a pass over all sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassEnd {
    Whole,
    /// The store has lost sessions.
    Loss,
}

/// Tally of the store's answers; sessions without an answer do not count.
#[derive(Default)]
pub(super) struct ReregisterResult {
    pub(super) answered_count: usize,
    forgotten_count: usize,
    /// Whether a marker was new to the boat: another store answers.
    is_new: bool,
}

impl Reregistration {
    pub(crate) fn new(
        config: &Config,
        uplink: Arc<Uplink>,
        connections: Arc<Connections>,
        status: Arc<BoatStatus>,
        entropy: Arc<dyn Entropy>,
    ) -> Arc<Reregistration> {
        Arc::new(Reregistration {
            uplink,
            connections,
            status,
            entropy,
            metrics: MembershipMetrics::new(),
            pace: Pace::new(config.presence_writes_per_second.get()),
            sweep_interval: config.sweep_interval,
            sweep_pause_max: config.sweep_pause_max,
            restore_spread: config.restore_spread,
        })
    }

    /// Passes over all sessions once per interval, until dropped. A session that the store had
    /// forgotten has the next ones asserted without pause; if those were forgotten too, a full pass
    /// follows at once, as nobody delivers to them meanwhile.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let mut rested_at = Instant::now();
        let mut losses = LossDetector::default();
        loop {
            let shard_count = self.connections.shards_used().max(1) as u32;
            let interval = (self.sweep_interval).min(self.sweep_pause_max * shard_count);
            let life = self.status.life();
            let ending = self
                .run_pass(interval, Some((rested_at, &mut losses)), || false)
                .await;
            if self.status.life() != life {
                // A new life registers every session anew, and that pass has run already.
                let full_pass_time = self.pace.time_for(self.connections.len());
                rested_at = rested_at.max(Instant::now() + (REASSERT_PERIOD + full_pass_time) * 2);
                losses = LossDetector::default();
            } else if ending == PassEnd::Loss {
                warn!("the mailbox store lost sessions: registering all sessions again");
                self.metrics.losses.increment(1);
                self.pass(self.restore_spread, || false).await;
                rested_at = Instant::now() + RESYNC_INTERVAL;
                losses = LossDetector::default();
            }
        }
    }

    /// Asserts every session once, spread over about `interval`, or until `is_over`.
    pub(super) async fn pass(&self, interval: Duration, is_over: impl Fn() -> bool) {
        self.run_pass(interval, None, is_over).await;
    }

    /// Like `pass`; with `loss_check` it ends early if assertions from that time on reveal a loss.
    async fn run_pass(
        &self,
        interval: Duration,
        mut loss_check: Option<(Instant, &mut LossDetector)>,
        is_over: impl Fn() -> bool,
    ) -> PassEnd {
        let pause = interval / self.connections.shards_used().max(1) as u32;
        let mut is_empty = true;
        for (lane, connections) in self.connections.by_shard().enumerate() {
            if connections.is_empty() {
                continue;
            }
            is_empty = false;
            if !loss_check
                .as_ref()
                .is_some_and(|(_, losses)| losses.hurries())
            {
                sleep(jittered(&*self.entropy, pause)).await;
            }
            let mut tally = ReregisterResult::default();
            for batch in connections.chunks(self.uplink.queues.batch_items_max) {
                if is_over() {
                    return PassEnd::Whole;
                }
                self.reassert(lane % self.uplink.queues.len(), batch, &mut tally)
                    .await;
            }
            // An unhealthy store is not asked for everything again and again; a different store is.
            if let Some((start, losses)) = &mut loss_check
                && (tally.is_new || losses.hurries() || Instant::now() >= *start)
            {
                losses.handle_answers(
                    tally.answered_count,
                    tally.forgotten_count,
                    self.connections.len(),
                );
                if losses.is_loss() {
                    return PassEnd::Loss;
                }
            }
        }
        if is_empty {
            sleep(pause).await;
        }
        PassEnd::Whole
    }

    pub(super) async fn reassert(
        &self,
        lane: usize,
        connections: &[Arc<Connection>],
        tally: &mut ReregisterResult,
    ) {
        self.pace.take(connections.len()).await;
        let Some(life) = self.status.life() else {
            return;
        };
        let (connections, sessions): (Vec<_>, Vec<_>) = (connections.iter())
            .filter_map(|connection| {
                let state = connection.lock();
                let session = &state.session;
                let user = session.user().filter(|_| session.is_open())?;
                let assertion = Reassert {
                    key: SessionKey {
                        user,
                        session: session.id(),
                        life: life.clone(),
                    },
                    platform: session.platform(),
                    device: session.device()?.clone(),
                    login: (state.login != 0).then_some(state.login),
                    issued_at: state.issued_at(),
                    ticket: state.ticket,
                };
                Some((connection, assertion))
            })
            .unzip();
        if sessions.is_empty() {
            return;
        }
        let mut answers = self.uplink.stations.reassert(lane, &sessions).await;
        if answers.is_err() {
            // The station may have applied it all the same.
            for connection in &connections {
                connection.lock().in_doubt = true;
            }
            // The unreachable station rests now, so this asks another one.
            answers = self.uplink.stations.reassert(lane, &sessions).await;
        }
        let Ok(answers) = answers else {
            // The next pass makes up for it.
            return;
        };
        for ((connection, answer), assertion) in connections.into_iter().zip(answers).zip(sessions)
        {
            let Reasserted { outcome, ticket } = answer;
            let is_refreshed = connection.lock().issued_at() != assertion.issued_at;
            if is_refreshed && is_token_verdict(&outcome) {
                // A verdict on the previous token: the next assertion shows the ticket of the new
                // one.
                continue;
            }
            if let Some(ticket) = ticket {
                connection.lock().replace_ticket(ticket);
            }
            let is_registered = matches!(
                &outcome,
                ReassertOutcome::Answer(
                    ReassertAnswer::Known { .. } | ReassertAnswer::Restored { .. }
                )
            );
            if is_registered && connection.lock().session.is_closed() {
                // The sign-off may have run before the assertion. If the lane is full, the next
                // push to the session finds out.
                let _ = self.uplink.queues.get(lane).leaves.push(Disconnect {
                    key: assertion.key,
                    ticket: ticket.or(assertion.ticket),
                });
                continue;
            }
            let is_answer = matches!(outcome, ReassertOutcome::Answer(_));
            tally.answered_count += usize::from(is_answer);
            let was_unregistered = is_answer && {
                let mut state = connection.lock();
                state.is_renewing = false;
                std::mem::take(&mut state.is_unregistered)
            };
            self.conclude(connection, outcome, was_unregistered, tally);
        }
    }

    /// Carries out the verdict on a session.
    fn conclude(
        &self,
        connection: &Connection,
        outcome: ReassertOutcome,
        was_unregistered: bool,
        tally: &mut ReregisterResult,
    ) {
        match outcome {
            ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits }) => {
                self.metrics.sessions_known.increment(1);
                if std::mem::take(&mut connection.lock().in_doubt) {
                    // Perhaps known only since the assertion whose answer was lost.
                    connection.update(|session| session.resync(self.connections.now()));
                } else if mail_waits {
                    // A hint, or the removal of acknowledged mail, was lost on its way.
                    connection.update(|session| session.hint());
                }
            }
            ReassertOutcome::Answer(ReassertAnswer::Restored { marker, mail_waits }) => {
                debug!(session = connection.id().get(), "registered again");
                self.metrics.sessions_restored.increment(1);
                tally.forgotten_count += 1;
                let is_new = self.status.is_new_marker(marker);
                tally.is_new |= is_new;
                let was_in_doubt = std::mem::take(&mut connection.lock().in_doubt);
                if was_in_doubt || syncs_restored(self.status.has_lease(), is_new) {
                    connection.update(|session| session.resync(self.connections.now()));
                } else if mail_waits {
                    connection.update(|session| session.hint());
                }
            }
            // An earlier session is registered: only a new, later sign-in settles which of them has
            // to go.
            ReassertOutcome::Answer(ReassertAnswer::Displaced | ReassertAnswer::Replaced)
                if was_unregistered =>
            {
                let text = "an earlier session of yours is still registered; sign in again";
                let refusal = Refusal::new(Code::Unavailable, text);
                connection.update(|session| session.close(refusal, self.connections.now()));
            }
            ReassertOutcome::Answer(ReassertAnswer::Displaced) => {
                self.metrics.sessions_displaced.increment(1);
                let refusal = Refusal::new(Code::Displaced, "signed in elsewhere on this platform");
                connection.update(|session| session.close(refusal, self.connections.now()));
            }
            ReassertOutcome::Answer(ReassertAnswer::Replaced) => {
                self.metrics.sessions_replaced.increment(1);
                connection.update(|session| {
                    session.close(replaced_session_refusal(), self.connections.now())
                });
            }
            ReassertOutcome::Unproved => {
                self.metrics.sessions_unproved.increment(1);
                let text = "your sign-in can no longer be verified; sign in again";
                let refusal = Refusal::new(Code::Reconnect, text);
                connection.update(|session| session.close(refusal, self.connections.now()));
            }
            ReassertOutcome::Unavailable => connection.lock().in_doubt = true,
            ReassertOutcome::Revoked => {
                let now = self.connections.now();
                self.uplink.revoked.end(connection, now);
            }
        }
    }
}

/// True for a verdict on the token rather than on the session.
fn is_token_verdict(outcome: &ReassertOutcome) -> bool {
    matches!(
        outcome,
        ReassertOutcome::Unproved | ReassertOutcome::Revoked
    )
}

/// Random duration between half of `mean` and one and a half times `mean`.
pub(super) fn jittered(entropy: &dyn Entropy, mean: Duration) -> Duration {
    between(mean / 2, mean * 3 / 2, entropy.next())
}
