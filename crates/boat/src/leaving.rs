//! The way out: sends clients away, and ends the boat in order.

pub(crate) mod drain;
