//! Troubles of a scene: stores that refuse single items, and records whose handling panics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::task::Value;
use async_trait::async_trait;
use backend::changes::ChangeStore;
use backend::hook::{Fate, Hook, Op};
use backend::queue::NewRecord;
use backend::{Backends, Error};
use parking_lot::Mutex;
use protocol::change::{ChangeRow, ChangeSearch, OrderedChange, Overlay};
use protocol::event::Encode;
use protocol::history::Version;
use protocol::keys::Topic;
use protocol::reading::RecallRange;
use protocol::record::{Task, Work};
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};
use tests::poison::PoisonFrames;
use tests::world::Trace;
use tokio::time::{Instant, sleep};

use crate::scenes::{PoisonEnd, SceneFaults, StoreKey};

/// Time to remove cache entries, where that is slow.
const FORGET_TIME: Duration = Duration::from_millis(600);
const REFUSAL: &str = "refused, as the scene wants it";

/// Hook of the parts of a world with a scene, below the hooks of its hosts.
pub(crate) struct Troubles {
    zero: Instant,
    faults: SceneFaults,
    trace: Arc<Trace>,
    /// Send of each message that was published.
    sends: Mutex<BTreeMap<MessageId, SendId>>,
    /// First panic of each send.
    panics: Mutex<BTreeMap<SendId, Instant>>,
}

impl Troubles {
    /// Troubles that begin now.
    pub(crate) fn new(faults: SceneFaults, trace: Arc<Trace>) -> Troubles {
        Troubles {
            zero: Instant::now(),
            faults,
            trace,
            sends: Mutex::default(),
            panics: Mutex::default(),
        }
    }

    /// The parts, with these troubles.
    pub(crate) fn around(self: &Arc<Troubles>, backends: Backends) -> Backends {
        let hook: Arc<dyn Hook> = self.clone();
        let changes: Arc<dyn ChangeStore> = Arc::new(RefusingChanges {
            inner: backends.changes.clone(),
            troubles: Arc::clone(self),
        });
        let backends = Backends {
            changes,
            ..backends
        };
        backends.hooked(&hook)
    }

    /// Whether something of these is refused now.
    fn refuses(&self, is_asked: impl Fn(StoreKey) -> bool) -> bool {
        let now = self.zero.elapsed();
        let refusals = self.faults.refusals.iter();
        let mut refusals =
            refusals.filter(|refusal| (refusal.starts_at..refusal.ends_at).contains(&now));
        let refused_key = refusals
            .find(|refusal| is_asked(refusal.key))
            .map(|refusal| refusal.key);
        if let Some(key) = refused_key {
            self.trace.add("scene", format_args!("refuses {key:?}"));
        }
        refused_key.is_some()
    }

    fn refuses_key(&self, asked_key: StoreKey) -> bool {
        self.refuses(|key| key == asked_key)
    }

    /// Whether the call is about messages of this send.
    fn is_about_send(&self, op: &Op, send_id: SendId) -> bool {
        let sends = self.sends.lock();
        let mut ids = sends.iter().filter(|(_, send)| **send == send_id);
        ids.any(|(id, _)| op.subjects.contains(&id.get().unsigned_abs()))
    }

    /// Whether the handling of a record of this send panics now.
    fn panics(&self, send_id: SendId) -> bool {
        let mut poison = self.faults.poison.iter();
        let Some(poison) = poison.find(|poison| poison.send == send_id) else {
            return false;
        };
        let now = Instant::now();
        let end = match poison.end {
            PoisonEnd::At(end) => self.zero + end,
            PoisonEnd::After(duration) => {
                *self.panics.lock().entry(send_id).or_insert(now) + duration
            }
        };
        if now < end {
            self.trace
                .add("scene", format_args!("panics for {send_id}"));
        }
        now < end
    }

    /// Frames as carriers make them: those of poison panic.
    pub(crate) fn frames(self: &Arc<Troubles>) -> Arc<dyn Encode> {
        let troubles = Arc::clone(self);
        Arc::new(PoisonFrames(move |send_id| troubles.panics(send_id)))
    }
}

