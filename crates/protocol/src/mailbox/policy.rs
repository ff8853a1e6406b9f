//! Retention of mail.

use std::collections::BTreeMap;
use std::time::Duration;

use super::SessionCapacity;
use crate::{Platform, Timestamp};

/// Retention on one platform, by age and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxPolicy {
    pub expire: Duration,
    /// Number of newest entries retained; `None` is unlimited.
    pub count_max: Option<u32>,
}

impl MailboxPolicy {
    /// Oldest accept time retained. Anything older has expired, the bound itself has not.
    pub fn oldest_kept(&self, now: Timestamp) -> Timestamp {
        now - self.expire
    }

    /// Number of entries beyond the maximum.
    pub fn excess(&self, count: u64) -> u64 {
        self.count_max
            .map_or(0, |max| count.saturating_sub(u64::from(max)))
    }
}

/// Policies by platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Policy of platforms without their own.
    pub other: MailboxPolicy,
    pub own: BTreeMap<Platform, MailboxPolicy>,
    pub sessions: SessionCapacity,
}

impl Policies {
    /// One policy for all platforms, with the default session capacity.
    pub fn uniform(policy: MailboxPolicy) -> Policies {
        Policies {
            other: policy,
            own: BTreeMap::new(),
            sessions: SessionCapacity::default(),
        }
    }

    pub fn of(&self, platform: Platform) -> MailboxPolicy {
        *self.own.get(&platform).unwrap_or(&self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_itself_is_kept() {
        let policy = MailboxPolicy {
            expire: Duration::from_millis(100),
            count_max: Some(3),
        };
        let now = Timestamp::from_millis(1_000);
        assert_eq!(policy.oldest_kept(now), Timestamp::from_millis(900));
        assert_eq!([policy.excess(3), policy.excess(5)], [0, 2]);
    }

    #[test]
    fn no_maximum_means_no_excess() {
        let policy = MailboxPolicy {
            expire: Duration::MAX,
            count_max: None,
        };
        assert_eq!(policy.excess(u64::MAX), 0);
        assert!(policy.oldest_kept(Timestamp::ZERO) < Timestamp::ZERO);
    }

    #[test]
    fn a_platform_may_have_its_own_policy() {
        let other = MailboxPolicy {
            expire: Duration::from_secs(1),
            count_max: None,
        };
        let web = MailboxPolicy {
            count_max: Some(1),
            ..other
        };
        let mut policies = Policies::uniform(other);
        policies.own.insert(Platform::Web, web);
        assert_eq!(policies.of(Platform::Web), web);
        assert_eq!(policies.of(Platform::Ios), other);
    }
}
