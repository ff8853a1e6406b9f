//! Reads the data of a user from the stores, in the order that `crate::doctor::user` asks for,
//! so that concurrent writers only add to it.
//!
//! A part that cannot be read, or not in time, is named and holds up no other: the rest is
//! reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::codec;
use backend::Kind;
use backend::discovery::Role;
use protocol::conversation::Head;
use protocol::frame::ServerFrame;
use protocol::history::{IdRange, Order};
use protocol::mailbox::Mail;
use protocol::message::Target;
use protocol::message_row::{MessageRow, Owner};
use protocol::presence::{BoatLife, DeniedBoats, SessionEntry};
use protocol::{ConversationId, MessageId, Platform, Seq, Timestamp, UserId};
use tokio::time::{Instant, timeout};

use super::scan::{ConversationSide, Scan, find_side};
use super::{
    Body, Conversation, ListedConversation, MailEntry, Mailbox, Unread, UnreadReason, UserSnapshot,
};
use backend::Backends;

/// Deadline of one call to a store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Times since the start of a look at which reading mail ends, reading conversations, and comparing
/// mail with history. A repair takes six looks, and its command waits three minutes.
const MAIL_UNTIL: Duration = Duration::from_secs(6);
const CONVERSATIONS_UNTIL: Duration = Duration::from_secs(14);
const COMPARED_UNTIL: Duration = Duration::from_secs(20);
/// Limit of waiting messages read on one platform, oldest first.
const MAILS: usize = 2000;
const PAGE: usize = 100;
/// Limit of listed conversations, and of newest messages searched for conversations that the list
/// lacks.
const CONVERSATIONS: usize = 1000;
const NEWEST: usize = 500;
/// Limit of positions in one conversation, the newest.
const POSITIONS: u64 = 20_000;

/// Coverage of a look.
#[derive(Clone, Debug, Default)]
pub(super) struct Extent {
    pub(super) rows: u64,
    /// Parts left out because there is too much of them.
    pub(super) omissions: Vec<String>,
    /// Parts that could not be read.
    pub(super) unread: Vec<Unread>,
}

/// Takes a snapshot of a user, as far as the stores can be read.
pub(super) async fn take_snapshot(backends: &Backends, user: UserId) -> (UserSnapshot, Extent) {
    let now = backends.clock.now();
    let mut reader = Reader {
        backends,
        user,
        start: Instant::now(),
        extent: Extent::default(),
    };
    let (sessions, boats) = reader.presence().await;
    let mailboxes = reader.waiting(now).await;
    let conversations = reader.conversations().await;
    let mail = reader.compare_all(mailboxes).await;
    let snapshot = UserSnapshot {
        user,
        now,
        sessions,
        boats,
        mail,
        conversations,
    };
    (snapshot, reader.extent)
}

struct Reader<'a> {
    backends: &'a Backends,
    user: UserId,
    start: Instant,
    extent: Extent,
}

