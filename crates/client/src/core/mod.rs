//! The client as a pure machine: frames, times and answers come in, [`Action`]s go out.
//!
//! No socket, no store, no clock, no chance: the driver (or the simulator) has those. The methods are of
//! four kinds, as everywhere in `protocol`: `handle_*`, commands by plain verbs, [`Core::poll_action`]
//! and [`Core::poll_timeout`]. Drain completely after every call.
//!
//! How a message is received: it is **shown** when it is the next of its conversation, the application
//! **takes** it, that it has it is **stored**, and then it is **acknowledged**. A crash anywhere between
//! brings it again; nothing is acknowledged that the device does not have.
//!
//! How a message is sent: it is **stored** in the outbox under its `send_id`, **transmitted** when the
//! window allows and nothing before it in its conversation waits, tried again with the same `send_id`
//! until it is **accepted** or has **failed**.

mod acks;
mod action;
mod changes;
mod credentials;
mod edges;
mod hidden;
mod limits;
mod link;
mod list;
mod outbox;
mod questions;
mod saved;
mod sent;
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

pub use action::{Action, CatchUp, Origin, Reset, SendStatus, Settings, Shown, State};
pub use limits::Limits;
pub use link::reconnect_pause;
pub use saved::{Account, Change, Cursor, FollowedRow, Kept, OutboxRow, Saved};

use acks::Acks;
use credentials::Credentials;
use edges::Edges;
use link::Link;
use list::List;
use outbox::Outbox;
use questions::Questions;
use timeline::{Source, Timeline};

/// Why a send was not taken into the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("{0} sends wait in the outbox; wait until one is accepted, or give one up")]
    OutboxFull(usize),
    #[error("this send_id is in the outbox already")]
    Repeated,
}

/// One device's client. See the module's page.
pub struct Core {
    settings: Settings,
    account: Option<Account>,
    /// Another installation that answered our user since this time.
    other: Option<(Account, Timestamp)>,
    marker: Option<u64>,
    link: Link,
    credentials: Credentials,
    outbox: Outbox,
    timeline: Timeline,
    questions: Questions,
    list: List,
    edges: Edges,
    /// Read in part: how many are left is asked once the server knows how far.
    unsure_unread: BTreeSet<ConversationId>,
    acks: Acks,
    out: Out,
}

impl Core {
    /// A client that continues from what was saved; it does nothing before [`start`](Self::start).
    /// The statuses of what is still in the outbox come first.
    pub fn new(settings: Settings, saved: Saved) -> Core {
        let mut out = Out::default();
        let outbox = Outbox::new(
            settings.device.clone(),
            saved.outbox,
            saved.followed,
            &mut out,
        );
        let acks = Acks::new(&saved.conversations);
        let unsure_unread = (saved.conversations.iter())
            .filter(|(_, kept)| kept.read.is_some_and(|(seq, _)| seq > kept.read_acked))
            .map(|(conversation, _)| *conversation)
            .collect();
        let list = List::new(saved.list);
        // A list that begins anew does not name what was taken from it.
        let was_listed = saved.list_version > Timestamp::ZERO;
        let is_named = |conversation| was_listed && list.is_named(conversation);
        let listed_rev = |conversation| list.rev(conversation);
        let timeline = Timeline::new(saved.conversations, saved.hidden, is_named, listed_rev);
        Core {
            account: saved.account,
            other: None,
            marker: saved.marker,
            link: Link::default(),
            credentials: Credentials::new(settings.token.clone(), settings.renews_token),
            acks,
            questions: Questions::new(saved.list_version),
            edges: Edges::new(saved.loaded),
            list,
            unsure_unread,
            timeline,
            outbox,
            out,
            settings,
        }
    }

    /// Begins to connect. Without effect when it has begun already.
    pub fn start(&mut self) {
        // Nothing of its proofs is timed yet.
        let now = Timestamp::ZERO;
        (self.link).start(now, &mut self.credentials, &mut self.out);
    }

    /// The answer to `FetchToken`. `jitter` is any random number.
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

