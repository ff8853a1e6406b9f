//! One notification per key: a repeated store, as after a redelivery, publishes it again.

use std::collections::{BTreeSet, VecDeque};

/// Remembers the newest keys, up to a bound. A forgotten key may be notified twice.
#[derive(Clone, Debug)]
pub struct Collapse<K> {
    keys: BTreeSet<K>,
    /// Oldest first; may still name keys that were forgotten.
    order: VecDeque<K>,
    keys_max: usize,
}

impl<K: Ord + Clone> Collapse<K> {
    pub fn new(keys_max: usize) -> Collapse<K> {
        Collapse {
            keys: BTreeSet::new(),
            order: VecDeque::new(),
            keys_max: keys_max.max(1),
        }
    }

    /// Returns false if this key was admitted before.
    pub fn admit(&mut self, key: K) -> bool {
        if !self.keys.insert(key.clone()) {
            return false;
        }
        self.order.push_back(key);
        while self.order.len() > self.keys_max {
            if let Some(oldest) = self.order.pop_front() {
                self.keys.remove(&oldest);
            }
        }
        true
    }

    /// Admits the next notification of this key, as this one did not take place.
    pub fn forget(&mut self, key: &K) {
        self.keys.remove(key);
    }

    pub fn contains(&self, key: &K) -> bool {
        self.keys.contains(key)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Target;
    use crate::{MessageId, Platform, UserId};

    fn id(n: i64) -> MessageId {
        MessageId::new(n).expect("positive")
    }

    fn target(user: i64, platform: Platform) -> Target {
        Target {
            user: UserId::new(user).expect("positive"),
            platform,
        }
    }

    #[test]
    fn each_message_user_and_platform_is_told_once() {
        let mut collapse = Collapse::new(10);
        let (web, ios) = (target(1, Platform::Web), target(1, Platform::Ios));
        assert!(collapse.admit((id(1), web)));
        assert!(!collapse.admit((id(1), web)));
        assert!(collapse.admit((id(1), ios)));
        assert!(collapse.admit((id(2), web)));
        assert!(collapse.admit((id(1), target(2, Platform::Web))));
        collapse.forget(&(id(1), web));
        assert!(collapse.admit((id(1), web)));
    }

    #[test]
    fn it_remembers_the_newest_and_no_more() {
        let mut collapse = Collapse::new(3);
        let web = target(1, Platform::Web);
        for n in 1..=100 {
            assert!(collapse.admit((id(n), web)));
            assert!(collapse.len() <= 3);
        }
        assert!(!collapse.admit((id(98), web)));
        assert!(collapse.admit((id(97), web)));
    }

    #[test]
    fn forgetting_never_lets_it_grow() {
        let mut collapse = Collapse::new(3);
        let web = target(1, Platform::Web);
        for _ in 0..100 {
            collapse.admit((id(1), web));
            collapse.forget(&(id(1), web));
        }
        assert!(collapse.is_empty());
        assert!(collapse.order.len() <= 3);
    }
}
