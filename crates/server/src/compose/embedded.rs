//! The embedded parts, on one directory or in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::transport::Connector;
use backend::Backends;
use backend::audit::EmbeddedAudit;
use backend::cache::{CacheConfig, EmbeddedCache};
use backend::changes::EmbeddedChanges;
use backend::clock::{Clock, Entropy, SystemClock, SystemEntropy};
use backend::conversations::EmbeddedConversations;
use backend::devices::EmbeddedDevices;
use backend::discovery::EmbeddedRegistry;
use backend::embedded::{Engine, EngineOptions};
use backend::group_history::EmbeddedGroupHistory;
use backend::groups::EmbeddedGroups;
use backend::heads::EmbeddedHeads;
use backend::history::EmbeddedHistory;
use backend::installation::EmbeddedInstallation;
use backend::ledger::EmbeddedLedger;
use backend::mailbox::{EmbeddedMailbox, MailboxConfig};
use backend::queue::{EmbeddedQueue, QueueConfig};
use backend::revocations::EmbeddedRevocations;
use backend::timeline::{EmbeddedTimeline, TimelineConfig};
use protocol::mailbox::SessionCapacity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::upkeep::Upkeep;

/// Section `embedded`: the parts inside `packetboat all`.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory of all data; made if it is missing.
    pub data: PathBuf,
    /// Age at which the ledger forgets a message. At least `queue.retention_unread` and
    /// `queue.retention` together: a dead letter that is sent on its way again stays in the log for
    /// both, and the audit would miss it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ledger_retention: Duration,
    /// Section `embedded.engine`: the store on disk.
    pub engine: EngineOptions,
    /// Section `embedded.queue`: the log.
    pub queue: QueueConfig,
    /// Section `embedded.mailbox`: messages that wait for devices.
    pub mailbox: MailboxConfig,
    /// Section `embedded.timeline`: the newest messages of groups.
    pub timeline: TimelineConfig,
    /// Section `embedded.cache`: copies of what history has.
    pub cache: CacheConfig,
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
            cache: CacheConfig::default(),
        }
    }
}

impl Environment {
    /// On a directory that no other process uses.
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

    /// Gone with the process.
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
        let queue = EmbeddedQueue::open(engine.clone(), config.queue.clone(), clock.clone())?;
        let mailbox = EmbeddedMailbox::open(engine.clone(), &config.mailbox, entropy.as_ref())?;
        let mailbox = mailbox.with_sessions(sessions);
        let (queue, mailbox) = (Arc::new(queue), Arc::new(mailbox));
        let ledger = Arc::new(EmbeddedLedger::open(engine.clone())?);
        let groups = Arc::new(EmbeddedGroups::new(engine.clone(), clock.clone()));
        let upkeep = Upkeep {
            queue: queue.clone(),
            mailbox: mailbox.clone(),
            ledger: ledger.clone(),
            groups: groups.clone(),
            ledger_retention: config.ledger_retention,
            clock: clock.clone(),
        };
        let backends = Backends {
            queue,
            mailbox,
            history: Arc::new(EmbeddedHistory::new(engine.clone())),
            heads: Arc::new(EmbeddedHeads::new(engine.clone())),
            conversations: Arc::new(EmbeddedConversations::new(engine.clone())),
            changes: Arc::new(EmbeddedChanges::new(engine.clone())),
            groups,
            group_history: Arc::new(EmbeddedGroupHistory::new(engine.clone())),
            timeline: Arc::new(EmbeddedTimeline::new(config.timeline.clone())?),
            cache: Arc::new(EmbeddedCache::new(config.cache.clone())?),
            devices: Arc::new(EmbeddedDevices::new(engine.clone())),
            ledger,
            audit: Arc::new(EmbeddedAudit::new(engine.clone())),
            installation: Arc::new(EmbeddedInstallation::new(engine.clone())),
            revocations: Arc::new(EmbeddedRevocations::new(engine.clone())),
            registry: Arc::new(EmbeddedRegistry::new(engine)),
            clock,
            entropy,
        };
        Ok(Environment {
            backends,
            connector: Connector::default(),
            upkeep: Some(upkeep),
        })
    }
}
