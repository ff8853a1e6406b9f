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
    pub(crate) accepted: BTreeMap<(UserId, SendId), Accepted>,
    /// Sends under one `send_id` beyond the first.
    pub(crate) repeats: usize,
    receipts: BTreeMap<MessageId, ReceiptKind>,
    /// Every change made, by conversation.
    pub(crate) changes: BTreeMap<ConversationId, Vec<OrderedChange>>,
    altered: BTreeMap<(ConversationId, Seq), Overlay>,
    reads: BTreeMap<(UserId, ConversationId), (Seq, Timestamp)>,
    /// Hidden messages in the order of hiding, and the time of the last hiding.
    pub(crate) hidden: BTreeMap<(UserId, ConversationId), (Vec<Seq>, Timestamp)>,
    pub(crate) mail: BTreeMap<(UserId, Platform), BTreeMap<MessageId, Placed>>,
    last_id: i64,
}

impl Server {
    /// Makes a change; `None`: it has no effect.
    fn change(
        &mut self,
        asked: ChangeRequest,
        conversation: ConversationId,
    ) -> Option<OrderedChange> {
        let changes = self.changes.entry(conversation).or_default();
        let version = Version {
            epoch: 1,
            offset: asked.id.get() as u64,
        };
        let subject = (self.logs.get(&conversation)?.iter())
            .find(|placed| placed.message.id == asked.subject)?;
        let key = (conversation, subject.position.seq);
        let altered = self.altered.entry(key).or_default();
        let of_message = ChangeSubject {
            seq: subject.position.seq,
            from: subject.message.from,
            accepted_at: subject.message.accepted_at,
            content: &subject.message.content,
            altered,
        };
        let verdict = judge(&asked, Some(of_message), None, &ChangeRules::default());
        if verdict != Ok(ChangeVerdict::Change) {
            return None;
        }
        let changed = OrderedChange {
            rev: changes.len() as u64 + 1,
            seq: key.1,
            asked,
        };
        altered.apply(version, &changed);
        changes.push(changed.clone());
        Some(changed)
    }

