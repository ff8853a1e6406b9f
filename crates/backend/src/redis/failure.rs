//! Failures of calls to Redis, and the reaction to each.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use thiserror::Error;

use crate::{Error, Kind};

/// Reason why a call had no effect, or may have had none.
#[derive(Clone, Debug, Error)]
pub(crate) enum Failure {
    #[error("{address}: no answer within {after:?}")]
    Deadline { address: String, after: Duration },
    #[error("{address}: too many pipelines are in flight")]
    Busy { address: String },
    #[error("{address} does not answer; paused until a health check succeeds")]
    Silent { address: String },
    #[error("no known master: {0}")]
    NoMaster(String),
    #[error("{address} is a replica, not a master")]
    Replica { address: String },
    #[error("{address} runs Redis {version}; 7.0 or later is required")]
    TooOld { address: String, version: String },
    #[error(
        "Redis has reached maxmemory and accepts no more data (acknowledging and trimming still \
         work): raise maxmemory, or add servers"
    )]
    OutOfMemory(#[source] RedisError),
    #[error(
        "Redis has fewer replicas than min-replicas-to-write requires, and accepts no writes until they are back"
    )]
    TooFewReplicas(#[source] RedisError),
    #[error("{address}: {source}: {advice}")]
    Tls {
        address: String,
        advice: String,
        source: RedisError,
    },
    #[error(
        "Redis rejected user or password ({0}): redis.username and redis.password_file must match \
         its ACL, and redis.sentinel_username and redis.sentinel_password_file that of the \
         sentinels"
    )]
    SignIn(#[source] RedisError),
    #[error(
        "Redis forbids a command to this user ({0}): its ACL must allow what docs/operations/security.md lists"
    )]
    Forbidden(#[source] RedisError),
    #[error("{0}")]
    Redis(#[source] RedisError),
    #[error("unexpected answer: {0}")]
    Reply(String),
    #[error("not sent: an earlier part of the same call found no server")]
    GivenUp,
}

/// Step that may help after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// None here: the caller tries again later, or not at all.
    Final,
    /// Ask that server from now on.
    Moved(String),
    /// Ask that server this once.
    Ask(String),
    /// Load the scripts, which the server has lost.
    Load,
    /// Repeat the call a little later.
    Again,
    /// Look for the master again: it or the connection may have changed.
    Find,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        match error.code() {
            Some("OOM") => Failure::OutOfMemory(error),
            Some("NOREPLICAS") => Failure::TooFewReplicas(error),
            Some("WRONGPASS" | "NOAUTH") => Failure::SignIn(error),
            Some("NOPERM") => Failure::Forbidden(error),
            _ if error.kind() == ErrorKind::AuthenticationFailed => Failure::SignIn(error),
            _ => Failure::Redis(error),
        }
    }
}

impl Failure {
    /// Converts the failure into an error of `seam`.
    pub(crate) fn at(self, seam: &'static str) -> Error {
        Error::new(seam, self.kind(), self)
    }

    fn kind(&self) -> Kind {
        match self {
            Failure::Reply(_) => Kind::Corrupt,
            Failure::Redis(error) => match error.code() {
                // Our own scripts raise CORRUPT.
                Some("CORRUPT" | "WRONGTYPE") => Kind::Corrupt,
                Some("CROSSSLOT") => Kind::Conflict,
                _ => Kind::Unavailable,
            },
            _ => Kind::Unavailable,
        }
    }

    pub(crate) fn reaction(&self) -> Reaction {
        match self {
            Failure::Redis(error) => reaction_to(error),
            Failure::NoMaster(_) | Failure::Replica { .. } | Failure::Tls { .. } => Reaction::Find,
            _ => Reaction::Final,
        }
    }

    /// Whether time ran out; the same call may succeed later.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Failure::Deadline { .. } => true,
            Failure::Redis(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether the server was not reached, as opposed to refusing the call.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Failure::Deadline { .. }
            | Failure::Busy { .. }
            | Failure::Silent { .. }
            | Failure::NoMaster(_)
            | Failure::Tls { .. } => true,
            Failure::Redis(error) => matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse),
            _ => false,
        }
    }
}

fn reaction_to(error: &RedisError) -> Reaction {
    let redirect = || error.redirect_node().map(|(address, _)| address.to_owned());
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => Reaction::Find,
        ErrorKind::Server(ServerErrorKind::Moved) => {
            redirect().map_or(Reaction::Find, Reaction::Moved)
        }
        ErrorKind::Server(ServerErrorKind::Ask) => redirect().map_or(Reaction::Find, Reaction::Ask),
        ErrorKind::Server(ServerErrorKind::NoScript) => Reaction::Load,
        ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::BusyLoading) => {
            Reaction::Again
        }
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown,
        ) => Reaction::Find,
        _ if error.code() == Some("BUSY") => Reaction::Again,
        _ => Reaction::Final,
    }
}
