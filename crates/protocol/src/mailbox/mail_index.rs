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
    /// True if the entry is new.
    pub added: bool,
    /// Entries removed by the policy, oldest first; may include the new entry itself.
    pub dropped: Vec<MailCursor>,
}

impl MailIndex {
    /// Adds an entry and makes room for it. An entry already waiting changes nothing.
    pub fn append(
        &mut self,
        at: MailCursor,
        policy: MailboxPolicy,
        now: Timestamp,
    ) -> AppendResult {
        if !self.entries.insert(at) {
            return AppendResult::default();
        }
        AppendResult {
            added: true,
            dropped: self.trim(policy, now),
        }
    }

    /// Returns at most `limit` unexpired entries (at least one) strictly after `after`, and the
    /// cursor of the next page if more wait.
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

    /// Removes entries by id. Returns those that waited, in the order of `ids`.
    pub fn acknowledge(&mut self, ids: &[MessageId]) -> Vec<MailCursor> {
        let find = |id: &MessageId| self.entries.iter().find(|e| e.id == *id).copied();
        let mut found: Vec<MailCursor> = ids.iter().filter_map(find).collect();
        found.retain(|entry| self.entries.remove(entry));
        found
    }

    /// Removes expired entries, and the oldest beyond the policy's maximum.
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

    /// True if a page would not be empty.
    pub fn any(&self, policy: MailboxPolicy, now: Timestamp) -> bool {
        let newest = self.entries.last();
        newest.is_some_and(|entry| entry.accepted_at >= policy.oldest_kept(now))
    }

    /// True if a page would include this message.
    pub fn has(&self, id: MessageId, policy: MailboxPolicy, now: Timestamp) -> bool {
        let kept = policy.oldest_kept(now);
        let is_it = |entry: &MailCursor| entry.id == id && entry.accepted_at >= kept;
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

    fn keep(millis: u64, count_max: Option<u32>) -> MailboxPolicy {
        MailboxPolicy {
            expire: Duration::from_millis(millis),
            count_max,
        }
    }

    fn waiting(entries: &[MailCursor]) -> MailIndex {
        let mut waiting = MailIndex::default();
        for entry in entries {
            waiting.append(*entry, keep(10_000, None), NOW);
        }
        waiting
    }

    #[test]
    fn a_page_is_sorted_and_goes_on_strictly_after() {
        // proves S1-41
        let waiting = waiting(&[at(7, 9), at(7, 10), at(3, 50), at(9, 1)]);
        let policy = keep(10_000, None);
        let (first, next) = waiting.page(None, 2, policy, NOW);
        assert_eq!(first, [at(3, 50), at(7, 9)]);
        assert_eq!(next, Some(at(7, 9)));
        let (second, next) = waiting.page(next, 2, policy, NOW);
        assert_eq!((second, next), (vec![at(7, 10), at(9, 1)], None));
    }

    #[test]
    fn the_maximum_keeps_the_newest_even_of_what_comes_late() {
        // proves S1-52
        let mut waiting = waiting(&[at(5, 5), at(6, 6)]);
        let appended = waiting.append(at(4, 4), keep(10_000, Some(2)), NOW);
        assert!(appended.added);
        assert_eq!(appended.dropped, [at(4, 4)]);
        assert_eq!(
            waiting.append(at(7, 7), keep(10_000, Some(2)), NOW).dropped,
            [at(5, 5)]
        );
        let again = waiting.append(at(7, 7), keep(10_000, Some(2)), NOW);
        assert_eq!(again, AppendResult::default());
    }

    #[test]
    fn a_trim_excludes_the_bound() {
        // proves S1-50
        let mut waiting = waiting(&[at(9_000, 1), at(9_499, 2), at(9_500, 3), at(9_501, 4)]);
        let policy = keep(500, None);
        assert!(waiting.any(policy, NOW));
        assert_eq!(waiting.trim(policy, NOW), [at(9_000, 1), at(9_499, 2)]);
        assert_eq!(waiting.len(), 2);
        assert!(!waiting.any(keep(100, None), NOW));
    }

    #[test]
    fn an_acknowledgement_answers_what_waited() {
        let mut waiting = waiting(&[at(5, 5), at(6, 6)]);
        let ids = [6, 7, 6].map(|n| MessageId::new(n).expect("positive"));
        assert_eq!(waiting.acknowledge(&ids), [at(6, 6)]);
        assert_eq!(waiting.len(), 1);
    }
}
