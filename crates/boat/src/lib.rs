//! A boat holds the connections of clients: WebSocket and TCP in front, stations and carriers
//! behind.
//!
//! [`protocol::session::Session`] decides what a connection may do and when; this crate moves its
//! bytes.

mod address_limits;
mod arrivals;
mod batch_queue;
mod boat;
mod boat_lease;
mod call_limit;
mod certificates;
mod config;
mod connection;
mod connection_driver;
mod connection_limit;
mod connection_loop;
mod connections;
mod deliver_streams;
mod drain;
mod grpc;
pub mod listener;
mod memory;
mod metrics;
mod pace;
mod reregister;
mod revocations;
pub mod stack;
mod stall_detector;
mod start;
mod station_pool;
mod station_queues;
mod timer_wheel;
mod tracer;
mod traces;
mod urgent;

#[cfg(test)]
mod tests;

pub use config::{ACCEPTS_PER_CORE, Config};
pub use connection_limit::AddressUsage;
pub use listener::PipeListener;
pub use start::{BoatHandle, BoatParts, StartError, start};
