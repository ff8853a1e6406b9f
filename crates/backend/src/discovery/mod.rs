//! Discovery: leases, incarnations, loads of boats, and the node numbers of message ids.

#[cfg(test)]
pub(crate) mod contract;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
mod hooked;

use std::sync::Arc;

use async_trait::async_trait;
use protocol::drain::{BoatLoad, Load};
use protocol::presence::BoatLife;
use protocol::{Incarnation, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::embedded::EmbeddedRegistry;
#[cfg(feature = "etcd")]
pub use self::etcd::{EtcdConfig, EtcdRegistry};
use crate::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Boat,
    Station,
    Carrier,
    Horn,
}

impl From<Role> for protocol::access::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Boat => Self::Boat,
            Role::Station => Self::Station,
            Role::Carrier => Self::Carrier,
            Role::Horn => Self::Horn,
        }
    }
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Role::Boat => "boat",
            Role::Station => "station",
            Role::Carrier => "carrier",
            Role::Horn => "horn",
        }
    }
}

/// A running service as others find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub role: Role,
    pub life: BoatLife,
    /// Where its gRPC answers: `http://host:port`, or `inproc:name` inside one process.
    pub address: String,
}

/// All instances of a role, newest knowledge, in order of name.
pub type Roster = Arc<Vec<Instance>>;

/// A lease that is kept alive until it is dropped or lost.
pub struct Registration {
    pub instance: Instance,
    /// Cancelled when the lease is lost while this process still lives.
    pub lost: CancellationToken,
    /// Dropping it gives the lease up.
    pub lease: Box<dyn LeaseGuard>,
}

/// The lease of a registration.
#[async_trait]
pub trait LeaseGuard: Send + Sync {
    /// Publishes the load of a boat in the place of the one before; it goes with the lease. `Conflict`: the lease has
    /// ended, or the name is a later life's.
    async fn publish(&self, load: &BoatLoad) -> Result<()>;
}

/// A node number for message ids, nobody else's while it is held.
#[async_trait]
pub trait NodeLease: Send + Sync {
    /// 0 to 1023.
    fn number(&self) -> u16;

    /// Ids up to here may have been made by earlier holders of the number.
    fn not_before(&self) -> Timestamp;

    /// Records, durably, that ids up to `until` may be made. Call before making any beyond the last
    /// reservation. `Conflict`: the number is not ours any more, and nothing more will be recorded for
    /// us. What was reserved before stays ours, since the next holder begins after it; then lease
    /// another number.
    async fn reserve(&self, until: Timestamp) -> Result<()>;
}

#[async_trait]
pub trait Registry: Send + Sync {
    /// Registers under a lease. The incarnation is new: larger than any this name had before.
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration>;

    /// Changes as they are learned; the first value is the present list.
    async fn watch(&self, role: Role) -> Result<watch::Receiver<Roster>>;

    /// Loads of the boats that are registered and have published one, in order of name. Read anew with each call.
    async fn loads(&self) -> Result<Vec<Load>>;

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>>;

    /// Takes a number again whose past is not recorded: discovery has lost its data, and the last holder knows
    /// its own past. `None`: it is recorded, or somebody holds it.
    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>>;

    /// The number of this installation, as it was claimed: clients tell by it whose state they hold.
    async fn cluster(&self) -> Result<Option<u64>>;

    /// Records the number where there is none, and answers the one that stands.
    async fn claim_cluster(&self, number: u64) -> Result<u64>;

    /// An incarnation larger than any given before under `name`, without a lease.
    async fn next_incarnation(&self, name: &str) -> Result<Incarnation>;
}
