//! A boat holds the connections of clients: WebSocket and TCP in front, stations and carriers behind.
//!
//! What a connection may do and when is decided by [`protocol::session::Session`]; here bytes are moved.

mod address_limits;
mod boat;
mod call_limit;
mod certificates;
mod config;
mod connection;
mod connection_driver;
mod connection_limit;
mod connection_loop;
mod connections;
mod drain;
mod gather;
mod lanes;
pub mod listener;
mod memory;
mod metrics;
mod pace;
mod pauses;
mod registration;
mod revocations;
mod running;
mod service;
mod sources;
pub mod stack;
mod stations;
mod sweep;
mod timer_wheel;
mod traced;
mod tracer;
mod urgent;

#[cfg(test)]
mod tests;

pub use config::{ACCEPTS_PER_CORE, Config};
pub use running::{Parts, Running, StartError, start};
