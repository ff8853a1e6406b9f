//! One connection's life, as the boat that holds it sees it.
//!
//! ```text
//!   opened ──hello──▶ admitting ──admission──▶ open ──close, timeout, end──▶ closed
//!                                               │                              ▲
//!                                               └──drain──▶ draining ──quiet───┘
//! ```
//!
//! Frames, answers and time come in by `handle_*`; what is to be done goes out by
//! [`poll_action`](Session::poll_action). Whatever is owed to others is settled in any case: every
//! push token is resolved exactly once, every `Admit` that was answered with yes ends with one `Leave`.
//!
//! A session without traffic holds nothing but itself: queues exist while something is in them.

mod action;
mod limits;
mod mail;
mod pushes;
mod receipts;
mod sends;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use action::{Action, Admission, Outcome, Outgoing, Page, PageItem, Push, Token};
pub use limits::Limits;

use crate::frame::{
    Accepted, Ack, Acked, ClientFrame, Hello, Send, ServerFrame, SyncRequest, VERSION, Welcome,
};
use crate::receipt::ReceiptKind;
use crate::{Code, DeviceId, Platform, Recipient, Refusal, SendId, SessionId, Timestamp, UserId};

use mail::MailDrain;
use pushes::{Acknowledged, Pushes};
use receipts::Receipts;
use sends::{Arrival, Sends, earlier_failed};

/// One connection's life. See the [module](self).
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    limits: Arc<Limits>,
    phase: Phase,
    user: Option<UserId>,
    device: Option<DeviceId>,
    platform: Platform,
    /// Questions that wait for their answer.
    questions: u8,
    /// The last frame from the client; at first, when the connection was opened.
    heard_at: Timestamp,
    expires_at: Timestamp,
    frames: Rate,
    refused_acks: Rate,
    /// Weight of all that was transmitted, and of what of it is written.
    transmitted: u64,
    written: u64,
    actions: VecDeque<Action>,
    sends: Option<Box<Sends>>,
    pushes: Option<Box<Pushes>>,
    receipts: Option<Box<Receipts>>,
    mail: Option<Box<MailDrain>>,
}

#[derive(Debug)]
enum Phase {
    /// No hello yet.
    Opened,
    /// The station is asked.
    Admitting,
    Open,
    /// Takes nothing new, ends when nothing is owed.
    Draining(Box<Refusal>),
    Closed {
        /// The station's answer to the hello is still to come.
        admitting: bool,
    },
}

impl Session {
    /// A connection was opened.
    pub fn new(id: SessionId, limits: Arc<Limits>, now: Timestamp) -> Session {
        Session {
            id,
            limits,
            phase: Phase::Opened,
            user: None,
            device: None,
            platform: Platform::Bot,
            questions: 0,
            heard_at: now,
            expires_at: Timestamp::MAX,
            frames: Rate::default(),
            refused_acks: Rate::default(),
            transmitted: 0,
            written: 0,
            actions: VecDeque::new(),
            sends: None,
            pushes: None,
            receipts: None,
            mail: None,
        }
    }

    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Who this is, once admitted.
    pub fn user(&self) -> Option<UserId> {
        self.user
    }

    /// As the hello said; `None` before it.
    pub fn device(&self) -> Option<&DeviceId> {
        self.device.as_ref()
    }

