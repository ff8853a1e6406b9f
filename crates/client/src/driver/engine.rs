//! The one task of a client: drives the core over a connection and a store, and decides nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use api::codec::{decode_server, encode_client};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt};
use protocol::frame::{HistoryPage, SyncAnswer};
use protocol::{Code, Refusal, SendId, Timestamp};
use rand::RngCore;
use rand::rngs::StdRng;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use uuid::Builder;

use super::clock::Clock;
use super::connection::{Connection, lost};
use super::events::EventFeed;
use super::route::Route;
use super::store_worker::{StoreResult, StoreWorker};
use super::token::{Fetch, fetch};
use super::{ClientConfig, Command, ConversationList, SendTicket};
use crate::core::{Account, Action, ConnectionState, Core, Event, Reset, SendStatus, Snapshot};
use crate::store::{Store, StorePath};

/// Time closing waits for the store and for the server's confirmations.
const CLOSING: Duration = Duration::from_secs(3);

/// Tickets kept before checking which of them are still held.
const TICKETS_UNCHECKED: usize = 4096;

type ConnectionAttempt = Pin<Box<dyn Future<Output = Result<Connection, Refusal>> + Send>>;

pub(super) struct Engine {
    list: watch::Sender<ConversationList>,
    config: ClientConfig,
    route: Route,
    core: Core,
    clock: Clock,
    chance: StdRng,
    store_worker: StoreWorker,
    feed: EventFeed,
    state: watch::Sender<ConnectionState>,
    /// Number of the core: each account has its own.
    epoch: u64,
    /// Account whose state comes next.
    switch_to: Option<Account>,
    dial: Option<ConnectionAttempt>,
    fetch: Option<Fetch>,
    connection: Option<Connection>,
    /// Frames for the socket; bounded by the core's windows.
    outgoing_frames: VecDeque<Bytes>,
    /// The socket may not have written everything it was given.
    is_unflushed: bool,
    tickets: BTreeMap<SendId, watch::Sender<SendStatus>>,
    tickets_checked: usize,
    older: BTreeMap<u32, oneshot::Sender<Result<HistoryPage, Refusal>>>,
    pending_answers: BTreeMap<u32, oneshot::Sender<Result<SyncAnswer, Refusal>>>,
    commands_open: bool,
    events_open: bool,
    close_request: Option<(Instant, Vec<oneshot::Sender<()>>)>,
}

/// Reason for the engine to wake.
enum Wake {
    Stored(Result<StoreResult, String>),
    Taken(bool),
    Command(Option<Command>),
    Dialed(Result<Connection, Refusal>),
    Token(Result<String, Refusal>),
    Frame(Result<Bytes, Refusal>),
    Flushed(Result<(), Refusal>),
    Deadline,
}

