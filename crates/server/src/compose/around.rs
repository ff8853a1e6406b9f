//! What stands between the services and the parts outside: nothing, in the program.

use std::sync::Arc;

use backend::audit::AuditStore;
use backend::cache::Cache;
use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::devices::DeviceStore;
use backend::discovery::Registry;
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::heads::HeadStore;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::queue::Queue;
use backend::revocations::RevocationStore;
use backend::timeline::Timeline;

/// Puts something around parts before the services get them. A test ends a process between two effects so, or sets
/// its clock.
pub trait Around: Sync {
    fn queue(&self, inner: Arc<dyn Queue>) -> Arc<dyn Queue> {
        inner
    }

    fn mailbox(&self, inner: Arc<dyn MailboxStore>) -> Arc<dyn MailboxStore> {
        inner
    }

    fn history(&self, inner: Arc<dyn HistoryStore>) -> Arc<dyn HistoryStore> {
        inner
    }

    fn heads(&self, inner: Arc<dyn HeadStore>) -> Arc<dyn HeadStore> {
        inner
    }

    fn conversations(&self, inner: Arc<dyn ConversationStore>) -> Arc<dyn ConversationStore> {
        inner
    }

    fn changes(&self, inner: Arc<dyn ChangeStore>) -> Arc<dyn ChangeStore> {
        inner
    }

    fn groups(&self, inner: Arc<dyn GroupStore>) -> Arc<dyn GroupStore> {
        inner
    }

    fn group_history(&self, inner: Arc<dyn GroupHistoryStore>) -> Arc<dyn GroupHistoryStore> {
        inner
    }

    fn timeline(&self, inner: Arc<dyn Timeline>) -> Arc<dyn Timeline> {
        inner
    }

    fn cache(&self, inner: Arc<dyn Cache>) -> Arc<dyn Cache> {
        inner
    }

    fn devices(&self, inner: Arc<dyn DeviceStore>) -> Arc<dyn DeviceStore> {
        inner
    }

    fn ledger(&self, inner: Arc<dyn LedgerStore>) -> Arc<dyn LedgerStore> {
        inner
    }

    fn audit(&self, inner: Arc<dyn AuditStore>) -> Arc<dyn AuditStore> {
        inner
    }

    fn revocations(&self, inner: Arc<dyn RevocationStore>) -> Arc<dyn RevocationStore> {
        inner
    }

    fn registry(&self, inner: Arc<dyn Registry>) -> Arc<dyn Registry> {
        inner
    }

    fn clock(&self, inner: Arc<dyn Clock>) -> Arc<dyn Clock> {
        inner
    }
}

/// The parts as they are.
pub struct Bare;

impl Around for Bare {}
