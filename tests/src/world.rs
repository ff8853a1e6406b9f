//! Parts of a world of real services, in one thread on paused time, over hooked parts, by
//! the chance of a seed.

mod chance;
mod life;
mod network;
mod outages;
mod panics;
mod trace;

pub use chance::{Chance, Fate, Risks};
pub use life::Life;
pub use network::{HostGate, Names};
pub use outages::{Outages, Server};
pub use panics::Panics;
pub use trace::Trace;
