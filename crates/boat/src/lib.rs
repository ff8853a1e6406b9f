//! A boat holds the connections of clients: WebSocket and TCP in front, stations and carriers
//! behind.
//!
//! [`protocol::session::Session`] decides what a connection may do and when; this crate moves its
//! bytes.

mod config;
mod connection;
mod door;
mod downlink;
mod leaving;
mod membership;
mod metrics;
pub mod stack;
mod start;
mod status;
mod tracing;
mod uplink;

#[cfg(test)]
mod tests;

pub use config::{ACCEPTS_PER_CORE, Config};
pub use door::connection_limit::AddressUsage;
pub use door::listener;
pub use door::listener::PipeListener;
pub use start::{BoatHandle, BoatParts, StartError, start};
