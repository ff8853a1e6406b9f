//! The newest messages of groups, from beside history (S0-63): who comes back after a short while costs history
//! nothing. What is not there, or does not hang together, history answers, and what it said of the newest is put
//! there again.

use std::sync::Arc;
use std::time::Duration;

use api::codec;
use backend::timeline::{Entry, Timeline};
use protocol::conversation::Head;
use protocol::frame::{HistoryRange, ServerFrame};
use protocol::sync::from_timeline;
use protocol::{ConversationId, GroupId, Placed, Seq};

use crate::deadline::within;

/// How far back from the end a group is put there again.
pub(crate) const LATEST: usize = 100;

/// How far back from the end it is looked there at all.
const REACH: u64 = 1000;

/// Messages that may have come between the head and the question.
const SLACK: usize = 16;

/// Reads and fills the cache of groups' messages.
#[derive(Clone)]
pub(crate) struct Recent {
    pub(crate) timeline: Arc<dyn Timeline>,
    /// How long it may take; then history is asked.
    pub(crate) deadline: Duration,
    /// Content of one page.
    pub(crate) bytes_max: usize,
}

impl Recent {
    /// A page, in order of `range`, where it is here; `None` where history is to be asked.
    pub(crate) async fn page(
        &self,
        group: GroupId,
        range: HistoryRange,
        head: &Head,
        limit: usize,
    ) -> Option<Vec<Placed>> {
        let (newer, wanted) = part_of(range, head.seq, limit);
        if newer >= REACH {
            return None;
        }
        let offset = usize::try_from(newer).ok()?;
        let kept = self.latest(group, offset, wanted).await?;
        let kept = kept.into_iter().map_while(|entry| placed(group, entry));
        from_timeline(kept.collect(), range, head, limit, self.bytes_max)
    }

    /// So many, and some more; or fewer, where that is all, or enough for a page.
    async fn latest(&self, group: GroupId, offset: usize, wanted: usize) -> Option<Vec<Entry>> {
        let (mut kept, mut bytes) = (Vec::new(), 0);
        while kept.len() < wanted && bytes < self.bytes_max {
            let most = wanted + SLACK - kept.len();
            let latest = self.timeline.latest(group, offset + kept.len(), most);
            let more = within(self.deadline, latest).await.ok()?;
            if more.is_empty() {
                break;
            }
            bytes += more.iter().map(|entry| entry.body.len()).sum::<usize>();
            kept.extend(more);
        }
        Some(kept)
    }

    /// History said these: the newest of them are kept here. What fails is done by the next who asks.
    pub(crate) async fn keep(&self, group: GroupId, messages: &[Placed], head: &Head) {
        let is_recent = |placed: &&Placed| {
            let newer = head.seq.0.saturating_sub(placed.position.seq.0);
            newer < LATEST as u64
        };
        let entries: Vec<Entry> = (messages.iter().filter(is_recent))
            .map(|placed| Entry {
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

/// How many messages are newer than those of the range, and how many there are of it.
fn part_of(range: HistoryRange, last: Seq, limit: usize) -> (u64, usize) {
    let few = |count: u64| usize::try_from(count).map_or(limit, |count| count.min(limit));
    match range {
        HistoryRange::Backward { before } => {
            let end = before.map_or_else(|| last.next(), |before| before.min(last.next()));
            (last.next().0 - end.0, few(end.0.saturating_sub(1)))
        }
        HistoryRange::Forward { after } => {
            let wanted = few(last.0.saturating_sub(after.0));
            (last.0.saturating_sub(after.0 + wanted as u64), wanted)
        }
    }
}

/// The message of an entry; `None` for one that means something else.
fn placed(group: GroupId, entry: Entry) -> Option<Placed> {
    let length = entry.body.len();
    let Ok(ServerFrame::Message(placed)) = codec::decode_server(entry.body, length) else {
        return None;
    };
    let is_it = placed.conversation == ConversationId::Group(group)
        && placed.position.seq == entry.seq
        && placed.message.id == entry.id;
    is_it.then_some(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_counted_from_the_end() {
        let backward = |before: Option<u64>| HistoryRange::Backward {
            before: before.map(Seq),
        };
        let forward = |after| HistoryRange::Forward { after: Seq(after) };
        let last = Seq(50);
        assert_eq!(part_of(backward(None), last, 10), (0, 10));
        assert_eq!(part_of(backward(Some(99)), last, 10), (0, 10));
        assert_eq!(part_of(backward(Some(41)), last, 10), (10, 10));
        assert_eq!(part_of(backward(Some(4)), last, 10), (47, 3));
        assert_eq!(part_of(backward(Some(0)), last, 10), (51, 0));
        assert_eq!(part_of(forward(45), last, 10), (0, 5));
        assert_eq!(part_of(forward(20), last, 10), (20, 10));
        assert_eq!(part_of(forward(50), last, 10), (0, 0));
    }
}
