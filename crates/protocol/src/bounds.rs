//! Bounds that decide whether a message takes effect.

use std::time::Duration;

use crate::{change, group};

/// Bytes of a frame or a record beside the body of its message: addresses, ids, options, names.
pub const ENVELOPE_BYTES_MAX: usize = 4 << 10;

/// Bounds of the station that accepts a message. They travel in its record, so that carriers with
/// other settings, and later readers of the record, come to the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a record; a larger one is a dead letter.
    pub record_bytes: usize,
    /// Members of a group.
    pub group_members: usize,
    /// Present members above which a command makes a group large.
    pub group_push: usize,
    /// Age of a message at which its sender can no longer recall or edit it.
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
        group_push: 500,
        change_within: Duration::from_secs(24 * 3600),
    };

    pub fn rules(&self) -> change::ChangeRules {
        change::ChangeRules {
            sender_window: self.change_within,
            ..change::ChangeRules::default()
        }
    }

    pub fn group_limits(&self) -> group::GroupLimits {
        group::GroupLimits {
            members: self.group_members,
            push_max: self.group_push,
            ..group::GroupLimits::default()
        }
    }
}
