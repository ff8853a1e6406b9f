//! From bytes to frames and back, as values: no IO, no clock, no task. Whoever drives it moves the bytes.

pub mod tls;
pub mod websocket;
mod wire;

pub use wire::{Received, Wire};
