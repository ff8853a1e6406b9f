//! The embedded parts, on one directory or in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::transport::Connector;
use backend::cache::CacheConfig;
use backend::clock::{Clock, Entropy, SystemClock, SystemEntropy};
use backend::embedded::{Engine, EngineOptions};
use backend::mailbox::MailboxConfig;
use backend::queue::QueueConfig;
use backend::timeline::TimelineConfig;
use backend::{Embedded, EmbeddedConfig};
use protocol::mailbox::SessionCapacity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::upkeep::Upkeep;

/// Section `embedded`: parts inside `packetboat all`.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory of all data; created if it is missing.
    pub data: PathBuf,
    /// Age at which the ledger forgets a message. At least the sum of
    /// `embedded.queue.retention_unread` and `embedded.queue.retention`: a redriven dead letter
    /// stays in the log for both, and the audit would report it missing.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ledger_retention: Duration,
    /// Section `embedded.engine`: the store on disk.
    pub engine: EngineOptions,
    /// Section `embedded.queue`: the log.
    pub queue: QueueConfig,
    /// Section `embedded.mailbox`: messages waiting for devices.
    pub mailbox: MailboxConfig,
    /// Section `embedded.timeline`: the newest messages of groups.
    pub timeline: TimelineConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data: PathBuf::from("data"),
            ledger_retention: Duration::from_secs(60 * 86_400),
            engine: EngineOptions::default(),
            queue: QueueConfig::default(),
            mailbox: MailboxConfig::default(),
            timeline: TimelineConfig::default(),
        }
    }
}

impl Environment {
    /// Opens an environment on a directory that no other process uses.
    pub fn on_disk(dir: &Path, config: &Config, sessions: SessionCapacity) -> Result<Environment> {
        let engine = Engine::open(dir, config.engine.clone())
            .with_context(|| format!("opening the data in {}", dir.display()))?;
        Environment::over(
            engine,
            config,
            sessions,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    /// Opens an environment in memory, gone with the process.
    pub fn in_memory(config: &Config, sessions: SessionCapacity) -> Result<Environment> {
        Environment::over(
            Engine::memory(),
            config,
            sessions,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    pub fn over(
        engine: Engine,
        config: &Config,
        sessions: SessionCapacity,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Environment> {
        let parts = EmbeddedConfig {
            queue: config.queue.clone(),
            mailbox: config.mailbox.clone(),
            sessions,
            timeline: config.timeline.clone(),
            cache: CacheConfig::default(),
        };
        let takes_writes = engine.takes_writes();
        let parts = Embedded::open(&engine, parts, clock.clone(), entropy)?;
        let backends = parts.backends;
        let upkeep = Upkeep {
            queue: parts.queue,
            mailbox: parts.mailbox,
            ledger: backends.ledger.clone(),
            groups: parts.groups,
            ledger_retention: config.ledger_retention,
            clock,
        };
        Ok(Environment {
            backends,
            connector: Connector::default(),
            upkeep: Some(upkeep),
            takes_writes: Some(takes_writes),
        })
    }
}
