//! The services together, as a value: accept in order, recognise a resend, give positions, keep
//! missed messages, answer queries.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::change::{
    ChangeKind, ChangeRequest, ChangeRules, ChangeSubject, ChangeVerdict, MessageMarks,
    OrderedChange, Overlay, judge,
};
use protocol::frame::{
    Accepted, ChangePage, HiddenPage, HistoryPage, HistoryRange, ListEvent, ListEventKind,
    ListPage, MessageStatus, Send, Summary, SyncAnswer, SyncQuery,
};
use protocol::history::Version;
use protocol::reading::{check_cursor, check_rev, list_from};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Placed, Platform, Position, Refusal, SendId, Seq,
    Timestamp, UserId,
};

/// Size of a page: small, so that there are many.
const PAGE: usize = 4;

const LIST_PAGE: usize = 2;

const LOOK_BACK: Duration = Duration::from_secs(5);

/// Outcome of a send.
pub(crate) enum SendResult {
    Placed(Placed),
    Changed(ConversationId, OrderedChange),
    Hidden(UserId, ListEvent),
    /// A change without effect.
    Nothing,
}

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) logs: BTreeMap<ConversationId, Vec<Placed>>,
    versions: BTreeMap<ConversationId, Timestamp>,
    pub(crate) acceptances: BTreeMap<(UserId, SendId), Accepted>,
    /// Sends under one `send_id` beyond the first.
    pub(crate) repeats: usize,
    receipts: BTreeMap<MessageId, ReceiptKind>,
    /// Every change made, by conversation.
    pub(crate) changes: BTreeMap<ConversationId, Vec<OrderedChange>>,
    overlays: BTreeMap<(ConversationId, Seq), Overlay>,
    reads: BTreeMap<(UserId, ConversationId), (Seq, Timestamp)>,
    /// Hidden messages in the order of hiding, and the time of the last hiding.
    pub(crate) hidden_messages: BTreeMap<(UserId, ConversationId), (Vec<Seq>, Timestamp)>,
    pub(crate) mail: BTreeMap<(UserId, Platform), BTreeMap<MessageId, Placed>>,
    last_id: i64,
}

impl Server {
    /// Makes a change; `None`: it has no effect.
    fn change(
        &mut self,
        request: ChangeRequest,
        conversation: ConversationId,
    ) -> Option<OrderedChange> {
        let changes = self.changes.entry(conversation).or_default();
        let version = Version {
            epoch: 1,
            offset: request.id.get() as u64,
        };
        let subject = (self.logs.get(&conversation)?.iter())
            .find(|entry| entry.message.id == request.subject)?;
        let key = (conversation, subject.position.seq);
        let overlay = self.overlays.entry(key).or_default();
        let of_message = ChangeSubject {
            seq: subject.position.seq,
            from: subject.message.from,
            accepted_at: subject.message.accepted_at,
            content: &subject.message.content,
            overlay,
        };
        let verdict = judge(&request, Some(of_message), None, &ChangeRules::default());
        if verdict != Ok(ChangeVerdict::Change) {
            return None;
        }
        let change = OrderedChange {
            rev: changes.len() as u64 + 1,
            seq: key.1,
            asked: request,
        };
        overlay.apply(version, &change);
        changes.push(change.clone());
        Some(change)
    }

    pub(crate) fn is_hidden(&self, user: UserId, of: ConversationId, seq: Seq) -> bool {
        let hidden_messages = self.hidden_messages.get(&(user, of));
        hidden_messages.is_some_and(|(all, _)| all.contains(&seq))
    }

    fn hide(
        &mut self,
        message: &Message,
        conversation: ConversationId,
        now: Timestamp,
    ) -> Option<SendResult> {
        let change = message.content.change.as_deref();
        let change = change.filter(|change| change.kind == ChangeKind::Hide)?;
        let log = self.logs.get(&conversation).into_iter().flatten();
        let mut subject = log.filter(|entry| Some(entry.message.id) == change.subject);
        let Some(subject) = subject.next() else {
            return Some(SendResult::Nothing);
        };
        let seq = subject.position.seq;
        let hidden_messages = self.hidden_messages.entry((message.from, conversation));
        let (all, at) = hidden_messages.or_default();
        all.push(seq);
        *at = now;
        Some(SendResult::Hidden(
            message.from,
            ListEvent {
                id: message.id,
                send_id: message.send_id,
                conversation,
                kind: ListEventKind::Hidden(seq),
            },
        ))
    }

    /// Message as it is now.
    pub(crate) fn now(&self, entry: &Placed) -> (Placed, Option<MessageMarks>) {
        let mut entry = entry.clone();
        let key = (entry.conversation, entry.position.seq);
        let Some(overlay) = self.overlays.get(&key) else {
            return (entry, None);
        };
        entry.message.content = overlay.shown(&entry.message.content);
        (entry, overlay.marks())
    }

