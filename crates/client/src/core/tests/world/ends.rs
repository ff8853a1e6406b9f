//! Behaviour of clients and their processes.

use super::*;
use crate::core::Event as CoreEvent;

impl World {
    pub(super) fn send(&mut self, at: usize) {
        self.next += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.next.to_be_bytes());
        let send_id = SendId::from_bytes(bytes);
        let peers: Vec<i64> = (1..=3)
            .filter(|peer| user(*peer) != self.ends[at].user)
            .collect();
        let to = Recipient::User(user(peers[self.rng.random_range(0..peers.len())]));
        let end = &mut self.ends[at];
        let content = Content::text(format!("{} from {}", self.next, end.device));
        end.core
            .send(send_id, to, content, self.now)
            .expect("room in the outbox");
        end.durable_sends.push((send_id, to));
        self.drain_end(at);
    }

    /// Changes a message that this device shows.
    pub(super) fn change(&mut self, at: usize) {
        let end = &self.ends[at];
        let all: Vec<&Placed> = end
            .shown_messages
            .values()
            .flatten()
            .map(|(entry, _)| entry)
            .collect();
        if all.is_empty() {
            return;
        }
        let subject = all[self.rng.random_range(0..all.len())].clone();
        let is_own = subject.message.from == end.user;
        self.next += 1;
        let (kind, text) = match self.rng.random_range(0..5) {
            0 if is_own => (ChangeKind::Recall, String::new()),
            1 if is_own => (ChangeKind::Edit, format!("edit {}", self.next)),
            4 => (ChangeKind::Hide, String::new()),
            n => {
                let reaction = ["a", "b"][self.rng.random_range(0..2)].parse();
                let reaction = reaction.expect("short");
                (
                    ChangeKind::React {
                        reaction,
                        on: n != 2,
                    },
                    String::new(),
                )
            }
        };
        let mut bytes = [1; 16];
        bytes[..8].copy_from_slice(&self.next.to_be_bytes());
        let to = subject
            .conversation
            .peer_of(self.ends[at].user)
            .expect("ours");
        let content = Content {
            change: Some(Box::new(ChangeOf {
                subject: Some(subject.message.id),
                kind,
            })),
            ..Content::text(text)
        };
        let outcome = self.ends[at].core.send(
            SendId::from_bytes(bytes),
            Recipient::User(to),
            content,
            self.now,
        );
        outcome.expect("room in the outbox");
        self.drain_end(at);
    }

    /// Lets the user read some of the messages this device shows.
    pub(super) fn read(&mut self, at: usize) {
        let end = &self.ends[at];
        let all: Vec<&Placed> = end
            .shown_messages
            .values()
            .flatten()
            .map(|(placed, _)| placed)
            .collect();
        if all.is_empty() {
            return;
        }
        let entry = all[self.rng.random_range(0..all.len())];
        let (conversation, seq, id) = (entry.conversation, entry.position.seq, entry.message.id);
        self.ends[at].core.read(conversation, seq, id, self.now);
        self.drain_end(at);
    }

    /// Breaks the connection: the client notices at once, or not at all.
    pub(super) fn cut(&mut self, at: usize) {
        let Some(index) = self.ends[at].wire else {
            return;
        };
        let quietly = self.rng.random_bool(0.4);
        let wire = &mut self.wires[index];
        wire.silent = true;
        // Some of the frames under way still arrive at the server.
        let arrives = self.rng.random_range(0..=wire.up.len());
        wire.up.truncate(arrives);
        wire.down.clear();
        if !quietly {
            self.hang_up(at, Refusal::new(Code::Unavailable, "cut"));
        }
    }

    /// Kills the client's process, which restarts from what it had stored.
    pub(super) fn crash(&mut self, at: usize) {
        let device = self.ends[at].device.clone();
        let end = &mut self.ends[at];
        if let Some(index) = end.wire.take() {
            let wire = &mut self.wires[index];
            (wire.silent, wire.is_end_noticed) = (true, true);
            wire.down.clear();
        }
        end.open_store = None;
        end.pending_items.clear();
        end.dial_at = None;
        end.failed_sends.clear();
        for (conversation, shown) in &mut end.shown_messages {
            let progress = end.snapshot.conversations.get(conversation);
            shown.truncate(progress.map_or(0, |progress| progress.cursor.seq.0 as usize));
        }
        for (conversation, changed) in &mut end.changes {
            let progress = end.snapshot.conversations.get(conversation);
            let rev = progress.map_or(0, |progress| progress.rev);
            changed.retain(|changed| changed.rev <= rev);
        }
        end.hidden_seqs = end.snapshot.hidden_seqs.clone();
        let rows = end.snapshot.outbox.values().map(|row| row.send_id);
        let durable: BTreeSet<SendId> = rows.collect();
        let ranks = &mut end.ranks;
        // Sends not in the store were never transmitted, so they do not exist.
        end.durable_sends.retain(|(send_id, _)| {
            durable.contains(send_id) || ranks.get(send_id).is_some_and(|rank| *rank >= 2)
        });
        // Statuses learnt and not stored are learnt again.
        for send_id in durable {
            ranks.insert(send_id, 0);
        }
        for row in end.snapshot.followed_rows.values() {
            let rank = match (row.status, row.seq) {
                (ReceiptStatus::Sent, None) => 2,
                (ReceiptStatus::Sent, Some(_)) => 3,
                (ReceiptStatus::Delivered | ReceiptStatus::Read, _) => 4,
            };
            ranks.insert(row.send_id, rank);
        }
        end.core = begin(&device, end.platform, end.snapshot.clone());
        let rows = end.core.list().map(|row| (row.conversation, row));
        end.list = rows.collect();
        self.drain_end(at);
    }

    pub(super) fn hang_up(&mut self, at: usize, why: Refusal) {
        let jitter = self.rng.random();
        let end = &mut self.ends[at];
        if let Some(index) = end.wire.take() {
            let wire = &mut self.wires[index];
            wire.is_end_noticed = true;
            wire.down.clear();
        }
        end.core.handle_disconnected(why, self.now, jitter);
        self.drain_end(at);
    }

    pub(super) fn step_end(&mut self, at: usize) {
        let now = self.now;
        let is_due = |at: Timestamp| at <= now;
        if self.ends[at].dial_at.is_some_and(is_due) {
            self.ends[at].dial_at = None;
            self.dial(at);
        }
        let end = &mut self.ends[at];
        if let Some((_, batch, changes)) = end.open_store.take_if(|(at, ..)| is_due(*at)) {
            changes
                .into_iter()
                .for_each(|change| end.snapshot.apply(change));
            end.core.handle_stored(batch, now);
            self.drain_end(at);
        }
        let end = &mut self.ends[at];
        while end.pending_items.front().is_some_and(|(at, _)| is_due(*at)) {
            let (_, item) = end.pending_items.pop_front().expect("it is there");
            let number = match item {
                TakenItem::Message(message) => {
                    let list = end
                        .shown_messages
                        .entry(message.placed.conversation)
                        .or_default();
                    list.push((message.placed, message.marks));
                    message.number
                }
                TakenItem::Hidden(number, conversation, seqs) => {
                    end.hidden_seqs
                        .entry(conversation)
                        .or_default()
                        .extend(seqs);
                    number
                }
                TakenItem::Change(number, conversation, change) => {
                    end.changes.entry(conversation).or_default().push(change);
                    number
                }
            };
            end.core.handle_taken(number, now);
        }
        self.drain_end(at);
        let end = &mut self.ends[at];
        if end.failed_sends.first().is_some_and(|(at, _)| is_due(*at)) {
            let (_, send_id) = end.failed_sends.remove(0);
            // The send may have been accepted late, after all.
            if end.core.retry(send_id, now) {
                end.ranks.insert(send_id, 0);
            }
            self.drain_end(at);
        }
        if self.ends[at].core.poll_timeout().is_some_and(is_due) {
            self.ends[at].core.handle_timeout(now);
            self.drain_end(at);
        }
    }

    pub(super) fn dial(&mut self, at: usize) {
        if self.chance(20) {
            return self.hang_up(at, Refusal::new(Code::Unavailable, "no route"));
        }
        self.next += 1;
        let id = SessionId::new(self.next as i64).expect("positive");
        let session_limits = session::SessionLimits {
            push_window: 5,
            mail_page: 3,
            send_window: 4,
            ..session::SessionLimits::default()
        };
        self.wires.push(Wire {
            end: at,
            session: Session::new(id, Arc::new(session_limits), self.now),
            up: VecDeque::new(),
            down: VecDeque::new(),
            answers: Vec::new(),
            silent: false,
            is_end_noticed: false,
        });
        self.ends[at].wire = Some(self.wires.len() - 1);
        self.ends[at].core.handle_connected(self.now);
        self.drain_end(at);
    }

    pub(super) fn drain_end(&mut self, at: usize) {
        while let Some(action) = self.ends[at].core.poll_action() {
            match action {
                Action::Connect => {
                    let when = self.soon(100);
                    self.ends[at].dial_at = Some(when);
                }
                Action::FetchToken => {}
                Action::Disconnect(why) => {
                    if let Some(index) = self.ends[at].wire {
                        self.wires[index].silent = true;
                    }
                    self.hang_up(at, why);
                }
                Action::Transmit(frame) => self.transmit_up(at, frame),
                Action::Store { batch, changes } => {
                    assert!(self.ends[at].open_store.is_none(), "one store at a time");
                    let when = self.soon(30);
                    self.ends[at].open_store = Some((when, batch, changes));
                }
                Action::Event(event) => self.hear_event(at, event),
                Action::Listed(summary) => {
                    let list = &mut self.ends[at].list;
                    list.insert(summary.conversation, *summary);
                }
                Action::Older { .. } | Action::Asked { .. } => {}
            }
        }
    }

    fn hear_event(&mut self, at: usize, event: CoreEvent) {
        match event {
            CoreEvent::Message(message) => self.take_soon(at, TakenItem::Message(message)),
            CoreEvent::Changed {
                number,
                conversation,
                change: changed,
            } => self.take_soon(at, TakenItem::Change(number, conversation, changed)),
            CoreEvent::Hidden {
                number,
                conversation,
                seqs,
            } => self.take_soon(at, TakenItem::Hidden(number, conversation, seqs)),
            CoreEvent::Status { send_id, status } => self.status(at, send_id, status),
            CoreEvent::State(ConnectionState::Closed(why)) => panic!("closed for good: {why}"),
            CoreEvent::Reset(reset) => panic!("there is only one history: {reset:?}"),
            CoreEvent::Gap { .. } => panic!("everything can be had"),
            CoreEvent::Receipt(_) | CoreEvent::State(_) => {}
        }
    }

    fn take_soon(&mut self, at: usize, item: TakenItem) {
        let slow = if self.chance(3) { 4000 } else { 20 };
        let earliest = self.soon(slow);
        let end = &mut self.ends[at];
        let last = end.pending_items.back();
        let when = last.map_or(earliest, |(previous, _)| earliest.max(*previous));
        end.pending_items.push_back((when, item));
    }

    /// Checks that statuses only move forward. // I7
    pub(super) fn status(&mut self, at: usize, send_id: SendId, status: SendStatus) {
        let when = self.soon(500);
        let end = &mut self.ends[at];
        let rank = status.rank();
        let previous_rank = end.ranks.insert(send_id, rank);
        if let Some(previous_rank) = previous_rank {
            let is_same = rank == 0 && previous_rank == 0;
            assert!(
                rank > previous_rank || is_same,
                "{send_id}: {previous_rank} then {status:?}"
            );
        }
        if let SendStatus::Failed(why) = status {
            // A change may come too late.
            assert!(
                why.code.retryable() || why.code == Code::NotFound,
                "nothing else is refused for good here: {why}"
            );
            if why.code.retryable() {
                end.failed_sends.push((when, send_id));
            }
        }
    }

    pub(super) fn transmit_up(&mut self, at: usize, frame: ClientFrame) {
        if let ClientFrame::Send(send) = &frame {
            let is_stored = self.ends[at]
                .snapshot
                .outbox
                .values()
                .any(|row| row.send_id == send.send_id);
            assert!(is_stored, "transmitted before it was stored");
        }
        let earliest = self.soon(60);
        let Some(wire) = self.ends[at].wire.map(|index| &mut self.wires[index]) else {
            return;
        };
        if !wire.silent {
            let when = wire
                .up
                .back()
                .map_or(earliest, |(previous, _)| earliest.max(*previous));
            wire.up.push_back((when, frame));
        }
    }
}
