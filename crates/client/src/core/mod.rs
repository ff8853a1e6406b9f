//! The client as a pure state machine: frames, times and answers come in, [`Action`]s go out.
//!
//! No socket, no store, no clock, no randomness: the driver (or the simulator) has those. Methods
//! are of four kinds, as everywhere in `protocol`: `handle_*`, commands by plain verbs,
//! [`Core::poll_action`] and [`Core::poll_timeout`]. Drain completely after every call.
//!
//! Receiving: a message is **shown** once it is the next of its conversation, **taken** by the
//! application, **stored** as taken, and then **acknowledged**. After a crash anywhere between, it
//! comes again; a device acknowledges only messages it has.
//!
//! Sending: a message is **stored** in the outbox under its `send_id`, **transmitted** once the
//! window allows and no earlier one in its conversation waits, and retried with the same `send_id`
//! until it is **accepted** or has **failed**.

mod acks;
mod action;
mod changes;
mod credentials;
mod gaps;
mod hidden_messages;
mod limits;
mod link;
mod list;
mod outbox;
mod queries;
mod send_tracker;
mod snapshot;
mod subscriptions;
mod sync;
#[cfg(test)]
pub(crate) mod tests;
mod timeline;

use std::collections::{BTreeSet, VecDeque};

use protocol::frame::{Hello, ServerFrame, SyncAnswer, SyncQuery, VERSION, Welcome};
use protocol::message::Content;
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{
    Code, ConversationId, MessageId, Options, Recipient, Refusal, SendId, Seq, Timestamp,
};

pub use action::{
    Action, CatchUp, ConnectionState, Event, Origin, Reset, SendStatus, Settings, ShownMessage,
};
pub use limits::Limits;
pub use link::reconnect_pause;
pub use snapshot::{
    Account, Change, ConversationProgress, Cursor, FollowedRow, OutboxRow, Snapshot,
};

use acks::Acks;
use credentials::Credentials;
use gaps::Gaps;
use link::Link;
use list::ConversationListState;
use outbox::Outbox;
use queries::QueryQueue;
use subscriptions::Subscriptions;
use timeline::{ArrivalPath, Timeline};

/// Reason for a send to be kept out of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("{0} sends are waiting in the outbox; wait until one is accepted, or give one up")]
    OutboxFull(usize),
    #[error("this send_id is in the outbox already")]
    Repeated,
}

/// Client of one device. See the module's page.
pub struct Core {
    settings: Settings,
    account: Option<Account>,
    /// Another installation, and the time since which it has answered our user.
    other: Option<(Account, Timestamp)>,
    marker: Option<u64>,
    link: Link,
    credentials: Credentials,
    outbox: Outbox,
    timeline: Timeline,
    questions: QueryQueue,
    list: ConversationListState,
    edges: Gaps,
    subscriptions: Subscriptions,
    /// Conversations read in part: their unread count is requested once the server knows how far.
    unsure_unread: BTreeSet<ConversationId>,
    acks: Acks,
    out: Out,
}

impl Core {
    /// Client that continues from `saved`; it does nothing before [`start`](Self::start). Statuses
    /// of sends still in the outbox come first.
    pub fn new(settings: Settings, snapshot: Snapshot) -> Core {
        let mut out = Out::default();
        let outbox = Outbox::new(
            settings.device.clone(),
            snapshot.outbox,
            snapshot.followed_rows,
            &mut out,
        );
        let acks = Acks::new(&snapshot.conversations);
        let unsure_unread = (snapshot.conversations.iter())
            .filter(|(_, progress)| progress.unconfirmed_read().is_some())
            .map(|(conversation, _)| *conversation)
            .collect();
        let list = ConversationListState::new(snapshot.list);
        // A list that starts over does not name conversations that were taken from it.
        let was_listed = snapshot.list_version > Timestamp::ZERO;
        let is_named = |conversation| was_listed && list.is_named(conversation);
        let listed_rev = |conversation| list.rev(conversation);
        let is_large = |conversation| list.is_large(conversation);
        let timeline = Timeline::new(
            snapshot.conversations,
            snapshot.hidden_seqs,
            is_named,
            listed_rev,
            is_large,
        );
        Core {
            account: snapshot.account,
            other: None,
            marker: snapshot.marker,
            link: Link::default(),
            credentials: Credentials::new(settings.token.clone(), settings.renews_token),
            acks,
            questions: QueryQueue::new(snapshot.list_version),
            edges: Gaps::new(snapshot.loaded_ranges),
            subscriptions: Subscriptions::default(),
            list,
            unsure_unread,
            timeline,
            outbox,
            out,
            settings,
        }
    }

