//! Settings of the sessions of a user.

use std::collections::BTreeMap;

use protocol::Platform;
use protocol::mailbox::{CAPACITY_MAX, SessionCapacity};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Section `station.sessions`: maximum number of sessions of a user. Must be the same for all
/// stations.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Maximum number of sessions of a user on a platform, by its name: `ios`, `web` … At most 64;
    /// a platform that is not named has 1, and `bot` 16. A sign-in beyond it ends the oldest
    /// session as `displaced`; a further `bot` is refused as `too_many_sessions`. Lowering it ends
    /// surplus sessions at the next sign-in.
    pub per_platform: BTreeMap<String, u32>,
}

impl Config {
    /// Settings that cannot work, by names of this section.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        for (name, &sessions) in &self.per_platform {
            let key = format!("per_platform.{name}");
            match name.parse::<Platform>() {
                Err(error) => {
                    problems.refuse(&key, "", &error.to_string(), "Such as ios, android or web");
                }
                Ok(platform)
                    if SessionCapacity::default()
                        .with(platform, sessions)
                        .is_none() =>
                {
                    let reason = "with 0 nobody can sign in; with more, one message goes to too many sessions";
                    let remedy = format!("From 1 to {CAPACITY_MAX}");
                    problems.refuse(&key, sessions, reason, &remedy);
                }
                Ok(_) => {}
            }
        }
        problems
    }

    /// Capacity of each platform; the default one if [`problems`](Self::problems) refuses the
    /// setting.
    #[must_use]
    pub fn capacity(&self) -> SessionCapacity {
        let apply = |capacity: SessionCapacity, (name, &sessions): (&String, &u32)| {
            let platform = name.parse::<Platform>().ok();
            let with = platform.and_then(|platform| capacity.with(platform, sessions));
            with.unwrap_or(capacity)
        };
        let usual = SessionCapacity::default();
        self.per_platform.iter().fold(usual, apply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(entries: &[(&str, u32)]) -> Config {
        let per_platform = entries
            .iter()
            .map(|&(name, sessions)| (name.to_owned(), sessions));
        Config {
            per_platform: per_platform.collect(),
        }
    }

    #[test]
    fn a_platform_that_is_not_named_has_its_usual_sessions() {
        let config = config(&[("web", 3), ("bot", 64)]);
        assert!(config.problems().is_empty());
        let capacity = config.capacity();
        let each = Platform::ALL.map(|platform| capacity.of(platform));
        assert_eq!(each, [1, 1, 3, 1, 1, 1, 64]);
    }

    #[test]
    fn a_number_outside_its_bounds_is_refused() {
        for (name, sessions) in [("web", 0), ("web", 65), ("bot", 1_000), ("phone", 2)] {
            let problems = config(&[(name, sessions)]).problems().to_string();
            let key = format!("per_platform.{name}");
            assert!(problems.contains(&key), "{problems}");
            assert_eq!(problems.lines().count(), 1, "{problems}");
        }
    }
}
