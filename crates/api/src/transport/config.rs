//! Settings of calls between services.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Calls between services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Time for a unary call whose caller sets no deadline of its own; after it the caller gets
    /// `DEADLINE_EXCEEDED`. Streams have none.
    #[serde(with = "humantime_serde")]
    pub unary_timeout: Duration,
    /// Time for making a connection; after it the call that wanted it gets `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Interval of HTTP/2 keepalive pings, also on an idle connection.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// Time for the answer to a ping; after it the connection is closed and all its calls get
    /// `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// Time that a stopping server waits for calls in flight; after it they get `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub stop_grace: Duration,
    /// Age, ten percent more or less, at which a connection with an identity is left: the next call
    /// opens another one, and calls in flight finish on the old one. The new one shows and sees
    /// newer certificates.
    #[serde(with = "humantime_serde")]
    pub connection_age: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            unary_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            stop_grace: Duration::from_secs(5),
            connection_age: Duration::from_secs(3600),
        }
    }
}
