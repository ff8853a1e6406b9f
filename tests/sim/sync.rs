//! What a device asks: pages of its list, of history, of changes, and of what waits.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::change::Marks;
use protocol::conversation::Head;
use protocol::frame::{
    HistoryPage, HistoryRange, MessageStatus, ServerFrame, SyncAnswer, SyncQuery, SyncRequest,
};
use protocol::mailbox::MailCursor;
use protocol::session::{Page, PageItem};
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq, Timestamp, UserId, sync};

use crate::cached::{Filled, Found};
use crate::station::{Open, PAGE_MAX};
use crate::world::World;

impl World {
    /// What waits, as it is now.
    pub(crate) fn mail_page(&mut self, open: &Open, after: Option<MailCursor>, limit: u32) -> Page {
        let Some(user) = open.user else {
            return Page::default();
        };
        let Some(mailbox) = self.disk.mailboxes.get(&user) else {
            return Page::default();
        };
        let stores = &self.disk;
        let page = mailbox.page(
            open.platform,
            after,
            limit as usize,
            stores.policies(),
            &stores.bodies,
            self.now,
        );
        let mails = page.mails.into_iter().map(|mail| PageItem {
            id: mail.id,
            frame: self.as_it_is(mail.body),
        });
        Page {
            mails: mails.collect(),
            next: page.next,
        }
    }

    /// A device that knows nothing of the conversation cannot ask what became of a message.
    fn as_it_is(&self, mail: Bytes) -> Bytes {
        let frame = api::codec::decode_server(mail.clone(), usize::MAX);
        let ServerFrame::Message(mut placed) = frame.expect("our own encoding") else {
            return mail;
        };
        match self.show_as_it_is(&mut placed) {
            Some(_) => api::codec::encode_message(&placed),
            None => mail,
        }
    }

    fn mark(&self, messages: &mut [Placed], changed_to: Seq) -> BTreeMap<Seq, Marks> {
        let before = |placed: &&mut Placed| placed.position.seq <= changed_to;
        let marked = messages.iter_mut().filter(before).filter_map(|placed| {
            let marks = self.show_as_it_is(placed)?;
            Some((placed.position.seq, marks))
        });
        marked.collect()
    }

    fn history_page(
        &self,
        user: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
        found: Option<Found>,
        filled: &mut Vec<Filled>,
    ) -> Result<HistoryPage, Refusal> {
        let is_behind = |head: &Head| sync::check_cursor(range, head.seq).is_err();
        let (floor, copy) = self.stands(user, conversation, found, filled, is_behind)?;
        let head = copy.head;
        sync::check_cursor(range, head.seq)?;
        let range = sync::range_behind(range, floor);
        let mut messages = match conversation {
            ConversationId::Group(group) => self.group_messages(group, range),
            ConversationId::Private { .. } | ConversationId::System(_) => {
                self.messages(user, conversation, range)
            }
        };
        messages.truncate(sync::page_limit(limit, PAGE_MAX));
        let page = sync::dense_page(messages, range, head.seq)?;
        let mut page = sync::page_behind(page, range, floor);
        let marks = self.mark(&mut page.messages, copy.changed_to);
        Ok(HistoryPage {
            conversation,
            messages: page.messages,
            marks,
            statuses: Default::default(),
            rev: head.rev,
            last_seq: page.last_seq,
            more: page.more,
        })
    }

    fn messages(
        &self,
        user: UserId,
        conversation: ConversationId,
        range: HistoryRange,
    ) -> Vec<Placed> {
        let rows = self
            .disk
            .rows
            .range((user, MessageId::floor_of(Timestamp::ZERO))..);
        let rows = rows.map(|(_, row)| row).take_while(|row| row.owner == user);
        let of_it = rows.filter(|row| row.conversation() == Some(conversation));
        let in_range = |placed: &Placed| match range {
            HistoryRange::Forward { after } => placed.position.seq > after,
            HistoryRange::Backward { before } => {
                before.is_none_or(|before| placed.position.seq < before)
            }
        };
        let messages = of_it.filter_map(|row| row.placed()).filter(in_range);
        let mut messages: Vec<_> = messages.collect();
        messages.sort_by_key(|placed| placed.position.seq);
        if let HistoryRange::Backward { .. } = range {
            messages.reverse();
        }
        messages
    }

    pub(crate) fn answer_sync(
        &self,
        open: &Open,
        request: &SyncRequest,
        found: Option<Found>,
        filled: &mut Vec<Filled>,
    ) -> Result<SyncAnswer, Refusal> {
        let user = open.user.expect("admitted");
        match &request.query {
            SyncQuery::List { since, after } => {
                let found = found.expect("asked for");
                let page = self.list_page(user, *since, *after, found, filled)?;
                Ok(SyncAnswer::List(page))
            }
            SyncQuery::Row { conversation } => Ok(SyncAnswer::Row(
                self.list_row(user, *conversation).map(Box::new),
            )),
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => {
                let page = self.history_page(user, *conversation, *range, *limit, found, filled)?;
                Ok(SyncAnswer::History(page))
            }
            SyncQuery::Members { .. }
            | SyncQuery::Readers { .. }
            | SyncQuery::Missed { .. }
            | SyncQuery::Unread { .. }
            | SyncQuery::CountSince { .. } => {
                unreachable!("no device here asks that")
            }
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => {
                let page = self.change_page(user, *conversation, *after, *limit, found, filled)?;
                Ok(SyncAnswer::Changes(page))
            }
            SyncQuery::Hidden {
                conversation,
                after,
                limit,
            } => {
                let page = self.hidden_page(user, *conversation, *after, *limit);
                Ok(SyncAnswer::Hidden(page))
            }
            SyncQuery::Status { ids } => Ok(SyncAnswer::Status(
                ids.iter()
                    .map(|id| {
                        let status = self
                            .disk
                            .statuses
                            .get(&(user, *id))
                            .copied()
                            .unwrap_or_default();
                        MessageStatus {
                            id: *id,
                            delivered_at: status.delivered_at,
                            read_at: status.read_at,
                            is_finished: false,
                        }
                    })
                    .collect(),
            )),
        }
    }
}
