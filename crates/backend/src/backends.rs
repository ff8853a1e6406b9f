//! All parts outside the process.

mod embedded;

use std::sync::Arc;

pub use self::embedded::{Embedded, EmbeddedConfig};
use crate::audit::AuditStore;
use crate::cache::Cache;
use crate::changes::ChangeStore;
use crate::clock::{Clock, Entropy};
use crate::conversations::ConversationStore;
use crate::devices::DeviceStore;
use crate::discovery::Registry;
use crate::groups::GroupStore;
use crate::heads::HeadStore;
use crate::hook::{Hook, Hooked};
use crate::installation::InstallationStore;
use crate::ledger::LedgerStore;
use crate::mailbox::MailboxStore;
use crate::messages::MessageStore;
use crate::queue::Queue;
use crate::revocations::RevocationStore;
use crate::timeline::Timeline;

/// Handles of all seams, with time and chance.
#[derive(Clone)]
pub struct Backends {
    pub queue: Arc<dyn Queue>,
    pub mailbox: Arc<dyn MailboxStore>,
    pub messages: Arc<dyn MessageStore>,
    pub heads: Arc<dyn HeadStore>,
    pub conversations: Arc<dyn ConversationStore>,
    pub changes: Arc<dyn ChangeStore>,
    pub groups: Arc<dyn GroupStore>,
    pub timeline: Arc<dyn Timeline>,
    pub cache: Arc<dyn Cache>,
    pub devices: Arc<dyn DeviceStore>,
    pub ledger: Arc<dyn LedgerStore>,
    pub audit: Arc<dyn AuditStore>,
    pub installation: Arc<dyn InstallationStore>,
    pub revocations: Arc<dyn RevocationStore>,
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Backends {
    /// Puts each part behind the hook, for tests.
    #[must_use]
    pub fn hooked(self, hook: &Arc<dyn Hook>) -> Backends {
        Backends {
            queue: Hooked::new(self.queue, hook),
            mailbox: Hooked::new(self.mailbox, hook),
            messages: Hooked::new(self.messages, hook),
            heads: Hooked::new(self.heads, hook),
            conversations: Hooked::new(self.conversations, hook),
            changes: Hooked::new(self.changes, hook),
            groups: Hooked::new(self.groups, hook),
            timeline: Hooked::new(self.timeline, hook),
            cache: Hooked::new(self.cache, hook),
            devices: Hooked::new(self.devices, hook),
            ledger: Hooked::new(self.ledger, hook),
            audit: Hooked::new(self.audit, hook),
            installation: Hooked::new(self.installation, hook),
            revocations: Hooked::new(self.revocations, hook),
            registry: Hooked::new(self.registry, hook),
            clock: self.clock,
            entropy: self.entropy,
        }
    }
}
