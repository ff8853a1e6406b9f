//! Notifications that have no outcome yet.

use std::collections::BTreeMap;

use api::task::NotificationTask;
use bytes::Bytes;
use protocol::Timestamp;
use protocol::delivery::Source;
use tokio::time::Instant;

/// A record of the topic `notification`, being worked on.
pub(super) struct PendingPush {
    pub(super) source: Source,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) task: NotificationTask,
    /// The dead letter whose redrive this record is.
    pub(super) parent: Option<String>,
    /// Number of calls made for it.
    pub(super) attempts: u32,
    pub(super) first_failed_at: Option<Timestamp>,
    /// True once its partition belongs to another horn: no more attempts.
    pub(super) is_abandoned: bool,
}

impl PendingPush {
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// Notifications waiting for a call, ordered by due time, then by arrival.
#[derive(Default)]
pub(super) struct PushQueue {
    by_due: BTreeMap<(Instant, u64), PendingPush>,
    sequence: u64,
}

impl PushQueue {
    pub(super) fn add(&mut self, due_at: Instant, pending: PendingPush) {
        self.sequence += 1;
        self.by_due.insert((due_at, self.sequence), pending);
    }

    pub(super) fn len(&self) -> usize {
        self.by_due.len()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_due.keys().next().map(|(due_at, _)| *due_at)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<PendingPush> {
        let first = self.by_due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(super) fn remove_if(
        &mut self,
        predicate: impl Fn(&PendingPush) -> bool,
    ) -> Vec<PendingPush> {
        self.by_due
            .extract_if(.., |_, pending| predicate(pending))
            .map(|(_, pending)| pending)
            .collect()
    }
}
