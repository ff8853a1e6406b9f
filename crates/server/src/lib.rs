//! The program `packetboat`: reads the settings, chooses the parts, starts and stops.

// `cli::terminal` prints: it survives a closed pipe, and text of others steers no terminal there.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod compose;
pub mod edges;
pub mod settings;
pub mod telemetry;
