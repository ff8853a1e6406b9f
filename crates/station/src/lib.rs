//! Station: admits sessions, accepts messages into the log, and answers what the server keeps.
//!
//! A station keeps nothing itself: any number of them serve the same boats. [`start`] makes one out
//! of [`Backends`](backend::Backends); it ends when its token is cancelled, after the calls in
//! flight.

mod accept;
pub mod auth;
mod boat_clients;
mod config;
mod grpc;
pub mod http;
mod installation;
mod limits;
mod membership;
mod metrics;
mod part_spawner;
mod read;
mod receipts;
mod session;
mod start;
mod stores;
mod work_queue;

pub use config::Config;
pub use session::tickets;
pub use start::{StartError, StationHandle, start};

#[cfg(test)]
mod test_time;
#[cfg(test)]
mod tests;
