//! What waits for one user on one platform: entries in the order of their acceptance.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::{MailCursor, MailboxPolicy};
use crate::{MessageId, Timestamp};

/// The entries of one user and platform, by accept time, then by id. Bodies are kept elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    entries: BTreeSet<MailCursor>,
}

/// What an append did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// It was not there before.
    pub added: bool,
    /// Removed by the policy, oldest first; may name the new entry itself.
    pub dropped: Vec<MailCursor>,
}

impl Waiting {
    /// Adds an entry and makes room for it. An entry that waits already changes nothing.
    pub fn append(&mut self, at: MailCursor, policy: MailboxPolicy, now: Timestamp) -> Appended {
        if !self.entries.insert(at) {
            return Appended::default();
        }
        Appended {
            added: true,
            dropped: self.trim(policy, now),
        }
    }

    /// At most `limit` entries (at least one) strictly after `after` that have not expired, and where to
    /// go on if more wait behind them.
    pub fn page(
        &self,
        after: Option<MailCursor>,
        limit: usize,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> (Vec<MailCursor>, Option<MailCursor>) {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let kept = policy.oldest_kept(now);
        let mut rest = self
            .entries
            .range((start, Bound::Unbounded))
            .filter(|entry| entry.accepted_at >= kept);
        let page: Vec<MailCursor> = rest.by_ref().take(limit.max(1)).copied().collect();
        let next = rest.next().and_then(|_| page.last().copied());
        (page, next)
    }

    /// Removes these; answers those that waited, in the order of the question.
    pub fn acknowledge(&mut self, ids: &[MessageId]) -> Vec<MailCursor> {
        let find = |id: &MessageId| self.entries.iter().find(|e| e.id == *id).copied();
        let mut found: Vec<MailCursor> = ids.iter().filter_map(find).collect();
        found.retain(|entry| self.entries.remove(entry));
        found
    }

    /// Removes what expired and the oldest of what is too many.
    pub fn trim(&mut self, policy: MailboxPolicy, now: Timestamp) -> Vec<MailCursor> {
        let kept = policy.oldest_kept(now);
        let mut dropped = Vec::new();
        while let Some(&oldest) = self.entries.first()
            && (oldest.accepted_at < kept || policy.excess(self.len()) > 0)
        {
            self.entries.remove(&oldest);
            dropped.push(oldest);
        }
        dropped
    }

    /// Whether a page would find something.
    pub fn any(&self, policy: MailboxPolicy, now: Timestamp) -> bool {
        let newest = self.entries.last();
        newest.is_some_and(|entry| entry.accepted_at >= policy.oldest_kept(now))
    }

    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
