//! Life cycle of the connection: when to reconnect, when to ping, and the resulting state.

use std::time::Duration;

use protocol::frame::{ClientFrame, Welcome};
use protocol::pause::{between, doubled};
use protocol::{Code, Refusal, Timestamp};

use super::credentials::Credentials;
use super::{Action, ConnectionState, Event, Limits, Out};

#[derive(Debug)]
pub(super) struct Link {
    phase: Phase,
    /// Consecutive failed connections.
    failures: u32,
    /// Connections since the last stable one that another connection of this device replaced.
    replaced_count: u32,
    /// Refusal the server sent before it ended the connection.
    farewell: Option<Refusal>,
    nonce: u64,
    state: ConnectionState,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// Waits for a token.
    Fetching,
    Connecting,
    /// Hello sent; waits for the welcome.
    Greeting {
        hello_at: Timestamp,
        deadline: Timestamp,
    },
    Live(Live),
    /// We asked the driver to disconnect.
    Leaving,
    Waiting {
        retry_at: Timestamp,
    },
    Closed,
}

#[derive(Debug)]
struct Live {
    welcomed_at: Timestamp,
    heartbeat: Duration,
    sent_at: Timestamp,
    heard_at: Timestamp,
    /// Time of a ping since which no frame came.
    pinged_at: Option<Timestamp>,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            phase: Phase::Idle,
            failures: 0,
            replaced_count: 0,
            farewell: None,
            nonce: 0,
            state: ConnectionState::Idle,
        }
    }
}