    pub(crate) fn is_hidden(&self, user: UserId, of: ConversationId, seq: Seq) -> bool {
        let hidden = self.hidden.get(&(user, of));
        hidden.is_some_and(|(all, _)| all.contains(&seq))
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
        let mut subject = log.filter(|placed| Some(placed.message.id) == change.subject);
        let Some(subject) = subject.next() else {
            return Some(SendResult::Nothing);
        };
        let seq = subject.position.seq;
        let hidden = self.hidden.entry((message.from, conversation));
        let (all, at) = hidden.or_default();
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
    pub(crate) fn now(&self, placed: &Placed) -> (Placed, Option<MessageMarks>) {
        let mut placed = placed.clone();
        let key = (placed.conversation, placed.position.seq);
        let Some(altered) = self.altered.get(&key) else {
            return (placed, None);
        };
        placed.message.content = altered.shown(&placed.message.content);
        (placed, altered.marks())
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
        let others = || log.iter().filter(|placed| placed.message.from != user);
        let is_recalled = |placed: &Placed| {
            let (_, marks) = self.now(placed);
            marks.is_some_and(|marks| marks.recalled.is_some())
        };
        let unread = others()
            .filter(|placed| placed.position.seq > read.0 && !is_recalled(placed))
            .count();
        let newest = log.last().map(|placed| self.now(placed));
        let (newest, marks) = newest.unzip();
        Summary {
            conversation,
            seq: Seq(log.len() as u64),
            incoming: others().count() as u64,
            rev: self.rev(conversation),
            read_seq: read.0,
            cleared_seq: Seq::ZERO,
            arranged: Default::default(),
            hidden: self
                .hidden
                .get(&(user, conversation))
                .map_or(0, |(all, _)| all.len() as u64),
            role: None,
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
        if let Some(accepted) = self.accepted.get(&(from, send.send_id)) {
            self.repeats += 1;
            return (*accepted, None);
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
        let accepted = Accepted {
            send_id: send.send_id,
            id: message.id,
            accepted_at: now,
        };
        self.accepted.insert((from, send.send_id), accepted);
        let conversation = message.conversation().expect("not to oneself");
        if let Some(told) = self.hide(&message, conversation, now) {
            return (accepted, Some(told));
        }
        if let Some(asked) = ChangeRequest::of(&message) {
            let Some(changed) = self.change(asked, conversation) else {
                return (accepted, Some(SendResult::Nothing));
            };
            self.versions.insert(conversation, now);
            return (accepted, Some(SendResult::Changed(conversation, changed)));
        }
        let log = self.logs.entry(conversation).or_default();
        let placed = Placed {
            position: Position {
                seq: Seq(log.len() as u64 + 1),
                prev: log.last().map(|before| before.message.id),
            },
            message,
            conversation,
        };
        log.push(placed.clone());
        self.versions.insert(conversation, now);
        (accepted, Some(SendResult::Placed(placed)))
    }

    pub(crate) fn answer(
        &self,
        user: UserId,
        query: SyncQuery,
        now: Timestamp,
    ) -> Result<SyncAnswer, Refusal> {
        match query {
            SyncQuery::List { since, after } => self.list(user, since, after, now),
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
                after,
                limit,
            } => {
                let hidden = self.hidden.get(&(user, conversation));
                let all = hidden.map_or(&[][..], |(all, _)| all.as_slice());
                let behind = all.get(after as usize..).unwrap_or_default();
                let seqs: Vec<Seq> = (behind.iter().copied())
                    .take(PAGE.min(limit as usize))
                    .collect();
                Ok(SyncAnswer::Hidden(HiddenPage {
                    last: after + seqs.len() as u64,
                    more: seqs.len() < behind.len(),
                    seqs,
                }))
            }
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => {
                let last_rev = self.rev(conversation);
                check_rev(after, last_rev)?;
                let all = self
                    .changes
                    .get(&conversation)
                    .map_or(&[][..], Vec::as_slice);
                let page = all[after as usize..].iter().take(PAGE.min(limit as usize));
                let changes: Vec<OrderedChange> = page.cloned().collect();
                let more = after + (changes.len() as u64) < last_rev;
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
        since: Timestamp,
        after: Option<ConversationId>,
        now: Timestamp,
    ) -> Result<SyncAnswer, Refusal> {
        let from = list_from(since, LOOK_BACK, now)?;
        let mut rows = (self.versions.iter()).filter(|(conversation, version)| {
            let read = self.reads.get(&(user, **conversation));
            let hidden = self.hidden.get(&(user, **conversation));
            let touched = read.is_some_and(|(_, at)| *at >= from)
                || hidden.is_some_and(|(_, at)| *at >= from);
            conversation.peer_of(user).is_some()
                && (**version >= from || touched)
                && after.is_none_or(|after| **conversation > after)
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
            HistoryRange::Forward { after } => log[after.0 as usize..]
                .iter()
                .take(limit)
                .cloned()
                .collect(),
            HistoryRange::Backward { before } => {
                let end = before.map_or(log.len(), |before| before.0 as usize - 1);
                log[..end].iter().rev().take(limit).cloned().collect()
            }
        };
        let more = messages.len() == limit;
        let (mut as_they_are, mut all_marks) = (Vec::new(), BTreeMap::new());
        for placed in messages {
            let (placed, marks) = self.now(&placed);
            all_marks.extend(marks.map(|marks| (placed.position.seq, marks)));
            as_they_are.push(placed);
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
        let placed = self.logs.get(&conversation)?.get(seq.0 as usize - 1)?;
        let (id, from) = (placed.message.id, placed.message.from);
        if from == by {
            return None;
        }
        let known = self.receipts.get(&id).copied();
        if known.is_some_and(|known| known >= kind) {
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