    /// Begins to connect. No effect if it has begun already.
    pub fn start(&mut self) {
        // No credential has a deadline yet.
        let now = Timestamp::ZERO;
        (self.link).start(now, &mut self.credentials, &mut self.out);
    }

    /// Takes the answer to `FetchToken`. `jitter` is any random number.
    pub fn handle_token(&mut self, token: Result<String, Refusal>, now: Timestamp, jitter: u64) {
        let is_live = self.link.is_live();
        match token {
            Ok(token) => {
                (self.credentials).handle_token(token, is_live, &mut self.out);
                self.link.handle_token(&mut self.out);
            }
            Err(refusal) => {
                self.credentials.handle_no_token(is_live, now);
                let limits = &self.settings.limits;
                (self.link).handle_no_token(refusal, now, jitter, limits, &mut self.out);
            }
        }
        self.go_on(now);
    }

    /// Sends the hello on the open connection that `Connect` asked for.
    pub fn handle_connected(&mut self, now: Timestamp) {
        if !self.link.connected(now, self.settings.limits.welcome) {
            return;
        }
        let (token, resume) = self.credentials.present(now);
        let hello = Hello {
            version: VERSION,
            token,
            device: self.settings.device.clone(),
            platform: self.settings.platform,
            marker: self.marker,
            resume,
        };
        self.out
            .transmit(protocol::frame::ClientFrame::Hello(hello));
    }

    /// Handles a connection that ended or did not come about. `why` is the server's close code, or
    /// `Unavailable` with the cause; `jitter` is any random number.
    pub fn handle_disconnected(&mut self, why: Refusal, now: Timestamp, jitter: u64) {
        self.outbox.disconnected();
        self.timeline.disconnected();
        self.questions.disconnected(&mut self.out);
        self.acks.disconnected();
        self.subscriptions.disconnected();
        let (credentials, limits) = (&mut self.credentials, &self.settings.limits);
        (self.link).disconnected(why, credentials, now, jitter, limits, &mut self.out);
    }

    /// Handles a frame of the server.
    pub fn handle_frame(&mut self, frame: ServerFrame, now: Timestamp) {
        if !self.link.heard(now) {
            return;
        }
        match frame {
            ServerFrame::Welcome(welcome) => self.welcomed(welcome, now),
            ServerFrame::Closing { refusal, resume } => {
                self.credentials.handle_closing(resume, now);
                self.link.closing(refusal);
            }
            _ if !self.link.is_live() => {}
            ServerFrame::Accepted(acceptance) => {
                if let Some(me) = self.account.map(|account| account.user) {
                    let limits = &self.settings.limits;
                    (self.outbox).accepted(&acceptance, me, now, limits, &mut self.out);
                }
            }
            ServerFrame::Refused { send_id, refusal } => {
                let limits = &self.settings.limits;
                (self.outbox).refused(send_id, refusal, now, limits, &mut self.out);
            }
            ServerFrame::Placed(echo) => {
                self.echoed(&echo);
                self.check_later(echo.conversation, now);
            }
            ServerFrame::Message(message) => {
                let conversation = message.conversation;
                self.accept_message(message, ArrivalPath::Pushed);
                self.check_later(conversation, now);
            }
            ServerFrame::Changed {
                conversation,
                changed,
            } => {
                self.changed(conversation, changed);
                self.check_later(conversation, now);
            }
            ServerFrame::Signals(signals) => self.signalled(signals, now),
            ServerFrame::Listed(event) => self.list_event(&event),
            ServerFrame::Acked(reply) => {
                for (conversation, seq) in self.acks.confirmed(&reply) {
                    if self.unsure_unread.remove(&conversation) {
                        self.questions.list_again();
                    }
                    if let Some(progress) = self.timeline.read_acked(conversation, seq) {
                        self.store_progress(conversation, progress);
                    }
                }
            }
            ServerFrame::Receipts(receipts) => {
                for receipt in receipts {
                    self.receipt(&receipt);
                }
            }
            ServerFrame::Pong { .. } => {}
            ServerFrame::Page(page) => {
                if let Some(question) = self.questions.answered(page.request) {
                    self.answered(question, page.request, page.answer, now);
                }
            }
            ServerFrame::Resync => {
                self.questions.list_again();
                self.ask_status(now);
            }
            ServerFrame::Refreshed { expires_at } => {
                self.credentials.handle_refreshed(expires_at, now);
            }
            ServerFrame::Error { request: None, .. } => self.credentials.handle_error(now),
            ServerFrame::Error {
                request: Some(request),
                refusal,
            } => {
                if let Some(question) = self.questions.answered(request) {
                    self.not_answered(question, request, refusal, now);
                }
            }
        }
        self.go_on(now);
    }

