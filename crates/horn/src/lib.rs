//! Horn: tells absent users that they have mail.
//!
//! It consumes the topic `notification`, asks a provider to tell each target once, and commits what has
//! an outcome. Nothing waits for it: a provider that is slow or gone costs notifications, never messages.
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
pub use provider::{Provider, ProviderError, Push, Recorder, Webhook};
pub use start::{Parts, Running, StartError, start, start_with};

/// The consumer group of every horn.
pub const GROUP: &str = "horn";

#[cfg(test)]
mod tests;
