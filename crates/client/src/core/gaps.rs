//! Ranges of messages the application has of each conversation, and the gaps where more can be
//! loaded (S0-69 to S0-71).
//!
//! Messages it took and messages it loaded are recorded as stretches of positions. Below each
//! stretch, unless it begins with the first message, lies an edge: a later look finds it, also
//! after a restart.

use std::collections::BTreeMap;

use protocol::loaded_ranges::{LoadedRanges, OlderRange};
use protocol::{ConversationId, Placed, Seq};

use super::{Change, Core};

#[derive(Debug, Default)]
pub(super) struct Gaps {
    loaded_ranges: BTreeMap<ConversationId, LoadedRanges>,
}

impl Gaps {
    pub(super) fn new(loaded_ranges: BTreeMap<ConversationId, LoadedRanges>) -> Gaps {
        Gaps { loaded_ranges }
    }

    fn add(
        &mut self,
        conversation: ConversationId,
        seqs: impl Iterator<Item = Seq>,
    ) -> LoadedRanges {
        let ranges = self.loaded_ranges.entry(conversation).or_default();
        for seq in seqs {
            ranges.add(seq..=seq);
        }
        ranges.clone()
    }
}

impl Core {
    /// Source of the messages before `seq`: this device, the server, or none.
    pub fn older(&self, conversation: ConversationId, seq: Seq) -> OlderRange {
        match self.edges.loaded_ranges.get(&conversation) {
            Some(ranges) => ranges.older(seq),
            None => LoadedRanges::default().older(seq),
        }
    }

    /// Positions below which messages are to be loaded, in ascending order.
    pub fn edges(&self, conversation: ConversationId) -> Vec<Seq> {
        let ranges = self.edges.loaded_ranges.get(&conversation);
        ranges.map(LoadedRanges::edges).unwrap_or_default()
    }

    /// Records that the application has these messages.
    pub(super) fn has(&mut self, conversation: ConversationId, seqs: impl Iterator<Item = Seq>) {
        if self.settings.acks {
            let ranges = self.edges.add(conversation, seqs);
            self.out.change(Change::Loaded(conversation, ranges));
        }
    }

    pub(super) fn has_page(&mut self, conversation: ConversationId, messages: &[Placed]) {
        let seqs: Vec<Seq> = messages.iter().map(|entry| entry.position.seq).collect();
        self.has(conversation, seqs.into_iter());
    }
}
