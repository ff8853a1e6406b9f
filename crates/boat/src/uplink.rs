//! Calls to stations.

pub(crate) mod batch_queue;
pub(crate) mod call_limit;
pub(crate) mod pace;
pub(crate) mod station_pool;
pub(crate) mod station_queues;
