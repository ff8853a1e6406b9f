//! Settings of calls between services.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How services call services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a unary call may take where its caller sets no deadline of its own; after it the
    /// caller gets `DEADLINE_EXCEEDED`. Streams have none.
    #[serde(with = "humantime_serde")]
    pub unary_timeout: Duration,
    /// How long making a connection may take; after it the call that wanted it gets `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How often an HTTP/2 connection is asked whether it lives, also while it is idle.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// How long the answer to that may take; after it the connection is closed and all its calls get
    /// `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// How long a server that stops waits for calls in flight; after it they get `UNAVAILABLE`.
    #[serde(with = "humantime_serde")]
    pub stop_grace: Duration,
    /// Time for which calls share a connection with an identity before the next one opens another, ten percent more or less;
    /// calls in flight finish on the old one. The new one shows and sees newer certificates.
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
