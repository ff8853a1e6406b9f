//! Plugs parts together into a running system.

mod access;
mod around;
#[cfg(feature = "cluster")]
mod cluster;
pub mod embedded;
#[cfg(feature = "cluster")]
pub mod member;
mod seams;
mod system;
mod upkeep;

pub use access::Access;
pub use around::{Around, Bare};
pub use seams::Seams;
pub use system::System;
