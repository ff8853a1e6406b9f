//! Newest messages of groups, from the cache beside history (S0-63): a member who comes back after
//! a short while costs history nothing. Whatever is missing or not dense is read from history, and
//! its newest messages are cached again.

use std::sync::Arc;
use std::time::Duration;

use api::codec;
use backend::timeline::{Timeline, TimelineEntry};
use protocol::conversation::Head;
use protocol::frame::{HistoryRange, ServerFrame};
use protocol::reading::{LATEST_MAX, PageKey, from_timeline};
use protocol::{ConversationId, GroupId, Placed};

use crate::stores::within;

/// Distance from the end beyond which the cache is not asked.
const MAX_CACHE_DISTANCE: u64 = 1000;

/// Messages that may have come between the head and the question.
const HEAD_SLACK: usize = 16;

/// Reads and fills the cache of groups' messages.
#[derive(Clone)]
pub(crate) struct GroupTimeline {
    pub(crate) timeline: Arc<dyn Timeline>,
    /// Time for the cache; then history is asked.
    pub(crate) deadline: Duration,
    /// Bytes of content in one page.
    pub(crate) bytes_max: usize,
}

impl GroupTimeline {
    /// A page, in its order, if the cache has it; `None` if history must be asked.
    pub(crate) async fn page(
        &self,
        group: GroupId,
        part: PageKey,
        head: &Head,
    ) -> Option<Vec<Placed>> {
        let newer = part.newer(head.seq);
        if newer >= MAX_CACHE_DISTANCE {
            return None;
        }
        let (offset, count) = (usize::try_from(newer).ok()?, part.count());
        let entries = self.latest(group, offset, count).await?;
        let entries = entries
            .into_iter()
            .map_while(|entry| decode_entry(group, entry));
        from_timeline(entries.collect(), part.range(), head, count, self.bytes_max)
    }

    /// Newest `count` messages, as [`GroupTimeline::page`].
    pub(crate) async fn newest(
        &self,
        group: GroupId,
        head: &Head,
        count: usize,
    ) -> Option<Vec<Placed>> {
        let newest = HistoryRange::Backward { before: None };
        let key = PageKey::of(newest, head.seq, count)?;
        self.page(group, key, head).await
    }

    /// At least `count` entries; fewer if there are no more, or if they are enough for a page.
    async fn latest(
        &self,
        group: GroupId,
        offset: usize,
        count: usize,
    ) -> Option<Vec<TimelineEntry>> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < count && bytes < self.bytes_max {
            let limit = count + HEAD_SLACK - entries.len();
            let latest = self.timeline.latest(group, offset + entries.len(), limit);
            let batch = within(self.deadline, latest).await.ok()?;
            if batch.is_empty() {
                break;
            }
            bytes += batch.iter().map(|entry| entry.body.len()).sum::<usize>();
            entries.extend(batch);
        }
        Some(entries)
    }

    /// Caches the newest of messages read from history. A failure is made good by the next reader.
    pub(crate) async fn store_newest(&self, group: GroupId, messages: &[Placed], head: &Head) {
        let is_recent = |placed: &&Placed| {
            let newer = head.seq.0.saturating_sub(placed.position.seq.0);
            newer < LATEST_MAX as u64
        };
        let entries: Vec<TimelineEntry> = (messages.iter().filter(is_recent))
            .map(|placed| TimelineEntry {
                seq: placed.position.seq,
                id: placed.message.id,
                body: codec::encode_message(placed),
            })
            .collect();
        if !entries.is_empty() {
            // A failure is counted with the store's.
            let _ = within(self.deadline, self.timeline.push(group, entries)).await;
        }
    }
}

/// Message of an entry; `None` if the entry means something else.
fn decode_entry(group: GroupId, entry: TimelineEntry) -> Option<Placed> {
    let length = entry.body.len();
    let Ok(ServerFrame::Message(message)) = codec::decode_server(entry.body, length) else {
        return None;
    };
    let is_it = message.conversation == ConversationId::Group(group)
        && message.position.seq == entry.seq
        && message.message.id == entry.id;
    is_it.then_some(message)
}
