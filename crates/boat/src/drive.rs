//! Drives one connection: reads, tells the session, does what it asks, writes.
//!
//! One task, one future written by hand, one timer, no channel: an idle connection holds little more
//! than its session. Everything that waits is written in one flush a turn.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::codec::{About, Rejected, decode_client_about, encode_server};
use api::station::{MailAck, MailPageRequest, ReceiptItem, SendItem};
use bytes::Bytes;
use protocol::frame::ClientFrame;
use protocol::presence::SessionKey;
use protocol::session::{Action, Outgoing, Session};
use protocol::{Code, Refusal, Timestamp, UserId};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::boat::Boat;
use crate::connection::Connection;
use crate::lanes::{Receipt, Submission, refuse_receipt, refuse_submission};
use crate::link::{Gone, Link, Transport};
use crate::listener::Arrival;
use crate::metrics::Metrics;
use crate::stack::Received;
use crate::traced::TracedSends;

/// Frames read in one turn: then others get theirs.
const READS_A_TURN: usize = 64;
/// Handed to the link before it is flushed.
const FLUSH_BYTES: usize = 64 * 1024;
/// What may wait is written when it is this much.
const LINGER_BYTES: usize = 16 * 1024;

pub(crate) struct Drive {
    boat: Arc<Boat>,
    connection: Arc<Connection>,
    peer: SocketAddr,
    stage: Stage,
    transport: Transport,
    /// Transmitted and not yet taken by the link, each with its weight.
    queue: VecDeque<(Bytes, u32)>,
    /// Until when all of the queue may wait for company; `None`: it is to be written now.
    lingers_until: Option<Instant>,
    /// Weight of what the link has taken and the socket has not.
    in_link: usize,
    timer: Option<Pin<Box<Sleep>>>,
    /// Weight of what is transmitted and not written, now and as it was reported last.
    unwritten: usize,
    reported: usize,
    traced: TracedSends,
    /// Why it ends, if we end it.
    code: Option<Code>,
    _counted: TaskTrackerToken,
}

enum Stage {
    Serving(Link),
    /// The last frames are on their way; then nothing is expected but the end.
    Ending {
        link: Link,
        closed: bool,
        deadline: Pin<Box<Sleep>>,
    },
    /// The socket is gone; the session settles with the others.
    Gone,
}

impl Drive {
    pub(crate) fn new(boat: Arc<Boat>, link: Link, arrival: &Arrival) -> Drive {
        let now = boat.now();
        let connection = Connection::new(boat.new_session_id(), Arc::clone(&boat.limits), now);
        boat.connections.insert(&connection);
        match &arrival.refusal {
            Some(refusal) => connection.update(|session| session.close(refusal.clone(), now)),
            None if boat.is_draining() => {
                connection.update(|session| session.close(leaving(), now));
            }
            None => {}
        }
        let transport = link.transport();
        boat.metrics.connections(transport).increment(1.0);
        Drive {
            peer: arrival.peer,
            stage: Stage::Serving(link),
            transport,
            queue: VecDeque::new(),
            lingers_until: None,
            in_link: 0,
            timer: None,
            unwritten: 0,
            reported: 0,
            traced: TracedSends::default(),
            code: None,
            _counted: boat.tasks.token(),
            connection,
            boat,
        }
    }

