//! Input from the client.

use std::time::Duration;

use super::pushes::AckResult;
use super::{Action, Bound, Phase, Session, malformed, rate_limited};
use crate::frame::{Ack, ClientFrame, Hello, Refresh, ServerFrame, VERSION};
use crate::ticket::REFRESH_PAUSE;
use crate::{Code, Refusal, SendId, Timestamp};

/// Acknowledged messages that wait to be passed on; beyond them the session is closed with
/// `rate_limited`.
const RECEIPTS_MAX: usize = 4096;

impl Session {
    /// Takes a frame.
    pub fn handle_frame(&mut self, frame: ClientFrame, now: Timestamp) {
        if !self.handle_frame_end(now) {
            return;
        }
        match frame {
            ClientFrame::Hello(hello) => self.handle_hello(hello),
            ClientFrame::Ping { nonce } if !matches!(self.phase, Phase::Opened) => {
                let server_time = now;
                self.transmit(ServerFrame::Pong { nonce, server_time }, now);
            }
            _ if !self.is_welcomed() => {}
            ClientFrame::Send(send) => self.handle_send(send, now),
            ClientFrame::GiveUp(send_id) => {
                if let Some(sends) = &mut self.sends {
                    sends.give_up(send_id);
                }
            }
            ClientFrame::Ack(ack) => self.handle_ack(ack, now),
            ClientFrame::Sync(request) => self.handle_sync(request, now),
            ClientFrame::Refresh(refresh) => self.handle_refresh(refresh, now),
            ClientFrame::Subscribe(groups) => self.handle_subscribe(groups, now),
            ClientFrame::Watch(groups) => self.handle_watch(groups, now),
            ClientFrame::Ping { .. } => {}
        }
    }

    /// Refuses a send with impossible content, like one that the station refuses for good.
    pub fn handle_invalid_send(&mut self, send_id: SendId, refusal: Refusal, now: Timestamp) {
        if self.handle_frame_end(now) && self.is_welcomed() {
            self.transmit(ServerFrame::Refused { send_id, refusal }, now);
        }
    }

    /// Refuses a query with impossible content.
    pub fn handle_invalid_question(&mut self, request: u32, refusal: Refusal, now: Timestamp) {
        if self.handle_frame_end(now) && self.is_welcomed() {
            let request = Some(request);
            self.transmit(ServerFrame::Error { request, refusal }, now);
        }
    }

    /// Ends the session for bytes that are not a frame, or for too many of them.
    pub fn handle_malformed(&mut self, refusal: Refusal, now: Timestamp) {
        self.heard_at = now;
        self.end(refusal);
    }

    /// Takes a sign of life that is no frame, such as a ping of WebSocket.
    pub fn handle_sign_of_life(&mut self, now: Timestamp) {
        if self.is_open() {
            self.count_frame(now);
        }
    }

    /// Notes that the client sends nothing more, though it may still read. The session ends once
    /// everything that it sent is answered.
    pub fn handle_end(&mut self, now: Timestamp) {
        self.has_ended = true;
        let is_answered = self.sends.as_ref().is_none_or(|sends| sends.is_quiet());
        if !self.is_open() || is_answered {
            return self.finish();
        }
        // No acknowledgement will come.
        if let Some(pushes) = self.pushes.take() {
            pushes.fail(&mut self.actions);
        }
        let refusal = Refusal::new(
            Code::Reconnect,
            "you have ended the connection; whatever you sent before is answered",
        );
        self.drain(refusal, None, now);
    }

    /// Settles after the loss of the connection, or after its end if nothing can be written.
    pub fn handle_closed(&mut self, _now: Timestamp) {
        self.finish();
    }

    /// Notes that the socket has taken something at this time, though not yet a whole frame.
    pub fn handle_progress(&mut self, at: Timestamp) {
        self.written_at = self.written_at.max(at);
    }

