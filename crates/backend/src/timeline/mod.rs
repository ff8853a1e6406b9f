//! The newest messages of each group, ready to be sent: a cache, never the only copy.
//!
//! Who comes back after a short while finds what they missed here, and history is not asked (S0-63). What is not
//! here is there: positions are dense, so a reader sees by seq what a page lacks.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::settings::Problems;
use protocol::{GroupId, MessageId, Seq};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::embedded::EmbeddedTimeline;
#[cfg(feature = "redis")]
pub use self::redis::RedisTimeline;
use crate::hook::hooked;
use crate::{Error, Result};

/// Positions beyond are none that an order of floating numbers could tell apart.
const SEQ_MAX: u64 = 1 << 53;

/// A message as it is sent (S0-78); the bytes are the caller's affair.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub seq: Seq,
    pub id: MessageId,
    pub body: Bytes,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("seq", &self.seq)
            .field("id", &self.id)
            .field("body", &protocol::Hidden::of(&self.body))
            .finish()
    }
}

/// The newest messages of groups, beside history.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelineConfig {
    /// Messages of one group.
    pub keep: usize,
    /// Age of a message since it was last pushed, and of a group since its last message, at which
    /// they go. In memory they stay as long as there is room.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub expire: Duration,
    /// Bytes of bodies in one page (at least one message); the rest comes with the next page.
    #[schemars(range(max = 67_108_864))]
    pub page_bytes_max: usize,
    /// Bytes of all groups, where they are kept in memory; the least recently used group goes
    /// first.
    pub memory_bytes_max: usize,
}

impl Default for TimelineConfig {
    fn default() -> Self {
        TimelineConfig {
            keep: 1000,
            expire: Duration::from_secs(7 * 24 * 3600),
            page_bytes_max: 1 << 20,
            memory_bytes_max: 64 << 20,
        }
    }
}

impl TimelineConfig {
    /// What cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        for (key, count) in [
            ("keep", self.keep),
            ("page_bytes_max", self.page_bytes_max),
            ("memory_bytes_max", self.memory_bytes_max),
        ] {
            if count == 0 {
                problems.refuse(key, count, "no message would fit", "At least 1");
            }
        }
        if self.expire.as_millis() == 0 {
            let reason = "Redis counts whole milliseconds";
            problems.refuse("expire", "0s", reason, "At least 1ms");
        }
        problems
    }

    /// `Conflict` with all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }
}

const SEAM: &str = "timeline";

#[async_trait]
pub trait Timeline: Send + Sync {
    /// Puts messages at their places, in any order, and keeps the newest. Pushing again changes nothing; at a place
    /// stands the message that was pushed there last, with the body that it was pushed with last. What is older
    /// than all that is kept is dropped at once.
    async fn push(&self, group: GroupId, entries: Vec<Entry>) -> Result<()>;

    /// The newest, newest first, without the first `offset` of them, `count` at most. A page ends early where a
    /// body is gone, and where bodies are large: to go on, ask again behind it; an empty page is the end.
    async fn latest(&self, group: GroupId, offset: usize, count: usize) -> Result<Vec<Entry>>;

    /// How many of the newest there are, `most` at most.
    async fn count(&self, group: GroupId, most: usize) -> Result<usize>;

    /// Drops all of a group.
    async fn forget(&self, group: GroupId) -> Result<()>;
}

hooked! { Timeline as "timeline":
    write push(group: GroupId, entries: Vec<Entry>) of entries.iter().map(|entry| entry.id.get()) => ();
    read latest(group: GroupId, offset: usize, count: usize) of [group.get()] => Vec<Entry>;
    read count(group: GroupId, most: usize) of [group.get()] => usize;
    write forget(group: GroupId) of [group.get()] => ();
}

/// The newest of them that may stay, in order of position. `Conflict` where a position is none.
fn newest(mut entries: Vec<Entry>, keep: usize) -> Result<Vec<Entry>> {
    let is_place = |entry: &Entry| (1..SEQ_MAX).contains(&entry.seq.0);
    if let Some(entry) = entries.iter().find(|entry| !is_place(entry)) {
        let text = format!("message {} at position {}", entry.id, entry.seq);
        return Err(Error::conflict(SEAM, text));
    }
    // Stable: of two at one place the later stays the later.
    entries.sort_by_key(|entry| entry.seq);
    Ok(entries.split_off(entries.len().saturating_sub(keep)))
}
