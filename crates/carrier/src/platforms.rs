//! Platforms of recipients, cached for a short time.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use backend::devices::DeviceStore;
use lru::LruCache;
use protocol::delivery::PLATFORM_KNOWN_FOR;
use protocol::{Platform, Timestamp, UserId};

use crate::Config;
use crate::deadline::{self, StoreDeadline};

/// Users whose platforms a shard remembers; the least recently used beyond them are read again.
const USERS_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// Age at which a user's platforms are read again: a new device gets its messages after that.
const PLATFORMS_TTL: Duration = Duration::from_secs(1);

pub(crate) struct Platforms {
    devices: Arc<dyn DeviceStore>,
    store_deadline: StoreDeadline,
    cache: LruCache<UserId, PlatformEntry>,
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
            cache: LruCache::new(USERS_MAX),
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
        let lower_bound = now - PLATFORM_KNOWN_FOR;
        let lookup = self.devices.platforms(&cache_misses, lower_bound);
        let lookup = self.store_deadline.within(lookup).await?;
        for (user, platforms) in cache_misses.into_iter().zip(lookup) {
            // A user without platforms may sign in at any moment, so the store is asked again.
            let expires_at = if platforms.is_empty() {
                now
            } else {
                now + PLATFORMS_TTL
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
