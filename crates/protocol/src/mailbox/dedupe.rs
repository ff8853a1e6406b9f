//! Dedupe of sends: a repeat finds the first.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{DedupeAnswer, DedupeKey, FirstSend};
use crate::Timestamp;

/// Remembers sends for `keep`, at most `count_max` of them; at the bound the oldest is forgotten. A
/// forgotten send is answered [`Fresh`](DedupeAnswer::Fresh), like a new one; so a client's
/// *resend* that comes out fresh is unsure, and the writer looks for it in history.
#[derive(Clone, Debug)]
pub struct Dedupe {
    keep: Duration,
    count_max: usize,
    entries: BTreeMap<DedupeKey, DedupeEntry>,
    /// Oldest first.
    order: VecDeque<(Timestamp, DedupeKey)>,
    latest: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct DedupeEntry {
    first: FirstSend,
    is_done: bool,
    started_at: Timestamp,
}

impl Dedupe {
    pub fn new(keep: Duration, count_max: usize) -> Dedupe {
        Dedupe {
            keep,
            count_max: count_max.max(1),
            entries: BTreeMap::new(),
            order: VecDeque::new(),
            latest: Timestamp::ZERO,
        }
    }

    /// Looks the send up; an unknown one becomes pending as offered. The caller judges whether a
    /// known one is really the same send.
    pub fn begin(&mut self, key: DedupeKey, send: FirstSend, now: Timestamp) -> DedupeAnswer {
        self.latest = self.latest.max(now);
        self.forget_old(now);
        match self.entries.get(&key) {
            Some(entry) if now.since(entry.started_at) >= self.keep => {}
            Some(entry) if entry.is_done => return DedupeAnswer::Done(entry.first),
            Some(entry) => return DedupeAnswer::Pending(entry.first),
            None => {}
        }
        self.insert(key, send, false, now);
        DedupeAnswer::Fresh
    }

    /// Records that the log has the send. A send known under another id keeps that id; a forgotten
    /// send is remembered again.
    pub fn done(&mut self, key: DedupeKey, send: FirstSend) {
        match self.entries.get_mut(&key) {
            Some(entry) => entry.is_done |= entry.first == send,
            None => self.insert(key, send, true, self.latest),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn insert(&mut self, key: DedupeKey, first: FirstSend, is_done: bool, started_at: Timestamp) {
        self.entries.insert(
            key,
            DedupeEntry {
                first,
                is_done,
                started_at,
            },
        );
        self.order.push_back((started_at, key));
        while self.order.len() > self.count_max {
            self.forget_oldest();
        }
    }

    fn forget_old(&mut self, now: Timestamp) {
        while let Some(&(started_at, _)) = self.order.front()
            && now.since(started_at) >= self.keep
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        // Remove only the matching entry: a key that came again has a younger one in the order.
        if let Some((started_at, key)) = self.order.pop_front()
            && self
                .entries
                .get(&key)
                .is_some_and(|entry| entry.started_at == started_at)
        {
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConversationId, GroupId, MessageId, SendId, UserId};

    const DAY: Duration = Duration::from_secs(86_400);

    fn key(n: u8) -> DedupeKey {
        DedupeKey {
            from: UserId::new(1).expect("positive"),
            send_id: SendId::from_bytes([n; 16]),
        }
    }

    fn send(n: i64) -> FirstSend {
        send_to(1, n)
    }

    fn send_to(group: i64, n: i64) -> FirstSend {
        FirstSend {
            id: MessageId::new(n).expect("positive"),
            conversation: ConversationId::Group(GroupId::new(group).expect("positive")),
        }
    }

    #[test]
    fn a_repeat_finds_the_first_id() {
        let mut dedupe = Dedupe::new(DAY, 10);
        let now = Timestamp::ZERO;
        assert_eq!(dedupe.begin(key(1), send(1), now), DedupeAnswer::Fresh);
        assert_eq!(
            dedupe.begin(key(1), send(2), now),
            DedupeAnswer::Pending(send(1))
        );
        dedupe.done(key(1), send(2));
        assert_eq!(
            dedupe.begin(key(1), send(3), now),
            DedupeAnswer::Pending(send(1))
        );
        dedupe.done(key(1), send(1));
        assert_eq!(
            dedupe.begin(key(1), send(4), now),
            DedupeAnswer::Done(send(1))
        );
    }

    // A key stands for its first message, even if another recipient is addressed under it.
    #[test]
    fn a_name_says_where_it_was_used() {
        let mut dedupe = Dedupe::new(DAY, 10);
        let now = Timestamp::ZERO;
        let (first_send, second_send) = (send_to(1, 1), send_to(2, 2));
        assert_eq!(dedupe.begin(key(1), first_send, now), DedupeAnswer::Fresh);
        assert_eq!(
            dedupe.begin(key(1), second_send, now),
            DedupeAnswer::Pending(first_send)
        );
        dedupe.done(key(1), second_send);
        dedupe.done(key(1), first_send);
        assert_eq!(
            dedupe.begin(key(1), second_send, now),
            DedupeAnswer::Done(first_send)
        );
    }

    #[test]
    fn a_day_is_remembered_and_no_more() {
        let mut dedupe = Dedupe::new(DAY, 10);
        dedupe.begin(key(1), send(1), Timestamp::ZERO);
        let end = Timestamp::ZERO + DAY;
        let just_before_end = end - Duration::from_millis(1);
        assert_eq!(
            dedupe.begin(key(1), send(2), just_before_end),
            DedupeAnswer::Pending(send(1))
        );
        assert_eq!(dedupe.begin(key(1), send(3), end), DedupeAnswer::Fresh);
        assert_eq!(dedupe.len(), 1);
    }

    #[test]
    fn at_the_bound_the_oldest_is_forgotten() {
        let mut dedupe = Dedupe::new(DAY, 2);
        for n in 1..=3 {
            dedupe.begin(key(n), send(i64::from(n)), Timestamp::ZERO);
        }
        assert_eq!(dedupe.len(), 2);
        assert_eq!(
            dedupe.begin(key(3), send(9), Timestamp::ZERO),
            DedupeAnswer::Pending(send(3))
        );
        assert_eq!(
            dedupe.begin(key(1), send(9), Timestamp::ZERO),
            DedupeAnswer::Fresh
        );
    }

    #[test]
    fn a_send_forgotten_while_pending_is_known_once_the_log_has_it() {
        let mut dedupe = Dedupe::new(DAY, 1);
        dedupe.begin(key(1), send(1), Timestamp::ZERO);
        dedupe.begin(key(2), send(2), Timestamp::ZERO);
        dedupe.done(key(1), send(1));
        assert_eq!(
            dedupe.begin(key(1), send(3), Timestamp::ZERO),
            DedupeAnswer::Done(send(1))
        );
    }
}
