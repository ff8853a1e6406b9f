//! All embedded parts over one engine.

use std::sync::Arc;

use protocol::mailbox::SessionCapacity;

use crate::audit::EmbeddedAudit;
use crate::cache::{CacheConfig, EmbeddedCache};
use crate::changes::EmbeddedChanges;
use crate::clock::{Clock, Entropy};
use crate::conversations::EmbeddedConversations;
use crate::devices::EmbeddedDevices;
use crate::discovery::EmbeddedRegistry;
use crate::embedded::Engine;
use crate::groups::EmbeddedGroups;
use crate::heads::EmbeddedHeads;
use crate::installation::EmbeddedInstallation;
use crate::ledger::EmbeddedLedger;
use crate::mailbox::{EmbeddedMailbox, MailboxConfig};
use crate::messages::EmbeddedMessages;
use crate::queue::{EmbeddedQueue, QueueConfig};
use crate::revocations::EmbeddedRevocations;
use crate::timeline::{EmbeddedTimeline, TimelineConfig};
use crate::{Backends, Result};

/// Settings of those parts that have any.
#[derive(Clone, Debug, Default)]
pub struct EmbeddedConfig {
    pub queue: QueueConfig,
    pub mailbox: MailboxConfig,
    pub sessions: SessionCapacity,
    pub timeline: TimelineConfig,
    pub cache: CacheConfig,
}

/// All parts behind their seams; some also as themselves, for uses beyond the seam: upkeep, losses
/// in tests.
pub struct Embedded {
    pub backends: Backends,
    pub queue: Arc<EmbeddedQueue>,
    pub mailbox: Arc<EmbeddedMailbox>,
    pub groups: Arc<EmbeddedGroups>,
    pub registry: Arc<EmbeddedRegistry>,
}

impl Embedded {
    /// # Errors
    /// Settings that cannot work, and data that cannot be read.
    pub fn open(
        engine: &Engine,
        config: EmbeddedConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Embedded> {
        let queue = EmbeddedQueue::open(engine.clone(), config.queue, clock.clone())?;
        let mailbox = EmbeddedMailbox::open(engine.clone(), &config.mailbox, entropy.as_ref())?;
        let mailbox = mailbox.with_sessions(config.sessions);
        let (queue, mailbox) = (Arc::new(queue), Arc::new(mailbox));
        let groups = Arc::new(EmbeddedGroups::new(engine.clone(), clock.clone()));
        let registry = Arc::new(EmbeddedRegistry::new(engine.clone()));
        let backends = Backends {
            queue: queue.clone(),
            mailbox: mailbox.clone(),
            messages: Arc::new(EmbeddedMessages::new(engine.clone())),
            heads: Arc::new(EmbeddedHeads::new(engine.clone())),
            conversations: Arc::new(EmbeddedConversations::new(engine.clone())),
            changes: Arc::new(EmbeddedChanges::new(engine.clone())),
            groups: groups.clone(),
            timeline: Arc::new(EmbeddedTimeline::new(config.timeline)?),
            cache: Arc::new(EmbeddedCache::new(config.cache)),
            devices: Arc::new(EmbeddedDevices::new(engine.clone())),
            ledger: Arc::new(EmbeddedLedger::open(engine.clone())?),
            audit: Arc::new(EmbeddedAudit::new(engine.clone())),
            installation: Arc::new(EmbeddedInstallation::new(engine.clone())),
            revocations: Arc::new(EmbeddedRevocations::new(engine.clone())),
            registry: registry.clone(),
            clock,
            entropy,
        };
        Ok(Embedded {
            backends,
            queue,
            mailbox,
            groups,
            registry,
        })
    }
}
