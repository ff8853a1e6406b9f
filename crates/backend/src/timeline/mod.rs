//! The newest messages of each group, ready to be sent: a cache, never the only copy.
//!
//! A client that returns after a short while finds the messages it missed here, without a read of
//! history (S0-63). History has the rest: positions are dense, so a reader sees by seq what a page
//! lacks.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "redis")]
mod redis;

use std::time::Duration;

use async_trait::async_trait;
use protocol::GroupId;
use protocol::settings::Problems;
pub use protocol::writer::TimelineEntry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::embedded::EmbeddedTimeline;
#[cfg(feature = "redis")]
pub use self::redis::RedisTimeline;
use crate::hook::hooked;
use crate::{Error, Result};

/// Bound of positions: a floating-point score could not tell larger ones apart.
const SEQ_MAX: u64 = 1 << 53;

/// Maximum size of the bodies in one page (a page holds at least one message). The rest follows in
/// the next page.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Newest messages of groups, kept beside history.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelineConfig {
    /// Maximum number of messages kept for one group.
    pub keep: usize,
    /// Age at which a message is removed, counted from its last push, and a group, counted from its
    /// last message. In memory they stay as long as there is room.
    #[serde(skip)]
    pub expire: Duration,
    /// Maximum size of all groups in bytes, if they are kept in memory. The least recently used
    /// group is dropped first.
    #[serde(skip)]
    pub memory_bytes_max: usize,
}

impl Default for TimelineConfig {
    fn default() -> Self {
        TimelineConfig {
            keep: 1000,
            expire: Duration::from_secs(7 * 24 * 3600),
            memory_bytes_max: 64 << 20,
        }
    }
}

impl TimelineConfig {
    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.keep == 0 {
            problems.refuse("keep", 0, "no message would fit", "At least 1");
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
    /// Puts messages at their positions, in any order, and keeps the newest. A repeat changes
    /// nothing; a position holds the message last pushed there, with the body it was last pushed
    /// with. A message older than all kept ones is dropped at once.
    async fn push(&self, group: GroupId, entries: Vec<TimelineEntry>) -> Result<()>;

    /// The newest messages, newest first, after the first `offset`, at most `count`. A page ends
    /// early at a missing body, and after large ones: continue behind it; an empty page is the end.
    async fn latest(
        &self,
        group: GroupId,
        offset: usize,
        count: usize,
    ) -> Result<Vec<TimelineEntry>>;

    /// Number of messages, counted from the newest, at most `limit`.
    async fn count(&self, group: GroupId, limit: usize) -> Result<usize>;

    /// Drops all messages of a group.
    async fn forget(&self, group: GroupId) -> Result<()>;
}

hooked! { Timeline as "timeline":
    write push(group: GroupId, entries: Vec<TimelineEntry>) of entries.iter().map(|entry| entry.id.get()) => ();
    read latest(group: GroupId, offset: usize, count: usize) of [group.get()] => Vec<TimelineEntry>;
    read count(group: GroupId, most: usize) of [group.get()] => usize;
    write forget(group: GroupId) of [group.get()] => ();
}

/// Returns the newest `keep` entries, in order of position. `Conflict` on an invalid position.
fn newest(mut entries: Vec<TimelineEntry>, keep: usize) -> Result<Vec<TimelineEntry>> {
    let is_place = |entry: &TimelineEntry| (1..SEQ_MAX).contains(&entry.seq.0);
    if let Some(entry) = entries.iter().find(|entry| !is_place(entry)) {
        let text = format!("message {} at position {}", entry.id, entry.seq);
        return Err(Error::conflict(SEAM, text));
    }
    // Stable: the later of two entries at one position stays the later.
    entries.sort_by_key(|entry| entry.seq);
    Ok(entries.split_off(entries.len().saturating_sub(keep)))
}
