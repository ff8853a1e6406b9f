//! Sends of a client, on their way to the station: a window, one batch under way, and the order of
//! each conversation kept across failures.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Action, Bound, Phase, Session, rate_limited};
use crate::admission::send_id_taken;
use crate::frame::{Accepted, Send, ServerFrame};
use crate::ticket::Ticket;
use crate::{Code, DeviceId, Platform, Recipient, Refusal, SendId, SessionId, Timestamp, UserId};

/// Bytes of a send beside its data.
const SEND_BYTES: usize = 128;
/// Bytes of notices that wait for the answers to sends; beyond it they overtake the answers.
const NOTICE_BYTES_MAX: usize = 64 * 1024;

/// A send for the station, with the session that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    pub session: SessionId,
    pub user: UserId,
    pub device: DeviceId,
    pub platform: Platform,
    pub send: Send,
    /// Ticket of the session. The session has none: the boat adds it.
    pub ticket: Option<Ticket>,
}

impl Session {
    pub(super) fn handle_send(&mut self, send: Send, now: Timestamp) {
        let send_id = send.send_id;
        if let Some(refusal) = self.refuse(&send) {
            return self.transmit(ServerFrame::Refused { send_id, refusal }, now);
        }
        let window = self.limits.send_window as usize;
        let sends = self.sends.get_or_insert_default();
        match sends.arrive(send, window) {
            SubmitResult::Waits | SubmitResult::Known => {}
            SubmitResult::Refused(refusal) => {
                self.transmit(ServerFrame::Refused { send_id, refusal }, now);
                self.check_held();
            }
        }
    }

    /// Refusal of a send for its own sake, if any.
    fn refuse(&mut self, send: &Send) -> Option<Refusal> {
        if let Phase::Draining(farewell) = &self.phase {
            return Some(farewell.refusal.clone());
        }
        if let Recipient::User(to) = send.to
            && Some(to) == self.user
        {
            return Some(Refusal::new(Code::ToSelf, "a message to yourself"));
        }
        let (bytes, max) = (send.content.data.len(), self.limits.body_bytes_max);
        if bytes <= max as usize {
            return None;
        }
        self.count(Bound::BodyBytes);
        let text = format!("data has {bytes} bytes, more than {max}");
        Some(Refusal::new(Code::TooLarge, text))
    }

    pub(super) fn next_submit(&mut self) -> Option<Action> {
        let (session, platform) = (self.id, self.platform);
        let (user, device) = (self.user?, self.device.as_ref()?);
        let submit = |send| Submit {
            session,
            user,
            device: device.clone(),
            platform,
            send,
            ticket: None,
        };
        let bytes_max = self.limits.submit_bytes_max as usize;
        let batch = self.sends.as_mut()?.next_batch(bytes_max, submit)?;
        Some(Action::Submit(batch))
    }

    /// Takes the answers to `Submit`, one for each send, in order. A missing one counts as a
    /// failure.
    pub fn handle_submitted(&mut self, answers: Vec<Result<Accepted, Refusal>>, now: Timestamp) {
        let Some(sends) = &mut self.sends else {
            return;
        };
        let in_flight = sends.take_in_flight();
        let missing_answers = std::iter::repeat_with(|| {
            Err(Refusal::new(
                Code::Unavailable,
                "the station gave no answer to this send; send it again",
            ))
        });
        let mut retryable: Vec<(SendId, Recipient)> = Vec::new();
        let mut frames = Vec::with_capacity(in_flight.len());
        for ((send_id, to), answer) in in_flight
            .into_iter()
            .zip(answers.into_iter().chain(missing_answers))
        {
            frames.push(match answer {
                Ok(accepted) => ServerFrame::Accepted(Accepted {
                    send_id,
                    ..accepted
                }),
                Err(refusal) => {
                    if refusal.code.retryable() {
                        retryable.push((send_id, to));
                    }
                    ServerFrame::Refused { send_id, refusal }
                }
            });
        }
        for send_id in sends.hold(&retryable) {
            let refusal = earlier_failed();
            frames.push(ServerFrame::Refused { send_id, refusal });
        }
        for frame in frames {
            self.transmit(frame, now);
        }
        self.transmit_notices(now);
        self.check_held();
    }