    /// Reads what has come, within bounds.
    fn read(&mut self, cx: &mut Context<'_>) {
        for _ in 0..READS_A_TURN {
            match &mut self.stage {
                Stage::Gone => return,
                Stage::Ending { link, closed, .. } => match link.poll_read(cx) {
                    Poll::Ready(Received::End) if *closed => self.stage = Stage::Gone,
                    // Half an end: what we have to say may still be read.
                    Poll::Ready(Received::End) | Poll::Pending => return,
                    Poll::Ready(Received::Frame(_) | Received::Refused(_)) => {}
                },
                Stage::Serving(link) => match link.poll_read(cx) {
                    Poll::Ready(received) => {
                        if !self.hear(received) {
                            return;
                        }
                    }
                    Poll::Pending => return,
                },
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Answers whether more may be heard.
    fn hear(&mut self, received: Received) -> bool {
        let now = self.boat.now();
        let state = &mut *self.connection.lock();
        let session = &mut state.session;
        match received {
            Received::Frame(frame) => {
                self.boat.metrics.frames_in.increment(1);
                hear_frame(session, frame, &self.boat, &mut self.traced, now);
            }
            Received::Refused(refusal) => session.handle_malformed(refusal, now),
            Received::End => {
                session.handle_closed(now);
                self.stage = Stage::Gone;
            }
        }
        !session.is_closed()
    }

    /// Does what the session asks.
    fn act(&mut self, cx: Option<&Context<'_>>) {
        let connection = Arc::clone(&self.connection);
        let mut state = connection.lock();
        while let Some(action) = state.session.poll_action() {
            self.perform(action, &mut state.session);
        }
        state.waker = cx.map(|cx| cx.waker().clone());
    }

    fn perform(&mut self, action: Action, session: &mut Session) {
        let boat = &self.boat;
        match action {
            Action::Transmit(outgoing) => {
                if !self.traced.is_empty()
                    && let Outgoing::Frame(frame) = &outgoing
                {
                    let (platform, spans) = (session.platform(), boat.tracer.spans());
                    self.traced.answer(frame, platform, spans);
                }
                let weight = outgoing.weight() as u32;
                self.unwritten += weight as usize;
                if !outgoing.may_wait() || self.unwritten > LINGER_BYTES {
                    self.lingers_until = None;
                } else if self.queue.is_empty() {
                    self.lingers_until = Some(Instant::now() + boat.config.linger);
                }
                self.queue.push_back((encoded(outgoing), weight));
            }
            Action::Resolve { token, outcome } => {
                boat.metrics.outcome(outcome).increment(1);
                boat.sources.resolve(token, outcome);
            }
            Action::Admit(_) if boat.is_draining() => {
                let now = boat.now();
                session.close(leaving(), now);
                session.handle_admitted(Err(leaving()), now);
            }
            Action::Admit(hello) => boat.admit(&self.connection, hello, self.peer),
            Action::Close(refusal) => self.end(refusal.code),
            Action::Submit(_)
            | Action::Receipts(_)
            | Action::FetchMail { .. }
            | Action::RemoveMail { .. }
            | Action::Sync(_)
            | Action::Leave => {
                // All of these follow an admission, which named the user.
                if let Some(user) = session.user() {
                    self.tell_station(action, user, session);
                }
            }
        }
    }

    fn tell_station(&mut self, action: Action, user: UserId, session: &mut Session) {
        let (boat, connection) = (&self.boat, &self.connection);
        let (id, platform) = (session.id(), session.platform());
        let lane = boat.lanes.get(boat.stations.lane_of(id));
        match action {
            Action::Submit(sends) => {
                let Some(device) = session.device().cloned() else {
                    return;
                };
                let item = |send| SendItem {
                    session: id,
                    user,
                    device: device.clone(),
                    platform,
                    send,
                };
                let submission = Submission {
                    connection: Arc::clone(connection),
                    items: sends.into_iter().map(item).collect(),
                };
                if let Err(back) = lane.sends.push(submission) {
                    refuse_submission(session, boat, back.items.len());
                }
            }
            Action::Receipts(ack) => {
                let receipt = Receipt {
                    connection: Arc::clone(connection),
                    item: ReceiptItem {
                        user,
                        session: id,
                        ack,
                    },
                };
                if lane.receipts.push(receipt).is_err() {
                    refuse_receipt(session, boat);
                }
            }
            Action::FetchMail { after, limit } => {
                let request = MailPageRequest {
                    user,
                    platform,
                    after,
                    limit,
                };
                boat.fetch_mail(connection, request);
            }
            Action::RemoveMail { ids } => {
                let ack = MailAck {
                    user,
                    platform,
                    session: id,
                    ids,
                };
                if lane.mail_acks.push(ack).is_err() {
                    boat.metrics.lane_overflows.increment(1);
                }
            }
            Action::Sync(request) => boat.ask(connection, user, request),
            Action::Leave => {
                boat.session_ended();
                let key = boat.life().map(|life| SessionKey {
                    user,
                    session: id,
                    life,
                });
                if key.is_some_and(|key| lane.leaves.push(key).is_err()) {
                    boat.metrics.lane_overflows.increment(1);
                }
            }
            Action::Transmit(_) | Action::Admit(_) | Action::Resolve { .. } | Action::Close(_) => {}
        }
    }

    /// From now on only what is queued goes out.
    fn end(&mut self, code: Code) {
        self.code = Some(code);
        self.boat.connections.remove(self.connection.id());
        self.stage = match std::mem::replace(&mut self.stage, Stage::Gone) {
            Stage::Serving(link) => Stage::Ending {
                link,
                closed: false,
                deadline: Box::pin(sleep(self.boat.config.close_grace)),
            },
            other => other,
        };
    }

    /// Writes what is queued. Answers whether the session was told of progress.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        match self.try_write(cx) {
            Ok(progress) => progress,
            Err(Gone) => {
                self.stage = Stage::Gone;
                self.connection
                    .lock()
                    .session
                    .handle_closed(self.boat.now());
                true
            }
        }
    }

    /// Whether all that is queued may wait for company a little longer.
    fn lingers(&self) -> bool {
        let serving = matches!(self.stage, Stage::Serving(_));
        let early = |until| Instant::now() < until;
        serving && self.in_link == 0 && self.lingers_until.is_some_and(early)
    }

    fn try_write(&mut self, cx: &mut Context<'_>) -> Result<bool, Gone> {
        if self.lingers() {
            return Ok(false);
        }
        // From here on the link wakes us, not a time that is over.
        self.lingers_until = None;
        let mut progress = false;
        loop {
            let (link, ending) = match &mut self.stage {
                Stage::Serving(link) => (link, None),
                Stage::Ending { link, closed, .. } => (link, Some(closed)),
                Stage::Gone => return Ok(progress),
            };
            let mut blocked = false;
            while self.in_link < FLUSH_BYTES
                && let Some((frame, weight)) = self.queue.pop_front()
            {
                if link.poll_ready(cx)?.is_pending() {
                    self.queue.push_front((frame, weight));
                    blocked = true;
                    break;
                }
                link.start_send(&frame);
                self.boat.metrics.frames_out.increment(1);
                self.in_link += weight as usize;
            }
            if self.in_link > 0 {
                if link.poll_flush(cx)?.is_pending() {
                    return Ok(progress);
                }
                let written = std::mem::take(&mut self.in_link);
                self.unwritten -= written;
                let now = self.boat.now();
                (self.connection.lock().session).handle_written(written, now);
                progress = true;
            }
            if blocked {
                return Ok(progress);
            }
            if !self.queue.is_empty() {
                continue;
            }
            self.queue = VecDeque::new();
            if let Some(closed) = ending {
                if !*closed {
                    *closed = true;
                    link.start_close(self.code.unwrap_or(Code::Reconnect));
                }
                let _ = link.poll_close(cx)?;
            }
            return Ok(progress);
        }
    }

    /// One timer, set only when it would ring too late. Answers whether the session was told.
    fn check_time(&mut self, cx: &mut Context<'_>) -> bool {
        if let Stage::Ending { deadline, .. } = &mut self.stage
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.stage = Stage::Gone;
        }
        let now = self.boat.now();
        let due = self.connection.lock().session.poll_timeout();
        let due = due.map(|due| Instant::now() + due.since(now));
        let Some(rings) = due.into_iter().chain(self.lingers_until).min() else {
            self.timer = None;
            return false;
        };
        let timer = match &mut self.timer {
            Some(timer) => {
                if timer.deadline() > rings {
                    timer.as_mut().reset(rings);
                }
                timer
            }
            None => self.timer.insert(Box::pin(tokio::time::sleep_until(rings))),
        };
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.timer = None;
        self.connection.lock().session.handle_timeout(now);
        true
    }

