//! Mailbox of a device: pages of waiting mail, and its removal once the device has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::codec;
use api::station::{MailAck, MailPageRequest};
use backend::clock::Clock;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::messages::MessageStore;
use futures_util::stream::{self, StreamExt};
use protocol::frame::ServerFrame;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::mailbox::MailCursor;
use protocol::message::Target;
use protocol::message_row::Owner;
use protocol::reading::{fitting, page_limit};
use protocol::session::{Page, PageItem};
use protocol::{MessageId, Placed, Refusal, UserId};
use tokio::time::timeout;

use crate::deadline::{in_time, unavailable, within};
use crate::read::Reader;
use crate::workers::WorkQueue;

/// Reads and empties mailboxes.
pub(crate) struct MailReader {
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) messages: Arc<dyn MessageStore>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) ledger: Arc<dyn LedgerStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    pub(crate) page_max: usize,
    pub(crate) page_bytes_max: usize,
    pub(crate) trims: WorkQueue<Target>,
}

/// Users whose expired mail is removed at the same time.
const TRIMS_TOGETHER: usize = 16;

/// Removes expired mail of these targets. A failure is made good after their next drain, or by the
/// mailbox's own expiry.
pub(crate) async fn trim_all(
    mailbox: Arc<dyn MailboxStore>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    drained: Vec<Target>,
) {
    let drained: BTreeSet<Target> = drained.into_iter().collect();
    let trimming = stream::iter(drained).for_each_concurrent(TRIMS_TOGETHER, |target| {
        let (mailbox, now) = (&mailbox, clock.now());
        async move {
            let policy = mailbox.policy(target.platform);
            let trimmed = within(deadline, mailbox.trim(target, policy, now)).await;
            if let Ok(expired) = trimmed {
                metrics::counter!("station_mail_expired_total").increment(expired.into());
            }
        }
    });
    // Behind a store call that hangs, all of them together wait no longer than one.
    let _ = timeout(deadline, trimming).await;
}

impl MailReader {
    /// Waiting messages, oldest first, as frames. Removes only entries that can no longer be
    /// delivered at all, and, after the last page, expired mail (S1-57).
    pub(crate) async fn page(&self, request: MailPageRequest) -> Result<Page, Refusal> {
        let target = Target {
            user: request.user,
            platform: request.platform,
        };
        let limit = page_limit(request.limit, self.page_max);
        let asked = self
            .mailbox
            .page(target, request.after, limit, self.clock.now());
        let page = within(self.deadline, asked).await?;
        let mut items: BTreeMap<MailCursor, PageItem> = page
            .mails
            .into_iter()
            .map(|mail| {
                let item = PageItem {
                    id: mail.id,
                    frame: mail.body.clone(),
                };
                (mail.cursor(), item)
            })
            .collect();
        for placed in self.reread(target, &page.bodiless).await? {
            let id = placed.message.id;
            let cursor = MailCursor {
                accepted_at: placed.message.accepted_at,
                id,
            };
            let frame = codec::encode_message(&placed);
            items.insert(cursor, PageItem { id, frame });
        }
        self.apply_changes(target.user, &mut items).await?;
        let sizes = items.values().map(|item| item.frame.len());
        let fit = fitting(sizes, self.page_bytes_max);
        let mut next = page.next;
        if fit < items.len() {
            next = items.keys().nth(fit - 1).copied();
        }
        if next.is_none() {
            self.trims.offer(target);
        }
        Ok(Page {
            mails: items.into_values().take(fit).collect(),
            next,
        })
    }

    /// Applies edits and recalls made meanwhile: a device that knows nothing of the conversation
    /// cannot ask for its changes.
    async fn apply_changes(
        &self,
        user: UserId,
        items: &mut BTreeMap<MailCursor, PageItem>,
    ) -> Result<(), Refusal> {
        let read = |item: &PageItem| codec::decode_server(item.frame.clone(), usize::MAX);
        let (mut cursors, mut messages) = (Vec::new(), Vec::new());
        for (cursor, item) in &*items {
            if let Ok(ServerFrame::Message(placed)) = read(item) {
                cursors.push(*cursor);
                messages.push(placed);
            }
        }
        let marked = self.reader.apply_changes(user, &mut messages).await?;
        for (cursor, placed) in cursors.into_iter().zip(messages) {
            if marked.contains(&(placed.conversation, placed.position.seq))
                && let Some(item) = items.get_mut(&cursor)
            {
                let trace = codec::trace_of(item.frame.clone());
                item.frame = codec::encode_traced(&placed, trace);
            }
        }
        Ok(())
    }

    /// Reads entries without a body from history. A message that history does not have either is
    /// gone for good (its time was over): its entry is removed, and counted. So is an entry of a
    /// group: it does not name the group, and looking for its id in each group of the user would
    /// cost more than the page. It is not lost: the device compares the group's places with its
    /// own, and reads it there.
    async fn reread(&self, target: Target, bodiless: &[MessageId]) -> Result<Vec<Placed>, Refusal> {
        if bodiless.is_empty() {
            return Ok(Vec::new());
        }
        let owner = Owner::User(target.user);
        let keys: Vec<_> = bodiless.iter().map(|&id| (owner, id)).collect();
        let rows = within(self.deadline, self.messages.rows(&keys)).await?;
        let gone: Vec<MessageId> = bodiless
            .iter()
            .zip(&rows)
            .filter_map(|(&id, row)| row.is_none().then_some(id))
            .collect();
        if !gone.is_empty() {
            metrics::counter!("station_mail_lost_total").increment(gone.len() as u64);
            tracing::warn!(
                messages = ?gone,
                platform = %target.platform,
                "mail without a body that private history does not have: removed"
            );
            let acked = vec![(target, gone)];
            let removed = self.mailbox.acknowledge(acked, self.clock.now());
            for ids in in_time(self.deadline, removed).await? {
                ids.map_err(unavailable)?;
            }
        }
        Ok(rows.into_iter().flatten().map(|row| row.placed).collect())
    }

    /// Removes mail that devices have stored, and writes the mail that really waited to the ledger.
    /// Returns the indices of acknowledgements that the mailbox did not answer.
    pub(crate) async fn acknowledge(&self, acks: Vec<MailAck>) -> Result<Vec<usize>, Refusal> {
        let now = self.clock.now();
        let acked = acks
            .iter()
            .map(|ack| (target_of(ack), ack.ids.clone()))
            .collect();
        let removed = in_time(self.deadline, self.mailbox.acknowledge(acked, now)).await?;
        let (mut fetched, mut unanswered) = (Vec::new(), Vec::new());
        for (place, (ack, removed)) in acks.iter().zip(removed).enumerate() {
            match removed {
                Ok(ids) => fetched.extend(ids.into_iter().map(|message| LedgerEntry {
                    message,
                    at: now,
                    target: Some(target_of(ack)),
                    event: LedgerEvent::Fetched {
                        session: ack.session,
                    },
                })),
                Err(error) => {
                    unavailable(error);
                    unanswered.push(place);
                }
            }
        }
        if !fetched.is_empty() {
            // The mail is gone from the mailbox: a ledger that misses its end must not bring it
            // back.
            let appended = within(self.deadline, self.ledger.append(fetched)).await;
            if appended.is_err() {
                metrics::counter!("station_ledger_lost_total").increment(1);
            }
        }
        Ok(unanswered)
    }
}

fn target_of(ack: &MailAck) -> Target {
    Target {
        user: ack.user,
        platform: ack.platform,
    }
}
