//! Ports that speak HTTP: connections under bounds and deadlines, independent of the routes behind
//! them.

mod handshakes;
mod places;
mod serve;
mod spare_files;

pub use handshakes::Handshakes;
pub use places::Places;
pub use serve::Port;
