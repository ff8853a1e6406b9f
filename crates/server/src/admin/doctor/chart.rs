//! Reads what the stores keep of a user, in the order that `protocol::doctor::user` asks for: whoever writes
//! meanwhile only adds.
//!
//! A part that cannot be read, or not in time, is named and holds up no other: what was seen is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::codec;
use backend::Kind;
use backend::discovery::Role;
use protocol::conversation::Head;
use protocol::doctor::user::{Body, Chart, Conversation, Entry, Listed, Mailbox, Unread, Why};
use protocol::frame::ServerFrame;
use protocol::history::{IdRange, Order, PrivateRow};
use protocol::mailbox::Mail;
use protocol::message::Target;
use protocol::presence::{BoatLife, Denied, SessionEntry};
use protocol::{ConversationId, MessageId, Platform, Seq, Timestamp, UserId};
use tokio::time::{Instant, timeout};

use super::scan::{Scan, Side, side_of};
use backend::Backends;

/// How long one call to a store may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Since the beginning of a look: when it goes on from mail to conversations, from these to comparing mail, and
/// when it ends. A repair takes six looks, and its command waits three minutes.
const MAIL_UNTIL: Duration = Duration::from_secs(6);
const CONVERSATIONS_UNTIL: Duration = Duration::from_secs(14);
const COMPARED_UNTIL: Duration = Duration::from_secs(20);
/// Messages that wait on one platform, of which the oldest are looked at.
const MAILS: usize = 2000;
const PAGE: usize = 100;
/// Conversations of a user, and among which newest messages it is looked for one that the list lacks.
const CONVERSATIONS: usize = 1000;
const NEWEST: usize = 500;
/// The newest positions of one conversation.
const POSITIONS: u64 = 20_000;

/// How much was looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Extent {
    pub(super) rows: u64,
    /// Because there is too much of it.
    pub(super) left_off: Vec<String>,
    /// Because it could not be read.
    pub(super) unread: Vec<Unread>,
}

