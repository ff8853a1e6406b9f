//! Acknowledgements on their way to the station: one call under way, later ones go with the next.

use std::collections::VecDeque;

use crate::Refusal;
use crate::frame::{Ack, Acked};

#[derive(Debug, Default)]
pub(super) struct Receipts {
    queue: VecDeque<Ack>,
    in_flight: Option<Ack>,
    /// Number of items in `queue`.
    items: usize,
}

impl Receipts {
    pub(super) fn arrive(&mut self, ack: Ack) {
        self.items += ack.items.len();
        match self.queue.back_mut() {
            Some(last) if last.kind == ack.kind => last.items.extend(ack.items),
            Some(_) | None => self.queue.push_back(ack),
        }
    }

    /// Next waiting items of one kind, if nothing is under way.
    pub(super) fn next(&mut self) -> Option<Ack> {
        if self.in_flight.is_some() {
            return None;
        }
        let ack = self.queue.pop_front()?;
        self.items -= ack.items.len();
        self.in_flight = Some(ack.clone());
        Some(ack)
    }

    /// Takes the answer to the call under way; if the call failed, refuses each item.
    pub(super) fn answered(&mut self, answer: Result<Acked, Refusal>) -> Option<Acked> {
        let ack = self.in_flight.take()?;
        Some(answer.unwrap_or_else(|refusal| {
            Acked {
                kind: ack.kind,
                ids: Vec::new(),
                refusals: (ack.items.iter())
                    .map(|item| (item.id, refusal.clone()))
                    .collect(),
            }
        }))
    }

    pub(super) fn items(&self) -> usize {
        self.items
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_none()
    }
}