    fn report(&mut self) {
        if self.unwritten != self.reported {
            let change = self.unwritten as f64 - self.reported as f64;
            self.boat.metrics.outgoing_bytes.increment(change);
            self.reported = self.unwritten;
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Gone) && self.connection.lock().session.is_settled()
    }

    /// The link ended on its own: the session must know before anything else is tried.
    fn notice_gone(&mut self) {
        if matches!(self.stage, Stage::Gone) {
            self.boat.connections.remove(self.connection.id());
            self.queue = VecDeque::new();
        }
    }
}

impl Future for Drive {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.boat.is_abandoned() {
            return Poll::Ready(());
        }
        loop {
            // What has come is heard before time is judged: after a pause, acknowledgements and pings
            // that wait in the socket count.
            this.read(cx);
            this.act(Some(cx));
            let wrote = this.write(cx);
            let rang = this.check_time(cx);
            this.notice_gone();
            if this.is_over() {
                return Poll::Ready(());
            }
            if !wrote && !rang {
                this.report();
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Drive {
    /// Also where the task is aborted or panics: nobody is left waiting for this session.
    fn drop(&mut self) {
        self.boat.connections.remove(self.connection.id());
        self.boat.metrics.connections(self.transport).decrement(1.0);
        self.unwritten = 0;
        self.report();
        Metrics::disconnected(self.code);
        let mut state = self.connection.lock();
        state.waker = None;
        let (platform, spans) = (state.session.platform(), self.boat.tracer.spans());
        self.traced.end(platform, spans);
        state.session.handle_closed(self.boat.now());
        while let Some(action) = state.session.poll_action() {
            match action {
                Action::Resolve { token, outcome } => self.boat.sources.resolve(token, outcome),
                Action::Leave => self.boat.session_ended(),
                _ => {}
            }
        }
    }
}

fn hear_frame(
    session: &mut Session,
    frame: Bytes,
    boat: &Boat,
    traced: &mut TracedSends,
    now: Timestamp,
) {
    match decode_client_about(frame, boat.frame_bytes_max()) {
        Ok(mut frame) => {
            if let ClientFrame::Send(send) = &mut frame
                && let Some(begun) = boat.tracer.begin(send, session.id(), now)
            {
                traced.add(send, begun);
            }
            session.handle_frame(frame, now);
        }
        Err(Rejected { refusal, about }) => match about {
            About::Send(send_id) => session.handle_invalid_send(send_id, refusal, now),
            About::Sync(request) => session.handle_invalid_question(request, refusal, now),
            About::Frame => session.handle_malformed(refusal, now),
        },
    }
}

fn encoded(outgoing: Outgoing) -> Bytes {
    match outgoing {
        Outgoing::Encoded(frame) | Outgoing::Notice(frame) => frame,
        Outgoing::Frame(frame) => encode_server(&frame),
    }
}

/// What a client hears that comes while the boat leaves.
fn leaving() -> Refusal {
    Refusal::new(
        Code::Draining,
        "this boat leaves; connect again to reach another",
    )
}