impl Reader<'_> {
    /// Reads sessions and live boats: neither means anything without the other.
    async fn presence(&mut self) -> (Vec<SessionEntry>, Vec<BoatLife>) {
        let one = [self.user];
        let query = async {
            let answers = self
                .backends
                .mailbox
                .sessions(&one, DeniedBoats::default())
                .await;
            let silent = || backend::Error::unavailable("mailbox", "no answer");
            answers.into_iter().next().unwrap_or_else(|| Err(silent()))
        };
        let sessions = match self.ask(MAIL_UNTIL, query).await {
            Ok(sessions) => sessions,
            Err(reason) => return self.note_unread("sessions", reason),
        };
        let watch_request = self.backends.registry.watch(Role::Boat);
        let instances = match self.ask(MAIL_UNTIL, watch_request).await {
            Ok(instances) => instances,
            Err(reason) => return self.note_unread("the boats of the sessions", reason),
        };
        let present = instances.borrow();
        let boats = present.iter().map(|instance| instance.life.clone());
        (sessions, boats.collect())
    }

    async fn waiting(&mut self, now: Timestamp) -> Vec<Mailbox> {
        let mut mailboxes = Vec::new();
        for platform in Platform::ALL.into_iter().filter(|p| p.keeps_mail()) {
            let entries = self.read_mailbox(platform, now).await;
            if !entries.is_empty() {
                mailboxes.push(Mailbox { platform, entries });
            }
        }
        mailboxes
    }

    async fn read_mailbox(&mut self, platform: Platform, now: Timestamp) -> Vec<MailEntry> {
        let target = Target {
            user: self.user,
            platform,
        };
        let (mut entries, mut cursor) = (Vec::new(), None);
        loop {
            let query = self.backends.mailbox.page(target, cursor, PAGE, now);
            let page = match self.ask(MAIL_UNTIL, query).await {
                Ok(page) => page,
                Err(reason) => {
                    let subject = format!("mail on {platform} after the first {}", entries.len());
                    self.note_unread::<()>(subject, reason);
                    return entries;
                }
            };
            entries.extend(page.mails.iter().map(entry));
            entries.extend(page.bodiless.into_iter().map(bodiless));
            cursor = page.next;
            if cursor.is_none() {
                return entries;
            }
            if entries.len() >= MAILS {
                let all = self.ask(MAIL_UNTIL, self.backends.mailbox.waiting(target));
                let rest = match all.await {
                    Ok(all) => format!("about {}", all.saturating_sub(entries.len() as u64)),
                    Err(_) => "all".to_owned(),
                };
                let text = format!("{rest} newer messages in the mail on {platform}");
                self.extent.omissions.push(text);
                return entries;
            }
        }
    }

    /// Adds the row in history to each waiting message. Drops the messages that history could not
    /// be asked for.
    async fn compare_all(&mut self, mut mailboxes: Vec<Mailbox>) -> Vec<Mailbox> {
        for Mailbox { platform, entries } in &mut mailboxes {
            let mut compared_count = 0;
            for page in entries.chunks_mut(PAGE) {
                if let Err(reason) = self.compare(page).await {
                    let rest = entries.len() - compared_count;
                    let subject =
                        format!("the history rows of {rest} messages that wait on {platform}");
                    self.note_unread::<()>(subject, reason);
                    entries.truncate(compared_count);
                    break;
                }
                compared_count += page.len();
            }
        }
        mailboxes
    }

    /// Fills in the row of each entry; for an entry without one, a copy made from the peer's row.
    async fn compare(&self, entries: &mut [MailEntry]) -> Result<(), UnreadReason> {
        let keys: Vec<_> = entries.iter().map(|entry| self.key(entry)).collect();
        let rows = self.rows(&keys).await?;
        let mut rowless = Vec::new();
        for (entry, row) in entries.iter_mut().zip(rows) {
            match (row, self.other_side(entry)) {
                (Some(row), _) => entry.row = Some((row.placed.conversation, row.seq())),
                (None, Some(key)) => rowless.push((entry, key)),
                (None, None) => {}
            }
        }
        if rowless.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = rowless.iter().map(|(_, key)| *key).collect();
        let rows = self.rows(&keys).await?;
        for ((entry, _), row) in rowless.into_iter().zip(rows) {
            entry.rebuilt_row = row.and_then(|row| find_side(&row, self.user));
        }
        Ok(())
    }

    async fn rows(
        &self,
        keys: &[(Owner, MessageId)],
    ) -> Result<Vec<Option<MessageRow>>, UnreadReason> {
        let query = self.backends.messages.rows(keys);
        self.ask(COMPARED_UNTIL, query).await
    }

    /// Key of the row that a waiting message has. Without a readable body it counts as a private one.
    fn key(&self, entry: &MailEntry) -> (Owner, MessageId) {
        let owner = match entry.body {
            Body::Says(conversation, _) => Owner::of(conversation, self.user),
            Body::Gone | Body::Unreadable => Owner::User(self.user),
        };
        (owner, entry.id)
    }

    /// Key of the peer's row of the same message.
    fn other_side(&self, entry: &MailEntry) -> Option<(Owner, MessageId)> {
        let Body::Says(conversation, _) = entry.body else {
            return None;
        };
        Some((Owner::User(conversation.peer_of(self.user)?), entry.id))
    }

    /// Reads the list, then heads, then rows.
    async fn conversations(&mut self) -> Vec<Conversation> {
        let (mut listing, is_whole) = self.read_list().await;
        let recent_ids = self.read_recent().await;
        let mut unlisted_ids: Vec<_> = recent_ids.into_iter().collect();
        unlisted_ids.retain(|conversation| !listing.contains_key(conversation));
        if is_whole {
            listing.extend(
                unlisted_ids
                    .into_iter()
                    .map(|conversation| (conversation, None)),
            );
        } else {
            listing.extend(self.find_listed(unlisted_ids).await);
        }
        let (mut conversations, all) = (Vec::new(), listing.len());
        for (id, listing) in listing {
            if self.start.elapsed() >= CONVERSATIONS_UNTIL {
                let subject = format!("{} conversations", all - conversations.len());
                self.note_unread::<()>(subject, UnreadReason::Late);
                break;
            }
            conversations.push(self.conversation(id, listing).await);
        }
        conversations
    }

    /// Reads the conversation list, and tells whether it is complete.
    async fn read_list(&mut self) -> (BTreeMap<ConversationId, Option<ListedConversation>>, bool) {
        let mut entries = BTreeMap::new();
        let mut cursor = None;
        loop {
            let (user, list) = (self.user, &self.backends.conversations);
            let query = list.changed(user, Timestamp::ZERO, cursor, PAGE);
            let page = match self.ask(CONVERSATIONS_UNTIL, query).await {
                Ok(page) => page,
                Err(reason) => {
                    let subject =
                        format!("the conversation list after the first {}", entries.len());
                    self.note_unread::<()>(subject, reason);
                    return (entries, false);
                }
            };
            let is_last = page.len() < PAGE;
            cursor = page.last().map(|one| one.row.conversation);
            let known =
                |one: protocol::conversation::ListEntry| (one.row.conversation, Some(known(one)));
            entries.extend(page.into_iter().map(known));
            if is_last {
                return (entries, true);
            }
            if entries.len() >= CONVERSATIONS {
                let text = format!("conversations beyond the first {CONVERSATIONS}");
                self.extent.omissions.push(text);
                return (entries, false);
            }
        }
    }

    /// List entries of these conversations, if they have one.
    async fn find_listed(
        &mut self,
        conversations: Vec<ConversationId>,
    ) -> Vec<(ConversationId, Option<ListedConversation>)> {
        let keys: Vec<_> = conversations.iter().map(|one| (self.user, *one)).collect();
        let query = self.backends.conversations.get(&keys);
        match self.ask(CONVERSATIONS_UNTIL, query).await {
            Ok(entries) => {
                let entries = entries.into_iter().map(|entry| entry.map(known));
                conversations.into_iter().zip(entries).collect()
            }
            Err(reason) => {
                let subject = format!("{} more conversations with recent messages", keys.len());
                self.note_unread(subject, reason)
            }
        }
    }

    /// Conversations of the newest messages, listed or not.
    async fn read_recent(&mut self) -> BTreeSet<ConversationId> {
        let all = IdRange::default();
        let messages = &self.backends.messages;
        let query = messages.find(Owner::User(self.user), all, Order::Backward, NEWEST);
        match self.ask(CONVERSATIONS_UNTIL, query).await {
            Ok(rows) => rows.iter().map(|row| row.placed.conversation).collect(),
            Err(reason) => self.note_unread(
                "the newest messages, which may be missing from the list",
                reason,
            ),
        }
    }

    async fn head(&mut self, id: ConversationId) -> (Option<Head>, bool) {
        let one = [id];
        let query = self.backends.heads.load(&one);
        match self.ask(CONVERSATIONS_UNTIL, query).await {
            Ok(heads) => (heads.into_iter().next().flatten(), false),
            Err(reason) => {
                self.note_unread::<()>(format!("the head of {id}"), reason);
                (None, true)
            }
        }
    }

    async fn conversation(
        &mut self,
        id: ConversationId,
        listing: Option<ListedConversation>,
    ) -> Conversation {
        let (head, head_unread) = self.head(id).await;
        let of_head = head.and_then(|head| Some((head.seq, head.last_id?)));
        let of_list = listing.map(|listing| (listing.row.end.seq, listing.row.last_id));
        let names: Vec<(Seq, MessageId)> = of_head.into_iter().chain(of_list).collect();
        let max_seq = names.iter().map(|(seq, _)| *seq).max();
        let max_seq = max_seq.unwrap_or(Seq::ZERO);
        let skipped_until = Seq(max_seq.0.saturating_sub(POSITIONS));
        if skipped_until > Seq::ZERO {
            let text = format!("positions up to {skipped_until} of {id}");
            self.extent.omissions.push(text);
        }
        let side = ConversationSide {
            messages: self.backends.messages.as_ref(),
            owner: self.user,
            conversation: id,
            deadline: self.start + CONVERSATIONS_UNTIL,
        };
        let Scan {
            newest,
            max_id,
            holes,
            rows,
            given_up,
            stop,
            unscanned,
            ..
        } = side.scan(skipped_until, max_seq, names).await;
        self.extent.rows += rows;
        let cut_off = given_up.is_some() || stop.is_some();
        if let Some(last) = given_up {
            let text = format!("positions of {id} after {last} (too many holes)");
            self.extent.omissions.push(text);
        }
        if let Some((last, reason)) = stop {
            self.note_unread::<()>(format!("positions of {id} after {last}"), reason);
        }
        if let Some((count, first, reason)) = unscanned {
            let subject =
                format!("surviving copies of {count} missing positions of {id}, from {first} on");
            self.note_unread::<()>(subject, reason);
        }
        Conversation {
            id,
            listing,
            head,
            head_unread,
            newest,
            max_id,
            holes,
            skipped_until,
            cut_off,
        }
    }

    /// Bounds a call by `ANSWER_TIMEOUT`, and by the end of its part of the look.
    async fn ask<T>(
        &self,
        time_limit: Duration,
        call: impl Future<Output = backend::Result<T>>,
    ) -> Result<T, UnreadReason> {
        let time_left = time_limit.saturating_sub(self.start.elapsed());
        if time_left.is_zero() {
            return Err(UnreadReason::Late);
        }
        match timeout(time_left.min(ANSWER_TIMEOUT), call).await {
            Ok(answer) => answer.map_err(why),
            Err(_) if time_left < ANSWER_TIMEOUT => Err(UnreadReason::Late),
            Err(_) => Err(UnreadReason::Failed(format!(
                "no answer within {ANSWER_TIMEOUT:?}"
            ))),
        }
    }

    /// Notes a part as unread, and returns an empty value in its place.
    fn note_unread<T: Default>(&mut self, subject: impl Into<String>, reason: UnreadReason) -> T {
        self.extent.unread.push(Unread::new(subject, reason));
        T::default()
    }
}

fn known(entry: protocol::conversation::ListEntry) -> ListedConversation {
    ListedConversation {
        row: entry.row,
        read_seq: entry.read_seq,
        received_seq: entry.received_seq,
    }
}

fn entry(mail: &Mail) -> MailEntry {
    let size = mail.body.len();
    let body = match codec::decode_server(mail.body.clone(), size) {
        Ok(ServerFrame::Message(placed)) => Body::Says(placed.conversation, placed.position.seq),
        Ok(_) | Err(_) => Body::Unreadable,
    };
    MailEntry {
        id: mail.id,
        accepted_at: Some(mail.accepted_at),
        body,
        row: None,
        rebuilt_row: None,
    }
}

fn bodiless(id: MessageId) -> MailEntry {
    MailEntry {
        id,
        accepted_at: None,
        body: Body::Gone,
        row: None,
        rebuilt_row: None,
    }
}

/// Reason of an unread part, from the error of its store.
pub(super) fn why(error: backend::Error) -> UnreadReason {
    let text = format!("{error}: {}", error.source);
    match error.kind {
        Kind::Corrupt => UnreadReason::Corrupt(text),
        Kind::Unavailable | Kind::Conflict => UnreadReason::Failed(text),
    }
}
