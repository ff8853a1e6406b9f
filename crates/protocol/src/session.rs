//! Life of one connection, as the boat that holds it sees it.
//!
//! ```text
//!   opened ──hello──▶ admitting ──admission──▶ open ──close, timeout, end──▶ closed
//!                                               │                              ▲
//!                                               └──drain──▶ draining ──quiet───┘
//! ```
//!
//! Frames, answers and time come in by `handle_*`; actions go out by
//! [`poll_action`](Session::poll_action). Obligations to others are always met: every push token is
//! resolved exactly once, and every granted `Admit` ends with one `Leave`.
//!
//! A session without traffic holds nothing but itself: a queue exists only while it is not empty.

mod action;
mod client;
mod commands;
mod limits;
mod mail;
mod partial_frame;
mod pushes;
mod questions;
mod receipts;
mod sends;
mod signals;
mod socket_backlog;
mod station;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use action::{Action, Admission, Bound, Outcome, Outgoing, Page, PageItem, Token};
pub use limits::SessionLimits;
pub use sends::Submit;

use crate::frame::ServerFrame;
use crate::round_trip::RoundTrip;
use crate::ticket::ResumeTicket;
use crate::{Code, DeviceId, Platform, Refusal, SessionId, Timestamp, UserId};

use mail::MailDrain;
use partial_frame::PartialFrame;
use pushes::Pushes;
use questions::Questions;
use receipts::Receipts;
use sends::Sends;
use signals::Signals;
use socket_backlog::SocketBacklog;

/// Age up to which no session ends for lack of an acknowledgement.
const ACK_GRACE: Duration = Duration::from_secs(60);

/// Life of one connection. See the [module](self).
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    limits: Arc<SessionLimits>,
    phase: Phase,
    user: Option<UserId>,
    device: Option<DeviceId>,
    platform: Platform,
    opened_at: Timestamp,
    /// True once the client has ended its side in order: it does not send again what it sent before.
    has_ended: bool,
    /// Time of the client's last frame; at first, of the connection's opening.
    heard_at: Timestamp,
    /// End of the token; before the admission, of the wait for a hello.
    expires_at: Timestamp,
    /// Second from which the token may be refreshed again; a full timestamp would not fit.
    refresh_from: u32,
    round_trip: RoundTrip,
    frames: Rate,
    refused_acks: Rate,
    /// Weight of all transmitted frames, and of the written part.
    transmitted_weight: u64,
    written_weight: u64,
    /// End, in the outgoing stream, of the last frame that had waited for room. The server chose to
    /// write what comes before it, so that does not count as unread by a slow client.
    paced_weight: u64,
    /// Time at which the socket last took something, or, if later, at which something first waited
    /// for it again.
    written_at: Timestamp,
    travel: SocketBacklog,
    partial: Option<Box<PartialFrame>>,
    actions: VecDeque<Action>,
    sends: Option<Box<Sends>>,
    pushes: Option<Box<Pushes>>,
    receipts: Option<Box<Receipts>>,
    mail: Option<Box<MailDrain>>,
    questions: Option<Box<Questions>>,
    signals: Option<Box<Signals>>,
    /// Time from which the next signals may be written, in milliseconds since `opened_at`.
    signals_from: u32,
}

#[derive(Debug)]
enum Phase {
    /// No hello yet.
    Opened,
    /// Waiting for the station's answer.
    Admitting,
    Open,
    /// Takes nothing new, and ends once nothing is owed.
    Draining(Box<Farewell>),
    Closed {
        /// Whether the station's answer to the hello is still to come.
        is_admitting: bool,
    },
}

/// Closing frame for a client.
#[derive(Clone, Debug)]
struct Farewell {
    refusal: Refusal,
    resume: Option<ResumeTicket>,
}

