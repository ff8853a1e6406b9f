//! A device of a simulated world: the client's core, its saved state, and the application that
//! shares its fate. Wires, disks and time belong to the world.

use std::collections::{BTreeMap, BTreeSet};

use client::core::{
    Action, CatchUp, Change, ConnectionState, Core, Event, FollowedRow, Limits, Reset, SendStatus,
    Settings, ShownMessage, Snapshot,
};
use protocol::frame::ClientFrame;
use protocol::message::Content;
use protocol::receipt::{Receipt, ReceiptKind, ReceiptStatus};
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Platform, Recipient, Refusal, SendId, Seq,
    Timestamp, UserId,
};

use crate::actions::Ask;
use crate::app::App;
use crate::screen::Screen;

pub struct CoreDevice {
    pub user: UserId,
    pub platform: Platform,
    pub name: DeviceId,
    /// Number of starts.
    pub life: u32,
    core: Option<Core>,
    pub snapshot: Snapshot,
    pub app: App,
    /// Positions up to which the user has ever read on it.
    pub read: BTreeMap<ConversationId, Seq>,
    pub last_ask: Option<Ask>,
    /// Sends of the application and their statuses: kept by the application itself.
    pub send_statuses: BTreeMap<SendId, SendStatus>,
    /// Sends in the order in which they were made, with their recipients.
    pub order: Vec<(UserId, SendId)>,
    /// Sends that are changes.
    pub change_sends: BTreeSet<SendId>,
    /// First id that each send was accepted under.
    pub accepted_ids: BTreeMap<SendId, MessageId>,
    /// True where clocks of servers step: its list may be ahead of one, and then starts anew.
    pub lists_may_be_ahead: bool,
    /// Findings, in order.
    findings: Vec<String>,
}

/// Action for the owner of wires and disks.
#[derive(Debug)]
pub enum Io {
    FetchToken,
    Connect,
    Disconnect(Refusal),
    Transmit(ClientFrame),
    Store { batch: u64, changes: Vec<Change> },
}

impl CoreDevice {
    pub fn new(user: UserId, platform: Platform, name: DeviceId) -> CoreDevice {
        CoreDevice {
            user,
            platform,
            name,
            life: 0,
            core: None,
            snapshot: Snapshot::default(),
            app: App::default(),
            read: BTreeMap::new(),
            last_ask: None,
            send_statuses: BTreeMap::new(),
            order: Vec::new(),
            change_sends: BTreeSet::new(),
            accepted_ids: BTreeMap::new(),
            lists_may_be_ahead: false,
            findings: Vec::new(),
        }
    }