#[async_trait]
impl Hook for Troubles {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        let is_owner = |user: UserId| op.subjects.contains(&user.get().unsigned_abs());
        let are_rows = |key: StoreKey| match key {
            StoreKey::Rows(send_id) => self.is_about_send(op, send_id),
            _ => false,
        };
        let are_list_rows = |key: StoreKey| match key {
            StoreKey::ListRows(user) => is_owner(user),
            _ => false,
        };
        match (op.seam, op.name) {
            ("messages", "save") if self.refuses(are_rows) => {
                Err(Error::conflict(op.seam, REFUSAL))
            }
            ("conversations", "save") if self.refuses(are_list_rows) => {
                Err(Error::corrupt(op.seam, REFUSAL))
            }
            ("queue", "commit") if op.kind == "message" && self.refuses_key(StoreKey::Commits) => {
                Err(Error::unavailable(op.seam, REFUSAL))
            }
            ("mailbox", "dedupe_done") if self.refuses_key(StoreKey::DedupeEnds) => {
                Err(Error::unavailable(op.seam, REFUSAL))
            }
            ("cache", "forget") if self.refuses_key(StoreKey::Forgets) => {
                Err(Error::unavailable(op.seam, REFUSAL))
            }
            ("cache", "forget") if self.refuses_key(StoreKey::SlowForgets) => {
                sleep(FORGET_TIME).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn item(&self, op: &Op, subject: u64) -> Fate {
        let is_theirs = |key: StoreKey| match key {
            StoreKey::Mail(user) => user.get().unsigned_abs() == subject,
            _ => false,
        };
        if op.name == "route_or_store" && self.refuses(is_theirs) {
            Fate::Fail(Error::conflict(op.seam, REFUSAL))
        } else {
            Fate::Pass
        }
    }

    fn publish(&self, record: &NewRecord) -> Fate {
        if record.partition.topic == Topic::Message
            && let Ok(task) = Task::decode(record.value.clone())
            && let Work::Message(task) = task.work
        {
            let message = &task.message;
            self.sends.lock().insert(message.id, message.send_id);
        }
        Fate::Pass
    }
}

/// Changes of which some are refused. The row of a death names no send, and passes.
struct RefusingChanges {
    inner: Arc<dyn ChangeStore>,
    troubles: Arc<Troubles>,
}

#[async_trait]
impl ChangeStore for RefusingChanges {
    async fn save(&self, changes: Vec<ChangeRow>) -> backend::Result<()> {
        let is_change = |key: StoreKey| {
            let mut send_ids = changes.iter().map(|row| row.changed.asked.send_id);
            send_ids.any(|send_id| key == StoreKey::Change(send_id))
        };
        if self.troubles.refuses(is_change) {
            return Err(Error::conflict("changes", REFUSAL));
        }
        self.inner.save(changes).await
    }

    async fn since(
        &self,
        conversation: ConversationId,
        after_rev: u64,
        limit: usize,
    ) -> backend::Result<Vec<OrderedChange>> {
        self.inner.since(conversation, after_rev, limit).await
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        search: ChangeSearch,
    ) -> backend::Result<Option<OrderedChange>> {
        self.inner.of_record(conversation, record, search).await
    }

    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> backend::Result<Option<(Version, OrderedChange)>> {
        self.inner.find_send(conversation, by, send_id, last).await
    }

    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> backend::Result<BTreeMap<Seq, Overlay>> {
        self.inner.altered(conversation, first, last).await
    }

    async fn altered_each(
        &self,
        places: &[(ConversationId, Seq)],
    ) -> backend::Result<Vec<Overlay>> {
        self.inner.altered_each(places).await
    }

    async fn recalled(
        &self,
        ranges: &[RecallRange],
    ) -> backend::Result<Vec<BTreeMap<Seq, UserId>>> {
        self.inner.recalled(ranges).await
    }

    async fn pins(
        &self,
        conversation: ConversationId,
        before_seq: Seq,
        limit: usize,
    ) -> backend::Result<Vec<(Seq, MessageId)>> {
        self.inner.pins(conversation, before_seq, limit).await
    }
}
