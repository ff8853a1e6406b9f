//! What must survive the loss of discovery: the number of the installation, and up to when ids of each node
//! number may have been made.

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
    /// The installation's number; none where it is new.
    async fn number(&self) -> Result<Option<u64>>;

    /// Records the number of a new installation. Answers the one that stands, which is another where
    /// somebody was first.
    async fn record(&self, number: u64, created: Timestamp) -> Result<u64>;

    /// Ids of this node number may be made up to `until`. An earlier time takes nothing back.
    async fn reserve_node(&self, node: u16, until: Timestamp) -> Result<()>;

    /// The latest time that was reserved for this node number; zero where there is none.
    async fn reserved(&self, node: u16) -> Result<Timestamp>;
}

hooked! { InstallationStore as "installation":
    read number() => Option<u64>;
    write record(number: u64, created: Timestamp) => u64;
    write reserve_node(node: u16, until: Timestamp) of [i64::from(node)] => ();
    read reserved(node: u16) of [i64::from(node)] => Timestamp;
}