    pub(crate) fn rev(&self, conversation: ConversationId) -> u64 {
        self.changes
            .get(&conversation)
            .map_or(0, |all| all.len() as u64)
    }

    /// Row of the list, counted message by message.
    pub(crate) fn summary(&self, user: UserId, conversation: ConversationId) -> Summary {
        let log = &self.logs[&conversation];
        let read = self
            .reads
            .get(&(user, conversation))
            .copied()
            .unwrap_or_default();
        let others_messages = || log.iter().filter(|entry| entry.message.from != user);
        let is_recalled = |entry: &Placed| {
            let (_, marks) = self.now(entry);
            marks.is_some_and(|marks| marks.recalled.is_some())
        };
        let unread = others_messages()
            .filter(|entry| entry.position.seq > read.0 && !is_recalled(entry))
            .count();
        let newest = log.last().map(|entry| self.now(entry));
        let (newest, marks) = newest.unzip();
        Summary {
            conversation,
            seq: Seq(log.len() as u64),
            incoming: others_messages().count() as u64,
            rev: self.rev(conversation),
            read_seq: read.0,
            cleared_seq: Seq::ZERO,
            arranged: Default::default(),
            hidden: self
                .hidden_messages
                .get(&(user, conversation))
                .map_or(0, |(all, _)| all.len() as u64),
            role: None,
            is_large: false,
            unread: unread as u64,
            version: self.versions[&conversation].max(read.1),
            newest,
            marks: marks.flatten(),
        }
    }

    /// Marks the user as having read up to here, on any device.
    pub(crate) fn read(
        &mut self,
        user: UserId,
        conversation: ConversationId,
        seq: Seq,
        now: Timestamp,
    ) {
        let read = self.reads.entry((user, conversation)).or_default();
        if seq > read.0 {
            *read = (seq, now);
        }
    }

    /// Accepts a send and places it at once.
    pub(crate) fn accept(
        &mut self,
        from: UserId,
        device: &DeviceId,
        send: &Send,
        now: Timestamp,
    ) -> (Accepted, Option<SendResult>) {
        if let Some(acceptance) = self.acceptances.get(&(from, send.send_id)) {
            self.repeats += 1;
            return (*acceptance, None);
        }
        self.last_id += 1;
        let message = Message {
            id: MessageId::new(self.last_id).expect("positive"),
            from,
            to: send.to,
            accepted_at: now,
            device: device.clone(),
            send_id: send.send_id,
            options: send.options,
            content: send.content.clone(),
        };
        let acceptance = Accepted {
            send_id: send.send_id,
            id: message.id,
            accepted_at: now,
        };
        self.acceptances.insert((from, send.send_id), acceptance);
        let conversation = message.conversation().expect("not to oneself");
        if let Some(hide_result) = self.hide(&message, conversation, now) {
            return (acceptance, Some(hide_result));
        }
        if let Some(request) = ChangeRequest::of(&message) {
            let Some(change) = self.change(request, conversation) else {
                return (acceptance, Some(SendResult::Nothing));
            };
            self.versions.insert(conversation, now);
            return (acceptance, Some(SendResult::Changed(conversation, change)));
        }
        let log = self.logs.entry(conversation).or_default();
        let entry = Placed {
            position: Position {
                seq: Seq(log.len() as u64 + 1),
                prev: log.last().map(|previous| previous.message.id),
            },
            message,
            conversation,
        };
        log.push(entry.clone());
        self.versions.insert(conversation, now);
        (acceptance, Some(SendResult::Placed(entry)))
    }

