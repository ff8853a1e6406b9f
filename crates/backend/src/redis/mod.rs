//! What the backends on Redis share: the servers and how they are found, calls and how they come back, and the
//! scripts. One server, a master behind sentinels, or a cluster.
//!
//! ```text
//! Call ─▶ Pool ─▶ Map: who serves the slot ─▶ Node: a pipeline ─▶ Value, or Failure and what may help
//!                  ▲ Finder, when somebody doubts
//! ```
//!
//! Every call may be repeated. Each seam has connections of its own: large answers of one do not make the
//! small ones of another wait.

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

pub(crate) use self::connect::{Connection, connect};
