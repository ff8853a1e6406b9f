//! What the services together do, as a value: accepts in order, knows a send again, gives positions,
//! keeps what is missed, answers questions.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::frame::{
    Accepted, HistoryPage, HistoryRange, ListPage, MessageStatus, Send, Summary, SyncAnswer,
    SyncQuery,
};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::sync::{check_cursor, list_from};
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Placed, Platform, Position, Refusal, SendId, Seq,
    Timestamp, UserId,
};

/// Pages are small, so that there are many.
const PAGE: usize = 4;

const LIST_PAGE: usize = 2;

const LOOK_BACK: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) logs: BTreeMap<ConversationId, Vec<Placed>>,
    versions: BTreeMap<ConversationId, Timestamp>,
    pub(crate) accepted: BTreeMap<(UserId, SendId), Accepted>,
    /// Sends under one `send_id` beyond the first.
    pub(crate) repeats: usize,
    receipts: BTreeMap<MessageId, ReceiptKind>,
    pub(crate) mail: BTreeMap<(UserId, Platform), BTreeMap<MessageId, Placed>>,
    last_id: i64,
}

impl Server {
    /// Accepts a send: at once in its place.
    pub(crate) fn accept(
        &mut self,
        from: UserId,
        device: &DeviceId,
        send: &Send,
        now: Timestamp,
    ) -> (Accepted, Option<Placed>) {
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
        (accepted, Some(placed))
    }

    pub(crate) fn answer(
        &self,
        user: UserId,
        query: SyncQuery,
        now: Timestamp,
    ) -> Result<SyncAnswer, Refusal> {
        match query {
            SyncQuery::List { since, after } => self.list(user, since, after, now),
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => self.history(conversation, range, limit),
            SyncQuery::Status { ids } => Ok(SyncAnswer::Status(
                ids.into_iter().map(|id| self.status(id, now)).collect(),
            )),
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
            conversation.peer_of(user).is_some()
                && **version >= from
                && after.is_none_or(|after| **conversation > after)
        });
        let page = rows.by_ref().take(LIST_PAGE);
        let conversations = page
            .map(|(&conversation, &version)| {
                let log = &self.logs[&conversation];
                Summary {
                    conversation,
                    seq: Seq(log.len() as u64),
                    read_seq: Seq::ZERO,
                    version,
                    newest: log.last().cloned(),
                }
            })
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
        Ok(SyncAnswer::History(HistoryPage {
            conversation,
            more: messages.len() == limit,
            messages,
            last_seq,
        }))
    }

    fn status(&self, id: MessageId, now: Timestamp) -> MessageStatus {
        let kind = self.receipts.get(&id);
        MessageStatus {
            id,
            delivered_at: kind.map(|_| now),
            read_at: kind.filter(|kind| **kind == ReceiptKind::Read).map(|_| now),
        }
    }

    /// A receipt that tells the sender something new, and who that is.
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
