//! Every seam in one process: a directory on disk, or memory.

pub(crate) mod aging_map;
pub mod engine;
pub(crate) mod messages;
pub(crate) mod value;

pub use engine::{Engine, EngineOptions, JournalDamage, ScanOrder, Table, WriteBatch, WriteMark};
