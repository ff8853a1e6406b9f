//! What the driver's failures mean to a caller.

use std::error::Error as StdError;

use scylla::errors::{ExecutionError, PrepareError, RequestAttemptError};

use crate::Error;

/// A request that failed. What the server refuses is `Unavailable` too, whatever the reason: tables that are
/// missing, a user without rights, a full disk come from outside, and a message must wait for their end
/// instead of being given up.
pub(super) fn request(seam: &'static str, error: ExecutionError) -> Error {
    match error {
        // Our own values, before anything was sent.
        ExecutionError::BadQuery(_)
        | ExecutionError::LastAttemptError(
            RequestAttemptError::SerializationError(_)
            | RequestAttemptError::CqlRequestSerialization(_),
        ) => Error::conflict(seam, error),
        _ => Error::unavailable(seam, error),
    }
}

pub(super) fn prepare(seam: &'static str, error: PrepareError) -> Error {
    Error::unavailable(seam, error)
}

/// A row that is there and cannot be read.
pub(super) fn decode(seam: &'static str, error: impl StdError + Send + Sync + 'static) -> Error {
    Error::corrupt(seam, error)
}
