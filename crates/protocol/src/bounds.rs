//! Bounds that decide whether a message takes effect.

use std::time::Duration;

use crate::{change, group};

/// Bounds of the station that accepts a message. They travel in its record: carriers with other settings, and whoever
/// reads it again, come to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a record; a larger one is a dead letter.
    pub record_bytes: usize,
    /// Members of a group.
    pub group_members: usize,
    /// Age at which its sender can no longer recall or edit a message.
    pub change_within: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds::DEFAULT
    }
}

impl Bounds {
    pub const DEFAULT: Bounds = Bounds {
        record_bytes: 256 << 10,
        group_members: 100_000,
        change_within: Duration::from_secs(24 * 3600),
    };

    pub fn rules(&self) -> change::Rules {
        change::Rules {
            sender_within: self.change_within,
            ..change::Rules::default()
        }
    }

    pub fn group_limits(&self) -> group::Limits {
        group::Limits {
            members: self.group_members,
            ..group::Limits::default()
        }
    }
}
