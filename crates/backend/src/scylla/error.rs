//! Failures of the driver as errors for callers.

use std::error::Error as StdError;

use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, ExecutionError,
    MetadataError, NewSessionError, PrepareError, RequestAttemptError,
};

use super::SEAM;
use crate::Error;
use crate::tls::{advice, ended};

/// Failure to open a session; an error of credentials names its remedy.
pub(super) fn open_error(error: NewSessionError, is_tls: bool) -> Error {
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

const SIGN_IN: &str = "scylla.username and scylla.password_file must match the cluster";

/// Failed request. A refusal by the server is `Unavailable` too, whatever the reason: missing
/// tables, a user without rights and a full disk come from outside, and a message must wait for
/// their end instead of being given up.
pub(super) fn request(seam: &'static str, error: ExecutionError) -> Error {
    match error {
        // Values of ours, refused before anything was sent.
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

/// Row that exists but cannot be read.
pub(super) fn decode(seam: &'static str, error: impl StdError + Send + Sync + 'static) -> Error {
    Error::corrupt(seam, error)
}
