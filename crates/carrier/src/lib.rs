//! Carrier: takes what was accepted out of the log, gives it its place, writes it down, and sees to it
//! that everybody it is owed to gets it.
//!
//! ```text
//! topic message ─▶ intake ─▶ writer ───────────────┐   place, groups, rows, heads, conversation rows
//! retry-1 … 5   ─▶ tier (one each) ─ held till due ┤
//!                                                  ▼
//!                    executor: the loop that owns protocol::Delivery
//!                      │ route_or_store   │ batches           │ settled
//!                      ▼                  ▼                   ▼
//!                    mailbox            fleet ─▶ boats      settler: retries, dead letters,
//!                                                             notifications, ledger; then offsets
//! ```
//!
//! [`start`] makes one out of [`Backends`](backend::Backends); it ends when its token is cancelled: it stops polling,
//! finishes or abandons what is in flight, commits, and leaves the group.

mod backoff;
mod batch;
mod config;
mod consumer;
pub mod dead_letters;
mod executor;
mod fleet;
mod intake;
mod kickout;
mod metrics;
mod outbox;
mod platforms;
mod progress;
mod records;
mod roster;
mod router;
mod routes;
mod settler;
mod spans;
mod standings;
mod start;
mod stores;
mod tier;
mod work;
mod writer;

pub use config::Config;
pub use dead_letters::DeadLetters;
pub use start::{GROUP, Running, StartError, start};

#[cfg(test)]
mod tests;
