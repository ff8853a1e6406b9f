//! Carrier: consumes accepted messages from the log, gives each its place, writes it, and delivers
//! it to everybody it is owed to.
//!
//! ```text
//! topic message ─▶ message_consumer ─▶ writer ───────────────┐   place, groups, rows, heads, conversation rows
//! retry-1 … 5   ─▶ retry_consumer (one each) ─ held till due ┤
//!                                                            ▼
//!                    executor: the loop that owns protocol::Delivery
//!                      │ route_or_store   │ batches               │ settled
//!                      ▼                  ▼                       ▼
//!                    mailbox            boat_streams ─▶ boats   settler: retries, dead letters,
//!                                                                 notifications, ledger; then offsets
//! ```
//!
//! [`start`] makes a carrier out of [`Backends`](backend::Backends). A carrier ends when its token
//! is cancelled: it stops polling, finishes or abandons the records in flight, commits, and leaves
//! the group.

mod backoff;
mod boat_directory;
mod boat_outbox;
mod boat_streams;
mod config;
mod deadline;
mod decoded_record;
mod executor;
mod executor_queue;
mod kickout;
mod message_consumer;
mod metrics;
mod offsets;
mod partition_consumer;
mod platforms;
mod records;
mod retry_consumer;
mod router;
mod settler;
mod spans;
mod start;
mod writer;

pub use config::Config;
pub use start::{CarrierHandle, GROUP, StartError, start, start_with};

#[cfg(test)]
mod tests;
