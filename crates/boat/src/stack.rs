//! From bytes to frames and back, as values: no IO, no clock, no task. The caller moves the bytes.

mod outbox;
pub mod tls;
pub mod websocket;
mod wire;

pub use outbox::Outbox;
pub use tls::Tls;
pub use wire::{ClientInput, Wire};