    pub fn screen(&self) -> Screen<'_> {
        Screen {
            name: self.name.as_str(),
            user: self.user,
            app: &self.app,
            is_listed: true,
        }
    }

    /// Whether ended for good, since another device of the same platform signed in.
    pub fn is_displaced(&self) -> bool {
        self.core.as_ref().is_some_and(
            |core| matches!(core.state(), ConnectionState::Closed(refusal) if refusal.code == Code::Displaced),
        )
    }

    /// Whether the device may send this receipt: it has stored the message, or its user has read so
    /// far.
    pub fn has(&self, receipt: &Receipt) -> bool {
        let saved_row = self.snapshot.conversations.get(&receipt.conversation);
        let messages = self.app.said(receipt.conversation);
        let read = self.read.get(&receipt.conversation).copied();
        saved_row.is_some_and(|saved_row| saved_row.cursor.seq >= receipt.seq)
            || messages.iter().any(|message| message.id == receipt.id)
            || receipt.kind == ReceiptKind::Read && read >= Some(receipt.seq)
    }

    pub fn is_running(&self) -> bool {
        self.core.is_some()
    }

    pub fn state(&self) -> Option<&ConnectionState> {
        self.core.as_ref().map(Core::state)
    }

    /// Accepted sends without a position known here.
    pub fn unplaced(&self) -> impl DoubleEndedIterator<Item = (ConversationId, MessageId)> {
        self.order.iter().filter_map(|(to, send_id)| {
            let SendStatus::Accepted { id } = self.send_statuses.get(send_id)? else {
                return None;
            };
            Some((ConversationId::private(self.user, *to)?, *id))
        })
    }

    /// Next finding.
    pub fn finding(&mut self) -> Option<String> {
        if self.findings.is_empty() {
            None
        } else {
            Some(self.findings.remove(0))
        }
    }

    /// Starts, or restarts from the saved state.
    pub fn start(&mut self, token: String) {
        self.life += 1;
        let settings = Settings {
            token,
            renews_token: false,
            platform: self.platform,
            device: self.name.clone(),
            acks: true,
            catch_up: CatchUp::Everything,
            limits: Limits::default(),
        };
        // Forget sends that were not in the outbox when the device died, as the application shares
        // its fate: they were never made.
        let outbox = self.snapshot.outbox.values();
        let kept_ids: BTreeSet<SendId> = outbox.map(|row| row.send_id).collect();
        self.send_statuses.retain(|id, status| {
            kept_ids.contains(id) || !matches!(status, SendStatus::Pending | SendStatus::Failed(_))
        });
        for row in self.snapshot.outbox.values() {
            self.send_statuses.insert(row.send_id, SendStatus::Pending);
        }
        // An event that came before its row was stored comes again.
        for row in self.snapshot.followed_rows.values() {
            self.send_statuses.insert(row.send_id, stored_status(row));
        }
        let statuses = &self.send_statuses;
        (self.order).retain(|(_, send_id)| statuses.contains_key(send_id));
        let mut core = Core::new(settings, self.snapshot.clone());
        core.start();
        self.core = Some(core);
        self.app.restart(&self.snapshot);
    }

    /// Kills the device. Returns whether it was running.
    pub fn crash(&mut self) -> bool {
        let was_running = self.core.take().is_some();
        self.life += u32::from(was_running);
        was_running
    }

    /// Calls the core, if it runs; [`poll`](Self::poll) until there is nothing more.
    pub fn with(&mut self, call: impl FnOnce(&mut Core)) {
        if let Some(core) = &mut self.core {
            call(core);
        }
    }

    pub fn stored(&mut self, batch: u64, changes: Vec<Change>, now: Timestamp) {
        for change in changes {
            self.snapshot.apply(change);
        }
        self.with(|core| core.handle_stored(batch, now));
    }

    /// Sends a message, which must be accepted.
    pub fn send(&mut self, send_id: SendId, to: UserId, content: Content, now: Timestamp) {
        self.send_statuses.insert(send_id, SendStatus::Pending);
        self.order.push((to, send_id));
        self.with(|core| {
            core.send(send_id, Recipient::User(to), content, now)
                .expect("room in the outbox");
        });
    }

    /// Sends a change that may be accepted without effect. A final refusal is given up, not
    /// retried.
    pub fn send_fallible(
        &mut self,
        send_id: SendId,
        to: Recipient,
        content: Content,
        now: Timestamp,
    ) {
        self.send_statuses.insert(send_id, SendStatus::Pending);
        self.change_sends.insert(send_id);
        self.with(|core| {
            core.send(send_id, to, content, now)
                .expect("room in the outbox");
        });
    }

    /// Time of the next timeout.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.core.as_ref().and_then(Core::poll_timeout)
    }

    /// Next action for wires and disks; those for the application are done. Each action is shown to
    /// `trace`.
    pub fn poll(&mut self, now: Timestamp, mut trace: impl FnMut(&Action)) -> Option<Io> {
        loop {
            let action = self.core.as_mut()?.poll_action()?;
            trace(&action);
            match action {
                Action::FetchToken => return Some(Io::FetchToken),
                Action::Connect => return Some(Io::Connect),
                Action::Disconnect(refusal) => return Some(Io::Disconnect(refusal)),
                Action::Transmit(frame) => return Some(Io::Transmit(frame)),
                Action::Store { batch, changes } => return Some(Io::Store { batch, changes }),
                Action::Event(event) => self.handle_event(event, now),
                Action::Older { .. } | Action::Asked { .. } | Action::Listed(_) => {}
            }
        }
    }

    fn handle_event(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Message(message) => self.show(message, now),
            Event::Status { send_id, status } => self.status(send_id, status, now),
            Event::Reset(Reset::ListAhead) if self.lists_may_be_ahead => {}
            Event::Reset(reset) => {
                let finding = format!("{} was told to reset: {reset:?}", self.name);
                self.findings.push(finding);
            }
            Event::Gap {
                number,
                conversation,
                from,
                to,
            } => {
                let problem = self.app.skip(conversation, from, to);
                self.judge_shown(conversation, problem);
                if let Some(number) = number {
                    self.with(|core| core.handle_taken(number, now));
                }
            }
            Event::Changed {
                number,
                conversation,
                change,
            } => {
                let problem = self.app.change(conversation, change);
                self.judge_shown(conversation, problem);
                self.with(|core| core.handle_taken(number, now));
            }
            Event::Hidden {
                number,
                conversation,
                seqs,
            } => {
                self.app.hide(conversation, seqs);
                self.with(|core| core.handle_taken(number, now));
            }
            Event::Receipt(_) | Event::State(_) => {}
        }
    }

    fn show(&mut self, message: ShownMessage, now: Timestamp) {
        let (number, conversation) = (message.number, message.placed.conversation);
        let finding = self.app.show(message);
        self.judge_shown(conversation, finding);
        self.with(|core| core.handle_taken(number, now));
    }

    fn judge_shown(&mut self, conversation: ConversationId, finding: Option<String>) {
        let name = &self.name;
        let finding = finding.map(|finding| format!("{name} {finding}, in {conversation}"));
        self.findings.extend(finding);
    }

    fn status(&mut self, send_id: SendId, status: SendStatus, now: Timestamp) {
        if let SendStatus::Accepted { id } = status {
            self.accepted_ids.entry(send_id).or_insert(id);
        }
        let previous = self.send_statuses.insert(send_id, status.clone());
        let is_change = self.change_sends.contains(&send_id);
        let is_failed = |s: &SendStatus| matches!(s, SendStatus::Failed(_));
        // Only a change can be accepted and have no effect.
        if is_change && matches!(&status, SendStatus::Failed(refusal) if !refusal.code.retryable())
        {
            return self.with(|core| _ = core.give_up(send_id, now));
        }
        if let Some(previous) = previous
            && previous.rank() > status.rank()
            && !is_failed(&previous)
        {
            self.findings.push(format!(
                "the status of {send_id} went back: {previous:?}, {status:?}"
            ));
        }
        if is_failed(&status) {
            // The sender taps "try again".
            self.with(|core| {
                core.retry(send_id, now);
            });
        }
    }
}

/// Status of an accepted send as its device has stored it.
fn stored_status(row: &FollowedRow) -> SendStatus {
    let id = row.id;
    match (row.status, row.seq) {
        (ReceiptStatus::Sent, None) => SendStatus::Accepted { id },
        (ReceiptStatus::Sent, Some(seq)) => SendStatus::Placed { id, seq },
        (ReceiptStatus::Delivered, _) => SendStatus::Delivered { id },
        (ReceiptStatus::Read, _) => SendStatus::Read { id },
    }
}
