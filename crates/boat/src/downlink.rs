//! Calls of carriers and stations.

pub(crate) mod deliver_streams;
pub(crate) mod grpc;
