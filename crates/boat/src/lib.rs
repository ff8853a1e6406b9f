//! A boat holds the connections of clients: WebSocket and TCP in front, stations and carriers
//! behind.
//!
//! [`protocol::session::Session`] decides what a connection may do and when; this crate moves its
//! bytes.
//!
//! A room uses those after it: `start` makes the others and spawns their tasks, `door` lets clients
//! in, `downlink` takes pushes, `membership` keeps the boat and its sessions registered, `leaving`
//! sends clients away, `uplink` calls stations, `connection` drives sockets, and `stack` turns bytes
//! into frames. All read `status`: the lease, the phase, and what is short. A connection alone also uses what is before it: uplink, downlink and its place at
//! the door.

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
mod traces;
mod uplink;

#[cfg(test)]
mod tests;

pub use config::{ACCEPTS_PER_CORE, Config};
pub use door::connection_limit::AddressUsage;
pub use door::listener;
pub use door::listener::PipeListener;
pub use start::{BoatHandle, BoatParts, StartError, start};
