//! Platforms of users: a user is owed nothing on a platform without a sign-in.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::{DeviceId, Platform, Timestamp, UserId};

pub use self::embedded::EmbeddedDevices;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaDevices;
use crate::Result;
use crate::hook::hooked;

/// Sign-in to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSeen {
    pub user: UserId,
    pub platform: Platform,
    pub device: DeviceId,
    pub at: Timestamp,
}

#[async_trait]
pub trait DeviceStore: Send + Sync {
    /// Remembers a sign-in. Written at most daily per device: a repeat within a day may be dropped.
    async fn seen(&self, sighting: DeviceSeen) -> Result<()>;

    /// Platforms of each user seen at `lower_bound` or later, in order of platform.
    async fn platforms(
        &self,
        users: &[UserId],
        lower_bound: Timestamp,
    ) -> Result<Vec<Vec<Platform>>>;
}

hooked! { DeviceStore as "devices":
    write seen(seen: DeviceSeen) of [seen.user.get()] => ();
    read platforms(users: &[UserId], since: Timestamp) of users.iter().map(|user| user.get()) => Vec<Vec<Platform>>;
}
