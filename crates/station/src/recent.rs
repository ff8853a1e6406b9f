//! The newest messages of groups, from beside history (S0-63): who comes back after a short while costs history
//! nothing. What is not there, or does not hang together, history answers, and what it said of the newest is put
//! there again.

use std::sync::Arc;
use std::time::Duration;

use api::codec;
use backend::timeline::{Entry, Timeline};
use protocol::conversation::Head;
use protocol::frame::ServerFrame;
use protocol::sync::{Part, from_timeline};
use protocol::{ConversationId, GroupId, Placed};

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
    /// A page, in its order, where it is here; `None` where history is to be asked.
    pub(crate) async fn page(
        &self,
        group: GroupId,
        part: Part,
        head: &Head,
    ) -> Option<Vec<Placed>> {
        let newer = part.newer(head.seq);
        if newer >= REACH {
            return None;
        }
        let (offset, wanted) = (usize::try_from(newer).ok()?, part.count());
        let kept = self.latest(group, offset, wanted).await?;
        let kept = kept.into_iter().map_while(|entry| placed(group, entry));
        from_timeline(kept.collect(), part.range(), head, wanted, self.bytes_max)
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
