//! Messages on their way to the client, until it acknowledges them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Action, Outcome, Outgoing, Phase, Session, SessionLimits, Token};
use crate::delivery::Push;
use crate::round_trip::RoundTrip;
use crate::{MessageId, Timestamp};

impl Session {
    /// Delivers a message on behalf of this source. The outcome is resolved exactly once, now or
    /// later, unless nobody waits for it.
    pub fn push(&mut self, source: u32, push: Push, now: Timestamp) {
        let token = Token::of(source, push.token);
        let limits = Arc::clone(&self.limits);
        let is_admitting = match self.phase {
            Phase::Opened | Phase::Draining(_) | Phase::Closed { .. } => {
                return self.resolve(token, Outcome::NoSession);
            }
            Phase::Admitting => true,
            Phase::Open => false,
        };
        let (is_full, deadline) = (self.is_full(), now + limits.ack_wait);
        let pushes = self.pushes.get_or_insert_default();
        let (window, window_bytes) = (limits.push_window, limits.push_window_bytes);
        let has_room = pushes.has_room(push.frame.len(), window as usize, window_bytes as usize);
        if is_full || !has_room || pushes.is_late() {
            self.resolve(token, Outcome::Full);
        } else if is_admitting {
            pushes.hold_early(source, push);
        } else if push.needs_ack {
            let expectation = AckExpectation {
                id: push.message,
                bytes: push.frame.len(),
                waiter: token.map(|token| Waiter { token, deadline }),
                is_mail: false,
            };
            // Registered before the frame goes out, so that no acknowledgement can come too early.
            if pushes.expect(expectation, self.transmitted_weight) {
                self.transmit_any(Outgoing::Encoded(push.frame), now);
            }
        } else {
            self.transmit_any(Outgoing::Encoded(push.frame), now);
            if let Some(token) = token {
                self.expect_written(token);
            }
        }
    }

    /// Refuses a message for lack of room, as if the window were full.
    pub fn refuse_push(&mut self, source: u32, push: &Push) {
        let outcome = match self.phase {
            Phase::Opened | Phase::Draining(_) | Phase::Closed { .. } => Outcome::NoSession,
            Phase::Admitting | Phase::Open => Outcome::Full,
        };
        self.resolve(Token::of(source, push.token), outcome);
    }
}

#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// Unacknowledged pushes, oldest first.
    unacked: VecDeque<OutstandingPush>,
    bytes: usize,
    /// Number of entries of `unacked` whose message has an earlier entry there.
    repeats: usize,
    /// Number of entries of `unacked` that also wait in the mailbox.
    mail_count: usize,
    /// Number of entries of `unacked` whose carrier waits no longer.
    late_count: usize,
    /// Time by which a push without an outcome gets one; may be early.
    outcome_due: Option<Timestamp>,
    /// Position in the outgoing stream up to which acknowledgements prove its arrival.
    arrived_position: u64,
    /// Tokens that are done once the outgoing stream is written up to this position.
    unwritten: VecDeque<(u64, Token)>,
    /// Pushes from before the client's admission, with their sources.
    before_admission: Vec<(u32, Push)>,
}

#[derive(Debug)]
struct OutstandingPush {
    id: MessageId,
    waiter: Option<Waiter>,
    /// End of the frame in the outgoing stream.
    position: u64,
    /// Time at which the socket had taken the frame, which cannot arrive earlier.
    written_at: Option<Timestamp>,
    /// Bytes on their way when it was written, up to its end.
    bytes_in_flight: u64,
    bytes: u32,
    is_mail: bool,
    /// True once the carrier was told that no acknowledgement came in time.
    is_late: bool,
}

/// A carrier that waits for the outcome of its push.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) token: Token,
    pub(super) deadline: Timestamp,
}

/// A message whose acknowledgement is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckExpectation {
    pub(super) id: MessageId,
    /// Size of its frame.
    pub(super) bytes: usize,
    pub(super) waiter: Option<Waiter>,
    /// Whether it waits in the mailbox.
    pub(super) is_mail: bool,
}

impl OutstandingPush {
    fn token(&self) -> Option<Token> {
        self.waiter.map(|waiter| waiter.token)
    }
}

/// Origin of an acknowledged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckResult {
    Unknown,
    Live,
    /// Waits in the mailbox, and can go from there.
    Mail,
}

impl Pushes {
    pub(super) fn has_room(&self, bytes: usize, window: usize, window_bytes: usize) -> bool {
        let push_count = self.unacked.len() + self.unwritten.len() + self.before_admission.len();
        push_count == 0 || (push_count < window && self.bytes + bytes <= window_bytes)
    }

    /// True while an acknowledgement is overdue. What comes now is better stored, and comes as mail.
    fn is_late(&self) -> bool {
        self.late_count > 0
    }

    /// Time by which to call [`give_up`](Self::give_up); may be early.
    pub(super) fn outcome_due(&self) -> Option<Timestamp> {
        self.outcome_due
    }

    /// Answers the carriers that have waited long enough for an acknowledgement: they have other
    /// ways to the client. The messages stay expected.
    pub(super) fn give_up(&mut self, now: Timestamp, actions: &mut VecDeque<Action>) {
        if self.outcome_due.is_none_or(|due| now < due) {
            return;
        }
        self.outcome_due = None;
        for entry in &mut self.unacked {
            let Some(Waiter { token, deadline }) = entry.waiter else {
                continue;
            };
            if now < deadline {
                self.outcome_due = Some(deadline);
                return;
            }
            resolve(Some(token), Outcome::NoAck, actions);
            entry.waiter = None;
            entry.is_late = true;
            self.late_count += 1;
        }
    }

