//! The boat's place in the cluster, and that of its sessions in the mailbox: the lease, and the
//! passes that assert sessions anew.

pub(crate) mod lease;
pub(crate) mod reregister;
pub(crate) mod revocations;
pub(crate) mod stall_detector;
pub(crate) mod urgent;
