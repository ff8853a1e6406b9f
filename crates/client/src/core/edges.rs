//! What the application has of each conversation, and where more is to be loaded (S0-69 to S0-71).
//!
//! What it took and what it loaded are kept, as stretches of positions: below each stretch but the first message's is an
//! edge, which a later look meets, also after a restart.

use std::collections::BTreeMap;

use protocol::loaded::{Loaded, Older};
use protocol::{ConversationId, Placed, Seq};

use super::{Change, Core};

#[derive(Debug, Default)]
pub(super) struct Edges {
    loaded: BTreeMap<ConversationId, Loaded>,
}

impl Edges {
    pub(super) fn new(loaded: BTreeMap<ConversationId, Loaded>) -> Edges {
        Edges { loaded }
    }

    fn add(&mut self, conversation: ConversationId, seqs: impl Iterator<Item = Seq>) -> Loaded {
        let loaded = self.loaded.entry(conversation).or_default();
        for seq in seqs {
            loaded.add(seq..=seq);
        }
        loaded.clone()
    }
}

impl Core {
    /// Where messages before this position are.
    pub fn older(&self, conversation: ConversationId, seq: Seq) -> Older {
        match self.edges.loaded.get(&conversation) {
            Some(loaded) => loaded.older(seq),
            None => Loaded::default().older(seq),
        }
    }

    /// The positions below which messages are to be loaded, upward.
    pub fn edges(&self, conversation: ConversationId) -> Vec<Seq> {
        let loaded = self.edges.loaded.get(&conversation);
        loaded.map(Loaded::edges).unwrap_or_default()
    }

    /// The application has these.
    pub(super) fn has(&mut self, conversation: ConversationId, seqs: impl Iterator<Item = Seq>) {
        if self.settings.acks {
            let loaded = self.edges.add(conversation, seqs);
            self.out.change(Change::Loaded(conversation, loaded));
        }
    }

    pub(super) fn has_page(&mut self, conversation: ConversationId, messages: &[Placed]) {
        let seqs: Vec<Seq> = messages.iter().map(|placed| placed.position.seq).collect();
        self.has(conversation, seqs.into_iter());
    }
}
