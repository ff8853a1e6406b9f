//! Mailbox of a device: pages of waiting mail, and its removal once the device has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::codec;
use api::station::{MailAck, MailPageRequest};
use backend::Backends;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use protocol::frame::ServerFrame;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::mailbox::MailCursor;
use protocol::message::Target;
use protocol::message_row::{MessageRow, Owner};
use protocol::reading::{fitting, page_limit};
use protocol::session::{Page, PageItem};
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq, UserId};
use tokio::time::{Instant, timeout, timeout_at};

use super::Reader;
use crate::config::Config;
use crate::part_spawner::PartSpawner;
use crate::stores::{Unreadable, by_owner, in_time, too_late, unavailable, within};
use crate::work_queue::{WAITING_MAX, WorkQueue};

/// Reads and empties mailboxes.
pub(crate) struct MailReader {
    backends: Backends,
    deadline: Duration,
    reader: Arc<Reader>,
    page_max: usize,
    page_bytes_max: usize,
    trims: WorkQueue<Target>,
    /// Targets whose last drain left out some mail, until their next drain begins: the last page of
    /// a drain may be requested again. A drain that continues at another station is not noted here;
    /// the target's next drain makes up for it.
    left_out: Mutex<BTreeSet<Target>>,
}

/// Maximum number of targets with mail left out.
const LEFT_OUT_MAX: usize = 65_536;

/// Messages of a page of mail, and their cursors.
#[derive(Default)]
struct MailPart {
    cursors: Vec<MailCursor>,
    messages: Vec<Placed>,
}

impl MailPart {
    /// Encodes the messages at these positions again.
    fn reencode(
        self,
        positions: &BTreeSet<(ConversationId, Seq)>,
        items: &mut BTreeMap<MailCursor, PageItem>,
    ) {
        for (cursor, entry) in self.cursors.into_iter().zip(self.messages) {
            if positions.contains(&(entry.conversation, entry.position.seq))
                && let Some(item) = items.get_mut(&cursor)
            {
                let trace = codec::message_trace(item.frame.clone());
                item.frame = codec::encode_traced(&entry, trace);
            }
        }
    }
}

/// Entries without a body, as history has them.
#[derive(Default)]
struct RereadEntries {
    messages: Vec<Placed>,
    /// Number of those that could not be read now.
    unread_count: usize,
}

/// A row of history; `Unreadable` is not missing.
#[derive(Default)]
enum HistoryRow {
    Known(Option<Box<MessageRow>>),
    #[default]
    Unreadable,
}

/// Conversations whose changes are read at the same time, once reading all of them failed. If the
/// stores answer for none of the first ones, they are not asked about others.
const MAX_CONCURRENT_CONVERSATIONS: usize = 16;

/// Users whose expired mail is removed at the same time.
const MAX_CONCURRENT_TRIMS: usize = 16;

/// Removes expired mail of these targets. A failure is made good after their next drain, or by the
/// mailbox's own expiry.
async fn trim_all(backends: Backends, deadline: Duration, targets: Vec<Target>) {
    let targets: BTreeSet<Target> = targets.into_iter().collect();
    let trims = stream::iter(targets).for_each_concurrent(MAX_CONCURRENT_TRIMS, |target| {
        let (mailbox, now) = (&backends.mailbox, backends.clock.now());
        async move {
            let policy = mailbox.policy(target.platform);
            let outcome = within(deadline, mailbox.trim(target, policy, now)).await;
            if let Ok(expired_count) = outcome {
                metrics::counter!("station_mail_expired_total").increment(expired_count.into());
            }
        }
    });
    // Behind a store call that hangs, all of them together wait no longer than one.
    let _ = timeout(deadline, trims).await;
}

