//! The carrier's state machine: takes a placed message to an end for every user it is owed to.
//!
//! ```text
//!   handle_task ──▶ Route ──handle_routed──▶ Push ──handle_outcome──▶ …
//!                     │                       │  done          ▶ ended
//!                     │ nobody there          │  no session    ▶ Forget, Route again
//!                     ▼                       │  full          ▶ Route (store by force), hint
//!                   stored, or left to sync   ▼  no ack, unreachable ▶ failed
//!   all ended or failed ──▶ Settled { retries of what failed | dead letter, notifications, ledger }
//! ```
//!
//! A *leg* is one record on its way to one (user, platform). Legs of a lane keep order, lanes do
//! not wait for each other, and nothing sleeps: a device that never acknowledges costs its own
//! lane. Every session of the platform gets the message; the newest session's answer decides
//! (S1-20, S1-21).

mod action;
mod arena;
mod budget;
mod lanes;
mod machine;
mod offsets;
mod plan;
mod settle;
mod task;
#[cfg(test)]
mod tests;
mod tiers;

use std::time::Duration;

pub use action::{Action, DeliveryLoad, FailedPart, Notice, Retry, SessionEvent, Settlement};
pub use machine::{Delivery, Push, PushOutcome, PushToken, Route, RouteFailure, RouteToken};
pub use offsets::{OffsetTracker, PartitionKey};
pub use plan::{PLATFORM_KNOWN_FOR, group_obligations, live_only, obligations};
pub use task::{DeliveryTask, Obligation, Origin, Source};
pub use tiers::{Tiers, retry_wait};

/// Limits of a [`Delivery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryLimits {
    /// Lower bound of the budget of records in flight, however slow devices are.
    pub in_flight_min: usize,
    /// Upper bound of the budget; a task beyond the present budget is handed back.
    pub in_flight_max: usize,
    /// Users of all records in flight at which no further task is taken. The last task may exceed
    /// it.
    pub users_in_flight_max: usize,
    /// Bytes of all frames in flight, likewise.
    pub bytes_in_flight_max: usize,
    /// Mean acknowledgement latency above which the budget shrinks.
    pub ack_latency_target: Duration,
    /// Unanswered pushes per lane; later ones wait.
    pub lane_window: usize,
    /// Legs per lane, waiting or pushed; a further one is stored instead, and the session gets a
    /// hint.
    pub lane_max: usize,
    /// Time that boats give a client to acknowledge. The machine waits half as long again, for a
    /// boat that does not answer.
    pub ack_wait: Duration,
    /// New routes after *no such session*, per attempt.
    pub reroutes_max: u8,
    /// Retry from which on the receiver counts as offline.
    pub offline_after: u32,
    /// Last retry: a failure beyond it becomes a dead letter.
    pub retry_max: u32,
    pub tiers: Tiers,
}

impl Default for DeliveryLimits {
    fn default() -> Self {
        DeliveryLimits {
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

impl DeliveryLimits {
    /// Deadline of a push, from its start.
    pub fn push_deadline(&self) -> Duration {
        self.ack_wait + self.ack_wait / 2
    }
}