    /// Expects an acknowledgement of a message, whose frame follows the first `transmitted_weight`
    /// bytes. Returns true if it must be written: false if the client is about to acknowledge an
    /// earlier copy.
    pub(super) fn expect(&mut self, expectation: AckExpectation, transmitted_weight: u64) -> bool {
        let AckExpectation {
            id,
            bytes,
            waiter,
            is_mail,
        } = expectation;
        if is_mail && self.mark_as_mail(id) {
            return false;
        }
        let is_repeat = self.is_outstanding(id);
        self.repeats += usize::from(is_repeat);
        self.mail_count += usize::from(is_mail);
        let bytes = if is_repeat { 0 } else { bytes };
        self.bytes += bytes;
        if self.outcome_due.is_none() {
            self.outcome_due = waiter.map(|waiter| waiter.deadline);
        }
        self.unacked.push_back(OutstandingPush {
            id,
            waiter,
            position: transmitted_weight + bytes as u64,
            written_at: None,
            bytes_in_flight: 0,
            bytes: bytes as u32,
            is_mail,
            is_late: false,
        });
        !is_repeat
    }

    /// Resolves `token` as done once everything up to `position` is written.
    pub(super) fn expect_written(&mut self, position: u64, token: Token) {
        self.unwritten.push_back((position, token));
    }

    fn hold_early(&mut self, source: u32, push: Push) {
        self.bytes += push.frame.len();
        self.before_admission.push((source, push));
    }

    pub(super) fn take_early(&mut self) -> Vec<(u32, Push)> {
        let early_pushes = std::mem::take(&mut self.before_admission);
        let bytes = early_pushes.iter().map(|(_, push)| push.frame.len());
        self.bytes -= bytes.sum::<usize>();
        early_pushes
    }

    /// Resolves every push of `id`, which the client has.
    pub(super) fn acknowledge(
        &mut self,
        id: MessageId,
        round_trip: &mut RoundTrip,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) -> AckResult {
        let mut result = AckResult::Unknown;
        let mut index = 0;
        while index < self.unacked.len() {
            if self.unacked[index].id != id {
                index += 1;
                continue;
            }
            let Some(entry) = self.unacked.remove(index) else {
                break;
            };
            self.bytes -= entry.bytes as usize;
            self.late_count -= usize::from(entry.is_late);
            if let Some(written_at) = entry.written_at {
                self.arrived_position = self.arrived_position.max(entry.position);
                round_trip.measure(now.since(written_at));
            }
            if entry.is_mail {
                self.mail_count -= 1;
                result = AckResult::Mail;
            } else if result == AckResult::Unknown {
                result = AckResult::Live;
            }
            resolve(entry.token(), Outcome::Done, actions);
            if self.repeats == 0 {
                return result;
            }
        }
        if self.repeats > 0 {
            self.repeats = self.count_repeats();
        }
        result
    }

    /// Notes that the socket has taken the stream up to `written_position`, of which the
    /// last `bytes_in_flight` bytes may still be on their way.
    pub(super) fn handle_written(
        &mut self,
        written_position: u64,
        bytes_in_flight: u64,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) {
        let first_unwritten = (self.unacked).partition_point(|entry| entry.written_at.is_some());
        let newly_written = self.unacked.range_mut(first_unwritten..);
        for entry in newly_written.take_while(|entry| entry.position <= written_position) {
            let in_flight_before_end =
                bytes_in_flight.saturating_sub(written_position - entry.position);
            let unconfirmed = entry.position.saturating_sub(self.arrived_position);
            entry.written_at = Some(now);
            entry.bytes_in_flight = in_flight_before_end.min(unconfirmed);
        }
        while let Some(&(position, token)) = self.unwritten.front()
            && position <= written_position
        {
            self.unwritten.pop_front();
            resolve(Some(token), Outcome::Done, actions);
        }
    }

    /// Fails all pushes at the end of the session: no acknowledgement will come.
    pub(super) fn fail(self, actions: &mut VecDeque<Action>) {
        for entry in self.unacked {
            resolve(entry.token(), Outcome::NoAck, actions);
        }
        for (_, token) in self.unwritten {
            resolve(Some(token), Outcome::NoAck, actions);
        }
        for (source, push) in self.before_admission {
            resolve(Token::of(source, push.token), Outcome::NoSession, actions);
        }
    }

    /// Time by which the oldest push should be acknowledged, round trips apart; `None` while it is
    /// not written.
    pub(super) fn ack_deadline(&self, limits: &SessionLimits) -> Option<Timestamp> {
        let oldest = self.unacked.front()?;
        let travel = limits.travel(oldest.bytes_in_flight as usize);
        Some(oldest.written_at? + limits.ack_wait + travel)
    }

    pub(super) fn mail(&self) -> usize {
        self.mail_count
    }

    /// Whether no push is open.
    pub(super) fn is_empty(&self) -> bool {
        self.unacked.is_empty() && self.unwritten.is_empty() && self.before_admission.is_empty()
    }

    fn is_outstanding(&self, id: MessageId) -> bool {
        self.unacked.iter().any(|entry| entry.id == id)
    }

    fn mark_as_mail(&mut self, id: MessageId) -> bool {
        let Some(entry) = self.unacked.iter_mut().find(|entry| entry.id == id) else {
            return false;
        };
        self.mail_count += usize::from(!entry.is_mail);
        entry.is_mail = true;
        true
    }

    fn count_repeats(&self) -> usize {
        (0..self.unacked.len())
            .filter(|&index| {
                let id = self.unacked[index].id;
                (0..index).any(|earlier| self.unacked[earlier].id == id)
            })
            .count()
    }
}

fn resolve(token: Option<Token>, outcome: Outcome, actions: &mut VecDeque<Action>) {
    if let Some(token) = token {
        actions.push_back(Action::Resolve { token, outcome });
    }
}
