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
    awaiting_store: VecDeque<(u64, AckItem)>,
    ready: VecDeque<AckItem>,
    /// Sent, but not confirmed.
    unconfirmed_acks: BTreeMap<MessageId, AckItem>,
    /// Read positions not confirmed; true if one must be sent.
    reads: BTreeMap<ConversationId, (AckItem, bool)>,
    /// Times from which the next read position of a large group may be sent.
    reads_from: BTreeMap<ConversationId, Timestamp>,
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
            Some(batch) => self.awaiting_store.push_back((batch, item)),
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
        while let Some(&(needs, item)) = self.awaiting_store.front()
            && needs <= batch
        {
            self.awaiting_store.pop_front();
            self.ready.push_back(item);
        }
    }

    /// Sends the acknowledgements that are ready. The caller makes sure of a live connection.
    /// `is_large`: whether a conversation is a large group, of which a read position is sent now and
    /// then.
    pub(super) fn flush(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        is_large: impl Fn(ConversationId) -> bool,
        out: &mut Out,
    ) {
        while !self.ready.is_empty() {
            let batch = self.ready.len().min(limits.ack_batch);
            let items: Vec<AckItem> = self.ready.drain(..batch).collect();
            self.unconfirmed_acks
                .extend(items.iter().map(|item| (item.id, *item)));
            self.again_at.get_or_insert(now + limits.ack_again);
            out.transmit(ClientFrame::Ack(Ack {
                kind: ReceiptKind::Received,
                items,
            }));
        }
        while self.unconfirmed_acks.len() > limits.acks_max {
            self.unconfirmed_acks.pop_first();
        }
        let mut items = Vec::new();
        self.reads_from.retain(|_, from| *from > now);
        for (conversation, (item, unsent)) in &mut self.reads {
            if !self.reads_from.contains_key(conversation) && std::mem::take(unsent) {
                items.push(*item);
                if is_large(*conversation) {
                    let from = now + limits.large_read_interval;
                    self.reads_from.insert(*conversation, from);
                }
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
    pub(super) fn confirmed(&mut self, reply: &Acked) -> Vec<(ConversationId, Seq)> {
        let refused_ids = (reply.refusals.iter())
            .filter(|(_, refusal)| !refusal.code.retryable())
            .map(|(id, _)| *id);
        let settled_ids: Vec<MessageId> = reply.ids.iter().copied().chain(refused_ids).collect();
        let mut read_seqs = Vec::new();
        if reply.kind == ReceiptKind::Read {
            self.reads.retain(|&conversation, (item, _)| {
                let is_settled = settled_ids.contains(&item.id);
                if is_settled {
                    read_seqs.push((conversation, item.seq));
                }
                !is_settled
            });
        } else {
            for id in &settled_ids {
                self.unconfirmed_acks.remove(id);
            }
        }
        if self.unconfirmed_acks.is_empty() && self.reads.is_empty() {
            self.again_at = None;
        }
        read_seqs
    }

    pub(super) fn is_empty(&self) -> bool {
        self.awaiting_store.is_empty()
            && self.ready.is_empty()
            && self.unconfirmed_acks.is_empty()
            && self.reads.is_empty()
    }

    pub(super) fn disconnected(&mut self) {
        self.send_all_again();
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let unsent_reads = self.reads.iter().filter(|(_, (_, unsent))| *unsent);
        let held_reads = unsent_reads.filter_map(|(it, _)| self.reads_from.get(it).copied());
        held_reads.chain(self.again_at).min()
    }

    pub(super) fn timeout(&mut self, now: Timestamp) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.send_all_again();
        }
    }

    fn send_all_again(&mut self) {
        self.again_at = None;
        let unconfirmed_acks = std::mem::take(&mut self.unconfirmed_acks);
        self.ready.extend(unconfirmed_acks.into_values());
        for (_, unsent) in self.reads.values_mut() {
            *unsent = true;
        }
    }
}