    /// Notes that the socket has taken this [weight](super::Outgoing::weight) of the transmitted
    /// frames: there is room for more, so poll for actions.
    pub fn handle_written(&mut self, weight: usize, now: Timestamp) {
        self.written_weight = self
            .transmitted_weight
            .min(self.written_weight + weight as u64);
        self.written_at = now;
        let bytes_in_flight = self.travel.take(weight as u64, &self.limits, now);
        if let Some(pushes) = &mut self.pushes {
            pushes.handle_written(self.written_weight, bytes_in_flight, now, &mut self.actions);
        }
        // Mail first: its windows are small, so that it does not keep answers waiting.
        self.push_mail(now);
        self.transmit_answers(now);
        self.transmit_signals(now);
    }

    /// Takes the end of a frame; false if the session takes no more.
    fn handle_frame_end(&mut self, now: Timestamp) -> bool {
        self.partial = None;
        self.count_frame(now)
    }

    /// Counts a frame or a sign of life; false if the session takes no more.
    fn count_frame(&mut self, now: Timestamp) -> bool {
        if self.is_closed() {
            return false;
        }
        self.heard_at = now;
        let limit = self.limits.frames_per_second;
        let is_exceeded = (self.frames).add_and_check(1, limit, Duration::from_secs(1), now);
        if is_exceeded {
            self.count(Bound::Frames);
            self.end(rate_limited(format!(
                "more than {limit} frames in one second"
            )));
        }
        !is_exceeded
    }

    /// Ends the session if a frame came too early.
    fn is_welcomed(&mut self) -> bool {
        if !self.is_open() {
            self.end(malformed(match self.phase {
                Phase::Opened => "the first frame must be hello",
                _ => "wait for welcome before the next frame",
            }));
        }
        self.is_open()
    }

    fn handle_hello(&mut self, hello: Hello) {
        if !matches!(self.phase, Phase::Opened) {
            return self.end(malformed("hello comes once, as the first frame"));
        }
        if hello.version != VERSION {
            return self.end(Refusal::new(
                Code::UnsupportedVersion,
                format!(
                    "this server speaks version {VERSION}, not {}",
                    hello.version
                ),
            ));
        }
        self.device = Some(hello.device.clone());
        self.platform = hello.platform;
        self.phase = Phase::Admitting;
        // The hello deadline is over; the token's end comes with the admission.
        self.expires_at = Timestamp::MAX;
        self.actions.push_back(Action::Admit(hello));
    }

    fn handle_ack(&mut self, ack: Ack, now: Timestamp) {
        if ack.items.is_empty() {
            return;
        }
        // Either kind: who has read a message has received it.
        if let Some(pushes) = &mut self.pushes {
            for item in &ack.items {
                let (round_trip, actions) = (&mut self.round_trip, &mut self.actions);
                let result = pushes.acknowledge(item.id, round_trip, now, actions);
                if result == AckResult::Mail
                    && let Some(mail) = &mut self.mail
                {
                    mail.acknowledge(item.id);
                }
            }
        }
        self.push_mail(now);
        let receipts = self.receipts.get_or_insert_default();
        receipts.arrive(ack);
        if receipts.items() > RECEIPTS_MAX {
            self.end(rate_limited(format!(
                "more than {RECEIPTS_MAX} acknowledgements are waiting to be recorded"
            )));
        }
    }

    fn handle_refresh(&mut self, refresh: Refresh, now: Timestamp) {
        let refresh_from = Timestamp::from_millis(i64::from(self.refresh_from) * 1000);
        if now < refresh_from {
            let wait = refresh_from.since(now);
            let refusal = rate_limited("a token can be refreshed once per minute".to_owned())
                .retry_after(wait);
            let request = None;
            return self.transmit(ServerFrame::Error { request, refusal }, now);
        }
        let next = (now + REFRESH_PAUSE).millis() / 1000;
        self.refresh_from = u32::try_from(next).unwrap_or_default();
        self.actions.push_back(Action::Refresh(refresh));
    }
}