impl Engine {
    pub(super) fn new(
        config: ClientConfig,
        route: Route,
        store: Store,
        snapshot: Snapshot,
        feed: EventFeed,
        state: watch::Sender<ConnectionState>,
        list: watch::Sender<ConversationList>,
    ) -> Engine {
        let core = Core::new(config.settings(), snapshot);
        list.send_replace(list_rows(&core));
        let (starts_at, chance) = (config.starts_at, super::chance(config.seed));
        let is_in_memory = matches!(config.state, StorePath::Memory);
        Engine {
            list,
            core,
            config,
            route,
            clock: Clock::start(starts_at),
            chance,
            store_worker: StoreWorker::new(store, is_in_memory),
            feed,
            state,
            epoch: 0,
            switch_to: None,
            dial: None,
            fetch: None,
            connection: None,
            outgoing_frames: VecDeque::new(),
            is_unflushed: false,
            tickets: BTreeMap::new(),
            tickets_checked: TICKETS_UNCHECKED,
            older: BTreeMap::new(),
            pending_answers: BTreeMap::new(),
            commands_open: true,
            events_open: true,
            close_request: None,
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.core.start();
        let mut failure = None;
        loop {
            self.run_actions();
            if self.is_done() {
                break;
            }
            let wake = self.wake(&mut commands).await;
            if let Err(cause) = self.handle(wake) {
                failure = Some(cause);
                break;
            }
        }
        if let Some(cause) = failure {
            tracing::error!(%cause, "cannot save the client's state; the client stops");
            let why = Refusal::new(Code::Unavailable, format!("cannot save its state: {cause}"));
            self.emit_event(Event::State(ConnectionState::Closed(why)));
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
        // Release the state before replying: a caller of `close` may open it at once.
        drop(self.store_worker);
        for waiter in self
            .close_request
            .into_iter()
            .flat_map(|(_, waiter)| waiter)
        {
            // The caller may have stopped waiting.
            let _ = waiter.send(());
        }
    }

    async fn wake(&mut self, commands: &mut mpsc::Receiver<Command>) -> Wake {
        let close_deadline = self.close_request.as_ref().map(|(deadline, _)| *deadline);
        let deadline = (self.core.poll_timeout().map(|at| self.clock.instant(at)))
            .into_iter()
            .chain(close_deadline)
            .min();
        let has_outgoing = !self.outgoing_frames.is_empty() || self.is_unflushed;
        let (stream, sink) = match &mut self.connection {
            Some(connection) => (Some(&mut connection.stream), Some(&mut connection.sink)),
            None => (None, None),
        };
        tokio::select! {
            biased;
            done = self.store_worker.done() => Wake::Stored(done),
            dialed = resolved(&mut self.dial) => Wake::Dialed(dialed),
            token = resolved(&mut self.fetch) => Wake::Token(token),
            changed = self.feed.taken_receiver.changed(), if self.events_open => Wake::Taken(changed.is_ok()),
            flushed = flush(sink, &mut self.outgoing_frames), if has_outgoing => Wake::Flushed(flushed),
            // Frames show that their boat lives, even after this process stood still. They do not
            // starve the rest: a boat without acks stops sending.
            frame = next(stream) => Wake::Frame(frame),
            () = sleep_until(deadline) => Wake::Deadline,
            // Commands come last: there may always be more.
            command = commands.recv(), if self.commands_open => Wake::Command(command),
        }
    }

    /// Tells the core what woke the engine.
    fn handle(&mut self, wake: Wake) -> Result<(), String> {
        let now = self.clock.now();
        match wake {
            Wake::Stored(result) => match result? {
                StoreResult::Stored(batch) => self.core.handle_stored(batch, now),
                StoreResult::Switched(snapshot) => self.begin_anew(*snapshot),
            },
            Wake::Taken(true) => self.take(now),
            Wake::Taken(false) => self.events_open = false,
            Wake::Command(Some(command)) => self.handle_command(command),
            Wake::Command(None) => self.commands_open = false,
            Wake::Dialed(Ok(connection)) => {
                self.dial = None;
                self.connection = Some(connection);
                self.core.handle_connected(now);
            }
            Wake::Token(token) => {
                self.fetch = None;
                let jitter = self.chance.next_u64();
                self.core.handle_token(token, now, jitter);
            }
            Wake::Dialed(Err(why)) => {
                self.route.fail(None, now);
                self.disconnected(why);
            }
            Wake::Frame(Err(why)) | Wake::Flushed(Err(why)) => self.disconnected(why),
            Wake::Frame(Ok(bytes)) => match decode_server(bytes, self.config.frame_bytes_max) {
                Ok(frame) => self.core.handle_frame(frame, now),
                Err(refusal) => self.disconnected(lost(refusal)),
            },
            Wake::Flushed(Ok(())) => self.is_unflushed = false,
            Wake::Deadline => self.core.handle_timeout(now),
        }
        Ok(())
    }

    /// Carries out the core's actions.
    fn run_actions(&mut self) {
        while self.switch_to.is_none()
            && let Some(action) = self.core.poll_action()
        {
            match action {
                Action::Connect => {
                    let (now, jitter) = (self.clock.now(), self.chance.next_u64());
                    self.dial = Some(Box::pin(self.route.clone().open(now, jitter)));
                }
                Action::FetchToken => self.fetch = Some(fetch(&self.config)),
                Action::Disconnect(why) => self.disconnected(why),
                Action::Transmit(frame) => {
                    self.outgoing_frames.push_back(encode_client(&frame));
                    self.is_unflushed = true;
                }
                Action::Store { batch, changes } => self.store_worker.write(batch, changes),
                Action::Event(event) => self.emit_event(event),
                Action::Listed(summary) => self.list.send_modify(|list| {
                    list.insert(summary.conversation, *summary);
                }),
                Action::Older { request, answer } => {
                    if let Some(reply) = self.older.remove(&request) {
                        // The caller may have stopped waiting.
                        let _ = reply.send(answer);
                    }
                }
                Action::Asked { request, answer } => {
                    if let Some(reply) = self.pending_answers.remove(&request) {
                        let _ = reply.send(answer);
                    }
                }
            }
        }
        if self.store_worker.is_idle()
            && let Some(account) = self.switch_to
        {
            self.store_worker.switch(account);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let now = self.clock.now();
        // Failed replies are ignored: their caller stopped waiting.
        match command {
            Command::Send { to, content, reply } => {
                let mut bytes = [0; 16];
                self.chance.fill_bytes(&mut bytes);
                let send_id = SendId::from_uuid(Builder::from_random_bytes(bytes).into_uuid());
                let outcome = self.core.send(send_id, to, content, now);
                let ticket = outcome.map(|()| self.ticket(send_id));
                let _ = reply.send(ticket);
            }
            Command::Retry(send_id, reply) => {
                let _ = reply.send(self.core.retry(send_id, now));
            }
            Command::GiveUp(send_id, reply) => {
                let _ = reply.send(self.core.give_up(send_id, now));
                self.tickets.remove(&send_id);
            }
            Command::Read(conversation, seq, id) => self.core.read(conversation, seq, id, now),
            Command::LoadOlder {
                conversation,
                before,
                limit,
                reply,
            } => {
                let request = self.core.load_older(conversation, before, limit, now);
                self.older.insert(request, reply);
            }
            Command::Ask { query, reply } => {
                let request = self.core.ask_server(query, now);
                self.pending_answers.insert(request, reply);
            }
            Command::Edges(conversation, reply) => {
                let _ = reply.send(self.core.edges(conversation));
            }
            Command::Older(conversation, seq, reply) => {
                let _ = reply.send(self.core.older(conversation, seq));
            }
            Command::Close(waiter) => {
                // Events the application took before it asked to close count, even if the close is
                // received first.
                self.take(now);
                let (_, waiters) = (self.close_request)
                    .get_or_insert_with(|| (Instant::now() + CLOSING, Vec::new()));
                waiters.push(waiter);
            }
        }
    }

    /// Tells the core which events the application has taken.
    fn take(&mut self, now: Timestamp) {
        let cursor = *self.feed.taken_receiver.borrow_and_update();
        if cursor.epoch == self.epoch {
            self.core.handle_taken(cursor.number, now);
        }
    }

    fn ticket(&mut self, send_id: SendId) -> SendTicket {
        if self.tickets.len() >= self.tickets_checked {
            self.tickets.retain(|_, sender| !sender.is_closed());
            self.tickets_checked = (self.tickets.len() * 2).max(TICKETS_UNCHECKED);
        }
        let (sender, status) = watch::channel(SendStatus::Pending);
        self.tickets.insert(send_id, sender);
        SendTicket {
            send_id,
            status,
            state: self.state.subscribe(),
        }
    }

    /// Hands an event to the application. Tickets and the watched state show theirs, too.
    fn emit_event(&mut self, event: Event) {
        match &event {
            Event::Status { send_id, status } => self.update_ticket(*send_id, status),
            Event::State(state) => _ = self.state.send_replace(state.clone()),
            Event::Reset(Reset::OtherAccount { now, .. }) => self.switch_to = Some(*now),
            Event::Message(_)
            | Event::Changed { .. }
            | Event::Hidden { .. }
            | Event::Receipt(_)
            | Event::Gap { .. }
            | Event::Reset(_) => {}
        }
        let is_last = matches!(event, Event::State(ConnectionState::Closed(_)));
        self.feed.push(self.epoch, event);
        if is_last {
            self.feed.end();
        }
    }

    fn update_ticket(&mut self, send_id: SendId, status: &SendStatus) {
        if let Some(sender) = self.tickets.get(&send_id) {
            sender.send_replace(status.clone());
            if sender.is_closed() || matches!(status, SendStatus::Read { .. }) {
                self.tickets.remove(&send_id);
            }
        }
    }

    fn disconnected(&mut self, why: Refusal) {
        self.dial = None;
        self.connection = None;
        self.outgoing_frames.clear();
        self.is_unflushed = false;
        tracing::debug!(code = %why.code, text = %why.text, "disconnected");
        let (now, jitter) = (self.clock.now(), self.chance.next_u64());
        self.core.handle_disconnected(why, now, jitter);
        // The boat's stated reason counts, not how its socket ended.
        if let ConnectionState::Reconnecting { why, .. } = self.core.state() {
            self.route.fail(Some(why.code), now);
        }
    }

    /// Goes on with a new core from the state of another account.
    fn begin_anew(&mut self, snapshot: Snapshot) {
        self.switch_to = None;
        self.dial = None;
        self.fetch = None;
        self.connection = None;
        self.outgoing_frames.clear();
        self.is_unflushed = false;
        let why = Refusal::new(Code::Reset, "its outbox belongs to another account");
        let moved_ids: BTreeSet<SendId> = snapshot.outbox.values().map(|row| row.send_id).collect();
        self.tickets.retain(|send_id, sender| {
            let is_moved = moved_ids.contains(send_id);
            if !is_moved && sender.borrow().rank() < 2 {
                sender.send_replace(SendStatus::Failed(why.clone()));
            }
            is_moved
        });
        self.older.clear();
        self.epoch += 1;
        self.core = Core::new(self.config.settings(), snapshot);
        self.list.send_replace(list_rows(&self.core));
        self.core.start();
    }

    /// Whether nothing is left to do.
    fn is_done(&self) -> bool {
        if let Some((deadline, _)) = &self.close_request {
            let is_written = self.outgoing_frames.is_empty() && !self.is_unflushed;
            return (self.core.is_flushed() && is_written) || *deadline <= Instant::now();
        }
        let is_closed =
            matches!(self.core.state(), ConnectionState::Closed(_)) && self.switch_to.is_none();
        let is_left = !self.commands_open && !self.events_open;
        let is_taken = !self.events_open || self.core.untaken() == 0;
        (is_closed || is_left) && is_taken && self.core.is_flushed()
    }
}

async fn resolved<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn next<S>(stream: Option<&mut S>) -> Result<Bytes, Refusal>
where
    S: StreamExt<Item = Result<Bytes, Refusal>> + Unpin,
{
    match stream {
        Some(stream) => {
            let frame = stream.next().await;
            frame.unwrap_or_else(|| Err(lost("the connection ended")))
        }
        None => std::future::pending().await,
    }
}

/// Writes all frames. Cancel safe: a frame is in the queue or in the socket.
async fn flush<S>(sink: Option<&mut S>, frames: &mut VecDeque<Bytes>) -> Result<(), Refusal>
where
    S: Sink<Bytes, Error = Refusal> + Unpin,
{
    let Some(sink) = sink else {
        return std::future::pending().await;
    };
    while !frames.is_empty() {
        std::future::poll_fn(|context| sink.poll_ready_unpin(context)).await?;
        if let Some(frame) = frames.pop_front() {
            sink.start_send_unpin(frame)?;
        }
    }
    sink.flush().await
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn list_rows(core: &Core) -> ConversationList {
    let rows = core.list().map(|row| (row.conversation, row));
    rows.collect()
}
