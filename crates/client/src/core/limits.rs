//! The client's own bounds and waits, with their names and defaults.

use std::time::Duration;

/// Capacities and timeouts of a client. The server's bounds come with its welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time the first, second and third try of a send wait for an answer before the next; or twice
    /// the round trip of the connection, if that is longer.
    pub resend_after: [Duration; 3],
    /// Time the last try waits for its answer, likewise; then the send has failed.
    pub last_answer: Duration,
    /// Pause of a send that was refused for now without a hint when to come again.
    pub refused_wait: Duration,
    /// Time an accepted send waits for its position; then its conversation is checked.
    pub placement: Duration,
    /// Sends transmitted per second; further ones wait for the next second. Stays below the rate at
    /// which a boat ends a connection as *rate limited*.
    pub sends_per_second: u32,
    /// Sends neither accepted nor given up; beyond, a new one is refused.
    pub outbox_max: usize,
    /// Accepted sends whose status is followed; beyond, the oldest is no longer followed.
    pub followed_max: usize,
    /// Messages shown that the application has not taken; beyond, nothing is shown or acknowledged
    /// until it takes some, and messages that come meanwhile are fetched again later.
    pub untaken_max: usize,
    /// Messages held because an earlier one is missing; beyond, they are fetched with it.
    pub held_max: usize,
    /// Messages requested per page of history.
    pub page: u32,
    /// Conversations whose history is fetched at the same time.
    pub fetches_max: usize,
    /// Time a query waits for its answer; then it is asked again.
    pub answer: Duration,
    /// Longest pause before a query is asked again.
    pub ask_again_max: Duration,
    /// Acknowledgements in one frame.
    pub ack_batch: usize,
    /// Acknowledgements the server has not confirmed; beyond, the oldest is forgotten: the server
    /// sends its message again, and it is acknowledged again.
    pub acks_max: usize,
    /// Time acknowledgements wait for confirmation; then they are sent again.
    pub ack_again: Duration,
    /// Least time between two read positions of one large group that are sent.
    pub large_read_interval: Duration,
    /// Time from the open connection to the welcome.
    pub welcome: Duration,
    /// Time a ping may go without any frame in answer.
    pub pong: Duration,
    /// The first pause before a reconnect is random, between zero and this, or the server's hint if
    /// longer; each further failure doubles the bound …
    pub backoff: Duration,
    /// … up to this, whatever the hint.
    pub backoff_max: Duration,
    /// Age at which a connection makes the next pause a first one. More than `backoff_max` and
    /// `welcome` together, or two programs under one device's name are never found out.
    pub stable: Duration,
    /// Unstable connections in a row that another connection of this device may replace.
    /// Connections that the device itself abandoned explain a few; beyond, another program uses
    /// this device's name, and the client ends as *displaced* instead of fighting it forever.
    pub replaced_max: u32,
    /// Time a client keeps reconnecting while another installation answers its user, before it
    /// believes that: one server of many may be wrong, or newly set up.
    pub other_installation: Duration,
    /// Age of the last shown message up to which a device is caught up from its cursor.
    pub absence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Limits {
            resend_after: [secs(1), secs(2), secs(4)],
            last_answer: secs(4),
            refused_wait: Duration::from_millis(200),
            placement: secs(10),
            sends_per_second: 1500,
            outbox_max: 10_000,
            followed_max: 1024,
            untaken_max: 256,
            held_max: 1024,
            page: 100,
            fetches_max: 4,
            answer: secs(30),
            ask_again_max: secs(20),
            ack_batch: 256,
            acks_max: 4096,
            ack_again: secs(5),
            large_read_interval: secs(10),
            welcome: secs(20),
            pong: secs(20),
            backoff: secs(1),
            backoff_max: secs(30),
            stable: secs(55),
            replaced_max: 4,
            other_installation: secs(60),
            absence_max: secs(24 * 3600),
        }
    }
}
