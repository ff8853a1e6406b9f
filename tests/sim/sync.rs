//! What a device asks: pages of its list, of history, of changes, and of what waits.

use std::collections::BTreeMap;

use bytes::Bytes;
use protocol::change::Marks;
use protocol::frame::{
    HistoryPage, HistoryRange, MessageStatus, ServerFrame, SyncAnswer, SyncQuery, SyncRequest,
};
use protocol::mailbox::MailCursor;
use protocol::session::{Page, PageItem};
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq, Timestamp, sync};

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

    fn mark(&self, messages: &mut [Placed]) -> BTreeMap<Seq, Marks> {
        let marked = messages.iter_mut().filter_map(|placed| {
            let marks = self.show_as_it_is(placed)?;
            Some((placed.position.seq, marks))
        });
        marked.collect()
    }

    pub(crate) fn answer_sync(
        &mut self,
        open: &Open,
        request: &SyncRequest,
    ) -> Result<SyncAnswer, Refusal> {
        let user = open.user.expect("admitted");
        match &request.query {
            SyncQuery::List { since, after } => {
                Ok(SyncAnswer::List(self.list_page(user, *since, *after)?))
            }
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => {
                sync::may_read(user, *conversation)?;
                let head = self
                    .disk
                    .heads
                    .get(conversation)
                    .copied()
                    .unwrap_or_default();
                sync::check_cursor(*range, head.seq)?;
                let mut messages: Vec<_> = self
                    .disk
                    .rows
                    .range((user, MessageId::floor_of(Timestamp::ZERO))..)
                    .take_while(|((owner, _), _)| *owner == user)
                    .filter(|(_, row)| row.conversation() == Some(*conversation))
                    .filter_map(|(_, row)| row.placed())
                    .filter(|placed| match range {
                        HistoryRange::Forward { after } => placed.position.seq > *after,
                        HistoryRange::Backward { before } => {
                            before.is_none_or(|before| placed.position.seq < before)
                        }
                    })
                    .collect();
                messages.sort_by_key(|placed| placed.position.seq);
                if let HistoryRange::Backward { .. } = range {
                    messages.reverse();
                }
                messages.truncate(sync::page_limit(*limit, PAGE_MAX));
                let mut page = sync::dense_page(messages, *range, head.seq)?;
                let marks = self.mark(&mut page.messages);
                Ok(SyncAnswer::History(HistoryPage {
                    conversation: *conversation,
                    messages: page.messages,
                    marks,
                    rev: head.rev,
                    last_seq: page.last_seq,
                    more: page.more,
                }))
            }
            SyncQuery::Missed { .. } | SyncQuery::Unread { .. } => {
                unreachable!("devices here do not ask this")
            }
            SyncQuery::Members { group, .. }
            | SyncQuery::Readers { group, .. }
            | SyncQuery::CountSince { group, .. } => {
                Err(sync::may_read(user, ConversationId::Group(*group))
                    .expect_err("nobody has a group here"))
            }
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => {
                let page = self.change_page(user, *conversation, *after, *limit)?;
                Ok(SyncAnswer::Changes(page))
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
                        }
                    })
                    .collect(),
            )),
        }
    }
}
