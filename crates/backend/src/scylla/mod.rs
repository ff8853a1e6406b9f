//! Shared parts of the backends on ScyllaDB or Cassandra: one connection, its settings, the tables,
//! and the time of a write.
//!
//! ```text
//! ScyllaConfig ─▶ schema::apply   makes the tables, once per installation
//!              └▶ Cql::connect    checks that they exist ─▶ ScyllaMessages::new(cql.clone()), …
//! ```
//!
//! Nothing here needs more than both servers have: no materialized views, no secondary indexes, no
//! filtering. Every write may be repeated, and may arrive in any order: the time of a write decides
//! which one counts (`write_time`). The one exception is the head of the audit's chain, a row that
//! is compared and set a few times a minute: of two workers that extend the same link one must be
//! refused, which no time of a write can do.

mod access;
mod budget;
mod config;
mod error;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod messages;
pub mod schema;
mod session;
mod statement;
#[cfg(test)]
mod statement_tests;
pub(crate) mod write_time;
mod written_cache;

pub use self::config::{ConsistencyLevel, Replication, ScyllaConfig, ScyllaTlsConfig};
pub use self::session::Cql;
pub(crate) use self::session::SeamCql;
pub(crate) use self::statement::Statement;
pub(crate) use self::written_cache::WrittenCache;

const SEAM: &str = "scylla";
