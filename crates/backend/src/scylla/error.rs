//! What the driver's failures mean to a caller.

use std::error::Error as StdError;

use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, ExecutionError,
    MetadataError, NewSessionError, PrepareError, RequestAttemptError,
};

use super::SEAM;
use crate::Error;
use crate::tls::{advice, ended};

/// No session: what is wrong with credentials is said with what to do.
pub(super) fn opening(error: NewSessionError, is_tls: bool) -> Error {
    let remedy = match &error {
        NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
            ConnectionPoolError::Broken {
                last_connection_error,
                ..
            },
        )) => remedy(last_connection_error, is_tls),
        _ => None,
    };
    match remedy {
        Some(remedy) => Error::unavailable(SEAM, format!("{error}: {remedy}")),
        None => Error::unavailable(SEAM, error),
    }
}

fn remedy(error: &ConnectionError, is_tls: bool) -> Option<String> {
    match error {
        ConnectionError::IoError(io) => advice("scylla", is_tls, &**io),
        ConnectionError::ConnectionSetupRequestError(setup) => match setup.get_error() {
            ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, _)
            | ConnectionSetupRequestErrorKind::MissingAuthentication => Some(SIGN_IN.to_owned()),
            ConnectionSetupRequestErrorKind::BrokenConnection(_) => Some(ended("scylla", is_tls)),
            _ => None,
        },
        _ => None,
    }
}

const SIGN_IN: &str = "scylla.username and scylla.password_file have to be as the cluster has them";

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
