//! State that must survive a loss of discovery: the number of the installation, and for each node
//! number the time up to which its ids may have been made.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "scylla")]
mod scylla;

use async_trait::async_trait;
use protocol::Timestamp;

pub use self::embedded::EmbeddedInstallation;
#[cfg(feature = "scylla")]
pub use self::scylla::ScyllaInstallation;
use crate::Result;
use crate::hook::hooked;

#[async_trait]
pub trait InstallationStore: Send + Sync {
    /// Number of the installation; `None` if it is new.
    async fn number(&self) -> Result<Option<u64>>;

    /// Records the number of a new installation. Returns the stored one, which differs if another
    /// process was first.
    async fn record(&self, number: u64, created_at: Timestamp) -> Result<u64>;

    /// Permits ids of this node number up to `expires_at`. An earlier time takes nothing back.
    async fn reserve_node(&self, node: u16, deadline: Timestamp) -> Result<()>;

    /// Latest time reserved for this node number; zero if none.
    async fn reserved(&self, node: u16) -> Result<Timestamp>;
}

hooked! { InstallationStore as "installation":
    read number() => Option<u64>;
    write record(number: u64, created: Timestamp) => u64;
    write reserve_node(node: u16, until: Timestamp) of [i64::from(node)] => ();
    read reserved(node: u16) of [i64::from(node)] => Timestamp;
}