    fn check_held(&mut self) {
        let max = self.limits.held_max as usize;
        if self.sends.as_ref().is_some_and(|sends| sends.held() > max) {
            self.end(rate_limited(format!(
                "more than {max} sends after failed ones; resend the failed ones first, or give them up"
            )));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sends {
    queue: VecDeque<Send>,
    in_flight: Vec<(SendId, Recipient)>,
    /// Sends that were refused and may be resent, oldest first. Each conversation goes on with its
    /// first one here.
    held_sends: VecDeque<(SendId, Recipient)>,
    /// Notices that came while sends were under way.
    notices: Vec<Bytes>,
    notice_bytes: usize,
}

/// Result for a send that just came.
#[derive(Debug, PartialEq, Eq)]
enum SubmitResult {
    /// Queued for the next batch.
    Waits,
    /// Already under way; its answer will come.
    Known,
    Refused(Refusal),
}

impl Sends {
    fn arrive(&mut self, send: Send, window: usize) -> SubmitResult {
        match self.under_way(send.send_id) {
            Some(to) if to == send.to => return SubmitResult::Known,
            // The pending answer is not about this send.
            Some(_) => return SubmitResult::Refused(send_id_taken()),
            None => {}
        }
        let first_held = self.held_sends.iter().position(|(_, to)| *to == send.to);
        if let Some(first_held) = first_held
            && self.held_sends[first_held].0 != send.send_id
        {
            self.hold_last(send.send_id, send.to);
            return SubmitResult::Refused(earlier_failed());
        }
        if self.queue.len() + self.in_flight.len() >= window {
            if first_held.is_none() {
                self.hold_last(send.send_id, send.to);
            }
            return SubmitResult::Refused(Refusal::new(
                Code::WindowFull,
                format!("{window} sends are unanswered; wait for one of them"),
            ));
        }
        if let Some(first_held) = first_held {
            self.held_sends.remove(first_held);
        }
        self.queue.push_back(send);
        SubmitResult::Waits
    }

    /// Next batch of waiting sends, within `bytes_max`, if nothing is under way.
    fn next_batch(
        &mut self,
        bytes_max: usize,
        submit: impl Fn(Send) -> Submit,
    ) -> Option<Vec<Submit>> {
        if !self.in_flight.is_empty() || self.queue.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fitting = (self.queue.iter()).take_while(|send| {
            let is_first = bytes == 0;
            bytes += SEND_BYTES + send.content.data.len();
            is_first || bytes <= bytes_max
        });
        let count = fitting.count();
        let batch: Vec<Submit> = self.queue.drain(..count).map(submit).collect();
        let sends = batch.iter().map(|submit| &submit.send);
        self.in_flight = sends.map(|send| (send.send_id, send.to)).collect();
        Some(batch)
    }

    fn take_in_flight(&mut self) -> Vec<(SendId, Recipient)> {
        std::mem::take(&mut self.in_flight)
    }

    /// Holds refused sends that may be resent. Takes back the sends that wait behind them in their
    /// conversations, and returns those, to refuse as well.
    fn hold(&mut self, failed_sends: &[(SendId, Recipient)]) -> Vec<SendId> {
        let is_blocked = |to: &Recipient| failed_sends.iter().any(|(_, failed_to)| failed_to == to);
        let blocked_sends: Vec<(SendId, Recipient)> = (self.queue.iter())
            .filter(|send| is_blocked(&send.to))
            .map(|send| (send.send_id, send.to))
            .collect();
        self.queue.retain(|send| !is_blocked(&send.to));
        for entry in failed_sends.iter().chain(&blocked_sends).rev() {
            self.held_sends.push_front(*entry);
        }
        blocked_sends
            .into_iter()
            .map(|(send_id, _)| send_id)
            .collect()
    }

    /// Keeps a notice until the sends under way are answered; `Err` if nothing is under way, or if
    /// too much waits.
    pub(super) fn defer_notice(&mut self, notice: Bytes) -> Result<(), Bytes> {
        if self.in_flight.is_empty() || self.notice_bytes + notice.len() > NOTICE_BYTES_MAX {
            return Err(notice);
        }
        self.notice_bytes += notice.len();
        self.notices.push(notice);
        Ok(())
    }

    pub(super) fn take_notices(&mut self) -> Vec<Bytes> {
        self.notice_bytes = 0;
        std::mem::take(&mut self.notices)
    }

    pub(super) fn give_up(&mut self, send_id: SendId) {
        self.held_sends.retain(|(held_id, _)| *held_id != send_id);
    }

    fn held(&self) -> usize {
        self.held_sends.len()
    }

    /// Whether nothing waits and nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_quiet() && self.held_sends.is_empty()
    }

    /// Recipient of the unanswered send with this id.
    fn under_way(&self, send_id: SendId) -> Option<Recipient> {
        let queued = self.queue.iter().map(|send| (send.send_id, send.to));
        let mut unanswered = queued.chain(self.in_flight.iter().copied());
        unanswered
            .find(|(known_id, _)| *known_id == send_id)
            .map(|(_, to)| to)
    }

    fn hold_last(&mut self, send_id: SendId, to: Recipient) {
        if !self
            .held_sends
            .iter()
            .any(|(held_id, _)| *held_id == send_id)
        {
            self.held_sends.push_back((send_id, to));
        }
    }
}

fn earlier_failed() -> Refusal {
    Refusal::new(
        Code::EarlierSendFailed,
        "an earlier send to this conversation failed; resend that one first, or give it up",
    )
}
