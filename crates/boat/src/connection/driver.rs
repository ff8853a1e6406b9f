//! Drives one connection as a value: bytes in, bytes out, and the actions its session asks of the
//! boat.
//!
//! No socket, no timer and no task: a loop owns those, and supplies bytes, time and the locked
//! state of the connection.

mod outgoing_queue;

use std::sync::Arc;
use std::time::Duration;

use api::codec::{FrameContext, FrameRejection, decode_client_about};
use backend::clock::Entropy;
use bytes::{Bytes, BytesMut};
use protocol::frame::ClientFrame;
use protocol::session::{Action, Outgoing, Session, SessionLimits};
use protocol::subscription::{GroupSignal, SubscriptionState};
use protocol::{Code, Refusal, Timestamp};
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::outgoing_queue::OutgoingQueue;
use super::connections::Connections;
use super::read_pace::{ReadBounds, ReadPace};
use super::ready_queue::ReadyQueue;
use super::{Connection, ConnectionState};
use crate::Config;
use crate::door::arrivals::IncomingClient;
use crate::downlink::deliver_streams::DeliverStreams;
use crate::metrics::ConnectionMetrics;
use crate::stack::{ClientInput, Wire};
use crate::status::BoatStatus;
use crate::traces::{ConnectionTracer, SendTraces};
use crate::uplink::Uplink;

/// Frames handled in one turn, before other connections get theirs.
const FRAMES_A_TURN: usize = 64;
/// Bytes of the first frame: more than a token of the longest kind, and little enough for as many
/// strangers as may arrive at a time.
pub(crate) const HELLO_BYTES_MAX: usize = 12 * 1024;
/// Turns in a row that may defer deadlines; after them even a client with unread bytes is judged.
const DEFERRALS_MAX: u8 = 64;

/// Parts of a boat that its connections use.
pub(crate) struct DriverParts {
    pub(crate) connections: Arc<Connections>,
    pub(crate) uplink: Arc<Uplink>,
    streams: Arc<DeliverStreams>,
    pub(crate) status: Arc<BoatStatus>,
    pub(crate) entropy: Arc<dyn Entropy>,
    tracer: ConnectionTracer,
    pub(super) metrics: ConnectionMetrics,
    limits: Arc<SessionLimits>,
    read_bounds: ReadBounds,
    linger: Duration,
    close_grace: Duration,
}

pub(crate) struct ConnectionDriver {
    parts: Arc<DriverParts>,
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

impl DriverParts {
    pub(crate) fn new(
        config: &Config,
        connections: Arc<Connections>,
        uplink: Arc<Uplink>,
        streams: Arc<DeliverStreams>,
        status: Arc<BoatStatus>,
        entropy: Arc<dyn Entropy>,
    ) -> Arc<DriverParts> {
        let spans = streams.spans().clone();
        Arc::new(DriverParts {
            connections,
            uplink,
            streams,
            status,
            tracer: ConnectionTracer::new(config, spans, Arc::clone(&entropy)),
            entropy,
            metrics: ConnectionMetrics::new(),
            limits: Arc::new(config.session.clone()),
            read_bounds: ReadBounds {
                per_second: config.read_bytes_per_second.get(),
                burst: config.read_bytes_burst.get(),
            },
            linger: config.linger,
            close_grace: config.close_grace,
        })
    }

    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.limits.frame_bytes_max as usize
    }
}