impl Session {
    /// Creates the session of a connection that has just opened.
    pub fn new(id: SessionId, limits: Arc<SessionLimits>, now: Timestamp) -> Session {
        Session {
            id,
            limits,
            phase: Phase::Opened,
            user: None,
            device: None,
            platform: Platform::Bot,
            opened_at: now,
            has_ended: false,
            heard_at: now,
            expires_at: Timestamp::MAX,
            refresh_from: 0,
            round_trip: RoundTrip::default(),
            frames: Rate::default(),
            refused_acks: Rate::default(),
            transmitted_weight: 0,
            written_weight: 0,
            paced_weight: 0,
            written_at: now,
            travel: SocketBacklog::new(now),
            partial: None,
            actions: VecDeque::new(),
            sends: None,
            pushes: None,
            receipts: None,
            mail: None,
            questions: None,
            signals: None,
            signals_from: 0,
        }
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Limits the wait for the hello, in addition to `limits.handshake`: the client has already
    /// used up part of it.
    pub fn expect_hello_by(&mut self, at: Timestamp) {
        if matches!(self.phase, Phase::Opened) {
            self.expires_at = at;
        }
    }

    fn hello_deadline(&self) -> Timestamp {
        (self.heard_at + self.limits.handshake).min(self.expires_at)
    }

    /// The session's user, once admitted.
    pub fn user(&self) -> Option<UserId> {
        self.user
    }

    /// Device of the hello; `None` before it.
    pub fn device(&self) -> Option<&DeviceId> {
        self.device.as_ref()
    }

    /// Platform of the hello.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// True while admitted and not closed: the station knows of it, or should.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Draining(_))
    }

