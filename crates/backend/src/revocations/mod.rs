//! Revocations of tokens: written once, read by every station, and dropped when no such token can be left.

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
    /// Adds one, which stays for `retention` at least. Twice is as once; of two of one user at one time the larger
    /// `before` stays.
    async fn add(&self, revocation: &Revocation, retention: Duration) -> Result<()>;

    /// The first `limit` of an hour (`protocol::revocation::hour`) from there on, by time and user. Whatever was added
    /// before is among them.
    async fn page(&self, hour: i64, from: PageStart, limit: usize) -> Result<Vec<Revocation>>;
}

hooked! { RevocationStore as "revocations":
    write add(revocation: &Revocation, retention: Duration) of [revocation.user.get()] => ();
    read page(hour: i64, from: PageStart, limit: usize) => Vec<Revocation>;
}