    pub(crate) fn answer(
        &self,
        user: UserId,
        query: SyncQuery,
        now: Timestamp,
    ) -> Result<SyncAnswer, Refusal> {
        match query {
            SyncQuery::List {
                since: list_version,
                cursor,
            } => self.list(user, list_version, cursor, now),
            SyncQuery::Row { conversation } => {
                let is_there = self.versions.contains_key(&conversation);
                let row = is_there.then(|| Box::new(self.summary(user, conversation)));
                Ok(SyncAnswer::Row(row))
            }
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => self.history(conversation, range, limit),
            SyncQuery::Status { ids } => Ok(SyncAnswer::Status(
                ids.into_iter().map(|id| self.status(id, now)).collect(),
            )),
            SyncQuery::Hidden {
                conversation,
                after: cursor,
                limit,
            } => {
                let hidden_messages = self.hidden_messages.get(&(user, conversation));
                let all = hidden_messages.map_or(&[][..], |(all, _)| all.as_slice());
                let later_seqs = all.get(cursor as usize..).unwrap_or_default();
                let seqs: Vec<Seq> = (later_seqs.iter().copied())
                    .take(PAGE.min(limit as usize))
                    .collect();
                Ok(SyncAnswer::Hidden(HiddenPage {
                    last: cursor + seqs.len() as u64,
                    more: seqs.len() < later_seqs.len(),
                    seqs,
                }))
            }
            SyncQuery::Changes {
                conversation,
                after: cursor,
                limit,
            } => {
                let last_rev = self.rev(conversation);
                check_rev(cursor, last_rev)?;
                let all = self
                    .changes
                    .get(&conversation)
                    .map_or(&[][..], Vec::as_slice);
                let page = all[cursor as usize..].iter().take(PAGE.min(limit as usize));
                let changes: Vec<OrderedChange> = page.cloned().collect();
                let more = cursor + (changes.len() as u64) < last_rev;
                Ok(SyncAnswer::Changes(ChangePage {
                    conversation,
                    changes,
                    last_rev,
                    more,
                }))
            }
            // Queries of the application, which the core passes on.
            _ => Err(Refusal::new(protocol::Code::NotFound, "not here")),
        }
    }

    fn list(
        &self,
        user: UserId,
        list_version: Timestamp,
        cursor: Option<ConversationId>,
        now: Timestamp,
    ) -> Result<SyncAnswer, Refusal> {
        let from = list_from(list_version, LOOK_BACK, now)?;
        let mut rows = (self.versions.iter()).filter(|(conversation, version)| {
            let read = self.reads.get(&(user, **conversation));
            let hidden_messages = self.hidden_messages.get(&(user, **conversation));
            let is_read_since = read.is_some_and(|(_, at)| *at >= from)
                || hidden_messages.is_some_and(|(_, at)| *at >= from);
            conversation.peer_of(user).is_some()
                && (**version >= from || is_read_since)
                && cursor.is_none_or(|cursor| **conversation > cursor)
        });
        let page = rows.by_ref().take(LIST_PAGE);
        let conversations = page
            .map(|(&conversation, _)| self.summary(user, conversation))
            .collect();
        Ok(SyncAnswer::List(ListPage {
            conversations,
            version: now,
            more: rows.next().is_some(),
        }))
    }

    fn history(
        &self,
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
    ) -> Result<SyncAnswer, Refusal> {
        let log = self.logs.get(&conversation).map_or(&[][..], Vec::as_slice);
        let last_seq = Seq(log.len() as u64);
        check_cursor(range, last_seq)?;
        let limit = PAGE.min(limit as usize);
        let messages: Vec<Placed> = match range {
            HistoryRange::Forward { after: after_seq } => log[after_seq.0 as usize..]
                .iter()
                .take(limit)
                .cloned()
                .collect(),
            HistoryRange::Backward { before: before_seq } => {
                let end = before_seq.map_or(log.len(), |before_seq| before_seq.0 as usize - 1);
                log[..end].iter().rev().take(limit).cloned().collect()
            }
        };
        let more = messages.len() == limit;
        let (mut as_they_are, mut all_marks) = (Vec::new(), BTreeMap::new());
        for entry in messages {
            let (entry, marks) = self.now(&entry);
            all_marks.extend(marks.map(|marks| (entry.position.seq, marks)));
            as_they_are.push(entry);
        }
        Ok(SyncAnswer::History(HistoryPage {
            conversation,
            more,
            messages: as_they_are,
            marks: all_marks,
            statuses: Default::default(),
            rev: self.rev(conversation),
            last_seq,
        }))
    }

    fn status(&self, id: MessageId, now: Timestamp) -> MessageStatus {
        let kind = self.receipts.get(&id);
        MessageStatus {
            id,
            delivered_at: kind.map(|_| now),
            read_at: kind.filter(|kind| **kind == ReceiptKind::Read).map(|_| now),
            is_finished: false,
        }
    }

    /// Receipt that is news for the sender, with that sender.
    pub(crate) fn receipt(
        &mut self,
        kind: ReceiptKind,
        conversation: ConversationId,
        seq: Seq,
        by: UserId,
        now: Timestamp,
    ) -> Option<(UserId, Receipt)> {
        let entry = self.logs.get(&conversation)?.get(seq.0 as usize - 1)?;
        let (id, from) = (entry.message.id, entry.message.from);
        if from == by {
            return None;
        }
        let known_kind = self.receipts.get(&id).copied();
        if known_kind.is_some_and(|known_kind| known_kind >= kind) {
            return None;
        }
        self.receipts.insert(id, kind);
        let receipt = Receipt {
            kind,
            conversation,
            id,
            seq,
            by,
            at: now,
        };
        Some((from, receipt))
    }
}
