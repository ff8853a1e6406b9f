//! Every seam in one process: a directory on disk, or memory.

pub mod engine;
pub(crate) mod messages;
pub(crate) mod recent;
pub(crate) mod value;

pub use engine::{Batch, Engine, EngineOptions, Mark, Order, Table};
