//! Commands to a session.

use bytes::Bytes;

use super::mail::MailDrain;
use super::{Farewell, Outgoing, Phase, Session};
use crate::frame::ServerFrame;
use crate::ticket::ResumeTicket;
use crate::{Refusal, Timestamp};

impl Session {
    /// Writes a complete frame that nobody waits for. Dropped before the welcome: the client syncs
    /// after it. While sends are under way it waits for their answers: it may be the consequence of
    /// one of them.
    pub fn notice(&mut self, frame: Bytes, now: Timestamp) {
        if !self.is_open() {
            return;
        }
        let result = match &mut self.sends {
            Some(sends) => sends.defer_notice(frame),
            None => Err(frame),
        };
        if let Err(frame) = result {
            self.transmit_notices(now);
            self.transmit_any(Outgoing::Notice(frame), now);
        }
    }

    /// Writes the notices that waited for answers.
    pub(super) fn transmit_notices(&mut self, now: Timestamp) {
        let notices = self.sends.as_mut().map(|sends| sends.take_notices());
        for frame in notices.unwrap_or_default() {
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
    pub fn drain(&mut self, refusal: Refusal, resume: Option<ResumeTicket>, now: Timestamp) {
        match self.phase {
            Phase::Open => {
                let questions = self.questions.as_mut().map(|it| it.take_waiting());
                for question in questions.unwrap_or_default() {
                    let (request, refusal) = (Some(question.request), refusal.clone());
                    self.transmit(ServerFrame::Error { request, refusal }, now);
                }
                if !self.is_closed() {
                    self.phase = Phase::Draining(Box::new(Farewell { refusal, resume }));
                }
            }
            Phase::Opened | Phase::Admitting => self.end(refusal),
            Phase::Draining(_) | Phase::Closed { .. } => {}
        }
    }
}
