//! Delivery task of one record of the log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::group::Audience;
use crate::keys::{RETRY_TIERS, Topic};
use crate::ledger::LedgerEntry;
use crate::message::Target;
use crate::presence::BoatLife;
use crate::{Placed, Platform, SessionId, Timestamp, TraceContext, UserId};

/// Position of a record in the log, by which it is settled and finally committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

impl Source {
    /// Name of the dead letter that this record becomes for these targets (none: as a whole).
    /// Always the same for the same targets, so that a repeat after a crash is recognised.
    /// `message-3-1042`, followed by a hash of the targets if there are any.
    pub fn letter(&self, targets: &[Target]) -> String {
        if targets.is_empty() {
            self.to_string()
        } else {
            format!("{self}-{:08x}", target_hash(targets))
        }
    }

    /// True for the name of a letter that a record of a retry topic became.
    pub fn is_retry_letter(letter: &str) -> bool {
        (1..=RETRY_TIERS).any(|tier| {
            let rest = letter.strip_prefix(Topic::Retry(tier).name());
            rest.is_some_and(|rest| rest.starts_with('-'))
        })
    }
}

/// FNV-1a over the sorted targets, folded: independent of their order.
fn target_hash(targets: &[Target]) -> u32 {
    let mut sorted_targets = targets.to_vec();
    sorted_targets.sort_unstable();
    sorted_targets.dedup();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for target in sorted_targets {
        let user = target.user.get().to_be_bytes();
        for byte in user.into_iter().chain([target.platform.number()]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    (hash >> 32) as u32 ^ hash as u32
}

/// `message-3-1042`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.topic, self.partition, self.offset)
    }
}

/// Obligation to one user. The sender is never owed stored mail: its other sessions get messages
/// live, or start anew and sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obligation {
    pub user: UserId,
    /// Platforms that must each end up with the message, with or without sessions.
    pub platforms: Vec<Platform>,
    /// Whether live sessions on other platforms get it too.
    pub live: bool,
}

impl Obligation {
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.platforms.iter().map(|&platform| Target {
            user: self.user,
            platform,
        })
    }
}

/// Session that sent a message, which learns its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub session: SessionId,
    pub life: BoatLife,
}

/// A placed message and its [obligations](super::obligations).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryTask {
    pub placed: Placed,
    /// Rev of a change; 0 for a message. A change has the position of the message that it changes.
    pub rev: u64,
    /// The message's frame for sessions and mailbox, encoded once.
    pub frame: Bytes,
    /// Frames for single users instead: the sender's copy of a private message; for a group
    /// command, each user's role.
    pub own_frames: BTreeMap<UserId, Bytes>,
    pub obligations: Vec<Obligation>,
    /// Members of a large group, besides `obligations`: their live sessions get it, a few members
    /// at a time. The sender is skipped.
    pub audience: Option<Audience>,
    /// Number of times it was published again.
    pub retry_count: u32,
    /// Time of the first publication.
    pub first_at: Timestamp,
    /// `None` on a retry: the origin learned the position at the first attempt.
    pub origin: Option<Origin>,
    /// Name of the dead letter, if this is a redrive.
    pub letter: Option<Arc<str>>,
    /// Trace that the deliveries follow from.
    pub trace: Option<TraceContext>,
    /// Earlier events of the message: first in the settlement's ledger.
    pub earlier_entries: Vec<LedgerEntry>,
}

impl DeliveryTask {
    /// Total bytes of the frames.
    pub fn frame_bytes(&self) -> usize {
        let own: usize = self.own_frames.values().map(Bytes::len).sum();
        self.frame.len() + own
    }

    pub fn frame_for(&self, user: UserId) -> &Bytes {
        self.own_frames.get(&user).unwrap_or(&self.frame)
    }

    /// Whether the user's live sessions get it and nothing is stored, since sync finds it: for a
    /// message's sender, and, for a change, for everybody.
    pub fn is_live_only(&self, user: UserId) -> bool {
        let message = &self.placed.message;
        message.from == user || message.content.change.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_of_a_retry_is_known_by_its_name() {
        let user = UserId::new(2).expect("positive");
        let web = Target {
            user,
            platform: Platform::Web,
        };
        for topic in Topic::ALL {
            let source = Source {
                topic,
                partition: 0,
                offset: 4,
            };
            let is_retry = matches!(topic, Topic::Retry(_));
            let target_lists: [&[Target]; 2] = [&[], &[web]];
            for targets in target_lists {
                let letter = source.letter(targets);
                assert_eq!(Source::is_retry_letter(&letter), is_retry, "{letter}");
            }
        }
    }
}