impl Link {
    pub(super) fn state(&self) -> &ConnectionState {
        &self.state
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live(_))
    }

    pub(super) fn start(&mut self, now: Timestamp, credentials: &mut Credentials, out: &mut Out) {
        if matches!(self.phase, Phase::Idle) {
            self.connect(now, credentials, out);
        }
    }

    fn connect(&mut self, now: Timestamp, credentials: &mut Credentials, out: &mut Out) {
        self.phase = Phase::Fetching;
        self.farewell = None;
        self.enter(ConnectionState::Connecting, out);
        if !credentials.fetch_if_needed(now, out) {
            self.handle_token(out);
        }
    }

    /// Connects, now that a token is available or none is needed.
    pub(super) fn handle_token(&mut self, out: &mut Out) {
        if matches!(self.phase, Phase::Fetching) {
            self.phase = Phase::Connecting;
            out.push(Action::Connect);
        }
    }

    pub(super) fn handle_no_token(
        &mut self,
        why: Refusal,
        now: Timestamp,
        jitter: u64,
        limits: &Limits,
        out: &mut Out,
    ) {
        if matches!(self.phase, Phase::Fetching) {
            self.pause_or_end(why, now, jitter, limits, out);
        }
    }

    pub(super) fn connected(&mut self, now: Timestamp, welcome_within: Duration) -> bool {
        let expected = matches!(self.phase, Phase::Connecting);
        if expected {
            self.phase = Phase::Greeting {
                hello_at: now,
                deadline: now + welcome_within,
            };
        }
        expected
    }

    /// Notes an incoming frame. False: it comes from a connection that no longer counts.
    pub(super) fn heard(&mut self, now: Timestamp) -> bool {
        match &mut self.phase {
            Phase::Live(live) => {
                live.heard_at = now;
                live.pinged_at = None;
            }
            Phase::Greeting { .. } => {}
            Phase::Idle
            | Phase::Fetching
            | Phase::Connecting
            | Phase::Leaving
            | Phase::Waiting { .. }
            | Phase::Closed => return false,
        }
        true
    }

    /// Takes the welcome, and answers how long it took; `None`: none was expected.
    pub(super) fn welcomed(
        &mut self,
        welcome: &Welcome,
        now: Timestamp,
        out: &mut Out,
    ) -> Option<Duration> {
        let Phase::Greeting { hello_at, .. } = self.phase else {
            return None;
        };
        self.phase = Phase::Live(Live {
            welcomed_at: now,
            heartbeat: welcome.heartbeat.max(Duration::from_secs(1)),
            sent_at: now,
            heard_at: now,
            pinged_at: None,
        });
        self.enter(ConnectionState::Syncing, out);
        Some(now.since(hello_at))
    }

    pub(super) fn closing(&mut self, refusal: Refusal) {
        self.farewell = Some(refusal);
    }

    pub(super) fn leave(&mut self, why: Refusal, out: &mut Out) {
        self.phase = Phase::Leaving;
        out.push(Action::Disconnect(why));
    }

    pub(super) fn sent(&mut self, now: Timestamp) {
        if let Phase::Live(live) = &mut self.phase {
            live.sent_at = now;
        }
    }

    pub(super) fn caught_up(&mut self, out: &mut Out) {
        self.enter(ConnectionState::Ready, out);
    }

    pub(super) fn behind(&mut self, out: &mut Out) {
        self.enter(ConnectionState::Syncing, out);
    }

    pub(super) fn disconnected(
        &mut self,
        why: Refusal,
        credentials: &mut Credentials,
        now: Timestamp,
        jitter: u64,
        limits: &Limits,
        out: &mut Out,
    ) {
        match &self.phase {
            Phase::Idle | Phase::Fetching | Phase::Waiting { .. } | Phase::Closed => return,
            Phase::Live(live) if now.since(live.welcomed_at) >= limits.stable => {
                self.failures = 0;
                self.replaced_count = 0;
            }
            Phase::Live(_) | Phase::Connecting | Phase::Greeting { .. } | Phase::Leaving => {}
        }
        let why = self.farewell.take().unwrap_or(why);
        let mut why = credentials.handle_disconnected(why);
        if why.code == Code::Replaced {
            self.replaced_count += 1;
            if self.replaced_count > limits.replaced_max {
                why = Refusal::new(
                    Code::Displaced,
                    "another program keeps signing in under this device's name; give each its own name",
                );
            }
        }
        self.pause_or_end(why, now, jitter, limits, out);
    }

    fn pause_or_end(
        &mut self,
        why: Refusal,
        now: Timestamp,
        jitter: u64,
        limits: &Limits,
        out: &mut Out,
    ) {
        if !why.code.retryable() {
            self.phase = Phase::Closed;
            self.enter(ConnectionState::Closed(why), out);
            return;
        }
        let retry_at = now + pause_after(&why, self.failures, jitter, limits);
        self.failures = self.failures.saturating_add(1);
        self.phase = Phase::Waiting { retry_at };
        self.enter(ConnectionState::Reconnecting { retry_at, why }, out);
    }

    pub(super) fn deadline(&self, limits: &Limits) -> Option<Timestamp> {
        match &self.phase {
            Phase::Greeting { deadline, .. } | Phase::Waiting { retry_at: deadline } => {
                Some(*deadline)
            }
            Phase::Live(live) => Some(match live.pinged_at {
                Some(pinged) => pinged + limits.pong,
                // A client that only sends does not notice a dead connection: frames must come
                // back, too.
                None => live.sent_at.min(live.heard_at) + live.heartbeat,
            }),
            Phase::Idle | Phase::Fetching | Phase::Connecting | Phase::Leaving | Phase::Closed => {
                None
            }
        }
    }

    pub(super) fn timeout(
        &mut self,
        now: Timestamp,
        credentials: &mut Credentials,
        limits: &Limits,
        out: &mut Out,
    ) {
        if self.deadline(limits).is_none_or(|deadline| now < deadline) {
            return;
        }
        match &mut self.phase {
            Phase::Waiting { .. } => self.connect(now, credentials, out),
            Phase::Greeting { .. } => {
                let why = Refusal::new(Code::HandshakeTimeout, "no welcome from the server");
                self.leave(why, out);
            }
            Phase::Live(live) if live.pinged_at.is_some() => {
                let why = Refusal::new(Code::HeartbeatMissed, "no answer to a ping");
                self.leave(why, out);
            }
            Phase::Live(live) => {
                live.pinged_at = Some(now);
                live.sent_at = now;
                self.nonce += 1;
                out.transmit(ClientFrame::Ping { nonce: self.nonce });
            }
            Phase::Idle | Phase::Fetching | Phase::Connecting | Phase::Leaving | Phase::Closed => {}
        }
    }

    fn enter(&mut self, state: ConnectionState, out: &mut Out) {
        if self.state != state {
            self.state = state.clone();
            out.emit_event(Event::State(state));
        }
    }
}

