//! Names of topics, and the fixed hashes that place keys: the same in every backend, forever.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ConversationId, UserId};

/// A topic of the log, named on the wire by a configurable prefix and [`Topic::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Topic {
    /// Accepted messages and control tasks, keyed by conversation.
    Message,
    /// Deliveries to retry after the delay of their tier, counted from 1.
    Retry(u8),
    /// Dead letters.
    Dead,
    /// Tasks for horn.
    Notification,
    /// Notifications that no provider took.
    NotificationDead,
    /// Operators' operations and their progress.
    Operation,
}

/// Consumer group of all carriers.
pub const CARRIERS: &str = "carrier";
/// Consumer group of all horns.
pub const HORNS: &str = "horn";

/// Retry topics are `retry-1` to `retry-5`.
pub const RETRY_TIERS: u8 = 5;

impl Topic {
    pub const ALL: [Topic; 10] = [
        Topic::Message,
        Topic::Retry(1),
        Topic::Retry(2),
        Topic::Retry(3),
        Topic::Retry(4),
        Topic::Retry(5),
        Topic::Dead,
        Topic::Notification,
        Topic::NotificationDead,
        Topic::Operation,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Topic::Message => "message",
            Topic::Retry(1) => "retry-1",
            Topic::Retry(2) => "retry-2",
            Topic::Retry(3) => "retry-3",
            Topic::Retry(4) => "retry-4",
            Topic::Retry(_) => "retry-5",
            Topic::Dead => "dead",
            Topic::Notification => "notification",
            Topic::NotificationDead => "notification-dead",
            Topic::Operation => "operation",
        }
    }

    pub fn from_name(name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name() == name)
    }
}

impl TryFrom<String> for Topic {
    type Error = String;

    fn try_from(name: String) -> Result<Topic, String> {
        Topic::from_name(&name).ok_or_else(|| format!("{name:?} is not a topic"))
    }
}

impl From<Topic> for String {
    fn from(topic: Topic) -> String {
        topic.name().to_owned()
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The log's key of a conversation; the owner of its partition is the conversation's single writer.
pub fn record_key(conversation: ConversationId) -> [u8; 17] {
    conversation.to_key()
}

/// The log's key of control tasks for one user (kickout): conversation (0, user).
pub fn control_key(user: UserId) -> [u8; 17] {
    ConversationId::System(user).to_key()
}

/// Partition of a key: FNV-1a (64 bit, offset basis and prime of the FNV reference), its halves
/// folded, modulo `partitions`. Never changes: another result would give a conversation a second
/// writer.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash32 = (hash >> 32) as u32 ^ hash as u32;
    hash32 % partitions.max(1)
}

/// Placement buckets of users, fixed at installation.
pub const BUCKETS: u16 = 1024;

/// CRC-16/XMODEM, the hash that Redis Cluster uses for slots.
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            }
        })
    })
}

/// Bucket of all data of `user`: crc16 of the decimal user, modulo 1024.
pub fn bucket_of(user: UserId) -> u16 {
    crc16(user.to_string().as_bytes()) % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_survive_their_names() {
        for topic in Topic::ALL {
            assert_eq!(Topic::from_name(topic.name()), Some(topic));
        }
    }

    #[test]
    fn hashes_are_the_published_ones() {
        // The check value of CRC-16/XMODEM and of FNV-1a 64 ("a" = af63dc4c8601ec8c).
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(partition_of(b"a", u32::MAX), 0xaf63_dc4c ^ 0x8601_ec8c);
    }

    #[test]
    fn keys_spread_over_partitions() {
        let mut counts = [0; 8];
        for user in 2..1002 {
            let pair = ConversationId::private(
                UserId::new(1).expect("positive"),
                UserId::new(user).expect("positive"),
            );
            counts[partition_of(&record_key(pair.expect("two users")), 8) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| n > 80), "{counts:?}");
    }
}
