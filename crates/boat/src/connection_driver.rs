//! Drives one connection, as a value: bytes in, bytes out, and what its session asks of the boat.
//!
//! No socket, no timer and no task: a loop has those, and gives bytes and time.

mod orders;
mod outgoing_queue;

use std::sync::Arc;

use api::codec::{About, Rejected, decode_client_about};
use bytes::{Bytes, BytesMut};
use protocol::frame::ClientFrame;
use protocol::read_pace::ReadPace;
use protocol::session::{Action, Outgoing, Session};
use protocol::{Code, Refusal, Timestamp};
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::orders::SessionProof;
use self::outgoing_queue::OutgoingQueue;
use crate::boat::{Boat, Shortage};
use crate::connection::{Connection, State};
use crate::connection_loop::ReadyQueue;
use crate::listener::Peer;
use crate::memory;
use crate::metrics::Metrics;
use crate::stack::{Received, Wire};
use crate::traced::TracedSends;

/// Frames heard in one turn: then others get theirs.
const FRAMES_A_TURN: usize = 64;
/// Bytes of the first frame: more than a token of the longest kind, and little for as many strangers as may arrive at a time.
pub(crate) const HELLO_BYTES_MAX: usize = 12 * 1024;
/// Turns that may judge no time: then who still has more to say is judged all the same.
const DEFERRALS_MAX: u8 = 64;

pub(crate) struct ConnectionDriver {
    boat: Arc<Boat>,
    connection: Arc<Connection>,
    /// Until it is admitted.
    peer: Option<Arc<Peer>>,
    wire: Wire,
    stage: Stage,
    queue: OutgoingQueue,
    traced: TracedSends,
    pace: ReadPace,
    /// Turns in a row that judged no time, because something that came was not heard.
    deferrals: u8,
    /// A first frame came.
    has_heard: bool,
    /// Nothing more comes from the client.
    has_ended: bool,
    /// Why it ends, if we end it.
    code: Option<Code>,
    _counted: TaskTrackerToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The last frames are on their way; then nothing is expected but the end.
    Ending {
        until: Timestamp,
        said_all: bool,
        is_shut: bool,
    },
    /// The socket is of no use any more; the session settles with the others.
    Gone,
}

/// The next step of whoever reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// More bytes may be read.
    All,
    /// More frames wait for the next turn.
    Some,
    /// Nothing is heard any more.
    Over,
}

