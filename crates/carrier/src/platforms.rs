//! Platforms of recipients, remembered for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use backend::devices::DeviceStore;
use lru::LruCache;
use protocol::{Platform, Timestamp, UserId};

use crate::Config;
use crate::deadline::{self, StoreDeadline};

pub(crate) struct Platforms {
    devices: Arc<dyn DeviceStore>,
    stores: StoreDeadline,
    known: LruCache<UserId, PlatformEntry>,
    keep: std::time::Duration,
    known_for: std::time::Duration,
}

struct PlatformEntry {
    platforms: Vec<Platform>,
    until: Timestamp,
}

impl Platforms {
    pub(crate) fn new(devices: Arc<dyn DeviceStore>, config: &Config) -> Platforms {
        Platforms {
            devices,
            stores: StoreDeadline::new(config),
            known: LruCache::new(
                NonZeroUsize::new(config.platforms_max).unwrap_or(NonZeroUsize::MIN),
            ),
            keep: config.platforms_keep,
            known_for: config.platform_known_for,
        }
    }

    /// Platforms of each of these users, possibly none.
    pub(crate) async fn load(
        &mut self,
        users: &BTreeSet<UserId>,
        now: Timestamp,
    ) -> deadline::Result<BTreeMap<UserId, Vec<Platform>>> {
        let mut loaded = BTreeMap::new();
        let mut missing = Vec::new();
        for user in users {
            match self.known.get(user).filter(|known| known.until > now) {
                Some(known) => _ = loaded.insert(*user, known.platforms.clone()),
                None => missing.push(*user),
            }
        }
        if missing.is_empty() {
            return Ok(loaded);
        }
        let since = now - self.known_for;
        let found = self.devices.platforms(&missing, since);
        let found = self.stores.within(found).await?;
        for (user, platforms) in missing.into_iter().zip(found) {
            // A user without platforms may sign in at any moment, so the store is asked again.
            let until = if platforms.is_empty() {
                now
            } else {
                now + self.keep
            };
            loaded.insert(user, platforms.clone());
            self.known.put(user, PlatformEntry { platforms, until });
        }
        Ok(loaded)
    }
}