/// Reads all of it, as far as that can be read.
pub(super) async fn chart(backends: &Backends, user: UserId) -> (Chart, Extent) {
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
    let chart = Chart {
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
    /// Neither means anything without the other.
    async fn presence(&mut self) -> (Vec<SessionEntry>, Vec<BoatLife>) {
        let one = [self.user];
        let asked = async {
            let answers = self
                .backends
                .mailbox
                .sessions(&one, Denied::default())
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

    async fn waiting_on(&mut self, platform: Platform, now: Timestamp) -> Vec<Entry> {
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
                self.extent.left_off.push(text);
                return entries;
            }
        }
    }

    /// What history has of each message that waits. Those that it was not asked for are left out.
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

    /// The rows of these, and of those without one what can be made of the other side's.
    async fn compare(&self, entries: &mut [Entry]) -> Result<(), Why> {
        let keys: Vec<_> = entries.iter().map(|entry| (self.user, entry.id)).collect();
        let rows = self.private(&keys).await?;
        let mut rowless = Vec::new();
        for (entry, row) in entries.iter_mut().zip(rows) {
            match (row, self.other_side(entry)) {
                (Some(row), _) => entry.row = place(&row),
                (None, Some(key)) => rowless.push((entry, key)),
                (None, None) => {}
            }
        }
        if rowless.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = rowless.iter().map(|(_, key)| *key).collect();
        let rows = self.private(&keys).await?;
        for ((entry, _), row) in rowless.into_iter().zip(rows) {
            entry.copy = row.and_then(|row| side_of(&row, self.user));
        }
        Ok(())
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>, Why> {
        let asked = self.backends.history.private(keys);
        self.ask(COMPARED_UNTIL, asked).await
    }

    /// Whose row of it there is, too.
    fn other_side(&self, entry: &Entry) -> Option<(UserId, MessageId)> {
        let Body::Says(conversation, _) = entry.body else {
            return None;
        };
        Some((conversation.peer_of(self.user)?, entry.id))
    }

    /// The list, then heads, then rows.
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
                self.unread::<()>(what, Why::Late);
                break;
            }
            found.push(self.conversation(id, listed).await);
        }
        found
    }

    /// The list, and whether that is all of it.
    async fn listed(&mut self) -> (BTreeMap<ConversationId, Option<Listed>>, bool) {
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
                |one: protocol::conversation::Listed| (one.row.conversation, Some(known(one)));
            listed.extend(page.into_iter().map(known));
            if is_last {
                return (listed, true);
            }
            if listed.len() >= CONVERSATIONS {
                let text = format!("conversations beyond the first {CONVERSATIONS}");
                self.extent.left_off.push(text);
                return (listed, false);
            }
        }
    }

    /// What the list has of these.
    async fn listed_among(
        &mut self,
        conversations: Vec<ConversationId>,
    ) -> Vec<(ConversationId, Option<Listed>)> {
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

    /// Conversations of the newest rows, listed or not.
    async fn written_lately(&mut self) -> BTreeSet<ConversationId> {
        let all = IdRange::default();
        let history = &self.backends.history;
        let asked = history.find_private(self.user, all, Order::Backward, NEWEST);
        match self.ask(CONVERSATIONS_UNTIL, asked).await {
            Ok(rows) => rows.iter().filter_map(PrivateRow::conversation).collect(),
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

    async fn conversation(&mut self, id: ConversationId, listed: Option<Listed>) -> Conversation {
        let (head, head_unread) = self.head(id).await;
        let of_head = head.and_then(|head| Some((head.seq, head.last_id?)));
        let of_list = listed.map(|listed| (listed.row.end.seq, listed.row.last_id));
        let names: Vec<(Seq, MessageId)> = of_head.into_iter().chain(of_list).collect();
        let claimed = names.iter().map(|(seq, _)| *seq).max();
        let claimed = claimed.unwrap_or(Seq::ZERO);
        let skipped = Seq(claimed.0.saturating_sub(POSITIONS));
        if skipped > Seq::ZERO {
            let text = format!("positions up to {skipped} of {id}");
            self.extent.left_off.push(text);
        }
        let side = Side {
            history: self.backends.history.as_ref(),
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
            self.extent.left_off.push(text);
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

    /// A call that ends in time, and before its part of the look does.
    async fn ask<T>(
        &self,
        until: Duration,
        call: impl Future<Output = backend::Result<T>>,
    ) -> Result<T, Why> {
        let left = until.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            return Err(Why::Late);
        }
        match timeout(left.min(PATIENCE), call).await {
            Ok(answer) => answer.map_err(why),
            Err(_) if left < PATIENCE => Err(Why::Late),
            Err(_) => Err(Why::Failed(format!("no answer within {PATIENCE:?}"))),
        }
    }

    /// Names what is missing, and answers nothing instead of it.
    fn unread<T: Default>(&mut self, what: impl Into<String>, why: Why) -> T {
        self.extent.unread.push(Unread::new(what, why));
        T::default()
    }
}

fn known(listed: protocol::conversation::Listed) -> Listed {
    Listed {
        row: listed.row,
        read_seq: listed.read_seq,
        received_seq: listed.received_seq,
    }
}

fn entry(mail: &Mail) -> Entry {
    let size = mail.body.len();
    let body = match codec::decode_server(mail.body.clone(), size) {
        Ok(ServerFrame::Message(placed)) => Body::Says(placed.conversation, placed.position.seq),
        Ok(_) | Err(_) => Body::Unreadable,
    };
    Entry {
        id: mail.id,
        accepted_at: Some(mail.accepted_at),
        body,
        row: None,
        copy: None,
    }
}

fn bodiless(id: MessageId) -> Entry {
    Entry {
        id,
        accepted_at: None,
        body: Body::Gone,
        row: None,
        copy: None,
    }
}

fn place(row: &PrivateRow) -> Option<(ConversationId, Seq)> {
    Some((row.conversation()?, row.seq))
}

/// What a store's refusal means for a look.
pub(super) fn why(error: backend::Error) -> Why {
    let text = format!("{error}: {}", error.source);
    match error.kind {
        Kind::Corrupt => Why::Corrupt(text),
        Kind::Unavailable | Kind::Conflict => Why::Failed(text),
    }
}
