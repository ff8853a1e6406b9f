//! Ports that speak HTTP: connections under bounds and deadlines, whatever is routed behind them.

mod handshakes;
mod places;
mod serve;
mod spare_files;

pub(crate) use handshakes::Handshakes;
pub(crate) use places::Places;
pub(crate) use serve::Port;
