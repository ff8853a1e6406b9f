//! The client's own bounds and waits, with their names and defaults.

use std::time::Duration;

/// What a client may hold and how long it waits. The server's bounds come with its welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long the first, second and third try of a send wait for their answer before the next.
    pub resend_after: [Duration; 3],
    /// How long the last try waits for its answer; then the send has failed.
    pub last_answer: Duration,
    /// How long a send waits that was refused for now and got no hint when to come again.
    pub refused_wait: Duration,
    /// How long an accepted send waits to hear of its place; then its conversation is looked at.
    pub placed: Duration,
    /// Sends transmitted in one second; beyond, they wait for the next. Keeps below what a boat takes
    /// from one connection before it ends it as *rate limited*.
    pub sends_per_second: u32,
    /// Sends that are neither accepted nor given up; beyond, a new one is refused.
    pub outbox_max: usize,
    /// Accepted sends whose status is followed; beyond, the oldest is followed no longer.
    pub followed_max: usize,
    /// Messages shown that the application has not taken; beyond, nothing is shown or acknowledged
    /// until it takes some, and what comes meanwhile is fetched again later.
    pub untaken_max: usize,
    /// Messages kept aside because one before them is missing; beyond, they are fetched with it.
    pub held_max: usize,
    /// Messages a page of history is asked to have.
    pub page: u32,
    /// Conversations whose history is fetched at the same time.
    pub fetches_max: usize,
    /// How long a question waits for its answer; then it is asked again.
    pub answer: Duration,
    /// The longest pause before a question is asked again.
    pub ask_again_max: Duration,
    /// Acknowledgements in one frame.
    pub ack_batch: usize,
    /// Acknowledgements that the server has not confirmed; beyond, the oldest is forgotten: the server
    /// sends its message again, and it is acknowledged again.
    pub acks_max: usize,
    /// How long acknowledgements wait to be confirmed; then they are sent again.
    pub ack_again: Duration,
    /// From the open connection to the welcome.
    pub welcome: Duration,
    /// How long a ping may stay without any frame in answer.
    pub pong: Duration,
    /// The first pause before connecting again is random, between zero and this, or the server's hint where
    /// that is longer; each further one doubles the bound …
    pub backoff: Duration,
    /// … up to this, whatever the hint.
    pub backoff_max: Duration,
    /// A connection that lived this long makes the next pause a first one. More than `backoff_max` and
    /// `welcome` together, or two programs under one device's name are never found out.
    pub stable: Duration,
    /// Connections in a row, none of them stable, that may be replaced by another one of this device. Its
    /// own given-up ones explain a few; beyond, another program bears this device's name, and the client
    /// ends as *displaced* instead of fighting it for ever.
    pub replaced_max: u32,
    /// How long a client connects again where another installation answers its user, before it believes that:
    /// one server of many may be wrong, or just set up anew.
    pub other_installation: Duration,
    /// How long a device may have been away and still be caught up from where it was.
    pub absence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Limits {
            resend_after: [secs(1), secs(2), secs(4)],
            last_answer: secs(4),
            refused_wait: Duration::from_millis(200),
            placed: secs(10),
            sends_per_second: 1500,
            outbox_max: 10_000,
            followed_max: 1024,
            untaken_max: 256,
            held_max: 1024,
            page: 100,
            fetches_max: 4,
            answer: secs(10),
            ask_again_max: secs(20),
            ack_batch: 256,
            acks_max: 4096,
            ack_again: secs(5),
            welcome: secs(10),
            pong: secs(10),
            backoff: secs(1),
            backoff_max: secs(30),
            stable: secs(45),
            replaced_max: 4,
            other_installation: secs(60),
            absence_max: secs(24 * 3600),
        }
    }
}
