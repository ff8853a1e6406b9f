//! Station: admits sessions, accepts messages into the log, and answers what the server keeps.
//!
//! A station keeps nothing itself: any number of them serve the same boats. [`start`] makes one out
//! of [`Backends`](backend::Backends); it ends when its token is cancelled, after the calls in
//! flight.

mod accept;
mod admission;
mod assembly;
pub mod auth;
mod boat_clients;
mod change_check;
mod config;
mod deadline;
mod grpc;
pub mod http;
mod ids;
mod installation;
mod kickout;
mod last_received;
mod limits;
mod mail;
mod membership;
mod metrics;
mod owner_questions;
mod part_spawner;
mod publisher;
mod read;
mod read_markers;
mod receipt_notifier;
mod receipts;
mod renewal;
mod revocations;
pub mod sessions;
mod start;
pub mod tickets;
mod workers;

pub use config::Config;
pub use start::{StartError, StationHandle, start};

#[cfg(test)]
mod test_time;
#[cfg(test)]
mod tests;
