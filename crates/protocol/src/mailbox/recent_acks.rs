//! Ids that a device acknowledged lately.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{MessageId, Timestamp};

/// Number of ids remembered; the oldest is forgotten first.
pub const ACKED_MAX: usize = 256;
/// Time an id is remembered.
pub const ACKED_KEEP: Duration = Duration::from_secs(600);

/// Exact set of recently acknowledged ids of one user and platform: an acknowledgement that arrives
/// just after the carrier gave up prevents the message from being stored. A forgotten id is stored
/// again, and the client drops the copy: when unsure, duplicate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentAcks {
    ids: VecDeque<(Timestamp, MessageId)>,
}

impl RecentAcks {
    pub fn remember(&mut self, id: MessageId, now: Timestamp) {
        self.forget_old(now);
        if let Some(index) = self.ids.iter().position(|&(_, old)| old == id) {
            self.ids.remove(index);
        }
        if self.ids.len() == ACKED_MAX {
            self.ids.pop_front();
        }
        self.ids.push_back((now, id));
    }

    pub fn contains(&self, id: MessageId, now: Timestamp) -> bool {
        self.ids
            .iter()
            .any(|&(at, known_id)| known_id == id && now.since(at) < ACKED_KEEP)
    }

    pub fn forget_old(&mut self, now: Timestamp) {
        while let Some(&(at, _)) = self.ids.front()
            && now.since(at) >= ACKED_KEEP
        {
            self.ids.pop_front();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: i64) -> MessageId {
        MessageId::new(n).expect("positive")
    }

    #[test]
    fn only_exact_ids_are_members() {
        let mut recent_acks = RecentAcks::default();
        recent_acks.remember(id(7), Timestamp::ZERO);
        assert!(recent_acks.contains(id(7), Timestamp::ZERO));
        assert!(!recent_acks.contains(id(6), Timestamp::ZERO));
        assert!(!recent_acks.contains(id(8), Timestamp::ZERO));
    }

    #[test]
    fn ids_are_forgotten_after_ten_minutes() {
        let mut recent_acks = RecentAcks::default();
        recent_acks.remember(id(7), Timestamp::ZERO);
        let end = Timestamp::ZERO + ACKED_KEEP;
        assert!(recent_acks.contains(id(7), end - Duration::from_millis(1)));
        assert!(!recent_acks.contains(id(7), end));
        recent_acks.forget_old(end);
        assert!(recent_acks.is_empty());
    }

    #[test]
    fn the_oldest_of_257_is_forgotten() {
        let mut recent_acks = RecentAcks::default();
        for n in 1..=257 {
            recent_acks.remember(id(n), Timestamp::ZERO);
        }
        assert!(!recent_acks.contains(id(1), Timestamp::ZERO));
        assert!(recent_acks.contains(id(2), Timestamp::ZERO));
        assert!(recent_acks.contains(id(257), Timestamp::ZERO));
    }
}
