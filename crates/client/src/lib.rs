//! The reference client: a pure [`core`] that the simulator shares, a [`store`], and a driver on tokio.

pub mod core;
pub mod store;
