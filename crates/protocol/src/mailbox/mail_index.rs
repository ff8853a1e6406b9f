//! Index of messages waiting for one user on one platform, in order of acceptance.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::{MailCursor, MailboxPolicy};
use crate::{MessageId, Timestamp};

/// Entries of one user and platform, ordered by accept time, then by id. Bodies live elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailIndex {
    entries: BTreeSet<MailCursor>,
}

/// Result of an append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendResult {
    /// Whether the entry is new.
    pub is_new: bool,
    /// Entries removed by the policy, oldest first; may include the new entry itself.
    pub dropped_entries: Vec<MailCursor>,
}

impl MailIndex {
    /// Adds an entry and makes room for it. An entry already waiting changes nothing.
    pub fn append(
        &mut self,
        entry: MailCursor,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> AppendResult {
        if !self.entries.insert(entry) {
            return AppendResult::default();
        }
        AppendResult {
            is_new: true,
            dropped_entries: self.trim(policy, now),
        }
    }

    /// Returns at most `limit` unexpired entries (at least one) strictly after `cursor`, and the
    /// cursor of the next page if more wait.
    pub fn page(
        &self,
        cursor: Option<MailCursor>,
        limit: usize,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> (Vec<MailCursor>, Option<MailCursor>) {
        let start = cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let oldest_kept = policy.oldest_kept(now);
        let mut rest = self
            .entries
            .range((start, Bound::Unbounded))
            .filter(|entry| entry.accepted_at >= oldest_kept);
        let page: Vec<MailCursor> = rest.by_ref().take(limit.max(1)).copied().collect();
        let next = rest.next().and_then(|_| page.last().copied());
        (page, next)
    }

    /// Removes entries by id. Returns those that waited, in the order of `ids`.
    pub fn acknowledge(&mut self, ids: &[MessageId]) -> Vec<MailCursor> {
        let find = |id: &MessageId| self.entries.iter().find(|e| e.id == *id).copied();
        let mut entries: Vec<MailCursor> = ids.iter().filter_map(find).collect();
        entries.retain(|entry| self.entries.remove(entry));
        entries
    }

    /// Removes expired entries, and the oldest beyond the policy's maximum.
    pub fn trim(&mut self, policy: MailboxPolicy, now: Timestamp) -> Vec<MailCursor> {
        let oldest_kept = policy.oldest_kept(now);
        let mut dropped_entries = Vec::new();
        while let Some(&oldest) = self.entries.first()
            && (oldest.accepted_at < oldest_kept || policy.excess(self.len()) > 0)
        {
            self.entries.remove(&oldest);
            dropped_entries.push(oldest);
        }
        dropped_entries
    }

    /// Whether a page would not be empty.
    pub fn any(&self, policy: MailboxPolicy, now: Timestamp) -> bool {
        let newest = self.entries.last();
        newest.is_some_and(|entry| entry.accepted_at >= policy.oldest_kept(now))
    }

    /// Whether a page would include this message.
    pub fn has(&self, id: MessageId, policy: MailboxPolicy, now: Timestamp) -> bool {
        let oldest_kept = policy.oldest_kept(now);
        let is_it = |entry: &MailCursor| entry.id == id && entry.accepted_at >= oldest_kept;
        self.entries.iter().any(is_it)
    }

    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn at(millis: i64, id: i64) -> MailCursor {
        MailCursor {
            accepted_at: Timestamp::from_millis(millis),
            id: MessageId::new(id).expect("positive"),
        }
    }

    fn policy_for(millis: u64, count_max: Option<u32>) -> MailboxPolicy {
        MailboxPolicy {
            expire: Duration::from_millis(millis),
            count_max,
        }
    }

    fn index_with(entries: &[MailCursor]) -> MailIndex {
        let mut index = MailIndex::default();
        for entry in entries {
            index.append(*entry, policy_for(10_000, None), NOW);
        }
        index
    }

    #[test]
    fn a_page_is_sorted_and_goes_on_strictly_after() {
        // proves S1-41
        let index = index_with(&[at(7, 9), at(7, 10), at(3, 50), at(9, 1)]);
        let policy = policy_for(10_000, None);
        let (first, next) = index.page(None, 2, policy, NOW);
        assert_eq!(first, [at(3, 50), at(7, 9)]);
        assert_eq!(next, Some(at(7, 9)));
        let (second, next) = index.page(next, 2, policy, NOW);
        assert_eq!((second, next), (vec![at(7, 10), at(9, 1)], None));
    }

    #[test]
    fn the_maximum_keeps_the_newest_even_of_what_comes_late() {
        // proves S1-52
        let mut index = index_with(&[at(5, 5), at(6, 6)]);
        let result = index.append(at(4, 4), policy_for(10_000, Some(2)), NOW);
        assert!(result.is_new);
        assert_eq!(result.dropped_entries, [at(4, 4)]);
        assert_eq!(
            index
                .append(at(7, 7), policy_for(10_000, Some(2)), NOW)
                .dropped_entries,
            [at(5, 5)]
        );
        let repeat = index.append(at(7, 7), policy_for(10_000, Some(2)), NOW);
        assert_eq!(repeat, AppendResult::default());
    }

    #[test]
    fn a_trim_excludes_the_bound() {
        // proves S1-50
        let mut index = index_with(&[at(9_000, 1), at(9_499, 2), at(9_500, 3), at(9_501, 4)]);
        let policy = policy_for(500, None);
        assert!(index.any(policy, NOW));
        assert_eq!(index.trim(policy, NOW), [at(9_000, 1), at(9_499, 2)]);
        assert_eq!(index.len(), 2);
        assert!(!index.any(policy_for(100, None), NOW));
    }

    #[test]
    fn an_acknowledgement_answers_what_waited() {
        let mut index = index_with(&[at(5, 5), at(6, 6)]);
        let ids = [6, 7, 6].map(|n| MessageId::new(n).expect("positive"));
        assert_eq!(index.acknowledge(&ids), [at(6, 6)]);
        assert_eq!(index.len(), 1);
    }
}
