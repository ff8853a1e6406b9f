//! Drives one connection as a value: bytes in, bytes out, and the actions its session asks of the
//! boat.
//!
//! No socket, no timer and no task: a loop owns those, and supplies bytes and time.

mod orders;
mod outgoing_queue;

use std::sync::Arc;

use crate::connection::read_pace::ReadPace;
use api::codec::{FrameContext, FrameRejection, decode_client_about};
use bytes::{Bytes, BytesMut};
use protocol::frame::ClientFrame;
use protocol::session::{Action, Outgoing, Session};
use protocol::{Code, Refusal, Timestamp};
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::orders::SessionProof;
use self::outgoing_queue::OutgoingQueue;
use crate::boat::{Boat, Shortage};
use crate::connection::connection_loop::ReadyQueue;
use crate::connection::{Connection, ConnectionState};
use crate::door::listener::IncomingClient;
use crate::door::memory;
use crate::metrics::Metrics;
use crate::stack::{ClientInput, Wire};
use crate::tracing::SendTraces;

/// Frames handled in one turn, before other connections get theirs.
const FRAMES_A_TURN: usize = 64;
/// Bytes of the first frame: more than a token of the longest kind, and little enough for as many
/// strangers as may arrive at a time.
pub(crate) const HELLO_BYTES_MAX: usize = 12 * 1024;
/// Turns in a row that may defer deadlines; after them even a client with unread bytes is judged.
const DEFERRALS_MAX: u8 = 64;

pub(crate) struct ConnectionDriver {
    boat: Arc<Boat>,
    connection: Arc<Connection>,
    /// Set until the session is admitted.
    peer: Option<Arc<IncomingClient>>,
    wire: Wire,
    stage: ConnectionStage,
    queue: OutgoingQueue,
    send_traces: SendTraces,
    pace: ReadPace,
    /// Turns in a row that deferred deadlines because some received bytes were not handled yet.
    deferrals: u8,
    /// Time at which the socket last took something that the session does not know of.
    progress_at: Option<Timestamp>,
    /// True once the client sends nothing more.
    has_ended: bool,
    /// Reason of the end, if the boat ends the connection.
    code: Option<Code>,
    _task_token: TaskTrackerToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    Open,
    /// The last frames are on their way; after them only the end is expected.
    Ending {
        deadline: Timestamp,
        is_close_sent: bool,
        is_shut: bool,
    },
    /// The socket is of no use any more; the session settles with stations and carriers.
    Gone,
}

/// The reader's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// More bytes may be read.
    All,
    /// More frames wait for the next turn.
    Some,
    /// Nothing is handled any more.
    Over,
}

