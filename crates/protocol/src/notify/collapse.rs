//! One notification per message and target: a repeated store, as after a redelivery, publishes it
//! again.

use std::collections::{BTreeSet, VecDeque};

use crate::MessageId;
use crate::message::Target;

type Key = (MessageId, Target);

/// Remembers the newest keys, up to a bound. A forgotten key may be notified twice.
#[derive(Clone, Debug)]
pub struct Collapse {
    keys: BTreeSet<Key>,
    /// Oldest first; may still name keys that were forgotten.
    order: VecDeque<Key>,
    keys_max: usize,
}

impl Collapse {
    pub fn new(keys_max: usize) -> Collapse {
        Collapse {
            keys: BTreeSet::new(),
            order: VecDeque::new(),
            keys_max: keys_max.max(1),
        }
    }

    /// Returns false if the target was notified of the message, or is about to be.
    pub fn admit(&mut self, message: MessageId, target: Target) -> bool {
        let key = (message, target);
        if !self.keys.insert(key) {
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
    pub fn forget(&mut self, message: MessageId, target: Target) {
        self.keys.remove(&(message, target));
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
    use crate::{Platform, UserId};

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
        assert!(collapse.admit(id(1), web));
        assert!(!collapse.admit(id(1), web));
        assert!(collapse.admit(id(1), ios));
        assert!(collapse.admit(id(2), web));
        assert!(collapse.admit(id(1), target(2, Platform::Web)));
        collapse.forget(id(1), web);
        assert!(collapse.admit(id(1), web));
    }

    #[test]
    fn it_remembers_the_newest_and_no_more() {
        let mut collapse = Collapse::new(3);
        let web = target(1, Platform::Web);
        for n in 1..=100 {
            assert!(collapse.admit(id(n), web));
            assert!(collapse.len() <= 3);
        }
        assert!(!collapse.admit(id(98), web));
        assert!(collapse.admit(id(97), web));
    }

    #[test]
    fn forgetting_never_lets_it_grow() {
        let mut collapse = Collapse::new(3);
        let web = target(1, Platform::Web);
        for _ in 0..100 {
            collapse.admit(id(1), web);
            collapse.forget(id(1), web);
        }
        assert!(collapse.is_empty());
        assert!(collapse.order.len() <= 3);
    }
}
