//! Parts shared by the backends on Redis: servers and their discovery, calls and their answers, and
//! the scripts. Works with one server, a master behind sentinels, or a cluster.
//!
//! ```text
//! Call ─▶ Pool ─▶ Map: server of the slot ─▶ Node: a pipeline ─▶ Value, or Failure and Reaction
//!                  ▲ Finder, in doubt
//! ```
//!
//! Every call may be repeated. Each seam has its own connections, so that large answers of one do
//! not delay small ones of another.

mod access;
pub(crate) mod call;
mod connect;
pub(crate) mod failure;
pub(crate) mod finder;
mod node;
pub(crate) mod pool;
pub(crate) mod reply;
pub(crate) mod scripts;
pub(crate) mod slots;
mod watch;

pub(crate) use self::connect::{RedisConnection, connect};
