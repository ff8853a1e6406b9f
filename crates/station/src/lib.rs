//! Station: admits sessions, accepts messages into the log, and answers what the server keeps.
//!
//! It keeps nothing itself: any number of stations serve the same boats. [`start`] makes one out of
//! [`Backends`](backend::Backends); it ends when its token is cancelled, after the calls in flight.

mod accept;
mod admission;
pub mod auth;
mod background;
mod boats;
mod cached;
mod changing;
mod config;
mod current;
mod deadline;
mod groups;
mod heads;
pub mod http;
mod ids;
mod installation;
mod kickout;
mod limits;
mod mail;
mod membership;
mod metrics;
mod missed;
mod pages;
mod publisher;
mod receipt_notifier;
mod receipts;
mod received;
mod recent;
mod records;
mod renewal;
mod revocations;
mod seen;
mod service;
pub mod sessions;
mod start;
mod sync;
pub mod tickets;

pub use config::Config;
pub use start::{Running, StartError, start};

#[cfg(test)]
mod tests;
