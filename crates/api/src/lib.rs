//! Protocol between processes: generated types, their conversion, codecs and transport.
//!
//! Services work with the values of `protocol` and of [`task`], [`boat`] and [`station`]; the
//! generated types ([`v1`]) are only their form on the wire.

pub mod access;
pub mod boat;
pub mod codec;
pub mod convert;
pub mod dead_letter;
pub mod envelope;
mod hidden;
pub mod station;
pub mod status;
pub mod task;
pub mod trace;
pub mod transport;

/// Generated from proto/packetboat/v1.
pub mod v1 {
    #![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
    tonic::include_proto!("packetboat.v1");
}
