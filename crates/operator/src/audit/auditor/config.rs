//! Section `audit` of the settings.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Section `audit`: closing of minutes in the background. Must be the same in all processes of a
/// cluster.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Enables the closing of minutes.
    pub continuous: bool,
    /// Age at which a minute is closed. Must exceed the difference between clocks and the time that
    /// a send waits for the log; a message that comes later counts in a later minute.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub settle: Duration,
    /// Interval between searches for minutes to close: a twelfth of `settle`.
    #[serde(skip)]
    pub interval: Duration,
    /// Silence of the process that closes minutes after which another takes over: half of `settle`.
    #[serde(skip)]
    pub takeover: Duration,
    /// Age at which closed minutes are removed.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub retention: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            continuous: true,
            settle: Duration::from_secs(120),
            interval: Duration::from_secs(10),
            takeover: Duration::from_secs(60),
            retention: Duration::from_secs(60 * 86_400),
        }
    }
}

impl Config {
    /// Sets what follows from `settle`.
    pub fn derive(&mut self) {
        self.interval = self.settle / 12;
        self.takeover = self.settle / 2;
    }
}
