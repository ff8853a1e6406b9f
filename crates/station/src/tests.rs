//! The station over its real gRPC surface, on embedded backends in memory and paused time.

mod bad_input;
mod changes;
mod copies;
mod costs;
mod groups;
mod limits;
mod mail;
mod missed;
mod network;
mod receipts;
pub(crate) mod refusals;
mod renewal;
mod revocations;
mod sends;
mod sessions;
mod strangers;
mod supervision;
mod sync;
mod tickets;
mod world;
