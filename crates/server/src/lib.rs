//! The program `packetboat`: reads the settings, chooses the parts, starts and stops.

pub mod cli;
pub mod compose;
pub mod edges;
pub mod settings;
pub mod telemetry;
