//! Platforms of recipients, cached for a short time.

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
    store_deadline: StoreDeadline,
    cache: LruCache<UserId, PlatformEntry>,
    ttl: std::time::Duration,
    lookback: std::time::Duration,
}

struct PlatformEntry {
    platforms: Vec<Platform>,
    expires_at: Timestamp,
}

impl Platforms {
    pub(crate) fn new(devices: Arc<dyn DeviceStore>, config: &Config) -> Platforms {
        Platforms {
            devices,
            store_deadline: StoreDeadline::new(config),
            cache: LruCache::new(
                NonZeroUsize::new(config.platforms_max).unwrap_or(NonZeroUsize::MIN),
            ),
            ttl: config.platforms_keep,
            lookback: config.platform_known_for,
        }
    }

    /// Platforms of each of these users, possibly none.
    pub(crate) async fn load(
        &mut self,
        users: &BTreeSet<UserId>,
        now: Timestamp,
    ) -> deadline::Result<BTreeMap<UserId, Vec<Platform>>> {
        let mut platforms_by_user = BTreeMap::new();
        let mut cache_misses = Vec::new();
        for user in users {
            match self.cache.get(user).filter(|entry| entry.expires_at > now) {
                Some(entry) => _ = platforms_by_user.insert(*user, entry.platforms.clone()),
                None => cache_misses.push(*user),
            }
        }
        if cache_misses.is_empty() {
            return Ok(platforms_by_user);
        }
        let lower_bound = now - self.lookback;
        let lookup = self.devices.platforms(&cache_misses, lower_bound);
        let lookup = self.store_deadline.within(lookup).await?;
        for (user, platforms) in cache_misses.into_iter().zip(lookup) {
            // A user without platforms may sign in at any moment, so the store is asked again.
            let expires_at = if platforms.is_empty() {
                now
            } else {
                now + self.ttl
            };
            platforms_by_user.insert(user, platforms.clone());
            self.cache.put(
                user,
                PlatformEntry {
                    platforms,
                    expires_at,
                },
            );
        }
        Ok(platforms_by_user)
    }
}
