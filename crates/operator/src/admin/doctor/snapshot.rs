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

use super::scan::{ConversationSide, Scan, side_of};
use crate::doctor::user::{
    Body, Conversation, ListedConversation, MailEntry, Mailbox, Unread, UnreadReason, UserSnapshot,
};
use backend::Backends;

/// Deadline of one call to a store.
const PATIENCE: Duration = Duration::from_secs(5);
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
pub(super) async fn chart(backends: &Backends, user: UserId) -> (UserSnapshot, Extent) {
    let now = backends.clock.now();
    let mut reader = Reader {
        backends,
        user,
        began: Instant::now(),
        extent: Extent::default(),
    };
    let (sessions, boats) = reader.presence().await;
    let waiting = reader.waiting(now).await;
    let conversations = reader.conversations().await;
    let mail = reader.compared(waiting).await;
    let chart = UserSnapshot {
        user,
        now,
        sessions,
        boats,
        mail,
        conversations,
    };
    (chart, reader.extent)
}

struct Reader<'a> {
    backends: &'a Backends,
    user: UserId,
    began: Instant,
    extent: Extent,
}

impl Reader<'_> {
    /// Reads sessions and live boats: neither means anything without the other.
    async fn presence(&mut self) -> (Vec<SessionEntry>, Vec<BoatLife>) {
        let one = [self.user];
        let asked = async {
            let answers = self
                .backends
                .mailbox
                .sessions(&one, DeniedBoats::default())
                .await;
            let silent = || backend::Error::unavailable("mailbox", "it gave no answer");
            answers.into_iter().next().unwrap_or_else(|| Err(silent()))
        };
        let sessions = match self.ask(MAIL_UNTIL, asked).await {
            Ok(sessions) => sessions,
            Err(why) => return self.unread("sessions", why),
        };
        let watched = self.backends.registry.watch(Role::Boat);
        let roster = match self.ask(MAIL_UNTIL, watched).await {
            Ok(roster) => roster,
            Err(why) => return self.unread("the boats that sessions are on", why),
        };
        let present = roster.borrow();
        let boats = present.iter().map(|instance| instance.life.clone());
        (sessions, boats.collect())
    }

    async fn waiting(&mut self, now: Timestamp) -> Vec<Mailbox> {
        let mut mailboxes = Vec::new();
        for platform in Platform::ALL.into_iter().filter(|p| p.keeps_mail()) {
            let entries = self.waiting_on(platform, now).await;
            if !entries.is_empty() {
                mailboxes.push(Mailbox { platform, entries });
            }
        }
        mailboxes
    }

    async fn waiting_on(&mut self, platform: Platform, now: Timestamp) -> Vec<MailEntry> {
        let target = Target {
            user: self.user,
            platform,
        };
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let asked = self.backends.mailbox.page(target, after, PAGE, now);
            let page = match self.ask(MAIL_UNTIL, asked).await {
                Ok(page) => page,
                Err(why) => {
                    let what = format!("mail on {platform} after the first {}", entries.len());
                    self.unread::<()>(what, why);
                    return entries;
                }
            };
            entries.extend(page.mails.iter().map(entry));
            entries.extend(page.bodiless.into_iter().map(bodiless));
            after = page.next;
            if after.is_none() {
                return entries;
            }
            if entries.len() >= MAILS {
                let all = self.ask(MAIL_UNTIL, self.backends.mailbox.waiting(target));
                let rest = match all.await {
                    Ok(all) => format!("about {}", all.saturating_sub(entries.len() as u64)),
                    Err(_) => "all".to_owned(),
                };
                let text = format!("of the mail on {platform} {rest} newer messages");
                self.extent.omissions.push(text);
                return entries;
            }
        }
    }

    /// Adds the row in history to each waiting message. Drops the messages that history could not
    /// be asked for.
    async fn compared(&mut self, mut mailboxes: Vec<Mailbox>) -> Vec<Mailbox> {
        for Mailbox { platform, entries } in &mut mailboxes {
            let mut done = 0;
            for page in entries.chunks_mut(PAGE) {
                if let Err(why) = self.compare(page).await {
                    let rest = entries.len() - done;
                    let what =
                        format!("what history has of {rest} messages that wait on {platform}");
                    self.unread::<()>(what, why);
                    entries.truncate(done);
                    break;
                }
                done += page.len();
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
            entry.copy = row.and_then(|row| side_of(&row, self.user));
        }
        Ok(())
    }

    async fn rows(
        &self,
        keys: &[(Owner, MessageId)],
    ) -> Result<Vec<Option<MessageRow>>, UnreadReason> {
        let asked = self.backends.messages.rows(keys);
        self.ask(COMPARED_UNTIL, asked).await
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
        let (mut listed, is_whole) = self.listed().await;
        let written = self.written_lately().await;
        let mut unlisted: Vec<_> = written.into_iter().collect();
        unlisted.retain(|conversation| !listed.contains_key(conversation));
        if is_whole {
            listed.extend(
                unlisted
                    .into_iter()
                    .map(|conversation| (conversation, None)),
            );
        } else {
            listed.extend(self.listed_among(unlisted).await);
        }
        let (mut found, all) = (Vec::new(), listed.len());
        for (id, listed) in listed {
            if self.began.elapsed() >= CONVERSATIONS_UNTIL {
                let what = format!("{} conversations", all - found.len());
                self.unread::<()>(what, UnreadReason::Late);
                break;
            }
            found.push(self.conversation(id, listed).await);
        }
        found
    }

    /// Reads the conversation list, and tells whether it is complete.
    async fn listed(&mut self) -> (BTreeMap<ConversationId, Option<ListedConversation>>, bool) {
        let mut listed = BTreeMap::new();
        let mut after = None;
        loop {
            let (user, list) = (self.user, &self.backends.conversations);
            let asked = list.changed(user, Timestamp::ZERO, after, PAGE);
            let page = match self.ask(CONVERSATIONS_UNTIL, asked).await {
                Ok(page) => page,
                Err(why) => {
                    let what = format!("the conversation list after the first {}", listed.len());
                    self.unread::<()>(what, why);
                    return (listed, false);
                }
            };
            let is_last = page.len() < PAGE;
            after = page.last().map(|one| one.row.conversation);
            let known =
                |one: protocol::conversation::ListEntry| (one.row.conversation, Some(known(one)));
            listed.extend(page.into_iter().map(known));
            if is_last {
                return (listed, true);
            }
            if listed.len() >= CONVERSATIONS {
                let text = format!("conversations beyond the first {CONVERSATIONS}");
                self.extent.omissions.push(text);
                return (listed, false);
            }
        }
    }

    /// List entries of these conversations, if they have one.
    async fn listed_among(
        &mut self,
        conversations: Vec<ConversationId>,
    ) -> Vec<(ConversationId, Option<ListedConversation>)> {
        let keys: Vec<_> = conversations.iter().map(|one| (self.user, *one)).collect();
        let asked = self.backends.conversations.get(&keys);
        match self.ask(CONVERSATIONS_UNTIL, asked).await {
            Ok(found) => {
                let found = found.into_iter().map(|found| found.map(known));
                conversations.into_iter().zip(found).collect()
            }
            Err(why) => {
                let what = format!("{} more conversations of the newest messages", keys.len());
                self.unread(what, why)
            }
        }
    }

    /// Conversations of the newest messages, listed or not.
    async fn written_lately(&mut self) -> BTreeSet<ConversationId> {
        let all = IdRange::default();
        let messages = &self.backends.messages;
        let asked = messages.find(Owner::User(self.user), all, Order::Backward, NEWEST);
        match self.ask(CONVERSATIONS_UNTIL, asked).await {
            Ok(rows) => rows.iter().map(|row| row.placed.conversation).collect(),
            Err(why) => self.unread("the newest messages, which the list may lack", why),
        }
    }

    async fn head(&mut self, id: ConversationId) -> (Option<Head>, bool) {
        let one = [id];
        let asked = self.backends.heads.load(&one);
        match self.ask(CONVERSATIONS_UNTIL, asked).await {
            Ok(heads) => (heads.into_iter().next().flatten(), false),
            Err(why) => {
                self.unread::<()>(format!("the head of {id}"), why);
                (None, true)
            }
        }
    }

    async fn conversation(
        &mut self,
        id: ConversationId,
        listed: Option<ListedConversation>,
    ) -> Conversation {
        let (head, head_unread) = self.head(id).await;
        let of_head = head.and_then(|head| Some((head.seq, head.last_id?)));
        let of_list = listed.map(|listed| (listed.row.end.seq, listed.row.last_id));
        let names: Vec<(Seq, MessageId)> = of_head.into_iter().chain(of_list).collect();
        let claimed = names.iter().map(|(seq, _)| *seq).max();
        let claimed = claimed.unwrap_or(Seq::ZERO);
        let skipped = Seq(claimed.0.saturating_sub(POSITIONS));
        if skipped > Seq::ZERO {
            let text = format!("positions up to {skipped} of {id}");
            self.extent.omissions.push(text);
        }
        let side = ConversationSide {
            messages: self.backends.messages.as_ref(),
            owner: self.user,
            conversation: id,
            until: self.began + CONVERSATIONS_UNTIL,
        };
        let Scan {
            newest,
            max_id,
            holes,
            rows,
            given_up,
            stopped,
            untold,
            ..
        } = side.scan(skipped, claimed, names).await;
        self.extent.rows += rows;
        let cut_off = given_up.is_some() || stopped.is_some();
        if let Some(last) = given_up {
            let text = format!("positions of {id} after {last}, as there are too many holes");
            self.extent.omissions.push(text);
        }
        if let Some((last, why)) = stopped {
            self.unread::<()>(format!("positions of {id} after {last}"), why);
        }
        if let Some((count, first, why)) = untold {
            let what = format!(
                "what is left of {count} positions of {id} that have no message, from {first} on"
            );
            self.unread::<()>(what, why);
        }
        Conversation {
            id,
            listed,
            head,
            head_unread,
            newest,
            max_id,
            holes,
            skipped,
            cut_off,
        }
    }

    /// Bounds a call by `PATIENCE`, and by the end of its part of the look.
    async fn ask<T>(
        &self,
        until: Duration,
        call: impl Future<Output = backend::Result<T>>,
    ) -> Result<T, UnreadReason> {
        let left = until.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            return Err(UnreadReason::Late);
        }
        match timeout(left.min(PATIENCE), call).await {
            Ok(answer) => answer.map_err(why),
            Err(_) if left < PATIENCE => Err(UnreadReason::Late),
            Err(_) => Err(UnreadReason::Failed(format!(
                "no answer within {PATIENCE:?}"
            ))),
        }
    }

    /// Notes a part as unread, and returns an empty value in its place.
    fn unread<T: Default>(&mut self, what: impl Into<String>, why: UnreadReason) -> T {
        self.extent.unread.push(Unread::new(what, why));
        T::default()
    }
}

fn known(listed: protocol::conversation::ListEntry) -> ListedConversation {
    ListedConversation {
        row: listed.row,
        read_seq: listed.read_seq,
        received_seq: listed.received_seq,
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
        copy: None,
    }
}

fn bodiless(id: MessageId) -> MailEntry {
    MailEntry {
        id,
        accepted_at: None,
        body: Body::Gone,
        row: None,
        copy: None,
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