impl ConnectionDriver {
    pub(crate) fn new(
        boat: &Arc<Boat>,
        queue: &Arc<ReadyQueue>,
        wire: Wire,
        peer: Arc<IncomingClient>,
    ) -> ConnectionDriver {
        let now = boat.now();
        let (limits, queue) = (Arc::clone(&boat.limits), Arc::clone(queue));
        let connection = Connection::new(boat.new_session_id(), limits, queue, now);
        boat.connections.insert(&connection);
        peer.place().attach(&connection);
        match &peer.refusal {
            Some(refusal) => connection.update(|session| session.close(refusal.clone(), now)),
            None if boat.is_draining() => {
                connection.update(|session| session.close(draining_refusal(boat), now));
            }
            None if boat.is_short_of(Shortage::Memory) => {
                connection.update(|session| session.close(memory::refusal(boat), now));
            }
            None => {}
        }
        connection
            .lock()
            .session
            .expect_hello_by(peer.hello_deadline);
        boat.metrics.connections(&wire).increment(1.0);
        ConnectionDriver {
            peer: Some(peer),
            wire,
            stage: ConnectionStage::Open,
            queue: OutgoingQueue::default(),
            send_traces: SendTraces::default(),
            pace: ReadPace::new(now),
            deferrals: 0,
            progress_at: None,
            has_ended: false,
            code: None,
            _task_token: boat.tasks.token(),
            connection,
            boat: Arc::clone(boat),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes bytes from the socket.
    pub(crate) fn receive(&mut self, bytes: &mut [u8], now: Timestamp) {
        let bounds = self.boat.config.read_bounds();
        self.pace.read(bytes.len(), bounds, now);
        if self.pace.pauses_until(bounds).is_some() {
            self.boat.metrics.reads_paused.increment(1);
        }
        self.boat.metrics.socket_reads.increment(1);
        self.wire.receive(bytes);
    }

    /// True while the client exceeds its read rate and its bytes wait in the kernel.
    pub(crate) fn pauses(&self, now: Timestamp) -> bool {
        let resume_at = self.pace.pauses_until(self.boat.config.read_bounds());
        resume_at.is_some_and(|resume_at| now < resume_at)
    }

    /// Handles the end of the socket's input.
    pub(crate) fn handle_end(&mut self, now: Timestamp) {
        self.has_ended = true;
        match self.stage {
            ConnectionStage::Open => {
                let is_closed = {
                    let session = &mut self.connection.lock().session;
                    session.handle_end(now);
                    // Nothing can be answered any more.
                    if self.wire.has_closed() {
                        session.handle_closed(now);
                    }
                    session.is_closed()
                };
                if is_closed {
                    self.leave();
                }
            }
            // A half-close: the client may still read our last frames.
            ConnectionStage::Ending { is_shut: false, .. } | ConnectionStage::Gone => {}
            ConnectionStage::Ending { .. } => self.leave(),
        }
    }

    /// Handles a socket that takes nothing more. The reason does not matter: the client is gone.
    pub(crate) fn handle_lost(&mut self, now: Timestamp) {
        self.connection.lock().session.handle_closed(now);
        self.leave();
    }

    fn leave(&mut self) {
        self.stage = ConnectionStage::Gone;
        self.boat.connections.remove(self.connection.id());
        self.queue.clear();
    }

    /// Drops buffered bytes of a closed socket.
    pub(crate) fn clear(&mut self) {
        self.wire.clear();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.stage == ConnectionStage::Gone
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_gone() && self.connection.lock().session.is_settled()
    }

    /// Feeds received frames to the session, within bounds.
    pub(crate) fn handle_frames(&mut self, now: Timestamp) -> ReadStep {
        for _ in 0..FRAMES_A_TURN {
            if self.stage == ConnectionStage::Gone {
                return ReadStep::Over;
            }
            let Some(input) = self.wire.next_frame() else {
                return ReadStep::All;
            };
            if input == ClientInput::End {
                self.handle_end(now);
                continue;
            }
            if self.stage != ConnectionStage::Open {
                continue;
            }
            let state = &mut *self.connection.lock();
            let session = &mut state.session;
            match input {
                ClientInput::Frame(frame) => {
                    self.boat.metrics.frames_in.increment(1);
                    handle_client_frame(session, frame, &self.boat, &mut self.send_traces, now);
                }
                ClientInput::Refused(refusal) => refuse_frame(session, refusal, &self.boat, now),
                ClientInput::Violation(violation) => {
                    refuse_frame(session, violation.into(), &self.boat, now);
                }
                ClientInput::Ping => session.handle_sign_of_life(now),
                // Wires of a boat accept no text.
                ClientInput::Text(_) | ClientInput::End => {}
            }
            if session.is_closed() {
                // The session's last frames go out first.
                return ReadStep::Over;
            }
        }
        ReadStep::Some
    }

    /// Performs the actions the session asks for.
    pub(crate) fn act(&mut self, now: Timestamp) {
        let connection = Arc::clone(&self.connection);
        let mut state = connection.lock();
        state.session.handle_partial(self.wire.partial(), now);
        let eviction = self.peer.as_ref().and_then(|peer| peer.place().refusal());
        if let Some(refusal) = &eviction {
            state.session.close(refusal.clone(), now);
        }
        while let Some(action) = state.session.poll_action() {
            self.perform(action, &mut state, now);
        }
        // Frees the place for another newcomer. Until now its frames were bounded as a hello.
        if self.peer.is_some() && (state.session.is_open() || eviction.is_some()) {
            self.peer = None;
            self.wire.set_frame_bytes_max(self.boat.frame_bytes_max());
        }
    }

    fn perform(&mut self, action: Action, state: &mut ConnectionState, now: Timestamp) {
        let boat = &self.boat;
        match action {
            // No reader is left.
            Action::Transmit(_) if self.stage == ConnectionStage::Gone => {}
            Action::Transmit(outgoing) => {
                if !self.send_traces.is_empty()
                    && let Outgoing::Frame(frame) = &outgoing
                {
                    let (platform, spans) = (state.session.platform(), boat.tracer.spans());
                    self.send_traces.answer(frame, platform, spans);
                }
                self.queue.push(outgoing, boat.config.linger, now);
            }
            Action::Resolve { token, outcome } => {
                boat.metrics.outcome(outcome).increment(1);
                boat.sources.resolve(token, outcome);
            }
            Action::Admit(_) if boat.is_draining() => {
                state.session.close(draining_refusal(boat), now);
                state
                    .session
                    .handle_admitted(Err(draining_refusal(boat)), now);
            }
            Action::Admit(hello) => {
                if let Some(peer) = &self.peer {
                    peer.place().keep_place();
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

    /// Stops everything but the frames that are queued.
    fn end(&mut self, code: Code, now: Timestamp) {
        self.code = Some(code);
        self.boat.connections.remove(self.connection.id());
        if self.stage == ConnectionStage::Open {
            self.stage = ConnectionStage::Ending {
                deadline: now + self.boat.config.close_grace,
                is_close_sent: false,
                is_shut: false,
            };
        }
    }

    /// True while all queued frames may linger for more.
    fn lingers(&self, now: Timestamp) -> bool {
        self.stage == ConnectionStage::Open
            && self.wire.is_idle()
            && (self.queue.lingers_until()).is_some_and(|until| now < until)
    }

    /// Hands ready frames to the wire, as far as it has room.
    pub(crate) fn fill(&mut self, now: Timestamp) {
        if !self.lingers(now) {
            let frame_counter = &self.boat.metrics.frames_out;
            self.queue.fill(&mut self.wire, frame_counter);
            if self.queue.is_empty() {
                self.send_close();
            }
        }
        self.wire.seal();
    }

    /// Seals the wire's pending bytes for the socket.
    pub(crate) fn seal(&mut self) {
        self.wire.seal();
    }

    fn send_close(&mut self) {
        if let ConnectionStage::Ending { is_close_sent, .. } = &mut self.stage
            && !std::mem::replace(is_close_sent, true)
        {
            self.wire.close(self.code.unwrap_or(Code::Reconnect));
        }
    }

    /// Bytes for the socket.
    pub(crate) fn unwritten(&self) -> &[u8] {
        self.wire.unwritten()
    }

    /// Notes that the socket took `count` bytes of `unwritten`.
    pub(crate) fn wrote(&mut self, count: usize, now: Timestamp) {
        self.boat.metrics.socket_writes.increment(1);
        self.progress_at = Some(now);
        self.wire.wrote(count);
    }

    /// Notes that the socket took everything the wire had. Returns whether the session made
    /// progress.
    pub(crate) fn handle_flushed(&mut self, now: Timestamp) -> bool {
        let weight = self.queue.handle_flushed();
        if weight == 0 {
            return false;
        }
        let session = &mut self.connection.lock().session;
        session.handle_written(weight, now);
        true
    }

    /// Whether frames wait for the wire and not for a linger timer.
    pub(crate) fn has_more(&self, now: Timestamp) -> bool {
        !self.queue.is_empty() && !self.lingers(now)
    }

    /// True once the last byte is written: the socket may be shut down for writing.
    pub(crate) fn has_said_all(&self) -> bool {
        let is_close_sent = matches!(
            self.stage,
            ConnectionStage::Ending {
                is_close_sent: true,
                is_shut: false,
                ..
            }
        );
        is_close_sent && self.wire.unwritten().is_empty()
    }

    /// Notes that the socket is shut down for writing.
    pub(crate) fn handle_shut(&mut self) {
        if let ConnectionStage::Ending { is_shut, .. } = &mut self.stage {
            *is_shut = true;
            if self.has_ended {
                self.leave();
            }
        }
    }

    /// Next deadline: of the session, its end, a read pause or lingering frames.
    pub(crate) fn timeout(&self, now: Timestamp) -> Option<Timestamp> {
        let pause = self.pace.pauses_until(self.boat.config.read_bounds());
        let pause = pause.filter(|deadline| now < *deadline);
        // Deadlines of the session do not apply while reading pauses.
        let session = self.connection.lock().session.poll_timeout();
        let session = session.map(|due_at| due_at.max(pause.unwrap_or(due_at)));
        let deadline = match self.stage {
            ConnectionStage::Ending { deadline, .. } => Some(deadline),
            ConnectionStage::Open | ConnectionStage::Gone => None,
        };
        let lingers_until = self.queue.lingers_until();
        let lingers_until = lingers_until.filter(|_| self.stage == ConnectionStage::Open);
        [session, deadline, pause, lingers_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Applies deadlines once all received bytes are handled (within bounds): an acknowledgement
    /// still in the socket counts as in time. Returns whether the session's timeout fired.
    pub(crate) fn check_time(&mut self, has_heard_all: bool, now: Timestamp) -> bool {
        if let ConnectionStage::Ending { deadline, .. } = self.stage
            && deadline <= now
        {
            self.leave();
        }
        let due_at = {
            let session = &mut self.connection.lock().session;
            if let Some(at) = self.progress_at.take() {
                session.handle_progress(at);
            }
            session.poll_timeout()
        };
        if due_at.is_none_or(|due_at| now < due_at) {
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

    /// Lends the turn's write buffers, unless bytes already wait.
    pub(crate) fn lend(&mut self, buffers: &mut [BytesMut; 2]) {
        self.wire.lend(buffers);
    }

    pub(crate) fn give_back(&mut self, buffers: &mut [BytesMut; 2]) {
        self.wire.give_back(buffers);
    }

    /// Reports the unwritten bytes to the metrics.
    pub(crate) fn report(&mut self) {
        if let Some(change) = self.queue.report() {
            self.boat.metrics.outgoing_bytes.increment(change);
        }
    }
}

impl Drop for ConnectionDriver {
    /// Runs even if the loop is aborted or a turn panics, so that nobody waits for this session for
    /// ever.
    fn drop(&mut self) {
        self.boat.connections.remove(self.connection.id());
        self.boat.metrics.connections(&self.wire).decrement(1.0);
        self.queue.end();
        self.report();
        Metrics::record_disconnect(self.code);
        let mut state = self.connection.lock();
        let (platform, spans) = (state.session.platform(), self.boat.tracer.spans());
        self.send_traces.end(platform, spans);
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

fn handle_client_frame(
    session: &mut Session,
    frame: Bytes,
    boat: &Boat,
    send_traces: &mut SendTraces,
    now: Timestamp,
) {
    match decode_client_about(frame, boat.frame_bytes_max()) {
        Ok(mut frame) => {
            if let ClientFrame::Send(send) = &mut frame
                && let Some(span) = boat.tracer.begin(send, session.id(), now)
            {
                send_traces.add(send, span);
            }
            session.handle_frame(frame, now);
        }
        Err(FrameRejection {
            refusal,
            context: about,
        }) => match about {
            FrameContext::Send(send_id) => session.handle_invalid_send(send_id, refusal, now),
            FrameContext::Sync(request) => session.handle_invalid_question(request, refusal, now),
            FrameContext::Frame => session.handle_malformed(refusal, now),
        },
    }
}

/// Refuses a frame and counts oversized ones; the wires enforce the frame bound.
fn refuse_frame(session: &mut Session, refusal: Refusal, boat: &Boat, now: Timestamp) {
    if refusal.code == Code::TooLarge {
        boat.metrics.frames_too_large.increment(1);
    }
    session.handle_malformed(refusal, now);
}

/// Refusal for a client that arrives while the boat leaves.
fn draining_refusal(boat: &Boat) -> Refusal {
    let text = "this boat is shutting down; reconnect to reach another";
    Refusal::new(Code::Draining, text).retry_after(boat.config.drain_spread)
}
