//! Timelines in memory: a cache need not survive a restart.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::{GroupId, MessageId, Seq};

use super::{PAGE_BYTES_MAX, Timeline, TimelineConfig, TimelineEntry, newest};
use crate::Result;

/// Overhead of a message beside its body, approximately.
const OVERHEAD: usize = 160;

/// Timelines in memory.
pub struct EmbeddedTimeline {
    config: TimelineConfig,
    groups: Mutex<TimelineIndex>,
}

#[derive(Default)]
struct TimelineIndex {
    by_id: HashMap<GroupId, GroupEntries>,
    /// Moment of the last use → group.
    use_order: BTreeMap<u64, GroupId>,
    moment: u64,
    bytes: usize,
}

/// Timeline of one group.
#[derive(Default)]
struct GroupEntries {
    entries: BTreeMap<Seq, TimelineEntry>,
    seqs: HashMap<MessageId, Seq>,
    bytes: usize,
    used_at: u64,
}

impl EmbeddedTimeline {
    /// `Conflict` on settings that cannot work.
    pub fn new(config: TimelineConfig) -> Result<EmbeddedTimeline> {
        config.check()?;
        Ok(EmbeddedTimeline {
            config,
            groups: Mutex::default(),
        })
    }
}

#[async_trait]
impl Timeline for EmbeddedTimeline {
    async fn push(&self, group: GroupId, entries: Vec<TimelineEntry>) -> Result<()> {
        let entries = newest(entries, self.config.keep)?;
        if entries.is_empty() {
            return Ok(());
        }
        let mut groups = self.groups.lock();
        groups.change(group, |timeline| {
            for entry in entries {
                timeline.put(entry);
            }
            while timeline.entries.len() > self.config.keep {
                timeline.drop_oldest();
            }
        });
        groups.shrink(self.config.memory_bytes_max);
        Ok(())
    }

    async fn latest(
        &self,
        group: GroupId,
        offset: usize,
        count: usize,
    ) -> Result<Vec<TimelineEntry>> {
        let mut groups = self.groups.lock();
        let Some(timeline) = groups.touch(group) else {
            return Ok(Vec::new());
        };
        let mut bytes = 0;
        let fits = |entry: &&TimelineEntry| {
            let is_first = bytes == 0;
            bytes += entry.body.len().max(1);
            is_first || bytes <= PAGE_BYTES_MAX
        };
        let newest = timeline.entries.values().rev().skip(offset).take(count);
        Ok(newest.take_while(fits).cloned().collect())
    }

    async fn count(&self, group: GroupId, limit: usize) -> Result<usize> {
        let groups = self.groups.lock();
        let timeline = groups.by_id.get(&group);
        Ok(timeline.map_or(0, |timeline| timeline.entries.len().min(limit)))
    }

    async fn forget(&self, group: GroupId) -> Result<()> {
        self.groups.lock().forget(group);
        Ok(())
    }
}

impl TimelineIndex {
    fn change(&mut self, group: GroupId, change: impl FnOnce(&mut GroupEntries)) {
        let timeline = self.by_id.entry(group).or_default();
        self.bytes -= timeline.bytes;
        change(timeline);
        self.bytes += timeline.bytes;
        self.touch(group);
    }

    fn touch(&mut self, group: GroupId) -> Option<&GroupEntries> {
        let timeline = self.by_id.get_mut(&group)?;
        self.use_order.remove(&timeline.used_at);
        self.moment += 1;
        timeline.used_at = self.moment;
        self.use_order.insert(self.moment, group);
        Some(timeline)
    }

    fn forget(&mut self, group: GroupId) {
        if let Some(timeline) = self.by_id.remove(&group) {
            self.use_order.remove(&timeline.used_at);
            self.bytes -= timeline.bytes;
        }
    }

    /// Makes room: drops the least recently used groups, and the oldest messages of the last group.
    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some((_, &oldest)) = self.use_order.first_key_value() else {
                return;
            };
            if self.use_order.len() > 1 {
                self.forget(oldest);
                continue;
            }
            self.change(oldest, GroupEntries::drop_oldest);
            if self
                .by_id
                .get(&oldest)
                .is_some_and(|timeline| timeline.entries.is_empty())
            {
                self.forget(oldest);
            }
        }
    }
}

impl GroupEntries {
    fn put(&mut self, entry: TimelineEntry) {
        if let Some(old_seq) = self.seqs.get(&entry.id).copied() {
            self.drop_at(old_seq);
        }
        self.drop_at(entry.seq);
        self.bytes += entry.body.len() + OVERHEAD;
        self.seqs.insert(entry.id, entry.seq);
        self.entries.insert(entry.seq, entry);
    }

    fn drop_oldest(&mut self) {
        if let Some(seq) = self.entries.keys().next().copied() {
            self.drop_at(seq);
        }
    }

    fn drop_at(&mut self, seq: Seq) {
        if let Some(entry) = self.entries.remove(&seq) {
            self.seqs.remove(&entry.id);
            self.bytes -= entry.body.len() + OVERHEAD;
        }
    }
}

#[cfg(test)]
mod tests;
