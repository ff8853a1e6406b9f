//! What processes say to each other: generated types, their conversion, codecs and transport.

/// Generated from proto/packetboat/v1.
pub mod v1 {
    #![allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
    tonic::include_proto!("packetboat.v1");
}
