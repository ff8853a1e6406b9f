//! The carrier's brain: from a placed message to an end for everybody it is owed to.
//!
//! ```text
//!   handle_task ──▶ Route ──handle_routed──▶ Push ──handle_outcome──▶ …
//!                     │                       │  done          ▶ ended
//!                     │ nobody there          │  no session    ▶ Forget, Route again
//!                     ▼                       │  full          ▶ Route (store by force), hint
//!                   stored, or left to sync   ▼  no ack, unreachable ▶ close, failed
//!   all ended or failed ──▶ Settled { retries of what failed | dead letter, notifications, ledger }
//! ```
//!
//! A *leg* is one record on its way to one (user, platform). Legs of a lane keep order, lanes do not
//! wait for each other, and nothing sleeps: a device that never acknowledges costs its own lane. Every
//! session of the platform gets the message; the newest one's answer decides (S1-20, S1-21).

mod action;
mod arena;
mod backoff;
mod budget;
mod lanes;
mod machine;
mod offsets;
mod plan;
mod settle;
mod task;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use action::{
    Action, Letter, Load, Notice, Outcome, Push, PushToken, Retry, Route, RouteFailure, RouteToken,
    Settlement, Word,
};
pub use backoff::Tiers;
pub use machine::Delivery;
pub use offsets::{Offsets, PartitionKey};
pub use plan::{PLATFORM_KNOWN_FOR, owed, owed_to, told};
pub use task::{Origin, Owed, Source, Task};

/// The bounds of a [`Delivery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of records in flight never falls below this, however slow devices are.
    pub in_flight_min: usize,
    /// Nor rises above this; a task beyond the present budget is handed back.
    pub in_flight_max: usize,
    /// Users of all records in flight from which on no further task is taken. The last one may exceed it.
    pub users_in_flight_max: usize,
    /// Bytes of their frames, in the same way.
    pub bytes_in_flight_max: usize,
    /// Above this mean wait for acknowledgements the budget shrinks.
    pub ack_latency_target: Duration,
    /// Pushes of a lane that are not answered; later ones wait.
    pub lane_window: usize,
    /// Legs in a lane, waiting or pushed; one more is stored instead, and the session hinted.
    pub lane_max: usize,
    /// What boats give a client to acknowledge. The machine waits half as long again, for a boat that
    /// does not answer.
    pub ack_wait: Duration,
    /// Routes again after *no such session*, in one attempt.
    pub reroutes_max: u8,
    /// From this retry on the receiver counts as offline.
    pub offline_after: u32,
    /// A failure beyond this retry is a dead letter.
    pub retry_max: u32,
    pub tiers: Tiers,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            in_flight_min: 1024,
            in_flight_max: 16_384,
            users_in_flight_max: 262_144,
            bytes_in_flight_max: 64 << 20,
            ack_latency_target: Duration::from_secs(1),
            lane_window: 64,
            lane_max: 512,
            ack_wait: Duration::from_secs(2),
            reroutes_max: 2,
            offline_after: 3,
            retry_max: 6,
            tiers: Tiers::default(),
        }
    }
}

impl Limits {
    /// How long a push may stay unanswered.
    pub fn push_deadline(&self) -> Duration {
        self.ack_wait + self.ack_wait / 2
    }
}
