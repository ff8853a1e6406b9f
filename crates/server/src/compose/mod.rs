//! Plugs parts together into a running system.

pub mod embedded;
mod upkeep;