    /// The connection that `Connect` asked for is open.
    pub fn handle_connected(&mut self, now: Timestamp) {
        if !self.link.connected(now + self.settings.limits.welcome) {
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

    /// The connection is gone, or did not come about. `why` is what the server's close code said, or
    /// `Unavailable` with the cause; `jitter` is any random number.
    pub fn handle_disconnected(&mut self, why: Refusal, now: Timestamp, jitter: u64) {
        self.outbox.disconnected();
        self.timeline.disconnected();
        self.questions.disconnected(&mut self.out);
        self.acks.disconnected();
        let (credentials, limits) = (&mut self.credentials, &self.settings.limits);
        (self.link).disconnected(why, credentials, now, jitter, limits, &mut self.out);
    }

    /// A frame came.
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
            ServerFrame::Accepted(accepted) => {
                if let Some(me) = self.account.map(|account| account.user) {
                    let limits = &self.settings.limits;
                    (self.outbox).accepted(&accepted, me, now, limits, &mut self.out);
                }
            }
            ServerFrame::Refused { send_id, refusal } => {
                let limits = &self.settings.limits;
                (self.outbox).refused(send_id, refusal, now, limits, &mut self.out);
            }
            ServerFrame::Placed(echo) => self.echoed(&echo),
            ServerFrame::Message(placed) => self.place(placed, Source::Pushed),
            ServerFrame::Changed {
                conversation,
                changed,
            } => self.changed(conversation, changed),
            ServerFrame::Listed(word) => self.list_word(&word),
            ServerFrame::Acked(acked) => {
                for (conversation, seq) in self.acks.confirmed(&acked) {
                    if self.unsure_unread.remove(&conversation) {
                        self.questions.list_again();
                    }
                    if let Some(kept) = self.timeline.read_acked(conversation, seq) {
                        self.keep(conversation, kept);
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

    /// A deadline of [`poll_timeout`](Self::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let (credentials, limits) = (&mut self.credentials, &self.settings.limits);
        (self.link).timeout(now, credentials, limits, &mut self.out);
        if self.link.is_live() {
            self.credentials.handle_timeout(now, &mut self.out);
            (self.outbox).timeout(now, &self.settings.limits, &mut self.out);
            self.acks.timeout(now);
            for conversation in self.outbox.sent.unplaced(now, &self.settings.limits) {
                self.suspect(conversation);
            }
            for (request, question) in self.questions.overdue(now) {
                let refusal = Refusal::new(Code::DeadlineExceeded, "no answer in time");
                self.not_answered(question, request, refusal, now);
            }
        }
        self.go_on(now);
    }

    /// The changes of this batch and of those before are durable.
    pub fn handle_stored(&mut self, batch: u64, now: Timestamp) {
        self.out.stored(batch);
        self.outbox.stored(batch);
        self.acks.stored(batch);
        self.go_on(now);
    }

    /// The application has everything that was shown up to this number.
    pub fn handle_taken(&mut self, number: u64, now: Timestamp) {
        self.taken(number);
        self.go_on(now);
    }

    /// Puts a message into the outbox. `send_id` is new; the statuses name it.
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
            failed: None,
        };
        (self.outbox).add(row, &self.settings.limits, &mut self.out)
    }

    /// Tries a failed send again, under the same `send_id`. False: it is not in the outbox or has not
    /// failed.
    pub fn retry(&mut self, send_id: SendId, now: Timestamp) -> bool {
        let found = self.outbox.retry(send_id, &mut self.out);
        self.go_on(now);
        found
    }

    /// Forgets a send that was not accepted: what comes after it in its conversation goes on. Whether the
    /// server accepts it all the same is unknown where it was tried. False: it is not in the outbox.
    pub fn give_up(&mut self, send_id: SendId, now: Timestamp) -> bool {
        let live = self.link.is_live();
        let found = self.outbox.give_up(send_id, live, &mut self.out);
        self.go_on(now);
        found
    }

    /// The user has seen this message and all before it.
    pub fn read(&mut self, conversation: ConversationId, seq: Seq, id: MessageId, now: Timestamp) {
        if let Some(kept) = self.timeline.read(conversation, seq, id) {
            self.acks.read(conversation, seq, id);
            if self.note_read(conversation, seq) {
                self.unsure_unread.insert(conversation);
            }
            self.keep(conversation, kept);
        }
        self.go_on(now);
    }

    /// Asks for messages before `before` (`None`: the newest), newest first; an `Older` action with the
    /// returned number answers. They are not shown, kept or acknowledged.
    pub fn load_older(
        &mut self,
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
        now: Timestamp,
    ) -> u32 {
        let live = self.link.is_live();
        let until = now + self.settings.limits.answer;
        (self.questions).older(conversation, before, limit, live, until, &mut self.out)
    }

    /// Asks what changes nothing here: who is in a group, who has read, what was missed, what is unread, how many there
    /// are. An `Asked` action with the returned number answers.
    pub fn ask_server(&mut self, query: SyncQuery, now: Timestamp) -> u32 {
        let live = self.link.is_live();
        let until = now + self.settings.limits.answer;
        (self.questions).asked(query, live, until, &mut self.out)
    }

    /// What is to be done next. Call it until it answers `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    /// When `handle_timeout` is to be called, unless something happens before.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let live = self.link.is_live();
        [
            self.link.deadline(&self.settings.limits),
            self.outbox.deadline().filter(|_| live),
            self.questions.deadline().filter(|_| live),
            self.acks.deadline().filter(|_| live),
            self.credentials.deadline().filter(|_| live),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub fn state(&self) -> &State {
        self.link.state()
    }

    /// Sends that are neither accepted nor given up.
    pub fn unsettled(&self) -> usize {
        self.outbox.len()
    }

    /// Shown messages that the application has not taken.
    pub fn untaken(&self) -> usize {
        self.timeline.untaken_len()
    }

    /// Nothing waits to be stored and, on a live connection, no acknowledgement to be confirmed: a
    /// client may leave.
    pub fn is_flushed(&self) -> bool {
        let confirmed = !self.link.is_live() || self.acks.is_empty();
        self.out.durable_with().is_none() && confirmed
    }

    fn welcomed(&mut self, welcome: Welcome, now: Timestamp) {
        let account = Account {
            cluster: welcome.cluster,
            user: welcome.user,
        };
        if let Some(saved) = self.account
            && saved != account
        {
            if saved.user == account.user && !self.believes(account, now) {
                let text = "another installation answers; connecting again before that is believed";
                let why = Refusal::new(Code::Unavailable, text);
                self.link.leave(why, &mut self.out);
                return;
            }
            self.out.push(Action::Reset(Reset::OtherAccount {
                saved,
                now: account,
            }));
            let why = Refusal::new(Code::Reset, "what is saved belongs to another account");
            self.link.leave(why, &mut self.out);
            return;
        }
        if !self.link.welcomed(&welcome, now, &mut self.out) {
            return;
        }
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
        self.outbox
            .connected(welcome.send_window, welcome.frame_bytes_max);
        self.questions.list_again();
        self.timeline.connected(&mut self.questions);
        self.ask_status(now);
    }

    /// Receipts that were missed.
    fn ask_status(&mut self, now: Timestamp) {
        let until = now + self.settings.limits.answer;
        (self.questions).ask_status(self.outbox.sent.unread_ids(), until, &mut self.out);
    }

    /// Has this installation, and no other, answered for long enough?
    fn believes(&mut self, account: Account, now: Timestamp) -> bool {
        let since = match self.other {
            Some((other, since)) if other == account => since,
            _ => now,
        };
        self.other = Some((account, since));
        now.since(since) >= self.settings.limits.other_installation
    }

    fn receipt(&mut self, receipt: &Receipt) {
        let is_own = self
            .account
            .is_some_and(|account| account.user == receipt.by);
        if !is_own {
            if self.outbox.sent.receipt(receipt, &mut self.out) {
                let track = self.track(receipt.conversation);
                track.kept.known = track.kept.known.max(receipt.seq);
                self.fetch_if_missing(receipt.conversation);
            }
        } else if receipt.kind == ReceiptKind::Read {
            // On another device of ours.
            if let Some(kept) = self.timeline.read_acked(receipt.conversation, receipt.seq) {
                self.keep(receipt.conversation, kept);
            }
            if self.note_read(receipt.conversation, receipt.seq) {
                self.questions.list_again();
            }
        }
    }

    fn answered(
        &mut self,
        question: questions::Question,
        request: u32,
        answer: SyncAnswer,
        now: Timestamp,
    ) {
        use questions::Question;
        match (question, answer) {
            (Question::List, SyncAnswer::List(page)) => self.listed(page, now),
            (
                Question::Fetch {
                    conversation,
                    after,
                },
                SyncAnswer::History(page),
            ) => self.fetched(conversation, after, page, now),
            (Question::Newest { conversation }, SyncAnswer::History(page)) => {
                self.newest_fetched(conversation, page);
            }
            (Question::End { conversation, ours }, SyncAnswer::History(page)) => {
                self.end_found(conversation, ours, &page);
            }
            (Question::Changes { conversation, .. }, SyncAnswer::Changes(page)) => {
                self.changes_fetched(conversation, page, now);
            }
            (Question::Row { conversation }, SyncAnswer::Row(row)) => {
                self.row_answered(conversation, row.map(|row| *row), now);
            }
            (
                Question::Hidden {
                    conversation,
                    after,
                },
                SyncAnswer::Hidden(page),
            ) => self.hidden_fetched(conversation, after, page, now),
            (Question::Status, SyncAnswer::Status(statuses)) => {
                self.outbox.sent.statuses(&statuses, &mut self.out);
            }
            (Question::Older, SyncAnswer::History(mut page)) => {
                self.has_page(page.conversation, &page.messages);
                self.veil_page(&mut page);
                self.out.push(Action::Older {
                    request,
                    answer: Ok(page),
                });
            }
            (Question::Asked, SyncAnswer::Missed(mut page)) => {
                for placed in &mut page.messages {
                    self.veil(placed, &mut None);
                }
                let answer = Ok(SyncAnswer::Missed(page));
                self.out.push(Action::Asked { request, answer });
            }
            (
                Question::Asked,
                answer @ (SyncAnswer::Members(_)
                | SyncAnswer::Readers(_)
                | SyncAnswer::Unread(_)
                | SyncAnswer::CountSince(_)),
            ) => self.out.push(Action::Asked {
                request,
                answer: Ok(answer),
            }),
            (question, _) => {
                let refusal = Refusal::new(Code::Unavailable, "an answer to another question");
                self.not_answered(question, request, refusal, now);
            }
        }
    }

    /// What the last event made possible: acknowledgements, sends, questions; and what to call it.
    fn go_on(&mut self, now: Timestamp) {
        if !self.link.is_live() {
            return;
        }
        self.show_stalled();
        let limits = &self.settings.limits;
        self.acks.flush(now, limits, &mut self.out);
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

    fn keep(&mut self, conversation: ConversationId, kept: Kept) {
        if self.settings.acks {
            self.out.change(Change::Conversation(conversation, kept));
        }
    }
}

/// What goes out: actions in order, and the changes of the next store.
#[derive(Debug, Default)]
struct Out {
    actions: VecDeque<Action>,
    changes: Vec<Change>,
    /// The number of the last store that was handed out.
    issued: u64,
    /// That store is not yet confirmed.
    storing: bool,
    transmitted: bool,
}

impl Out {
    fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn transmit(&mut self, frame: protocol::frame::ClientFrame) {
        self.transmitted = true;
        self.actions.push_back(Action::Transmit(frame));
    }

    fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    fn status(&mut self, send_id: SendId, status: SendStatus) {
        self.push(Action::Status { send_id, status });
    }

    /// The store after which everything that was changed so far is durable; `None`: it is already.
    fn durable_with(&self) -> Option<u64> {
        match (self.changes.is_empty(), self.storing) {
            (false, _) => Some(self.issued + 1),
            (true, true) => Some(self.issued),
            (true, false) => None,
        }
    }

    fn stored(&mut self, batch: u64) {
        if batch >= self.issued {
            self.storing = false;
        }
    }

    /// Was anything transmitted since the last time this was asked?
    fn transmits(&mut self) -> bool {
        std::mem::take(&mut self.transmitted)
    }

    fn poll(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.storing || self.changes.is_empty() {
            return None;
        }
        self.issued += 1;
        self.storing = true;
        Some(Action::Store {
            batch: self.issued,
            changes: std::mem::take(&mut self.changes),
        })
    }
}