/// Pause after a connection that ended with `why`. A client over a limit waits at least as long as
/// the server says.
fn pause_after(why: &Refusal, failures: u32, jitter: u64, limits: &Limits) -> Duration {
    match (why.code, why.retry_after) {
        (Code::RateLimited | Code::TooManySessions, Some(wait)) => {
            wait + reconnect_pause(failures, None, jitter, limits)
        }
        (_, hint) => reconnect_pause(failures, hint, jitter, limits),
    }
}

/// Full jitter: a random pause between zero and a bound that doubles with each failure. The
/// server's hint is the time over which its clients are to spread, not a moment: all with the same
/// hint would come back at once.
pub fn reconnect_pause(
    failures: u32,
    hint: Option<Duration>,
    jitter: u64,
    limits: &Limits,
) -> Duration {
    let max_backoff = doubled(limits.backoff, failures, limits.backoff_max);
    let max_backoff = max_backoff
        .max(hint.unwrap_or_default())
        .min(limits.backoff_max);
    between(Duration::ZERO, max_backoff, jitter)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngCore, SeedableRng};

    use super::*;

    fn longest(failures: u32, hint: Option<u64>) -> u128 {
        let (limits, hint) = (Limits::default(), hint.map(Duration::from_millis));
        let pauses = (0..50_000).map(|jitter| reconnect_pause(failures, hint, jitter, &limits));
        pauses.max().unwrap_or_default().as_millis()
    }

    #[test]
    fn backoff_is_random_below_a_limit_that_doubles_to_30_seconds() {
        assert_eq!(longest(0, None), 1000);
        assert_eq!(longest(1, None), 2000);
        assert_eq!(longest(4, None), 16_000);
        assert_eq!(longest(5, None), 30_000);
        assert_eq!(longest(1000, None), 30_000);
        assert_eq!(
            reconnect_pause(3, None, 0, &Limits::default()),
            Duration::ZERO
        );
    }

    #[test]
    fn a_hint_widens_the_bound_and_never_narrows_it() {
        assert_eq!(longest(0, Some(9000)), 9000);
        assert_eq!(longest(3, Some(9000)), 9000);
        assert_eq!(longest(4, Some(9000)), 16_000);
        assert_eq!(longest(0, Some(1)), 1000);
        assert_eq!(longest(0, Some(60_000)), 30_000);
        let hint = Some(Duration::MAX);
        assert_eq!(
            reconnect_pause(0, hint, 0, &Limits::default()),
            Duration::ZERO
        );
    }

    #[test]
    fn clients_with_one_hint_come_evenly_over_it() {
        let (limits, hint) = (Limits::default(), Some(Duration::from_secs(20)));
        let mut chance = StdRng::seed_from_u64(7);
        let mut seconds = [0; 20];
        for _ in 0..20_000 {
            let pause = reconnect_pause(0, hint, chance.next_u64(), &limits);
            seconds[(pause.as_secs() as usize).min(19)] += 1;
        }
        for (second, clients) in seconds.into_iter().enumerate() {
            assert!((850..1150).contains(&clients), "{second}: {clients}");
        }
    }

    #[test]
    fn two_programs_of_one_name_do_not_look_stable() {
        let limits = Limits::default();
        assert!(limits.stable > limits.backoff_max + limits.welcome);
    }
}
