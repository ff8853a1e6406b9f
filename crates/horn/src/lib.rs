//! Horn: notifies absent users of new messages.
//!
//! Consumes the topic `notification`, asks a provider to notify each target once, and commits the
//! notifications that have an outcome. Nothing waits for it: a slow or dead provider costs
//! notifications, never messages.
//!
//! ```text
//! topic notification ─▶ consumer ─▶ collapse ─▶ provider ─▶ ledger ─▶ commit
//!                                      ▲           │ failed: wait, again
//!                                      └───────────┴ for good ─▶ topic notification-dead
//! ```

mod config;
mod consumer;
mod metrics;
pub mod provider;
mod start;

pub use config::{Config, ProviderKind};
pub use provider::{Provider, ProviderError, ProviderPush, Recorder, Webhook};
pub use start::{HornHandle, Parts, StartError, start, start_with};

/// The consumer group of every horn.
pub const GROUP: &str = protocol::keys::HORNS;

#[cfg(test)]
mod tests;
