//! Which platforms the receivers have, remembered for a moment.

use std::num::NonZeroUsize;
use std::sync::Arc;

use backend::devices::DeviceStore;
use lru::LruCache;
use protocol::{Platform, Timestamp, UserId};

use crate::Config;
use crate::stores::{self, Timed};

pub(crate) struct Platforms {
    devices: Arc<dyn DeviceStore>,
    stores: Timed,
    known: LruCache<UserId, Known>,
    keep: std::time::Duration,
    known_for: std::time::Duration,
}

struct Known {
    platforms: Vec<Platform>,
    until: Timestamp,
}

impl Platforms {
    pub(crate) fn new(devices: Arc<dyn DeviceStore>, config: &Config) -> Platforms {
        // Less than a batch needs would forget within the batch.
        let most = config.platforms_max.max(2 * config.poll_max).max(1);
        Platforms {
            devices,
            stores: Timed::new(config),
            known: LruCache::new(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN)),
            keep: config.platforms_keep,
            known_for: config.platform_known_for,
        }
    }

    /// Makes sure that [`of`](Self::of) knows these users.
    pub(crate) async fn load(
        &mut self,
        users: impl Iterator<Item = UserId>,
        now: Timestamp,
    ) -> stores::Result<()> {
        let mut missing: Vec<UserId> = users
            .filter(|user| self.known.get(user).is_none_or(|known| known.until <= now))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let since = now - self.known_for;
        let found = self.devices.platforms(&missing, since);
        let found = self.stores.within(found).await?;
        for (user, platforms) in missing.into_iter().zip(found) {
            // Who is new may sign in at any moment, and is asked for again.
            let until = if platforms.is_empty() {
                now
            } else {
                now + self.keep
            };
            self.known.put(user, Known { platforms, until });
        }
        Ok(())
    }

    pub(crate) fn of(&self, user: UserId) -> Vec<Platform> {
        let known = self.known.peek(&user);
        known.map_or_else(Vec::new, |known| known.platforms.clone())
    }
}
