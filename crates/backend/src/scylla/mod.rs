//! What the backends on ScyllaDB or Cassandra share: one connection, its settings, the tables, and how the
//! time of a write is made.
//!
//! ```text
//! ScyllaConfig ─▶ schema::apply   makes the tables, once an installation
//!              └▶ Cql::connect    checks that they are there ─▶ ScyllaHistory::new(cql.clone()), …
//! ```
//!
//! Nothing here needs more than both servers have: no materialized views, no secondary indexes, no filtering.
//! Every write may be repeated, and may arrive in any order: the time of a write says which one counts
//! (`write_time`). The one exception is the head of the audit's chain, a row that is compared and set a few
//! times a minute: of two who go on from the same link one must be refused, which no time of a write can do.

mod access;
mod budget;
mod config;
mod error;
#[cfg(test)]
pub(crate) mod fixture;
mod known;
pub(crate) mod messages;
pub mod schema;
mod session;
mod statement;
#[cfg(test)]
mod statement_tests;
pub(crate) mod write_time;

pub use self::config::{ConsistencyLevel, Replication, ScyllaConfig, ScyllaTlsConfig};
pub(crate) use self::known::Known;
pub use self::session::Cql;
pub(crate) use self::session::SeamCql;
pub(crate) use self::statement::Statement;

const SEAM: &str = "scylla";