    /// Handles a deadline of [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let (credentials, limits) = (&mut self.credentials, &self.settings.limits);
        (self.link).timeout(now, credentials, limits, &mut self.out);
        if self.link.is_live() {
            self.credentials.handle_timeout(now, &mut self.out);
            (self.outbox).timeout(now, &self.settings.limits, &mut self.out);
            self.acks.timeout(now);
            for conversation in self.outbox.tracker.unplaced(now, &self.settings.limits) {
                self.suspect(conversation);
            }
            for (request, question) in self.questions.overdue(now) {
                let refusal = Refusal::new(Code::DeadlineExceeded, "no answer in time");
                self.not_answered(question, request, refusal, now);
            }
            self.check_large_groups(now);
        }
        self.go_on(now);
    }

    /// Notes that the changes of this batch, and of all before, are durable.
    pub fn handle_stored(&mut self, batch: u64, now: Timestamp) {
        self.out.stored(batch);
        self.outbox.stored(batch);
        self.acks.stored(batch);
        self.go_on(now);
    }

    /// Notes that the application has everything shown up to this number.
    pub fn handle_taken(&mut self, number: u64, now: Timestamp) {
        self.mark_taken(number);
        self.go_on(now);
    }

    /// Puts a message into the outbox. `send_id` must be new; the statuses carry it.
    pub fn send(
        &mut self,
        send_id: SendId,
        to: Recipient,
        content: Content,
        now: Timestamp,
    ) -> Result<(), SendError> {
        let row = OutboxRow {
            order: self.outbox.next_order(),
            send_id,
            to,
            options: Options::CHAT,
            content,
            created_at: now,
            refusal: None,
        };
        (self.outbox).add(row, &self.settings.limits, &mut self.out)
    }

    /// Retries a failed send under the same `send_id`. False: it is not in the outbox or has not
    /// failed.
    pub fn retry(&mut self, send_id: SendId, now: Timestamp) -> bool {
        let was_failed = self.outbox.retry(send_id, &mut self.out);
        self.go_on(now);
        was_failed
    }

    /// Forgets a send that was not accepted, so that later ones in its conversation go on. If it
    /// was tried, the server may accept it all the same. False: it is not in the outbox.
    pub fn give_up(&mut self, send_id: SendId, now: Timestamp) -> bool {
        let live = self.link.is_live();
        let was_in_outbox = self.outbox.give_up(send_id, live, &mut self.out);
        self.go_on(now);
        was_in_outbox
    }

    /// Marks this message and all before it as seen by the user.
    pub fn read(&mut self, conversation: ConversationId, seq: Seq, id: MessageId, now: Timestamp) {
        if let Some(progress) = self.timeline.read(conversation, seq, id) {
            self.acks.read(conversation, seq, id);
            if self.note_read(conversation, seq) {
                self.unsure_unread.insert(conversation);
            }
            self.store_progress(conversation, progress);
        }
        self.go_on(now);
    }

    /// Requests messages before `before` (`None`: the newest), newest first; an `Older` action with
    /// the returned number answers. The messages are neither shown nor acknowledged, and only their
    /// ranges are stored.
    pub fn load_older(
        &mut self,
        conversation: ConversationId,
        before_seq: Option<Seq>,
        limit: u32,
        now: Timestamp,
    ) -> u32 {
        let live = self.link.is_live();
        let deadline = now + self.settings.limits.answer;
        (self.questions).older(
            conversation,
            before_seq,
            limit,
            live,
            deadline,
            &mut self.out,
        )
    }

    /// Sends a query that changes nothing here, such as for members or missed messages. An `Asked` action with the returned number answers.
    pub fn ask_server(&mut self, query: SyncQuery, now: Timestamp) -> u32 {
        let live = self.link.is_live();
        let deadline = now + self.settings.limits.answer;
        (self.questions).asked(query, live, deadline, &mut self.out)
    }

    /// Next action for the driver. Call until it returns `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    /// Time at which to call `handle_timeout`, unless something happens before.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let live = self.link.is_live();
        [
            self.link.deadline(&self.settings.limits),
            self.outbox.deadline().filter(|_| live),
            self.questions.deadline().filter(|_| live),
            self.acks.deadline().filter(|_| live),
            self.credentials.deadline().filter(|_| live),
            self.subscriptions.deadline().filter(|_| live),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub fn state(&self) -> &ConnectionState {
        self.link.state()
    }

    /// Sends neither accepted nor given up.
    pub fn unsettled(&self) -> usize {
        self.outbox.len()
    }

    /// Shown messages that the application has not taken.
    pub fn untaken(&self) -> usize {
        self.timeline.untaken_len()
    }

    /// Whether nothing waits to be stored and, on a live connection, every acknowledgement is
    /// confirmed: the client may leave.
    pub fn is_flushed(&self) -> bool {
        let is_confirmed = !self.link.is_live() || self.acks.is_empty();
        self.out.durable_with().is_none() && is_confirmed
    }

    fn welcomed(&mut self, welcome: Welcome, now: Timestamp) {
        let account = Account {
            cluster: welcome.cluster,
            user: welcome.user,
        };
        if let Some(stored_account) = self.account
            && stored_account != account
        {
            if stored_account.user == account.user && !self.believes(account, now) {
                let text = "a different installation answered; reconnecting to make sure";
                let why = Refusal::new(Code::Unavailable, text);
                self.link.leave(why, &mut self.out);
                return;
            }
            self.out.emit_event(Event::Reset(Reset::OtherAccount {
                saved: stored_account,
                now: account,
            }));
            let why = Refusal::new(Code::Reset, "the saved state belongs to another account");
            self.link.leave(why, &mut self.out);
            return;
        }
        let Some(round_trip) = self.link.welcomed(&welcome, now, &mut self.out) else {
            return;
        };
        self.other = None;
        self.credentials.handle_welcome(&welcome, now);
        if self.account.is_none() {
            self.account = Some(account);
            self.out.change(Change::Account(account));
        }
        if self.settings.acks && self.marker != Some(welcome.marker) {
            self.marker = Some(welcome.marker);
            self.out.change(Change::Marker(welcome.marker));
        }
        let (window, frame_bytes_max) = (welcome.send_window, welcome.frame_bytes_max);
        self.outbox.connected(window, frame_bytes_max, round_trip);
        let synced_by = now + self.settings.limits.placement;
        self.outbox.tracker.connected(synced_by);
        self.questions.list_again();
        self.subscriptions.connected(welcome.session, now);
        self.timeline.connected(&mut self.questions);
        self.ask_status(now);
    }

    /// Requests the statuses of messages whose receipts were missed.
    fn ask_status(&mut self, now: Timestamp) {
        let deadline = now + self.settings.limits.answer;
        (self.questions).ask_status(self.outbox.tracker.unread_ids(), deadline, &mut self.out);
    }

    /// Whether this installation, and no other, has answered for long enough.
    fn believes(&mut self, account: Account, now: Timestamp) -> bool {
        let first_seen = match self.other {
            Some((other, first_seen)) if other == account => first_seen,
            _ => now,
        };
        self.other = Some((account, first_seen));
        now.since(first_seen) >= self.settings.limits.other_installation
    }

    fn receipt(&mut self, receipt: &Receipt) {
        let is_own = self
            .account
            .is_some_and(|account| account.user == receipt.by);
        if !is_own {
            if self.outbox.tracker.receipt(receipt, &mut self.out) {
                let track = self.track(receipt.conversation);
                track.progress.known_seq = track.progress.known_seq.max(receipt.seq);
                self.fetch_if_missing(receipt.conversation);
            }
        } else if receipt.kind == ReceiptKind::Read {
            // Read on another device of the user.
            if let Some(progress) = self.timeline.read_acked(receipt.conversation, receipt.seq) {
                self.store_progress(receipt.conversation, progress);
            }
            let is_open = self.note_read(receipt.conversation, receipt.seq);
            // The server may have named the row without this read, lost with its power.
            let is_recorded = !self.timeline.is_reading(receipt.conversation);
            let was_unsure = is_recorded && self.unsure_unread.remove(&receipt.conversation);
            if is_open || was_unsure {
                self.questions.list_again();
            }
        }
    }

    fn answered(
        &mut self,
        question: queries::Query,
        request: u32,
        answer: SyncAnswer,
        now: Timestamp,
    ) {
        use queries::Query;
        match (question, answer) {
            (Query::List, SyncAnswer::List(page)) => self.listed(page, now),
            (
                Query::Fetch {
                    conversation,
                    after_seq: after,
                },
                SyncAnswer::History(page),
            ) => self.fetched(conversation, after, page, now),
            (Query::Newest { conversation }, SyncAnswer::History(page)) => {
                self.newest_fetched(conversation, page);
                self.check_later(conversation, now);
            }
            (Query::End { conversation, ours }, SyncAnswer::History(page)) => {
                self.end_found(conversation, ours, &page, now);
            }
            (Query::Changes { conversation, .. }, SyncAnswer::Changes(page)) => {
                self.changes_fetched(conversation, page, now);
            }
            (Query::Row { conversation }, SyncAnswer::Row(row)) => {
                self.row_answered(conversation, row.map(|row| *row), now);
            }
            (
                Query::Hidden {
                    conversation,
                    after,
                },
                SyncAnswer::Hidden(page),
            ) => self.hidden_fetched(conversation, after, page, now),
            (Query::Status, SyncAnswer::Status(statuses)) => {
                self.outbox.tracker.statuses(&statuses, &mut self.out);
            }
            (Query::Older, SyncAnswer::History(mut page)) => {
                self.has_page(page.conversation, &page.messages);
                self.veil_page((&mut page.messages, Some(&mut page.marks)));
                self.out.push(Action::Older {
                    request,
                    answer: Ok(page),
                });
            }
            // The application sees whether it is an answer to its question.
            (Query::Asked, mut answer) => {
                if let Some(page) = answer.page_mut() {
                    self.veil_page(page);
                }
                let answer = Ok(answer);
                self.out.push(Action::Asked { request, answer });
            }
            (question, _) => {
                let refusal = Refusal::new(Code::Unavailable, "an answer to another question");
                self.not_answered(question, request, refusal, now);
            }
        }
    }

    /// Does everything the last event made possible: acknowledgements, sends, queries; then updates
    /// the connection state.
    fn go_on(&mut self, now: Timestamp) {
        if !self.link.is_live() {
            return;
        }
        self.show_stalled();
        let limits = &self.settings.limits;
        let is_large = |conversation| self.list.is_large(conversation);
        (self.acks).flush(now, limits, is_large, &mut self.out);
        self.subscribe(now);
        let limits = &self.settings.limits;
        self.outbox.pump(now, limits, &mut self.out);
        self.ask(now);
        if self.questions.list_is_done() && self.questions.is_quiet() {
            self.link.caught_up(&mut self.out);
        } else if !self.questions.list_is_done() {
            self.link.behind(&mut self.out);
        }
        if self.out.transmits() {
            self.link.sent(now);
        }
    }

    fn store_progress(&mut self, conversation: ConversationId, progress: ConversationProgress) {
        if self.settings.acks {
            self.out
                .change(Change::Conversation(conversation, progress));
        }
    }
}

