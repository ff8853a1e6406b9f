//! Discovery: leases, incarnations, loads of boats, and the node numbers of message ids.

#[cfg(test)]
pub(crate) mod contract;
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
pub(crate) mod hooked;

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

/// A running service, as other services find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub role: Role,
    pub life: BoatLife,
    /// Address of its gRPC service: `http://host:port`, or `inproc:name` within one process.
    pub address: String,
}

/// All instances of a role as last known, in order of name.
pub type Directory = Arc<Vec<Instance>>;

/// A lease that is kept alive until dropped or lost.
pub struct Registration {
    pub instance: Instance,
    /// Cancelled if the lease is lost while this process is alive.
    pub lost_token: CancellationToken,
    /// Guard that gives up the lease when dropped.
    pub lease: Box<dyn LeaseGuard>,
}

/// The lease of a registration.
#[async_trait]
pub trait LeaseGuard: Send + Sync {
    /// Publishes a boat's load, replacing the previous one; it ends with the lease. `Conflict` if
    /// the lease has ended or a later life holds the name.
    async fn publish(&self, load: &BoatLoad) -> Result<()>;
}

/// A node number for message ids, held by nobody else at the same time.
#[async_trait]
pub trait NodeLease: Send + Sync {
    /// Node number, 0 to 1023.
    fn number(&self) -> u16;

    /// Time up to which earlier holders of the number may have made ids.
    fn not_before(&self) -> Timestamp;

    /// Records durably that ids up to `limit` may be made. Call it before making ids beyond the
    /// last reservation. `Conflict` if the number is no longer ours: nothing more is recorded for
    /// us, and another number must be leased. Earlier reservations stay ours, because the next
    /// holder starts after them.
    async fn reserve(&self, limit: Timestamp) -> Result<()>;
}

#[async_trait]
pub trait Registry: Send + Sync {
    /// Registers under a lease, with a new incarnation, larger than any this name had before.
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration>;

    /// Watches the instances of a role; the first value is the current list.
    async fn watch(&self, role: Role) -> Result<watch::Receiver<Directory>>;

    /// Loads of registered boats that have published one, in order of name. Read afresh on every
    /// call.
    async fn loads(&self) -> Result<Vec<Load>>;

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>>;

    /// Leases again a number whose past is not recorded, for its last holder, which knows that
    /// past, after discovery lost its data. `None` if the past is recorded or somebody holds the
    /// number.
    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>>;

    /// Number of this installation, if claimed. Clients tell by it which installation their state
    /// belongs to.
    async fn cluster(&self) -> Result<Option<u64>>;

    /// Records the number unless one is recorded; returns the recorded one.
    async fn claim_cluster(&self, number: u64) -> Result<u64>;

    /// Returns an incarnation larger than any given under `name` before, without a lease.
    async fn next_incarnation(&self, name: &str) -> Result<Incarnation>;
}