    /// As the hello said.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Admitted and not closed: what a station knows of, or should.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Draining(_))
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }

    /// Closed, and nothing is left to do or to wait for: it can be dropped.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Closed { admitting: false })
            && self.actions.is_empty()
            && self.receipts.is_none()
            && self.mail.is_none()
    }

    /// Weight of what was transmitted and is not written yet.
    pub fn outgoing(&self) -> usize {
        (self.transmitted - self.written) as usize
    }

    // What the client does.

    /// A frame came.
    pub fn handle_frame(&mut self, frame: ClientFrame, now: Timestamp) {
        if !self.heard(now) {
            return;
        }
        match frame {
            ClientFrame::Hello(hello) => self.handle_hello(hello),
            ClientFrame::Ping { nonce } if !matches!(self.phase, Phase::Opened) => {
                self.transmit(ServerFrame::Pong {
                    nonce,
                    server_time: now,
                });
            }
            _ if !self.is_welcomed() => {}
            ClientFrame::Send(send) => self.handle_send(send),
            ClientFrame::GiveUp(send_id) => {
                if let Some(sends) = &mut self.sends {
                    sends.give_up(send_id);
                }
            }
            ClientFrame::Ack(ack) => self.handle_ack(ack, now),
            ClientFrame::Sync(request) => self.handle_sync(request),
            ClientFrame::Ping { .. } => {}
        }
    }

    /// A send came whose content cannot be: refused like one that the station refuses for ever.
    pub fn handle_invalid_send(&mut self, send_id: SendId, refusal: Refusal, now: Timestamp) {
        if self.heard(now) && self.is_welcomed() {
            self.transmit(ServerFrame::Refused { send_id, refusal });
        }
    }

    /// A question came whose content cannot be.
    pub fn handle_invalid_question(&mut self, request: u32, refusal: Refusal, now: Timestamp) {
        if self.heard(now) && self.is_welcomed() {
            let request = Some(request);
            self.transmit(ServerFrame::Error { request, refusal });
        }
    }

    /// Bytes came that are no frame, or too many of them.
    pub fn handle_malformed(&mut self, refusal: Refusal, now: Timestamp) {
        self.heard_at = now;
        self.end(refusal);
    }

    /// The connection is gone.
    pub fn handle_closed(&mut self, _now: Timestamp) {
        self.finish();
    }

    /// The socket has taken this [weight](Outgoing::weight) of what was transmitted.
    pub fn handle_written(&mut self, weight: usize) {
        self.written = self.transmitted.min(self.written + weight as u64);
        if let Some(pushes) = &mut self.pushes {
            pushes.handle_written(self.written, &mut self.actions);
        }
    }

    // What the station answers.

    /// The answer to `Admit`.
    pub fn handle_admitted(&mut self, answer: Result<Admission, Refusal>, now: Timestamp) {
        match (&self.phase, answer) {
            (Phase::Admitting, Ok(admission)) => self.open(admission, now),
            (Phase::Admitting, Err(refusal)) => self.end(refusal),
            (Phase::Closed { admitting: true }, answer) => {
                // The client left meanwhile, but the station has registered it.
                if let Ok(admission) = answer {
                    self.user = Some(admission.user);
                    self.actions.push_back(Action::Leave);
                }
                self.phase = Phase::Closed { admitting: false };
            }
            (Phase::Opened | Phase::Open | Phase::Draining(_) | Phase::Closed { .. }, _) => {}
        }
    }

    /// The answers to `Submit`, one for each send, in order. A missing one counts as a failure.
    pub fn handle_submitted(&mut self, answers: Vec<Result<Accepted, Refusal>>, _now: Timestamp) {
        let Some(sends) = &mut self.sends else {
            return;
        };
        let asked = sends.take_in_flight();
        let missing = std::iter::repeat_with(|| {
            Err(Refusal::new(
                Code::Unavailable,
                "the station gave no answer to this send; send it again",
            ))
        });
        let mut failed: Vec<(SendId, Recipient)> = Vec::new();
        let mut frames = Vec::with_capacity(asked.len());
        for ((send_id, to), answer) in asked.into_iter().zip(answers.into_iter().chain(missing)) {
            frames.push(match answer {
                Ok(accepted) => ServerFrame::Accepted(Accepted {
                    send_id,
                    ..accepted
                }),
                Err(refusal) => {
                    if refusal.code.retryable() {
                        failed.push((send_id, to));
                    }
                    ServerFrame::Refused { send_id, refusal }
                }
            });
        }
        for send_id in sends.hold(&failed) {
            let refusal = earlier_failed();
            frames.push(ServerFrame::Refused { send_id, refusal });
        }
        for frame in frames {
            self.transmit(frame);
        }
        self.check_held();
    }

    /// The answer to `Receipts`.
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
        let refused = (acked.refused.iter())
            .filter(|(_, refusal)| !refusal.code.retryable())
            .count() as u32;
        self.transmit(ServerFrame::Acked(acked));
        let limit = self.limits.refused_acks_per_minute;
        if refused > 0 && (self.refused_acks).exceeded(refused, limit, Duration::from_secs(60), now)
        {
            self.end(rate_limited(format!(
                "more than {limit} refused acknowledgements in one minute"
            )));
        }
    }

    /// The answer to `FetchMail`.
    pub fn handle_page(&mut self, page: Result<Page, Refusal>, now: Timestamp) {
        let retry_at = now + self.limits.mail_retry;
        if let Some(mail) = &mut self.mail {
            mail.handle_page(page, retry_at);
        }
        self.push_mail(now);
    }

    /// The answer to a `Sync`: a page, or why there is none.
    pub fn handle_answer(&mut self, request: u32, answer: Result<Outgoing, Refusal>) {
        self.questions = self.questions.saturating_sub(1);
        self.transmit_any(answer.unwrap_or_else(|refusal| {
            Outgoing::Frame(ServerFrame::Error {
                request: Some(request),
                refusal,
            })
        }));
    }

    // What others want of it.

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
            // Expected before it is handed out: an acknowledgement can never come too early.
            if pushes.expect(&push, false, now) {
                self.transmit_any(Outgoing::Encoded(push.frame));
            }
        } else {
            let token = push.token;
            self.transmit_any(Outgoing::Encoded(push.frame));
            if let Some(token) = token {
                self.expect_written(token);
            }
        }
    }

    /// Writes a complete frame that nobody waits for. Before the welcome it is dropped: a client syncs
    /// after it.
    pub fn notice(&mut self, frame: Bytes) {
        if self.is_open() {
            self.transmit_any(Outgoing::Encoded(frame));
        }
    }

    /// Something was stored for this client while it is here.
    pub fn hint(&mut self) {
        if matches!(self.phase, Phase::Admitting | Phase::Open) {
            match &mut self.mail {
                Some(mail) => mail.hint(),
                None => self.mail = Some(Box::new(MailDrain::new())),
            }
        }
    }

    /// Something may have been lost or stored while this session was not registered: the client
    /// compares its cursors, and what waits is fetched.
    pub fn resync(&mut self) {
        if self.is_open() {
            self.transmit(ServerFrame::Resync);
            self.hint();
        }
    }

    /// Ends it, with this as the last frame.
    pub fn close(&mut self, refusal: Refusal, _now: Timestamp) {
        self.end(refusal);
    }

    /// Ends it in order: nothing new is taken, sends under way get their answers and pushes their
    /// acknowledgements, as long as `ack_wait` lets them; then it closes with `refusal`.
    pub fn drain(&mut self, refusal: Refusal, _now: Timestamp) {
        match self.phase {
            Phase::Open => self.phase = Phase::Draining(Box::new(refusal)),
            Phase::Opened | Phase::Admitting => self.end(refusal),
            Phase::Draining(_) | Phase::Closed { .. } => {}
        }
    }

    // What now?

    /// The next thing to do. Call until it is `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if let Some(action) = (self.next_submit())
            .or_else(|| self.next_receipts())
            .or_else(|| self.next_removal())
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

    /// When `handle_timeout` should be called. May move later without notice: calling it early is no
    /// harm.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Closed { .. } => None,
            Phase::Opened => Some(self.heard_at + self.limits.handshake),
            Phase::Admitting => Some(self.heard_at + self.limits.silence_max()),
            Phase::Open | Phase::Draining(_) => {
                let silence = self.heard_at + self.limits.silence_max();
                let mail = self.mail.as_ref().and_then(|mail| mail.retry_at());
                let deadlines = [Some(self.expires_at), self.ack_deadline(), mail];
                Some(
                    deadlines
                        .into_iter()
                        .flatten()
                        .fold(silence, Timestamp::min),
                )
            }
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.is_closed() {
            return;
        }
        if matches!(self.phase, Phase::Opened) {
            if now >= self.heard_at + self.limits.handshake {
                self.end(Refusal::new(
                    Code::HandshakeTimeout,
                    "no hello came in time",
                ));
            }
            return;
        }
        if now >= self.heard_at + self.limits.silence_max() {
            let silence = self.limits.silence_max().as_secs();
            return self.end(Refusal::new(
                Code::HeartbeatMissed,
                format!(
                    "nothing was heard for {silence} seconds; ping when you have nothing to send"
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
            return self.end(Refusal::new(
                Code::Reconnect,
                "a message was not acknowledged in time; reconnect and sync",
            ));
        }
        if let Some(mail) = &mut self.mail {
            mail.handle_timeout(now);
        }
    }

    // How.

    /// Counts a frame; false if nothing more is heard.
    fn heard(&mut self, now: Timestamp) -> bool {
        if self.is_closed() {
            return false;
        }
        self.heard_at = now;
        let limit = self.limits.frames_per_second;
        let exceeded = (self.frames).exceeded(1, limit, Duration::from_secs(1), now);
        if exceeded {
            self.end(rate_limited(format!(
                "more than {limit} frames in one second"
            )));
        }
        !exceeded
    }

    /// Ends it if a frame came that is not for now.
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
        self.actions.push_back(Action::Admit(hello));
    }

    fn open(&mut self, admission: Admission, now: Timestamp) {
        self.phase = Phase::Open;
        self.user = Some(admission.user);
        self.expires_at = admission.expires_at;
        self.transmit(ServerFrame::Welcome(Welcome {
            session: self.id,
            user: admission.user,
            server_time: admission.server_time,
            heartbeat: self.limits.heartbeat,
            frame_bytes_max: self.limits.frame_bytes_max,
            send_window: self.limits.send_window,
            cluster: admission.cluster,
            marker: admission.marker,
            recovered: admission.recovered,
        }));
        let early = self.pushes.as_mut().map(|pushes| pushes.take_early());
        for push in early.unwrap_or_default() {
            self.push(push, now);
        }
        if admission.mail_waits {
            self.hint();
        }
    }

    fn handle_send(&mut self, send: Send) {
        let send_id = send.send_id;
        if let Some(refusal) = self.refuse(&send) {
            return self.transmit(ServerFrame::Refused { send_id, refusal });
        }
        let window = self.limits.send_window as usize;
        let sends = self.sends.get_or_insert_default();
        match sends.arrive(send, window) {
            Arrival::Waits | Arrival::Known => {}
            Arrival::Refused(refusal) => {
                self.transmit(ServerFrame::Refused { send_id, refusal });
                self.check_held();
            }
        }
    }

    /// What is wrong with a send in itself.
    fn refuse(&self, send: &Send) -> Option<Refusal> {
        if let Phase::Draining(refusal) = &self.phase {
            return Some(refusal.as_ref().clone());
        }
        if let Recipient::User(to) = send.to
            && Some(to) == self.user
        {
            return Some(Refusal::new(Code::ToSelf, "a message to oneself"));
        }
        let (bytes, max) = (send.content.data.len(), self.limits.body_bytes_max);
        (bytes > max as usize).then(|| {
            Refusal::new(
                Code::TooLarge,
                format!("data has {bytes} bytes, more than {max}"),
            )
        })
    }

    fn check_held(&mut self) {
        let max = self.limits.held_max as usize;
        if self.sends.as_ref().is_some_and(|sends| sends.held() > max) {
            self.end(rate_limited(format!(
                "more than {max} sends after failed ones; resend the failed ones first, or give them up"
            )));
        }
    }

    fn handle_ack(&mut self, ack: Ack, now: Timestamp) {
        if ack.items.is_empty() {
            return;
        }
        if ack.kind == ReceiptKind::Received {
            if let Some(pushes) = &mut self.pushes {
                for item in &ack.items {
                    let acknowledged = pushes.acknowledge(item.id, &mut self.actions);
                    if acknowledged == Acknowledged::Mail
                        && let Some(mail) = &mut self.mail
                    {
                        mail.acknowledge(item.id);
                    }
                }
            }
            self.push_mail(now);
        }
        let receipts = self.receipts.get_or_insert_default();
        receipts.arrive(ack);
        let max = self.limits.receipts_max as usize;
        if receipts.items() > max {
            self.end(rate_limited(format!(
                "more than {max} acknowledgements wait to be recorded"
            )));
        }
    }

    fn handle_sync(&mut self, request: SyncRequest) {
        let refusal = match &self.phase {
            Phase::Draining(refusal) => refusal.as_ref().clone(),
            _ if self.questions >= self.limits.questions_max => {
                let max = self.limits.questions_max;
                rate_limited(format!("{max} questions wait for their answers"))
            }
            _ => {
                self.questions += 1;
                return self.actions.push_back(Action::Sync(request));
            }
        };
        self.transmit(ServerFrame::Error {
            request: Some(request.request),
            refusal,
        });
    }

    /// Pushes of the page at hand what the window lets through.
    fn push_mail(&mut self, now: Timestamp) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let limits = Arc::clone(&self.limits);
        while let Some(mail) = &mut self.mail
            && let Some(item) = mail.next_pending()
        {
            let pushes = self.pushes.get_or_insert_default();
            let room = pushes.mail() < 2 * limits.mail_page as usize
                && pushes.has_room(
                    item.frame.len(),
                    limits.push_window as usize,
                    limits.push_window_bytes as usize,
                );
            if !room {
                return mail.put_back(item);
            }
            let push = Push {
                token: None,
                id: item.id,
                frame: item.frame,
                needs_ack: true,
            };
            if pushes.expect(&push, true, now) {
                self.transmit_any(Outgoing::Encoded(push.frame));
            }
        }
    }

    fn next_submit(&mut self) -> Option<Action> {
        if self.is_closed() {
            return None;
        }
        let bytes_max = self.limits.submit_bytes_max as usize;
        let batch = self.sends.as_mut()?.next_batch(bytes_max)?;
        Some(Action::Submit(batch))
    }

    fn next_receipts(&mut self) -> Option<Action> {
        let ack = self.receipts.as_mut()?.next()?;
        Some(Action::Receipts(ack))
    }

    fn next_removal(&mut self) -> Option<Action> {
        let ids = self.mail.as_mut()?.take_acknowledged()?;
        Some(Action::RemoveMail { ids })
    }

    fn next_fetch(&mut self) -> Option<Action> {
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        let limit = self.limits.mail_page;
        let unacknowledged = self.pushes.as_ref().map_or(0, |pushes| pushes.mail());
        if unacknowledged > limit as usize {
            return None;
        }
        let after = self.mail.as_mut()?.next_fetch()?;
        Some(Action::FetchMail { after, limit })
    }

    fn end_drain(&mut self) {
        if let Phase::Draining(refusal) = &self.phase {
            let quiet = self.sends.as_ref().is_none_or(|sends| sends.is_quiet())
                && self.pushes.as_ref().is_none_or(|pushes| pushes.is_empty());
            if quiet {
                let refusal = refusal.as_ref().clone();
                self.end(refusal);
            }
        }
    }

    /// Closes with a last frame that says why.
    fn end(&mut self, refusal: Refusal) {
        if self.is_closed() {
            return;
        }
        self.finish();
        let closing = Outgoing::Frame(ServerFrame::Closing(refusal.clone()));
        self.transmitted += closing.weight() as u64;
        self.actions.push_back(Action::Transmit(closing));
        self.actions.push_back(Action::Close(refusal));
    }

    /// Settles with everybody but the client.
    fn finish(&mut self) {
        if self.is_closed() {
            return;
        }
        let admitted = self.is_open();
        self.phase = Phase::Closed {
            admitting: matches!(self.phase, Phase::Admitting),
        };
        self.sends = None;
        if let Some(pushes) = self.pushes.take() {
            pushes.fail(&mut self.actions);
        }
        if admitted {
            self.actions.push_back(Action::Leave);
        }
    }

    fn transmit(&mut self, frame: ServerFrame) {
        self.transmit_any(Outgoing::Frame(frame));
    }

    fn transmit_any(&mut self, outgoing: Outgoing) {
        if self.is_closed() {
            return;
        }
        if self.outgoing() >= self.limits.outgoing_bytes_max as usize {
            return self.end(Refusal::new(
                Code::Slow,
                "too much waits to be read by you; reconnect and sync",
            ));
        }
        self.transmitted += outgoing.weight() as u64;
        self.actions.push_back(Action::Transmit(outgoing));
    }

    fn expect_written(&mut self, token: Token) {
        if self.is_closed() {
            return self.resolve(Some(token), Outcome::NoAck);
        }
        let position = self.transmitted;
        (self.pushes.get_or_insert_default()).expect_written(position, token);
    }

    fn resolve(&mut self, token: Option<Token>, outcome: Outcome) {
        if let Some(token) = token {
            self.actions.push_back(Action::Resolve { token, outcome });
        }
    }

    fn ack_deadline(&self) -> Option<Timestamp> {
        let oldest = self.pushes.as_ref()?.oldest()?;
        Some(oldest + self.limits.ack_wait)
    }

    /// Gives back what is empty: most sessions are idle most of the time.
    fn release(&mut self) {
        self.actions = VecDeque::new();
        self.sends.take_if(|sends| sends.is_empty());
        self.pushes.take_if(|pushes| pushes.is_empty());
        self.receipts.take_if(|receipts| receipts.is_empty());
        let unacknowledged = self.pushes.as_ref().map_or(0, |pushes| pushes.mail());
        let closed = self.is_closed();
        (self.mail).take_if(|mail| closed || (unacknowledged == 0 && mail.is_over()));
    }
}

/// How often something happened in the present window of time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    since: Timestamp,
    count: u32,
}

impl Rate {
    /// Counts `count` more; is it more than `limit` since the window began?
    fn exceeded(&mut self, count: u32, limit: u32, window: Duration, now: Timestamp) -> bool {
        if now >= self.since + window || now < self.since {
            *self = Rate {
                since: now,
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
