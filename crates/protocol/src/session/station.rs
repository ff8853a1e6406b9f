//! Answers of the station.

use std::sync::Arc;
use std::time::Duration;

use super::pushes::AckExpectation;
use super::{Action, Admission, Outgoing, Page, Phase, Session, rate_limited};
use crate::frame::{Acked, ServerFrame, Welcome};
use crate::{Refusal, Timestamp};

impl Session {
    /// Takes the answer to `Admit`.
    pub fn handle_admitted(&mut self, answer: Result<Admission, Refusal>, now: Timestamp) {
        match (&self.phase, answer) {
            (Phase::Admitting, Ok(admission)) => self.open(admission, now),
            (Phase::Admitting, Err(refusal)) => {
                self.end(refusal);
                // The answer has come: no other will.
                self.phase = Phase::Closed {
                    is_admitting: false,
                };
            }
            (Phase::Closed { is_admitting: true }, answer) => {
                // The client has left, but the station has registered it.
                if let Ok(admission) = answer {
                    self.user = Some(admission.user);
                    self.actions.push_back(Action::Leave);
                }
                self.phase = Phase::Closed {
                    is_admitting: false,
                };
            }
            (Phase::Opened | Phase::Open | Phase::Draining(_) | Phase::Closed { .. }, _) => {}
        }
    }

    /// Takes the answer to `Receipts`.
    pub fn handle_receipts(&mut self, answer: Result<Acked, Refusal>, now: Timestamp) {
        let Some(acked) = self
            .receipts
            .as_mut()
            .and_then(|receipts| receipts.answered(answer))
        else {
            return;
        };
        self.receipts.take_if(|receipts| receipts.is_empty());
        if self.is_closed() {
            return;
        }
        let refused_count = (acked.refusals.iter())
            .filter(|(_, refusal)| !refusal.code.retryable())
            .count() as u32;
        self.transmit(ServerFrame::Acked(acked), now);
        let limit = self.limits.refused_acks_per_minute;
        if refused_count > 0
            && (self.refused_acks).add_and_check(refused_count, limit, Duration::from_secs(60), now)
        {
            self.end(rate_limited(format!(
                "more than {limit} refused acknowledgements in one minute"
            )));
        }
    }

    /// Takes the answer to `FetchMail`.
    pub fn handle_page(&mut self, page: Result<Page, Refusal>, now: Timestamp) {
        let retry_at = now + self.limits.mail_retry;
        if let Some(mail) = &mut self.mail {
            mail.handle_page(page, retry_at);
        }
        self.push_mail(now);
    }

    /// Takes the answer to `Refresh`: the end of the new token, or the reason for its refusal.
    pub fn handle_refreshed(&mut self, answer: Result<Timestamp, Refusal>, now: Timestamp) {
        if !self.is_open() {
            return;
        }
        let frame = match answer {
            Ok(expires_at) => {
                self.expires_at = expires_at;
                ServerFrame::Refreshed { expires_at }
            }
            Err(refusal) => ServerFrame::Error {
                request: None,
                refusal,
            },
        };
        self.transmit(frame, now);
    }

    fn open(&mut self, admission: Admission, now: Timestamp) {
        self.phase = Phase::Open;
        self.user = Some(admission.user);
        self.expires_at = admission.expires_at;
        let welcome = Welcome {
            session: self.id,
            user: admission.user,
            server_time: admission.server_time,
            heartbeat: self.limits.heartbeat,
            frame_bytes_max: self.limits.frame_bytes_max,
            send_window: self.limits.send_window,
            cluster: admission.cluster,
            marker: admission.marker,
            recovered: admission.recovered,
            expires_at: Some(admission.expires_at),
        };
        self.transmit(ServerFrame::Welcome(welcome), now);
        let early_pushes = self.pushes.as_mut().map(|pushes| pushes.take_early());
        for (source, push) in early_pushes.unwrap_or_default() {
            self.push(source, push, now);
        }
        if admission.mail_waits {
            self.hint();
        }
    }

    /// Pushes as much of the present page as the windows allow.
    pub(super) fn push_mail(&mut self, now: Timestamp) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let limits = Arc::clone(&self.limits);
        loop {
            let outgoing = self.outgoing();
            let Some(mail) = &mut self.mail else { return };
            let Some(item) = mail.next_pending() else {
                return;
            };
            let pushes = self.pushes.get_or_insert_default();
            // Mail that waits here must not make the client look slow.
            let has_room = outgoing < limits.outgoing_bytes_max as usize
                && pushes.mail() < 2 * limits.mail_page as usize
                && pushes.has_room(
                    item.frame.len(),
                    limits.push_window as usize,
                    limits.push_window_bytes as usize,
                );
            if !has_room {
                return mail.put_back(item);
            }
            let expectation = AckExpectation {
                id: item.id,
                bytes: item.frame.len(),
                waiter: None,
                is_mail: true,
            };
            if pushes.expect(expectation, self.transmitted_weight) {
                self.transmit_with_room(Outgoing::Encoded(item.frame), now);
            }
        }
    }
}
