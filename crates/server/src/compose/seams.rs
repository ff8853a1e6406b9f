//! The parts outside the process, whichever they are, and who gets which.

use std::sync::Arc;

use api::transport::Connector;
use backend::audit::AuditStore;
use backend::cache::Cache;
use backend::changes::ChangeStore;
use backend::clock::{Clock, Entropy};
use backend::conversations::ConversationStore;
use backend::devices::DeviceStore;
use backend::discovery::Registry;
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::heads::HeadStore;
use backend::history::HistoryStore;
use backend::installation::InstallationStore;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::queue::Queue;
use backend::revocations::RevocationStore;
use backend::timeline::Timeline;

use super::around::Around;
use super::upkeep::Upkeep;

/// Every seam of a system. Tests may wrap one before it is started.
#[derive(Clone)]
pub struct Seams {
    /// What nobody else cleans up: the real parts do it themselves.
    pub(super) upkeep: Option<Upkeep>,
    pub queue: Arc<dyn Queue>,
    pub mailbox: Arc<dyn MailboxStore>,
    pub history: Arc<dyn HistoryStore>,
    pub heads: Arc<dyn HeadStore>,
    pub conversations: Arc<dyn ConversationStore>,
    pub changes: Arc<dyn ChangeStore>,
    pub groups: Arc<dyn GroupStore>,
    pub group_history: Arc<dyn GroupHistoryStore>,
    pub timeline: Arc<dyn Timeline>,
    pub cache: Arc<dyn Cache>,
    pub devices: Arc<dyn DeviceStore>,
    pub ledger: Arc<dyn LedgerStore>,
    pub audit: Arc<dyn AuditStore>,
    pub installation: Arc<dyn InstallationStore>,
    pub revocations: Arc<dyn RevocationStore>,
    pub registry: Arc<dyn Registry>,
    /// Calls between services, of which some are in this process.
    pub connector: Connector,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Seams {
    /// With that around each part.
    pub(crate) fn with(self, around: &dyn Around) -> Seams {
        Seams {
            upkeep: self.upkeep,
            queue: around.queue(self.queue),
            mailbox: around.mailbox(self.mailbox),
            history: around.history(self.history),
            heads: around.heads(self.heads),
            conversations: around.conversations(self.conversations),
            changes: around.changes(self.changes),
            groups: around.groups(self.groups),
            group_history: around.group_history(self.group_history),
            timeline: around.timeline(self.timeline),
            cache: around.cache(self.cache),
            devices: around.devices(self.devices),
            ledger: around.ledger(self.ledger),
            audit: around.audit(self.audit),
            installation: self.installation,
            revocations: around.revocations(self.revocations),
            registry: around.registry(self.registry),
            connector: self.connector,
            clock: around.clock(self.clock),
            entropy: self.entropy,
        }
    }

    pub(super) fn station(&self, connector: Connector) -> station::Parts {
        station::Parts {
            queue: self.queue.clone(),
            mailbox: self.mailbox.clone(),
            history: self.history.clone(),
            heads: self.heads.clone(),
            conversations: self.conversations.clone(),
            changes: self.changes.clone(),
            groups: self.groups.clone(),
            group_history: self.group_history.clone(),
            timeline: self.timeline.clone(),
            cache: self.cache.clone(),
            devices: self.devices.clone(),
            ledger: self.ledger.clone(),
            installation: self.installation.clone(),
            revocations: self.revocations.clone(),
            registry: self.registry.clone(),
            connector,
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
        }
    }

    pub(super) fn carrier(&self, connector: Connector) -> carrier::Parts {
        carrier::Parts {
            queue: self.queue.clone(),
            mailbox: self.mailbox.clone(),
            history: self.history.clone(),
            heads: self.heads.clone(),
            conversations: self.conversations.clone(),
            changes: self.changes.clone(),
            groups: self.groups.clone(),
            group_history: self.group_history.clone(),
            timeline: self.timeline.clone(),
            cache: self.cache.clone(),
            devices: self.devices.clone(),
            ledger: self.ledger.clone(),
            registry: self.registry.clone(),
            connector,
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
        }
    }
}
