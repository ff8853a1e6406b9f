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
        let admitting = match self.phase {
            Phase::Opened | Phase::Draining(_) | Phase::Closed { .. } => {
                return self.resolve(token, Outcome::NoSession);
            }
            Phase::Admitting => true,
            Phase::Open => false,
        };
        let (is_full, until) = (self.is_full(), now + limits.ack_wait);
        let pushes = self.pushes.get_or_insert_default();
        let (window, window_bytes) = (limits.push_window, limits.push_window_bytes);
        let has_room = pushes.has_room(push.frame.len(), window as usize, window_bytes as usize);
        if is_full || !has_room || pushes.is_late() {
            self.resolve(token, Outcome::Full);
        } else if admitting {
            pushes.hold_early(source, push);
        } else if push.needs_ack {
            let expected = AckExpectation {
                id: push.message,
                bytes: push.frame.len(),
                waiter: token.map(|token| Waiter { token, until }),
                mail: false,
            };
            // AckExpectation before it is handed out, so that no acknowledgement can come too early.
            if pushes.expect(expected, self.transmitted) {
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
    outstanding: VecDeque<OutstandingPush>,
    bytes: usize,
    /// Entries of `outstanding` whose message has an earlier entry there.
    repeats: usize,
    /// Entries of `outstanding` that also wait in the mailbox.
    mail: usize,
    /// Entries of `outstanding` whose carrier waits no longer.
    late: usize,
    /// Time by which a push without an outcome gets one; may be early.
    outcome_due: Option<Timestamp>,
    /// Position in the outgoing stream up to which acknowledgements prove its arrival.
    arrived: u64,
    /// Tokens that are done once the outgoing stream is written up to this position.
    unwritten: VecDeque<(u64, Token)>,
    /// Pushes from before the client's admission, with their sources.
    early: Vec<(u32, Push)>,
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
    travelling: u64,
    bytes: u32,
    mail: bool,
    /// True once the carrier was told that no acknowledgement came in time.
    late: bool,
}

/// A carrier that waits for the outcome of its push.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) token: Token,
    pub(super) until: Timestamp,
}