impl ConnectionDriver {
    pub(crate) fn new(
        parts: &Arc<DriverParts>,
        queue: &Arc<ReadyQueue>,
        wire: Wire,
        client: IncomingClient,
    ) -> ConnectionDriver {
        let now = parts.connections.now();
        let id = parts.connections.new_id(&*parts.entropy);
        let (limits, queue) = (Arc::clone(&parts.limits), Arc::clone(queue));
        let connection = Connection::new(id, limits, queue, now);
        (connection.lock().session).expect_hello_by(client.hello_deadline);
        parts.connections.insert(&connection);
        client.place().attach(&connection);
        parts
            .metrics
            .connections(wire.is_websocket())
            .increment(1.0);
        ConnectionDriver {
            peer: Some(Arc::new(client)),
            wire,
            stage: ConnectionStage::Open,
            queue: OutgoingQueue::default(),
            send_traces: SendTraces::default(),
            pace: ReadPace::new(now),
            deferrals: 0,
            progress_at: None,
            has_ended: false,
            code: None,
            _task_token: parts.uplink.tasks.token(),
            connection,
            parts: Arc::clone(parts),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes bytes from the socket.
    pub(crate) fn receive(&mut self, bytes: &mut [u8], now: Timestamp) {
        let bounds = self.parts.read_bounds;
        self.pace.read(bytes.len(), bounds, now);
        if self.pace.pauses_until(bounds).is_some() {
            self.parts.metrics.reads_paused.increment(1);
        }
        self.parts.metrics.socket_reads.increment(1);
        self.wire.receive(bytes);
    }

    /// True while the client exceeds its read rate and its bytes wait in the kernel.
    pub(crate) fn pauses(&self, now: Timestamp) -> bool {
        let resume_at = self.pace.pauses_until(self.parts.read_bounds);
        resume_at.is_some_and(|resume_at| now < resume_at)
    }

    /// Handles the end of the socket's input.
    pub(crate) fn handle_end(&mut self, session: &mut Session, now: Timestamp) {
        self.has_ended = true;
        match self.stage {
            ConnectionStage::Open => {
                session.handle_end(now);
                // Nothing can be answered any more.
                if self.wire.has_closed() {
                    session.handle_closed(now);
                }
                if session.is_closed() {
                    self.leave();
                }
            }
            // A half-close: the client may still read our last frames.
            ConnectionStage::Ending { is_shut: false, .. } | ConnectionStage::Gone => {}
            ConnectionStage::Ending { .. } => self.leave(),
        }
    }

    /// Handles a socket that takes nothing more. The reason does not matter: the client is gone.
    pub(crate) fn handle_lost(&mut self, session: &mut Session, now: Timestamp) {
        session.handle_closed(now);
        self.leave();
    }

    fn leave(&mut self) {
        self.stage = ConnectionStage::Gone;
        self.parts.connections.remove(self.connection.id());
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

    /// Feeds received frames to the session, within bounds.
    pub(crate) fn handle_frames(&mut self, session: &mut Session, now: Timestamp) -> ReadStep {
        for _ in 0..FRAMES_A_TURN {
            if self.stage == ConnectionStage::Gone {
                return ReadStep::Over;
            }
            let Some(input) = self.wire.next_frame() else {
                return ReadStep::All;
            };
            if input == ClientInput::End {
                self.handle_end(session, now);
                continue;
            }
            if self.stage != ConnectionStage::Open {
                continue;
            }
            match input {
                ClientInput::Frame(frame) => {
                    self.parts.metrics.frames_in.increment(1);
                    handle_client_frame(session, frame, &self.parts, &mut self.send_traces, now);
                }
                ClientInput::Refused(refusal) => refuse_frame(session, refusal, &self.parts, now),
                ClientInput::Violation(violation) => {
                    refuse_frame(session, violation.into(), &self.parts, now);
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
    pub(crate) fn act(&mut self, state: &mut ConnectionState, now: Timestamp) {
        state.session.handle_partial(self.wire.partial(), now);
        let eviction = self.peer.as_ref().and_then(|peer| peer.place().refusal());
        if let Some(refusal) = &eviction {
            state.session.close(refusal.clone(), now);
        }
        while let Some(action) = state.session.poll_action() {
            self.perform(action, state, now);
        }
        // Frees the place for another newcomer. Until now its frames were bounded as a hello.
        if self.peer.is_some() && (state.session.is_open() || eviction.is_some()) {
            self.peer = None;
            self.wire.set_frame_bytes_max(self.parts.frame_bytes_max());
        }
    }

    fn perform(&mut self, action: Action, state: &mut ConnectionState, now: Timestamp) {
        let parts = &self.parts;
        match action {
            // No reader is left.
            Action::Transmit(_) if self.stage == ConnectionStage::Gone => {}
            Action::Transmit(outgoing) => {
                if !self.send_traces.is_empty()
                    && let Outgoing::Frame(frame) = &outgoing
                {
                    let (platform, spans) = (state.session.platform(), parts.tracer.spans());
                    self.send_traces.answer(frame, platform, spans);
                }
                self.queue.push(outgoing, parts.linger, now);
            }
            Action::Resolve { token, outcome } => {
                parts.streams.count(outcome);
                parts.streams.resolve(token, outcome);
            }
            Action::Admit(hello) => {
                if let Some(refusal) = parts.status.draining_refusal() {
                    state.session.close(refusal.clone(), now);
                    state.session.handle_admitted(Err(refusal), now);
                } else if let Some(peer) = &self.peer {
                    peer.place().keep_place();
                    parts.uplink.admit(&self.connection, hello, peer.address);
                }
            }
            // No record of a group comes to boats yet, so there are no seats.
            Action::Subscribe(groups) => {
                for (group, _) in groups {
                    let signal = GroupSignal::last(group, SubscriptionState::Full);
                    state.session.signal(signal, now);
                }
            }
            Action::Watch(_) => {}
            Action::Count(bound) => parts.metrics.bound(bound).increment(1),
            Action::Close(refusal) => self.end(refusal.code, now),
            Action::Submit(_)
            | Action::Receipts(_)
            | Action::FetchMail { .. }
            | Action::RemoveMail { .. }
            | Action::Sync(_)
            | Action::Refresh(_)
            | Action::Leave => parts.uplink.carry_out(action, &self.connection, state, now),
        }
    }

    /// Stops everything but the frames that are queued.
    fn end(&mut self, code: Code, now: Timestamp) {
        self.code = Some(code);
        self.parts.connections.remove(self.connection.id());
        if self.stage == ConnectionStage::Open {
            self.stage = ConnectionStage::Ending {
                deadline: now + self.parts.close_grace,
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
            let frame_counter = &self.parts.metrics.frames_out;
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
        self.parts.metrics.socket_writes.increment(1);
        self.progress_at = Some(now);
        self.wire.wrote(count);
    }

    /// Notes that the socket took everything the wire had. Returns whether the session made
    /// progress.
    pub(crate) fn handle_flushed(&mut self, session: &mut Session, now: Timestamp) -> bool {
        let weight = self.queue.handle_flushed();
        if weight == 0 {
            return false;
        }
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
    pub(crate) fn timeout(&self, session: &Session, now: Timestamp) -> Option<Timestamp> {
        let pause = self.pace.pauses_until(self.parts.read_bounds);
        let pause = pause.filter(|deadline| now < *deadline);
        // Deadlines of the session do not apply while reading pauses.
        let session_due = session.poll_timeout();
        let session_due = session_due.map(|due_at| due_at.max(pause.unwrap_or(due_at)));
        let deadline = match self.stage {
            ConnectionStage::Ending { deadline, .. } => Some(deadline),
            ConnectionStage::Open | ConnectionStage::Gone => None,
        };
        let lingers_until = self.queue.lingers_until();
        let lingers_until = lingers_until.filter(|_| self.stage == ConnectionStage::Open);
        [session_due, deadline, pause, lingers_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Applies deadlines once all received bytes are handled (within bounds): an acknowledgement
    /// still in the socket counts as in time. Returns whether the session's timeout fired.
    pub(crate) fn check_time(
        &mut self,
        session: &mut Session,
        has_heard_all: bool,
        now: Timestamp,
    ) -> bool {
        if let ConnectionStage::Ending { deadline, .. } = self.stage
            && deadline <= now
        {
            self.leave();
        }
        if let Some(at) = self.progress_at.take() {
            session.handle_progress(at);
        }
        if session.poll_timeout().is_none_or(|due_at| now < due_at) {
            self.deferrals = 0;
            return false;
        }
        let is_early = !has_heard_all || self.pauses(now);
        if is_early && self.deferrals < DEFERRALS_MAX {
            self.deferrals += 1;
            return false;
        }
        self.deferrals = 0;
        session.handle_timeout(now);
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
            self.parts.metrics.outgoing_bytes.increment(change);
        }
    }
}

impl Drop for ConnectionDriver {
    /// Runs even if the loop is aborted or a turn panics, so that nobody waits for this session for
    /// ever.
    fn drop(&mut self) {
        self.parts.connections.remove(self.connection.id());
        self.parts
            .metrics
            .connections(self.wire.is_websocket())
            .decrement(1.0);
        self.queue.end();
        self.report();
        ConnectionMetrics::record_disconnect(self.code);
        let mut state = self.connection.lock();
        let (platform, spans) = (state.session.platform(), self.parts.tracer.spans());
        self.send_traces.end(platform, spans);
        state.session.handle_closed(self.parts.connections.now());
        while let Some(action) = state.session.poll_action() {
            match action {
                Action::Resolve { token, outcome } => self.parts.streams.resolve(token, outcome),
                Action::Leave => self.parts.connections.record_session_end(),
                _ => {}
            }
        }
    }
}

fn handle_client_frame(
    session: &mut Session,
    frame: Bytes,
    parts: &DriverParts,
    send_traces: &mut SendTraces,
    now: Timestamp,
) {
    match decode_client_about(frame, parts.frame_bytes_max()) {
        Ok(mut frame) => {
            if let ClientFrame::Send(send) = &mut frame
                && let Some(span) = parts.tracer.begin(send, session.id(), now)
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
fn refuse_frame(session: &mut Session, refusal: Refusal, parts: &DriverParts, now: Timestamp) {
    if refusal.code == Code::TooLarge {
        parts.metrics.frames_too_large.increment(1);
    }
    session.handle_malformed(refusal, now);
}
