//! Section `audit` of the settings.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How minutes are closed in the background. In a cluster let all processes have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether minutes are closed.
    pub continuous: bool,
    /// A minute is closed so long after its end. Longer than clocks differ and than a send waits for the log;
    /// what comes later still counts in a later minute.
    #[serde(with = "humantime_serde")]
    pub settle: Duration,
    /// How often it is looked whether a minute can be closed, or an open one is due.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// One process closes minutes. Another goes on where it was not heard of for so long.
    #[serde(with = "humantime_serde")]
    pub takeover: Duration,
    /// Age at which a closed minute is removed.
    #[serde(with = "humantime_serde")]
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