/// A message whose acknowledgement is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckExpectation {
    pub(super) id: MessageId,
    /// Size of its frame.
    pub(super) bytes: usize,
    pub(super) waiter: Option<Waiter>,
    /// True if it waits in the mailbox.
    pub(super) mail: bool,
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
        let waiting = self.outstanding.len() + self.unwritten.len() + self.early.len();
        waiting == 0 || (waiting < window && self.bytes + bytes <= window_bytes)
    }

    /// True while an acknowledgement is overdue. What comes now is better stored, and comes as mail.
    fn is_late(&self) -> bool {
        self.late > 0
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
        for entry in &mut self.outstanding {
            let Some(Waiter { token, until }) = entry.waiter else {
                continue;
            };
            if now < until {
                self.outcome_due = Some(until);
                return;
            }
            resolve(Some(token), Outcome::NoAck, actions);
            entry.waiter = None;
            entry.late = true;
            self.late += 1;
        }
    }

    /// Expects an acknowledgement of a message, whose frame follows the `transmitted` bytes before
    /// it. Returns true if it must be written: false if the client is about to acknowledge an
    /// earlier copy.
    pub(super) fn expect(&mut self, expected: AckExpectation, transmitted: u64) -> bool {
        let AckExpectation {
            id,
            bytes,
            waiter,
            mail,
        } = expected;
        if mail && self.mark_as_mail(id) {
            return false;
        }
        let repeat = self.is_outstanding(id);
        self.repeats += usize::from(repeat);
        self.mail += usize::from(mail);
        let bytes = if repeat { 0 } else { bytes };
        self.bytes += bytes;
        if self.outcome_due.is_none() {
            self.outcome_due = waiter.map(|waiter| waiter.until);
        }
        self.outstanding.push_back(OutstandingPush {
            id,
            waiter,
            position: transmitted + bytes as u64,
            written_at: None,
            travelling: 0,
            bytes: bytes as u32,
            mail,
            late: false,
        });
        !repeat
    }

    /// Resolves `token` as done once everything up to `position` is written.
    pub(super) fn expect_written(&mut self, position: u64, token: Token) {
        self.unwritten.push_back((position, token));
    }

    fn hold_early(&mut self, source: u32, push: Push) {
        self.bytes += push.frame.len();
        self.early.push((source, push));
    }

    pub(super) fn take_early(&mut self) -> Vec<(u32, Push)> {
        let early = std::mem::take(&mut self.early);
        let bytes = early.iter().map(|(_, push)| push.frame.len());
        self.bytes -= bytes.sum::<usize>();
        early
    }

    /// Resolves every push of `id`, which the client has.
    pub(super) fn acknowledge(
        &mut self,
        id: MessageId,
        round_trip: &mut RoundTrip,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) -> AckResult {
        let mut found = AckResult::Unknown;
        let mut index = 0;
        while index < self.outstanding.len() {
            if self.outstanding[index].id != id {
                index += 1;
                continue;
            }
            let Some(entry) = self.outstanding.remove(index) else {
                break;
            };
            self.bytes -= entry.bytes as usize;
            self.late -= usize::from(entry.late);
            if let Some(written_at) = entry.written_at {
                self.arrived = self.arrived.max(entry.position);
                round_trip.measure(now.since(written_at));
            }
            if entry.mail {
                self.mail -= 1;
                found = AckResult::Mail;
            } else if found == AckResult::Unknown {
                found = AckResult::Live;
            }
            resolve(entry.token(), Outcome::Done, actions);
            if self.repeats == 0 {
                return found;
            }
        }
        if self.repeats > 0 {
            self.repeats = self.count_repeats();
        }
        found
    }

    /// Notes that the socket has taken the stream up to `written`, of which the last `travelling`
    /// bytes may still be on their way.
    pub(super) fn handle_written(
        &mut self,
        written: u64,
        travelling: u64,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) {
        let first = (self.outstanding).partition_point(|entry| entry.written_at.is_some());
        let unwritten = self.outstanding.range_mut(first..);
        for entry in unwritten.take_while(|entry| entry.position <= written) {
            let before_its_end = travelling.saturating_sub(written - entry.position);
            let unknown = entry.position.saturating_sub(self.arrived);
            entry.written_at = Some(now);
            entry.travelling = before_its_end.min(unknown);
        }
        while let Some(&(position, token)) = self.unwritten.front()
            && position <= written
        {
            self.unwritten.pop_front();
            resolve(Some(token), Outcome::Done, actions);
        }
    }

    /// Fails all pushes at the end of the session: no acknowledgement will come.
    pub(super) fn fail(self, actions: &mut VecDeque<Action>) {
        for entry in self.outstanding {
            resolve(entry.token(), Outcome::NoAck, actions);
        }
        for (_, token) in self.unwritten {
            resolve(Some(token), Outcome::NoAck, actions);
        }
        for (source, push) in self.early {
            resolve(Token::of(source, push.token), Outcome::NoSession, actions);
        }
    }

    /// Time by which the oldest push should be acknowledged, round trips apart; `None` while it is
    /// not written.
    pub(super) fn ack_deadline(&self, limits: &SessionLimits) -> Option<Timestamp> {
        let oldest = self.outstanding.front()?;
        let travel = limits.travel(oldest.travelling as usize);
        Some(oldest.written_at? + limits.ack_wait + travel)
    }

    pub(super) fn mail(&self) -> usize {
        self.mail
    }

    /// True if no push is open.
    pub(super) fn is_empty(&self) -> bool {
        self.outstanding.is_empty() && self.unwritten.is_empty() && self.early.is_empty()
    }

    fn is_outstanding(&self, id: MessageId) -> bool {
        self.outstanding.iter().any(|entry| entry.id == id)
    }

    fn mark_as_mail(&mut self, id: MessageId) -> bool {
        let Some(entry) = self.outstanding.iter_mut().find(|entry| entry.id == id) else {
            return false;
        };
        self.mail += usize::from(!entry.mail);
        entry.mail = true;
        true
    }

    fn count_repeats(&self) -> usize {
        (0..self.outstanding.len())
            .filter(|&index| {
                let id = self.outstanding[index].id;
                (0..index).any(|before| self.outstanding[before].id == id)
            })
            .count()
    }
}

fn resolve(token: Option<Token>, outcome: Outcome, actions: &mut VecDeque<Action>) {
    if let Some(token) = token {
        actions.push_back(Action::Resolve { token, outcome });
    }
}