impl MailReader {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        reader: Arc<Reader>,
        spawner: &PartSpawner,
    ) -> MailReader {
        let (stores, deadline) = (backends.clone(), config.store_deadline);
        let trim = move |targets| trim_all(stores.clone(), deadline, targets);
        MailReader {
            backends: backends.clone(),
            deadline,
            reader,
            page_max: config.page_max,
            page_bytes_max: config.page_bytes_max,
            trims: WorkQueue::spawn(spawner, "mail", WAITING_MAX, trim),
            left_out: Mutex::default(),
        }
    }

    /// Waiting messages, oldest first, as frames. Removes only entries that can no longer be
    /// delivered at all, and, after the last page, expired mail (S1-57).
    ///
    /// Mail that cannot be read now, such as that of a conversation whose changes cannot, is left
    /// out and stays in the mailbox, and the mail behind it comes. The last page of the drain says so
    /// by the cursor `START`, and the session reads from the oldest again later.
    ///
    /// An empty page with another one behind it says that all of its mail was left out, so that the
    /// session pauses there; pages of entries that were removed are passed over.
    pub(crate) async fn page(&self, request: MailPageRequest) -> Result<Page, Refusal> {
        let target = Target {
            user: request.user,
            platform: request.platform,
        };
        let limit = page_limit(request.limit, self.page_max);
        let deadline = Instant::now() + self.deadline;
        let mut cursor = request.cursor;
        loop {
            let (page, is_left_out) = self.one_page(target, cursor, limit).await?;
            match page.next {
                Some(next)
                    if page.mails.is_empty()
                        && !is_left_out
                        && next != MailCursor::START
                        && Instant::now() < deadline =>
                {
                    cursor = Some(next);
                }
                Some(_) | None => return Ok(page),
            }
        }
    }

    /// A page, and whether some of it was left out.
    async fn one_page(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
    ) -> Result<(Page, bool), Refusal> {
        let query = self
            .backends
            .mailbox
            .page(target, cursor, limit, self.backends.clock.now());
        let page = within(self.deadline, query).await?;
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
        let reread = self.reread(target, &page.bodiless).await?;
        for entry in reread.messages {
            let id = entry.message.id;
            let key = MailCursor {
                accepted_at: entry.message.accepted_at,
                id,
            };
            let frame = codec::encode_message(&entry);
            items.insert(key, PageItem { id, frame });
        }
        let left_out = reread.unread_count + self.apply_changes(target.user, &mut items).await;
        let sizes = items.values().map(|item| item.frame.len());
        let fit_count = fitting(sizes, self.page_bytes_max);
        let mut next = page.next;
        if fit_count < items.len() {
            next = items.keys().nth(fit_count - 1).copied();
        }
        if left_out > 0 {
            tracing::warn!(left_out, user = %target.user, "some mail is unreadable now and stays in the mailbox");
        }
        if self.is_left_out(target, cursor, left_out > 0) {
            next = next.or(Some(MailCursor::START));
        }
        if next.is_none() {
            self.trims.offer(target);
        }
        let page = Page {
            mails: items.into_values().take(fit_count).collect(),
            next,
        };
        Ok((page, left_out > 0))
    }

    /// Tells if mail was left out by this page, or by an earlier one of its drain.
    fn is_left_out(&self, target: Target, cursor: Option<MailCursor>, is_partial: bool) -> bool {
        let mut left_out = self.left_out.lock();
        if cursor.is_none_or(|cursor| cursor == MailCursor::START) {
            left_out.remove(&target);
        }
        if is_partial {
            if left_out.len() >= LEFT_OUT_MAX {
                left_out.pop_first();
            }
            left_out.insert(target);
        }
        left_out.contains(&target)
    }

    /// Applies edits and recalls made meanwhile, those that the user may read: a device that knows
    /// nothing of the conversation cannot ask for its changes. Takes out the items of conversations whose changes cannot be
    /// read, and returns their number.
    async fn apply_changes(
        &self,
        user: UserId,
        items: &mut BTreeMap<MailCursor, PageItem>,
    ) -> usize {
        let decode = |item: &PageItem| codec::decode_server(item.frame.clone(), usize::MAX);
        let mut all = MailPart::default();
        for (cursor, item) in &*items {
            if let Ok(ServerFrame::Message(entry)) = decode(item) {
                all.cursors.push(*cursor);
                all.messages.push(entry);
            }
        }
        let deadline = Instant::now() + self.deadline;
        let conversations = all.messages.iter().map(|entry| entry.conversation);
        let conversations: BTreeSet<ConversationId> = conversations.collect();
        if conversations.len() > 1 {
            let positions = self.reader.apply_changes(user, &mut all.messages);
            let positions = timeout(self.deadline / 2, positions).await;
            if let Ok(Ok(positions)) = positions {
                all.reencode(&positions, items);
                return 0;
            }
        }
        let mut unread_cursors: BTreeSet<MailCursor> = all.cursors.iter().copied().collect();
        let mut parts: BTreeMap<ConversationId, MailPart> = BTreeMap::new();
        for (cursor, entry) in all.cursors.into_iter().zip(all.messages) {
            let part = parts.entry(entry.conversation).or_default();
            part.cursors.push(cursor);
            part.messages.push(entry);
        }
        let requests = parts.into_values().map(|mut part| async move {
            let positions = self.reader.apply_changes(user, &mut part.messages);
            let positions = timeout_at(deadline, positions).await;
            (part, positions.unwrap_or_else(|_| Err(too_late())))
        });
        let requests: Vec<_> = requests.collect();
        let mut answers = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_CONVERSATIONS);
        let (mut failures, mut is_answered) = (0, false);
        while let Some((part, positions)) = answers.next().await {
            if let Ok(positions) = positions {
                is_answered = true;
                part.cursors
                    .iter()
                    .for_each(|cursor| _ = unread_cursors.remove(cursor));
                part.reencode(&positions, items);
            } else {
                failures += 1;
            }
            if !is_answered && failures >= MAX_CONCURRENT_CONVERSATIONS {
                break;
            }
        }
        items.retain(|cursor, _| !unread_cursors.contains(cursor));
        unread_cursors.len()
    }

    /// Reads entries without a body from history. A message that history does not have either is
    /// gone for good (its time was over): its entry is removed, and counted. So is an entry of a
    /// group: it does not name the group, and looking for its id in each group of the user would
    /// cost more than the page. It is not lost: the device compares the group's places with its
    /// own, and reads it there.
    async fn reread(
        &self,
        target: Target,
        bodiless: &[MessageId],
    ) -> Result<RereadEntries, Refusal> {
        let owner = Owner::User(target.user);
        let keys: Vec<_> = bodiless.iter().map(|&id| (owner, id)).collect();
        let messages = &self.backends.messages;
        let ask = move |keys: Vec<(Owner, MessageId)>| async move {
            let rows = messages.rows(&keys).await?;
            let to_row = |row: Option<MessageRow>| HistoryRow::Known(row.map(Box::new));
            Ok::<_, backend::Error>(rows.into_iter().map(to_row).collect::<Vec<_>>())
        };
        // Each entry by itself if one cannot be read: that one is not gone.
        let rows = by_owner(
            self.deadline / 2,
            Unreadable::Absent,
            keys,
            |(_, id)| *id,
            ask,
        )
        .await;
        let (mut reread, mut missing_ids) = (RereadEntries::default(), Vec::new());
        for (&id, row) in bodiless.iter().zip(rows.each) {
            match row {
                Ok(HistoryRow::Known(Some(row))) => reread.messages.push(row.placed),
                Ok(HistoryRow::Known(None)) => missing_ids.push(id),
                Ok(HistoryRow::Unreadable) | Err(_) => reread.unread_count += 1,
            }
        }
        if !missing_ids.is_empty() {
            metrics::counter!("station_mail_lost_total").increment(missing_ids.len() as u64);
            tracing::warn!(
                messages = ?missing_ids,
                platform = %target.platform,
                "removed mail that has no body and is missing from private history"
            );
            let acks = vec![(target, missing_ids)];
            let removal = self
                .backends
                .mailbox
                .acknowledge(acks, self.backends.clock.now());
            for ids in in_time(self.deadline, removal).await? {
                ids.map_err(unavailable)?;
            }
        }
        Ok(reread)
    }

    /// Removes mail that devices have stored, and writes the mail that really waited to the ledger.
    /// Returns the indices of acknowledgements that the mailbox did not answer.
    pub(crate) async fn acknowledge(&self, acks: Vec<MailAck>) -> Result<Vec<usize>, Refusal> {
        let now = self.backends.clock.now();
        let requests = acks
            .iter()
            .map(|ack| (ack_target(ack), ack.ids.clone()))
            .collect();
        let results = in_time(
            self.deadline,
            self.backends.mailbox.acknowledge(requests, now),
        )
        .await?;
        let (mut entries, mut failed_indices) = (Vec::new(), Vec::new());
        for (index, (ack, results)) in acks.iter().zip(results).enumerate() {
            match results {
                Ok(ids) => entries.extend(ids.into_iter().map(|message| LedgerEntry {
                    message,
                    at: now,
                    target: Some(ack_target(ack)),
                    event: LedgerEvent::Fetched {
                        session: ack.session,
                    },
                })),
                Err(error) => {
                    unavailable(error);
                    failed_indices.push(index);
                }
            }
        }
        if !entries.is_empty() {
            // The mail is gone from the mailbox: a ledger that misses its end must not bring it
            // back.
            let outcome = within(self.deadline, self.backends.ledger.append(entries)).await;
            if outcome.is_err() {
                metrics::counter!("station_ledger_lost_total").increment(1);
            }
        }
        Ok(failed_indices)
    }
}

fn ack_target(ack: &MailAck) -> Target {
    Target {
        user: ack.user,
        platform: ack.platform,
    }
}
