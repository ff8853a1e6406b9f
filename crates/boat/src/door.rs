//! The way in: listeners, and the limits and shortages that turn newcomers away.

pub(crate) mod address_limits;
pub(crate) mod arrivals;
pub(crate) mod certificates;
pub(crate) mod connection_limit;
pub mod listener;
pub(crate) mod memory;
mod memory_pressure;
