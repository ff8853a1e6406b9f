//! Plugs parts together into a running system.

mod around;
#[cfg(feature = "cluster")]
mod cluster;
pub mod embedded;
mod environment;
#[cfg(feature = "cluster")]
pub mod identity;
#[cfg(feature = "cluster")]
pub mod process;
mod provers;
mod readiness;
mod system;
mod upkeep;

use std::sync::Arc;

use backend::messages::MessageStore;

use crate::settings::Settings;

pub use around::{Around, Bare};
#[cfg(feature = "cluster")]
pub use cluster::dial;
pub use environment::Environment;
pub use provers::StationProvers;
pub use system::System;

/// Connects the message store alone, as the settings have it.
#[cfg(feature = "cluster")]
pub async fn messages(settings: &Settings) -> anyhow::Result<Arc<dyn MessageStore>> {
    cluster::messages(settings).await
}

/// Fails: this program was built without the real parts.
#[cfg(not(feature = "cluster"))]
pub async fn messages(_: &Settings) -> anyhow::Result<Arc<dyn MessageStore>> {
    anyhow::bail!("this binary was built without Kafka, Redis, etcd and ScyllaDB")
}
