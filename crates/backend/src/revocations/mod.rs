//! Revocations of tokens: written once, read by every station, and dropped when no such token can
//! be left.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use std::time::Duration;

use async_trait::async_trait;
use protocol::revocation::{PageStart, Revocation};

pub use self::embedded::EmbeddedRevocations;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaRevocations;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait RevocationStore: Send + Sync {
    /// Adds a revocation, which stays for at least `retention`. A repeat changes nothing; of two
    /// with the same user and time, the larger `before` stays.
    async fn add(&self, revocation: &Revocation, retention: Duration) -> Result<()>;

    /// First `limit` revocations of an hour (`protocol::revocation::hour`) from `from` on, by time
    /// and user. All that were added earlier are included.
    async fn page(&self, hour: i64, from: PageStart, limit: usize) -> Result<Vec<Revocation>>;
}

hooked! { RevocationStore as "revocations":
    write add(revocation: &Revocation, retention: Duration) of [revocation.user.get()] => ();
    read page(hour: i64, from: PageStart, limit: usize) => Vec<Revocation>;
}
