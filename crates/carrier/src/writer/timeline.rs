//! The newest messages of groups are put where pages are taken from.

use std::collections::BTreeMap;

use backend::timeline::Entry;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use protocol::message::Content;
use protocol::{ConversationId, GroupId, Placed};

use super::Writer;

/// What a batch wants pushed, in the order of the records.
pub(super) type Entries = BTreeMap<GroupId, Vec<Entry>>;

/// Groups whose timelines are pushed at once.
const TOGETHER: usize = 64;

impl Writer {
    /// It is a cache: what does not get there is read from history, and no group waits for another's.
    pub(super) async fn push(&self, entries: Entries) {
        let pushes = stream::iter(entries).map(async |(group, entries)| {
            let pushed = self.stores.within(self.timeline.push(group, entries)).await;
            if let Err(error) = pushed {
                tracing::warn!(%error, source = %error.source, %group, "not in the timeline");
                metrics::counter!("carrier_timeline_failures_total").increment(1);
            }
        });
        pushes.buffer_unordered(TOGETHER).collect::<()>().await;
    }
}

/// A message as pages show it: with that content, if it does not say any more what it said. `frame`: as it was encoded
/// already.
pub(super) fn add(
    entries: &mut Entries,
    placed: &Placed,
    shown: Option<Content>,
    frame: Option<&Bytes>,
) {
    let ConversationId::Group(group) = placed.conversation else {
        return;
    };
    let body = match (shown, frame) {
        (None, Some(frame)) => frame.clone(),
        (None, None) => api::codec::encode_message(placed),
        (Some(content), _) => {
            let mut placed = placed.clone();
            placed.message.content = content;
            api::codec::encode_message(&placed)
        }
    };
    entries.entry(group).or_default().push(Entry {
        seq: placed.position.seq,
        id: placed.message.id,
        body,
    });
}
