//! Commands to a session.

use bytes::Bytes;

use super::mail::MailDrain;
use super::{Farewell, Outgoing, Phase, Session};
use crate::frame::ServerFrame;
use crate::ticket::ResumeTicket;
use crate::{Refusal, Timestamp};

impl Session {
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
