//! Commands to a session.

use std::sync::Arc;

use bytes::Bytes;

use super::mail::MailDrain;
use super::{Farewell, Outcome, Outgoing, Phase, Push, Session};
use crate::frame::ServerFrame;
use crate::ticket::ResumeTicket;
use crate::{Refusal, Timestamp};

impl Session {
    /// Delivers a message. The token is resolved exactly once, now or later.
    pub fn push(&mut self, push: Push, now: Timestamp) {
        let limits = Arc::clone(&self.limits);
        let admitting = match self.phase {
            Phase::Opened | Phase::Draining(_) | Phase::Closed { .. } => {
                return self.resolve(push.token, Outcome::NoSession);
            }
            Phase::Admitting => true,
            Phase::Open => false,
        };
        let pushes = self.pushes.get_or_insert_default();
        let (window, window_bytes) = (limits.push_window, limits.push_window_bytes);
        if !pushes.has_room(push.frame.len(), window as usize, window_bytes as usize) {
            self.resolve(push.token, Outcome::Full);
        } else if admitting {
            pushes.hold_early(push);
        } else if push.needs_ack {
            // Expected before it is handed out, so that no acknowledgement can come too early.
            if pushes.expect(&push, false, self.transmitted) {
                self.transmit_any(Outgoing::Encoded(push.frame), now);
            }
        } else {
            let token = push.token;
            self.transmit_any(Outgoing::Encoded(push.frame), now);
            if let Some(token) = token {
                self.expect_written(token);
            }
        }
    }

    /// Refuses a message for lack of room, as if the window were full.
    pub fn refuse_push(&mut self, push: Push) {
        let outcome = match self.phase {
            Phase::Opened | Phase::Draining(_) | Phase::Closed { .. } => Outcome::NoSession,
            Phase::Admitting | Phase::Open => Outcome::Full,
        };
        self.resolve(push.token, outcome);
    }

    /// Writes a complete frame that nobody waits for. Dropped before the welcome: the client syncs
    /// after it.
    pub fn notice(&mut self, frame: Bytes, now: Timestamp) {
        if self.is_open() {
            self.transmit_any(Outgoing::Notice(frame), now);
        }
    }

    /// Notes that mail was stored for this client while it is connected.
    pub fn hint(&mut self) {
        if matches!(self.phase, Phase::Admitting | Phase::Open) {
            match &mut self.mail {
                Some(mail) => mail.hint(),
                None => self.mail = Some(Box::new(MailDrain::new())),
            }
        }
    }

    /// Has the client compare its cursors, and fetches waiting mail: something may have been lost
    /// or stored while this session was not registered.
    pub fn resync(&mut self, now: Timestamp) {
        if self.is_open() {
            self.transmit(ServerFrame::Resync, now);
            self.hint();
        }
    }

    /// Ends the session, with this as the last frame.
    pub fn close(&mut self, refusal: Refusal, _now: Timestamp) {
        self.end(refusal);
    }

    /// Drains the session: it takes nothing new, but sends under way get their answers and pushes
    /// their acknowledgements, as far as their deadlines allow. Then it closes with `refusal`, and
    /// with a ticket to resume elsewhere.
    pub fn drain(&mut self, refusal: Refusal, resume: Option<ResumeTicket>, _now: Timestamp) {
        match self.phase {
            Phase::Open => {
                self.phase = Phase::Draining(Box::new(Farewell { refusal, resume }));
            }
            Phase::Opened | Phase::Admitting => self.end(refusal),
            Phase::Draining(_) | Phase::Closed { .. } => {}
        }
    }
}
