//! Acknowledgements: after the store, in batches, until the server confirms them.

use std::collections::{BTreeMap, VecDeque};

use protocol::frame::{Ack, AckItem, Acked, ClientFrame};
use protocol::receipt::ReceiptKind;
use protocol::{ConversationId, MessageId, Seq, Timestamp};

use super::snapshot::ConversationProgress;
use super::{Limits, Out};

#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Acknowledgements that wait for this store to be durable.
    storing: VecDeque<(u64, AckItem)>,
    ready: VecDeque<AckItem>,
    /// Sent, but not confirmed.
    unconfirmed: BTreeMap<MessageId, AckItem>,
    /// Read positions not confirmed; true if one must be sent.
    reads: BTreeMap<ConversationId, (AckItem, bool)>,
    again_at: Option<Timestamp>,
}

impl Acks {
    pub(super) fn new(conversations: &BTreeMap<ConversationId, ConversationProgress>) -> Acks {
        let mut acks = Acks::default();
        for (&conversation, kept) in conversations {
            if let Some((seq, id)) = kept.unconfirmed_read() {
                acks.read(conversation, seq, id);
            }
        }
        acks
    }

    /// Acknowledges `item` once `batch` is durable (`None`: at once).
    pub(super) fn received(&mut self, item: AckItem, batch: Option<u64>) {
        match batch {
            Some(batch) => self.storing.push_back((batch, item)),
            None => self.ready.push_back(item),
        }
    }

    pub(super) fn read(&mut self, conversation: ConversationId, seq: Seq, id: MessageId) {
        let item = AckItem {
            conversation,
            id,
            seq,
        };
        self.reads.insert(conversation, (item, true));
    }

    pub(super) fn stored(&mut self, batch: u64) {
        while let Some(&(needs, item)) = self.storing.front()
            && needs <= batch
        {
            self.storing.pop_front();
            self.ready.push_back(item);
        }
    }

    /// Sends the acknowledgements that are ready. The caller makes sure of a live connection.
    pub(super) fn flush(&mut self, now: Timestamp, limits: &Limits, out: &mut Out) {
        while !self.ready.is_empty() {
            let batch = self.ready.len().min(limits.ack_batch);
            let items: Vec<AckItem> = self.ready.drain(..batch).collect();
            self.unconfirmed
                .extend(items.iter().map(|item| (item.id, *item)));
            self.again_at.get_or_insert(now + limits.ack_again);
            out.transmit(ClientFrame::Ack(Ack {
                kind: ReceiptKind::Received,
                items,
            }));
        }
        while self.unconfirmed.len() > limits.acks_max {
            self.unconfirmed.pop_first();
        }
        let mut items = Vec::new();
        for (item, unsent) in self.reads.values_mut() {
            if std::mem::take(unsent) {
                items.push(*item);
            }
        }
        for items in items.chunks(limits.ack_batch) {
            self.again_at.get_or_insert(now + limits.ack_again);
            out.transmit(ClientFrame::Ack(Ack {
                kind: ReceiptKind::Read,
                items: items.to_vec(),
            }));
        }
    }

    /// Drops the acknowledgements that the server recorded or refused. Returns the read positions
    /// settled by that.
    pub(super) fn confirmed(&mut self, acked: &Acked) -> Vec<(ConversationId, Seq)> {
        let refused = (acked.refused.iter())
            .filter(|(_, refusal)| !refusal.code.retryable())
            .map(|(id, _)| *id);
        let done: Vec<MessageId> = acked.ids.iter().copied().chain(refused).collect();
        let mut moved = Vec::new();
        if acked.kind == ReceiptKind::Read {
            self.reads.retain(|&conversation, (item, _)| {
                let confirmed = done.contains(&item.id);
                if confirmed {
                    moved.push((conversation, item.seq));
                }
                !confirmed
            });
        } else {
            for id in &done {
                self.unconfirmed.remove(id);
            }
        }
        if self.unconfirmed.is_empty() && self.reads.is_empty() {
            self.again_at = None;
        }
        moved
    }

    pub(super) fn is_empty(&self) -> bool {
        self.storing.is_empty()
            && self.ready.is_empty()
            && self.unconfirmed.is_empty()
            && self.reads.is_empty()
    }

    pub(super) fn disconnected(&mut self) {
        self.send_all_again();
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.again_at
    }

    pub(super) fn timeout(&mut self, now: Timestamp) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.send_all_again();
        }
    }

    fn send_all_again(&mut self) {
        self.again_at = None;
        let unconfirmed = std::mem::take(&mut self.unconfirmed);
        self.ready.extend(unconfirmed.into_values());
        for (_, unsent) in self.reads.values_mut() {
            *unsent = true;
        }
    }
}