impl ConnectionDriver {
    pub(crate) fn new(
        boat: &Arc<Boat>,
        queue: &Arc<ReadyQueue>,
        wire: Wire,
        peer: Arc<Peer>,
    ) -> ConnectionDriver {
        let now = boat.now();
        let (limits, queue) = (Arc::clone(&boat.limits), Arc::clone(queue));
        let connection = Connection::new(boat.new_session_id(), limits, queue, now);
        boat.connections.insert(&connection);
        match &peer.refusal {
            Some(refusal) => connection.update(|session| session.close(refusal.clone(), now)),
            None if boat.is_draining() => {
                connection.update(|session| session.close(leaving(boat), now));
            }
            None if boat.is_short_of(Shortage::Memory) => {
                connection.update(|session| session.close(memory::refusal(boat), now));
            }
            None => {}
        }
        connection.lock().session.expect_hello_by(peer.until);
        boat.metrics.connections(&wire).increment(1.0);
        ConnectionDriver {
            peer: Some(peer),
            wire,
            stage: Stage::Open,
            queue: OutgoingQueue::default(),
            traced: TracedSends::default(),
            pace: ReadPace::new(now),
            deferrals: 0,
            has_heard: false,
            has_ended: false,
            code: None,
            _counted: boat.tasks.token(),
            connection,
            boat: Arc::clone(boat),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes bytes that the socket gave.
    pub(crate) fn receive(&mut self, bytes: &mut [u8], now: Timestamp) {
        let bounds = self.boat.config.read_bounds();
        self.pace.read(bytes.len(), bounds, now);
        if self.pace.pauses_until(bounds).is_some() {
            self.boat.metrics.reads_paused.increment(1);
        }
        self.boat.metrics.socket_reads.increment(1);
        self.wire.receive(bytes);
    }

    /// True: the client has sent more than it may, so that its bytes wait in the kernel.
    pub(crate) fn pauses(&self, now: Timestamp) -> bool {
        let until = self.pace.pauses_until(self.boat.config.read_bounds());
        until.is_some_and(|until| now < until)
    }

    /// The socket gives nothing more.
    pub(crate) fn handle_end(&mut self, now: Timestamp) {
        self.has_ended = true;
        match self.stage {
            Stage::Open => self.handle_lost(now),
            // Half an end: what we have to say may still be read.
            Stage::Ending { is_shut: false, .. } | Stage::Gone => {}
            Stage::Ending { .. } => self.leave(),
        }
    }

    /// The socket takes nothing more. Why does not matter: the client is gone.
    pub(crate) fn handle_lost(&mut self, now: Timestamp) {
        self.connection.lock().session.handle_closed(now);
        self.leave();
    }

    fn leave(&mut self) {
        self.stage = Stage::Gone;
        self.boat.connections.remove(self.connection.id());
        self.queue.clear();
    }

    /// The socket is closed.
    pub(crate) fn clear(&mut self) {
        self.wire.clear();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.stage == Stage::Gone
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_gone() && self.connection.lock().session.is_settled()
    }

    /// Has the session hear what has come, within bounds.
    pub(crate) fn hear(&mut self, now: Timestamp) -> Heard {
        for _ in 0..FRAMES_A_TURN {
            if self.stage == Stage::Gone {
                return Heard::Over;
            }
            let Some(received) = self.wire.next_frame() else {
                return Heard::All;
            };
            if !std::mem::replace(&mut self.has_heard, true) {
                // It was the hello, or the session ends.
                self.wire.set_frame_bytes_max(self.boat.frame_bytes_max());
            }
            if received == Received::End {
                self.handle_end(now);
                continue;
            }
            if self.stage != Stage::Open {
                continue;
            }
            let state = &mut *self.connection.lock();
            let session = &mut state.session;
            match received {
                Received::Frame(frame) => {
                    self.boat.metrics.frames_in.increment(1);
                    hear_frame(session, frame, &self.boat, &mut self.traced, now);
                }
                Received::Refused(refusal) => refuse_frame(session, refusal, &self.boat, now),
                Received::Violation(violation) => {
                    refuse_frame(session, violation.into(), &self.boat, now);
                }
                // A boat's wires take no text.
                Received::Text(_) | Received::End => {}
            }
            if session.is_closed() {
                // Its last words go first.
                return Heard::Over;
            }
        }
        Heard::Some
    }

    /// Does what the session asks.
    pub(crate) fn act(&mut self, now: Timestamp) {
        let connection = Arc::clone(&self.connection);
        let mut state = connection.lock();
        while let Some(action) = state.session.poll_action() {
            self.perform(action, &mut state, now);
        }
        // It has arrived: others may.
        if self.peer.is_some() && state.session.is_open() {
            self.peer = None;
        }
    }

    fn perform(&mut self, action: Action, state: &mut State, now: Timestamp) {
        let boat = &self.boat;
        match action {
            // There is nobody to read it.
            Action::Transmit(_) if self.stage == Stage::Gone => {}
            Action::Transmit(outgoing) => {
                if !self.traced.is_empty()
                    && let Outgoing::Frame(frame) = &outgoing
                {
                    let (platform, spans) = (state.session.platform(), boat.tracer.spans());
                    self.traced.answer(frame, platform, spans);
                }
                self.queue.push(outgoing, boat.config.linger, now);
            }
            Action::Resolve { token, outcome } => {
                boat.metrics.outcome(outcome).increment(1);
                boat.sources.resolve(token, outcome);
            }
            Action::Admit(_) if boat.is_draining() => {
                state.session.close(leaving(boat), now);
                state.session.handle_admitted(Err(leaving(boat)), now);
            }
            Action::Admit(hello) => {
                if let Some(peer) = &self.peer {
                    boat.admit(&self.connection, hello, peer.address);
                }
            }
            Action::Count(bound) => boat.metrics.bound(bound).increment(1),
            Action::Close(refusal) => self.end(refusal.code, now),
            Action::Submit(_)
            | Action::Receipts(_)
            | Action::FetchMail { .. }
            | Action::RemoveMail { .. }
            | Action::Sync(_)
            | Action::Refresh(_)
            | Action::Leave => {
                // All of these follow an admission, which named the user.
                if let Some(user) = state.session.user() {
                    boat.urgent.renew_if_due(&self.connection, state, now);
                    let proof = SessionProof {
                        ticket: state.ticket,
                        issued_at: state.issued_at(),
                    };
                    self.tell_station(action, user, &mut state.session, proof);
                }
            }
        }
    }

    /// From now on only what is queued goes out.
    fn end(&mut self, code: Code, now: Timestamp) {
        self.code = Some(code);
        self.boat.connections.remove(self.connection.id());
        if self.stage == Stage::Open {
            self.stage = Stage::Ending {
                until: now + self.boat.config.close_grace,
                said_all: false,
                is_shut: false,
            };
        }
    }

    /// True: all that is queued may wait for company a little longer.
    fn lingers(&self, now: Timestamp) -> bool {
        self.stage == Stage::Open
            && self.wire.is_idle()
            && (self.queue.lingers_until()).is_some_and(|until| now < until)
    }

    /// Hands the wire what is ready, as far as it has room.
    pub(crate) fn fill(&mut self, now: Timestamp) {
        if !self.lingers(now) {
            let sent = &self.boat.metrics.frames_out;
            self.queue.fill(&mut self.wire, sent);
            if self.queue.is_empty() {
                self.say_end();
            }
        }
        self.wire.seal();
    }

    /// Makes what the wire has ready for the socket.
    pub(crate) fn seal(&mut self) {
        self.wire.seal();
    }

    fn say_end(&mut self) {
        if let Stage::Ending { said_all, .. } = &mut self.stage
            && !std::mem::replace(said_all, true)
        {
            self.wire.close(self.code.unwrap_or(Code::Reconnect));
        }
    }

    /// For the socket.
    pub(crate) fn unwritten(&self) -> &[u8] {
        self.wire.unwritten()
    }

    /// The socket has taken so many bytes of `unwritten`.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.boat.metrics.socket_writes.increment(1);
        self.wire.wrote(count);
    }

    /// The socket has taken all that the wire had. Answers whether the session heard of progress.
    pub(crate) fn handle_flushed(&mut self, now: Timestamp) -> bool {
        let written = self.queue.handle_flushed();
        if written == 0 {
            return false;
        }
        let session = &mut self.connection.lock().session;
        session.handle_written(written, now);
        true
    }

    /// True: something waits for the wire, and for no time.
    pub(crate) fn has_more(&self, now: Timestamp) -> bool {
        !self.queue.is_empty() && !self.lingers(now)
    }

    /// The last byte is written: the socket may be shut for writing.
    pub(crate) fn has_said_all(&self) -> bool {
        let said_all = matches!(
            self.stage,
            Stage::Ending {
                said_all: true,
                is_shut: false,
                ..
            }
        );
        said_all && self.wire.unwritten().is_empty()
    }

    /// The socket is shut for writing.
    pub(crate) fn handle_shut(&mut self) {
        if let Stage::Ending { is_shut, .. } = &mut self.stage {
            *is_shut = true;
            if self.has_ended {
                self.leave();
            }
        }
    }

    /// Next times that matter: to the session, the end or a pause, and to what waits for company.
    pub(crate) fn timeouts(&self, now: Timestamp) -> [Option<Timestamp>; 2] {
        let pause = self.pace.pauses_until(self.boat.config.read_bounds());
        let pause = pause.filter(|until| now < *until);
        // While reading pauses the session is not judged.
        let session = self.connection.lock().session.poll_timeout();
        let session = session.map(|due| due.max(pause.unwrap_or(due)));
        let until = match self.stage {
            Stage::Ending { until, .. } => Some(until),
            Stage::Open | Stage::Gone => None,
        };
        let first = session.into_iter().chain(until).chain(pause).min();
        let lingers_until = self.queue.lingers_until();
        let lingers_until = lingers_until.filter(|_| self.stage == Stage::Open);
        [first, lingers_until]
    }

    /// Judges time, where all that came is heard (within bounds): an acknowledgement that waits to be read is in time.
    /// Answers whether the session heard of it.
    pub(crate) fn check_time(&mut self, has_heard_all: bool, now: Timestamp) -> bool {
        if let Stage::Ending { until, .. } = self.stage
            && until <= now
        {
            self.leave();
        }
        let due = self.connection.lock().session.poll_timeout();
        if due.is_none_or(|due| now < due) {
            self.deferrals = 0;
            return false;
        }
        let is_early = !has_heard_all || self.pauses(now);
        if is_early && self.deferrals < DEFERRALS_MAX {
            self.deferrals += 1;
            return false;
        }
        self.deferrals = 0;
        self.connection.lock().session.handle_timeout(now);
        true
    }

    /// Buffers for the bytes of this turn, where none wait.
    pub(crate) fn lend(&mut self, buffers: &mut [BytesMut; 2]) {
        self.wire.lend(buffers);
    }

    pub(crate) fn give_back(&mut self, buffers: &mut [BytesMut; 2]) {
        self.wire.give_back(buffers);
    }

    /// Counts what waits.
    pub(crate) fn report(&mut self) {
        if let Some(change) = self.queue.report() {
            self.boat.metrics.outgoing_bytes.increment(change);
        }
    }
}

impl Drop for ConnectionDriver {
    /// Also where the loop is aborted or a turn panics: nobody is left waiting for this session.
    fn drop(&mut self) {
        self.boat.connections.remove(self.connection.id());
        self.boat.metrics.connections(&self.wire).decrement(1.0);
        self.queue.end();
        self.report();
        Metrics::disconnected(self.code);
        let mut state = self.connection.lock();
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

/// The links keep the bound of a frame.
fn refuse_frame(session: &mut Session, refusal: Refusal, boat: &Boat, now: Timestamp) {
    if refusal.code == Code::TooLarge {
        boat.metrics.frames_too_large.increment(1);
    }
    session.handle_malformed(refusal, now);
}

/// The refusal of a client that comes while the boat leaves.
fn leaving(boat: &Boat) -> Refusal {
    let text = "this boat leaves; connect again to reach another";
    Refusal::new(Code::Draining, text).retry_after(boat.config.drain_spread)
}
