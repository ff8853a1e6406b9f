//! State that outlives a process: per noun a trait, a contract suite, and its backends side by
//! side.
//!
//! A seam never calls another seam, and never sees what services say to each other: the log carries
//! bytes, the mailbox stores bodies it cannot read.

pub mod audit;
mod backends;
pub mod cache;
pub mod changes;
pub mod clock;
pub mod conversations;
#[cfg(any(
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
mod credentials;
pub mod devices;
pub mod discovery;
pub mod embedded;
mod error;
pub mod files;
pub mod groups;
pub mod heads;
pub mod hook;
pub mod installation;
pub mod ledger;
pub mod mailbox;
pub mod memory;
pub mod messages;
pub mod queue;
pub mod rate_limit;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub mod revocations;
#[cfg(feature = "scylla")]
pub mod scylla;
#[cfg(all(
    test,
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
mod secured;
pub mod table;
#[cfg(test)]
mod test_ids;
#[cfg(test)]
mod test_servers;
pub mod timeline;
pub mod tls;

pub use backends::{Backends, Embedded, EmbeddedConfig};
pub use error::{Error, Kind, Result};
