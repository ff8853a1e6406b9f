//! Sends of a client, on their way to the station: a window, one batch under way, and the order of
//! each conversation kept across failures.

use std::collections::VecDeque;

use crate::admission::send_id_taken;
use crate::frame::Send;
use crate::{Code, Recipient, Refusal, SendId};

/// Bytes of a send beside its data.
const SEND_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Sends {
    waiting: VecDeque<Send>,
    in_flight: Vec<(SendId, Recipient)>,
    /// Sends that were refused and may be resent, oldest first. Each conversation goes on with its
    /// first one here.
    held: VecDeque<(SendId, Recipient)>,
}

/// Result for a send that just came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubmitResult {
    /// Queued for the next batch.
    Waits,
    /// Already under way; its answer will come.
    Known,
    Refused(Refusal),
}

impl Sends {
    pub(super) fn arrive(&mut self, send: Send, window: usize) -> SubmitResult {
        match self.under_way(send.send_id) {
            Some(to) if to == send.to => return SubmitResult::Known,
            // The pending answer is not about this send.
            Some(_) => return SubmitResult::Refused(send_id_taken()),
            None => {}
        }
        let first = self.held.iter().position(|(_, to)| *to == send.to);
        if let Some(first) = first
            && self.held[first].0 != send.send_id
        {
            self.hold_last(send.send_id, send.to);
            return SubmitResult::Refused(earlier_failed());
        }
        if self.waiting.len() + self.in_flight.len() >= window {
            if first.is_none() {
                self.hold_last(send.send_id, send.to);
            }
            return SubmitResult::Refused(Refusal::new(
                Code::WindowFull,
                format!("{window} sends wait for their answers; wait for one of them"),
            ));
        }
        if let Some(first) = first {
            self.held.remove(first);
        }
        self.waiting.push_back(send);
        SubmitResult::Waits
    }

    /// Next batch of waiting sends, within `bytes_max`, if nothing is under way.
    pub(super) fn next_batch(&mut self, bytes_max: usize) -> Option<Vec<Send>> {
        if !self.in_flight.is_empty() || self.waiting.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fits = (self.waiting.iter()).take_while(|send| {
            let first = bytes == 0;
            bytes += SEND_BYTES + send.content.data.len();
            first || bytes <= bytes_max
        });
        let count = fits.count();
        let batch: Vec<Send> = self.waiting.drain(..count).collect();
        self.in_flight = batch.iter().map(|send| (send.send_id, send.to)).collect();
        Some(batch)
    }

    pub(super) fn take_in_flight(&mut self) -> Vec<(SendId, Recipient)> {
        std::mem::take(&mut self.in_flight)
    }

    /// Holds refused sends that may be resent. Takes back the sends that wait behind them in their
    /// conversations, and returns those, to refuse as well.
    pub(super) fn hold(&mut self, failed: &[(SendId, Recipient)]) -> Vec<SendId> {
        let blocked = |to: &Recipient| failed.iter().any(|(_, failed_to)| failed_to == to);
        let behind: Vec<(SendId, Recipient)> = (self.waiting.iter())
            .filter(|send| blocked(&send.to))
            .map(|send| (send.send_id, send.to))
            .collect();
        self.waiting.retain(|send| !blocked(&send.to));
        for entry in failed.iter().chain(&behind).rev() {
            self.held.push_front(*entry);
        }
        behind.into_iter().map(|(send_id, _)| send_id).collect()
    }

    pub(super) fn give_up(&mut self, send_id: SendId) {
        self.held.retain(|(held, _)| *held != send_id);
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// True if nothing waits and nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_quiet() && self.held.is_empty()
    }

    /// Recipient of the unanswered send with this id.
    fn under_way(&self, send_id: SendId) -> Option<Recipient> {
        let waiting = self.waiting.iter().map(|send| (send.send_id, send.to));
        let mut all = waiting.chain(self.in_flight.iter().copied());
        all.find(|(known, _)| *known == send_id).map(|(_, to)| to)
    }

    fn hold_last(&mut self, send_id: SendId, to: Recipient) {
        if !self.held.iter().any(|(held, _)| *held == send_id) {
            self.held.push_back((send_id, to));
        }
    }
}

pub(super) fn earlier_failed() -> Refusal {
    Refusal::new(
        Code::EarlierSendFailed,
        "an earlier send to this conversation failed; resend that one first, or give it up",
    )
}
