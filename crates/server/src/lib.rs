//! Chooses the parts, reads the settings, starts and stops: the program `packetboat`.

pub mod admin;
pub mod cli;
pub mod compose;
pub mod edges;
mod http;
pub mod phase;
pub mod pulse;
pub mod settings;
pub mod telemetry;