/// Output of the core: actions in order, and the changes of the next store.
#[derive(Debug, Default)]
struct Out {
    actions: VecDeque<Action>,
    changes: Vec<Change>,
    /// Number of the last store handed out.
    last_batch: u64,
    /// True until that store is confirmed.
    is_storing: bool,
    has_transmitted: bool,
}

impl Out {
    fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn transmit(&mut self, frame: protocol::frame::ClientFrame) {
        self.has_transmitted = true;
        self.actions.push_back(Action::Transmit(frame));
    }

    fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    fn emit_event(&mut self, event: Event) {
        self.push(Action::Event(event));
    }

    fn status(&mut self, send_id: SendId, status: SendStatus) {
        self.emit_event(Event::Status { send_id, status });
    }

    /// Store after which all changes so far are durable; `None`: they already are.
    fn durable_with(&self) -> Option<u64> {
        match (self.changes.is_empty(), self.is_storing) {
            (false, _) => Some(self.last_batch + 1),
            (true, true) => Some(self.last_batch),
            (true, false) => None,
        }
    }

    fn stored(&mut self, batch: u64) {
        if batch >= self.last_batch {
            self.is_storing = false;
        }
    }

    /// Whether anything was transmitted since the last call.
    fn transmits(&mut self) -> bool {
        std::mem::take(&mut self.has_transmitted)
    }

    fn poll(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.is_storing || self.changes.is_empty() {
            return None;
        }
        self.last_batch += 1;
        self.is_storing = true;
        Some(Action::Store {
            batch: self.last_batch,
            changes: std::mem::take(&mut self.changes),
        })
    }
}