    /// Whether the session takes nothing new.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Draining(_) | Phase::Closed { .. })
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }

    /// Whether closed with nothing left to do or to wait for: it can be dropped.
    pub fn is_settled(&self) -> bool {
        matches!(
            self.phase,
            Phase::Closed {
                is_admitting: false
            }
        ) && self.actions.is_empty()
            && self.sends.is_none()
            && self.receipts.is_none()
            && self.mail.is_none()
    }

    /// Weight of the transmitted part that is not written yet.
    pub fn outgoing(&self) -> usize {
        (self.transmitted_weight - self.written_weight) as usize
    }

    /// Weight of everything that waits here for the client to read.
    pub fn waiting(&self) -> usize {
        self.outgoing() + self.questions.as_ref().map_or(0, |it| it.weight())
    }

    /// Whether the client has read enough for something that can wait.
    fn has_room(&self) -> bool {
        self.outgoing() < self.limits.outgoing_bytes_max as usize
    }

    /// Whether more waits than the client may leave unread, apart from what had waited for room.
    fn is_full(&self) -> bool {
        let unread_weight = self.transmitted_weight - self.written_weight.max(self.paced_weight);
        unread_weight >= u64::from(self.limits.outgoing_bytes_max)
    }

    /// Returns the next action. Call until it is `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if let Some(action) = (self.next_submit())
            .or_else(|| self.next_receipts())
            .or_else(|| self.next_removal())
            .or_else(|| self.next_question())
            .or_else(|| self.next_fetch())
        {
            return Some(action);
        }
        self.end_drain();
        let last = self.actions.pop_front();
        if last.is_none() {
            self.release();
        }
        last
    }

    /// Time at which to call `handle_timeout`. May move later without notice: an early call is
    /// harmless.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Closed { .. } => None,
            Phase::Opened => Some(self.hello_deadline()),
            Phase::Admitting => Some(self.heard_at + self.limits.silence_max()),
            Phase::Open | Phase::Draining(_) => {
                let silence = self.silence_deadline();
                let mail = self.mail.as_ref().and_then(|mail| mail.retry_at());
                let (ack, write) = (self.ack_deadline(), self.write_deadline());
                let outcome = self.pushes.as_ref().and_then(|it| it.outcome_due());
                let partial = self.partial_deadline();
                let signals = self.signals_due();
                let expiry = Some(self.expires_at);
                let deadlines = [expiry, ack, write, partial, outcome, mail, signals];
                Some(
                    deadlines
                        .into_iter()
                        .flatten()
                        .fold(silence, Timestamp::min),
                )
            }
        }
    }

    /// Acts on passed deadlines.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.is_closed() {
            return;
        }
        if matches!(self.phase, Phase::Opened) {
            if now >= self.hello_deadline() {
                self.end(Refusal::new(Code::HandshakeTimeout, "no hello in time"));
            }
            return;
        }
        if self.partial_deadline().is_some_and(|due| now >= due) {
            return self.end_partial();
        }
        if now >= self.silence_deadline() {
            let silence = self.limits.silence_max().as_secs();
            return self.end(Refusal::new(
                Code::HeartbeatMissed,
                format!(
                    "nothing received for {silence} seconds; ping when you have nothing to send"
                ),
            ));
        }
        if now >= self.expires_at {
            return self.end(Refusal::new(
                Code::TokenExpired,
                "the token has expired; connect with a new one",
            ));
        }
        if self.ack_deadline().is_some_and(|deadline| now >= deadline) {
            if let Phase::Draining(farewell) = &self.phase {
                let farewell = farewell.as_ref().clone();
                return self.close_with(farewell);
            }
            return self.end(Refusal::new(
                Code::Reconnect,
                "a message was not acknowledged in time; reconnect and sync",
            ));
        }
        if self
            .write_deadline()
            .is_some_and(|deadline| now >= deadline)
        {
            return self.end(Refusal::new(
                Code::Slow,
                "you have not read the waiting frames for too long; reconnect and sync",
            ));
        }
        if let Some(pushes) = &mut self.pushes {
            pushes.give_up(now, &mut self.actions);
        }
        if let Some(mail) = &mut self.mail {
            mail.handle_timeout(now);
        }
        self.transmit_signals(now);
    }

    fn next_receipts(&mut self) -> Option<Action> {
        let ack = self.receipts.as_mut()?.next()?;
        Some(Action::Receipts(ack))
    }

    fn next_removal(&mut self) -> Option<Action> {
        let ids = self.mail.as_mut()?.take_acked()?;
        Some(Action::RemoveMail { ids })
    }

    fn next_fetch(&mut self) -> Option<Action> {
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        let limit = self.limits.mail_page;
        let unacked_mail = self.pushes.as_ref().map_or(0, |pushes| pushes.mail());
        if unacked_mail > limit as usize {
            return None;
        }
        let cursor = self.mail.as_mut()?.next_fetch()?;
        Some(Action::FetchMail { cursor, limit })
    }

    fn end_drain(&mut self) {
        if let Phase::Draining(farewell) = &self.phase {
            let is_quiet = self.sends.as_ref().is_none_or(|sends| sends.is_quiet())
                && self.pushes.as_ref().is_none_or(|pushes| pushes.is_empty());
            if is_quiet {
                let farewell = farewell.as_ref().clone();
                self.close_with(farewell);
            }
        }
    }

    /// Closes with a last frame that gives the reason.
    fn end(&mut self, refusal: Refusal) {
        let resume = None;
        self.close_with(Farewell { refusal, resume });
    }

    fn close_with(&mut self, farewell: Farewell) {
        if self.is_closed() {
            return;
        }
        // The client resends what got no answer.
        self.sends = None;
        self.finish();
        let Farewell { refusal, resume } = farewell;
        let frame = Outgoing::Frame(ServerFrame::Closing {
            refusal: refusal.clone(),
            resume,
        });
        self.transmitted_weight += frame.weight() as u64;
        self.actions.push_back(Action::Transmit(frame));
        self.actions.push_back(Action::Close(refusal));
    }

    /// Meets all obligations but those to the client. Sends still go to the station if the client
    /// has ended in order; after a loss it sends them again, and an old copy must not arrive long
    /// after that.
    fn finish(&mut self) {
        if self.is_closed() {
            return;
        }
        let was_open = self.is_open();
        self.phase = Phase::Closed {
            is_admitting: matches!(self.phase, Phase::Admitting),
        };
        (self.questions, self.partial, self.signals) = (None, None, None);
        self.sends.take_if(|_| !self.has_ended);
        if let Some(pushes) = self.pushes.take() {
            pushes.fail(&mut self.actions);
        }
        if was_open {
            self.actions.push_back(Action::Leave);
        }
    }

    fn count(&mut self, bound: Bound) {
        self.actions.push_back(Action::Count(bound));
    }

    fn transmit(&mut self, frame: ServerFrame, now: Timestamp) {
        self.transmit_any(Outgoing::Frame(frame), now);
    }

    fn transmit_any(&mut self, outgoing: Outgoing, now: Timestamp) {
        if self.is_closed() {
            return;
        }
        if self.is_full() {
            self.count(Bound::OutgoingBytes);
            return self.end(Refusal::new(
                Code::Slow,
                "too many frames are waiting for you to read; reconnect and sync",
            ));
        }
        if self.outgoing() == 0 {
            self.written_at = now;
        }
        self.transmitted_weight += outgoing.weight() as u64;
        self.actions.push_back(Action::Transmit(outgoing));
    }

    /// Writes a frame that has waited until there was [room](Self::has_room).
    fn transmit_with_room(&mut self, outgoing: Outgoing, now: Timestamp) {
        self.transmit_any(outgoing, now);
        self.paced_weight = self.transmitted_weight;
    }

    fn expect_written(&mut self, token: Token) {
        if self.is_closed() {
            return self.resolve(Some(token), Outcome::NoAck);
        }
        let position = self.transmitted_weight;
        (self.pushes.get_or_insert_default()).expect_written(position, token);
    }

    fn resolve(&mut self, token: Option<Token>, outcome: Outcome) {
        if let Some(token) = token {
            self.actions.push_back(Action::Resolve { token, outcome });
        }
    }

    /// Time at which the session ends for lack of an acknowledgement. At least a minute passes
    /// between two ends for this reason: a client that is far away gets its messages meanwhile.
    fn ack_deadline(&self) -> Option<Timestamp> {
        let pushes = self.pushes.as_ref()?;
        let deadline = pushes.ack_deadline(&self.limits)? + self.round_trip.wait();
        Some(match self.phase {
            // One client that is silent would hold up a boat that leaves, where all are young.
            Phase::Draining(_) => deadline,
            _ => deadline.max(self.opened_at + ACK_GRACE),
        })
    }

    /// Time at which a client that sends nothing counts as gone. A frame that comes on is no silence,
    /// and no ping fits into it.
    fn silence_deadline(&self) -> Timestamp {
        let silence_end = self.heard_at + self.limits.silence_max();
        self.partial_deadline()
            .map_or(silence_end, |partial| partial.max(silence_end))
    }

    /// Time by which the socket must take some of the waiting bytes.
    fn write_deadline(&self) -> Option<Timestamp> {
        (self.outgoing() > 0).then(|| self.written_at + self.limits.write_wait)
    }

    /// Frees empty queues: most sessions are idle most of the time.
    fn release(&mut self) {
        self.actions = VecDeque::new();
        let is_closed = self.is_closed();
        (self.sends).take_if(|sends| sends.is_empty() || (is_closed && sends.is_quiet()));
        self.pushes.take_if(|pushes| pushes.is_empty());
        self.receipts.take_if(|receipts| receipts.is_empty());
        self.questions.take_if(|questions| questions.is_empty());
        let unacked_mail = self.pushes.as_ref().map_or(0, |pushes| pushes.mail());
        (self.mail).take_if(|mail| is_closed || (unacked_mail == 0 && mail.is_over()));
    }
}

/// Number of events in the present window.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    window_start: Timestamp,
    count: u32,
}

impl Rate {
    /// Counts `count` more events; true if the window then has more than `limit`.
    fn add_and_check(&mut self, count: u32, limit: u32, window: Duration, now: Timestamp) -> bool {
        if now >= self.window_start + window || now < self.window_start {
            *self = Rate {
                window_start: now,
                count: 0,
            };
        }
        self.count = self.count.saturating_add(count);
        self.count > limit
    }
}

fn malformed(text: &str) -> Refusal {
    Refusal::new(Code::Malformed, text)
}

fn rate_limited(text: String) -> Refusal {
    Refusal::new(Code::RateLimited, text).retry_after(Duration::from_secs(1))
}
