//! Reads what the stores keep of a user, in the order that `protocol::doctor::user` asks for: whoever writes
//! meanwhile only adds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::codec;
use backend::discovery::Role;
use protocol::doctor::user::{Body, Chart, Conversation, Entry, Listed, Mailbox};
use protocol::frame::ServerFrame;
use protocol::history::{IdRange, Order, PrivateRow};
use protocol::mailbox::Mail;
use protocol::message::Target;
use protocol::presence::Denied;
use protocol::{ConversationId, MessageId, Platform, Seq, Timestamp, UserId};
use tokio::time::{Instant, timeout};

use super::scan::{Scan, Side, side_of};
use crate::compose::Seams;

/// How long one call to a store may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long conversations are looked at; of those that are left it is told how many.
const TIME: Duration = Duration::from_secs(15);
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
    pub(super) left_off: Vec<String>,
}

/// Reads all of it.
///
/// # Errors
/// A store that does not answer, or holds something else that cannot be read.
pub(super) async fn chart(seams: &Seams, user: UserId) -> Result<(Chart, Extent)> {
    let reader = Reader { seams, user };
    let mut extent = Extent::default();
    let now = seams.clock.now();
    let one = [user];
    let asked = seams.mailbox.sessions(&one, Denied::default());
    let answered = within("asking for sessions", async { Ok(asked.await) }).await?;
    let sessions = answered
        .into_iter()
        .next()
        .ok_or_else(|| anyhow!("the mailbox gave no answer"))?
        .map_err(spoken)
        .context("asking for sessions")?;
    let roster = within(
        "asking discovery for boats",
        seams.registry.watch(Role::Boat),
    )
    .await?;
    let boats = roster
        .borrow()
        .iter()
        .map(|instance| instance.life.clone())
        .collect();
    let waiting = reader.waiting(now, &mut extent).await?;
    let conversations = reader.conversations(&mut extent).await?;
    let mail = reader.compared(waiting).await?;
    let chart = Chart {
        user,
        now,
        sessions,
        boats,
        mail,
        conversations,
    };
    Ok((chart, extent))
}

struct Reader<'a> {
    seams: &'a Seams,
    user: UserId,
}

impl Reader<'_> {
    async fn waiting(&self, now: Timestamp, extent: &mut Extent) -> Result<Vec<Mailbox>> {
        let mut mailboxes = Vec::new();
        for platform in Platform::ALL.into_iter().filter(|p| p.keeps_mail()) {
            let target = Target {
                user: self.user,
                platform,
            };
            let (mut entries, mut after) = (Vec::new(), None);
            loop {
                let asked = self.seams.mailbox.page(target, after, PAGE, now);
                let page = within("reading mail", asked).await?;
                entries.extend(page.mails.iter().map(entry));
                entries.extend(page.bodiless.into_iter().map(bodiless));
                after = page.next;
                if after.is_none() {
                    break;
                }
                if entries.len() >= MAILS {
                    let all = within("counting mail", self.seams.mailbox.waiting(target)).await?;
                    let rest = all.saturating_sub(entries.len() as u64);
                    let text = format!("of the mail on {platform} about {rest} newer messages");
                    extent.left_off.push(text);
                    break;
                }
            }
            if !entries.is_empty() {
                mailboxes.push(Mailbox { platform, entries });
            }
        }
        Ok(mailboxes)
    }

    /// What history has of each message that waits.
    async fn compared(&self, mut mailboxes: Vec<Mailbox>) -> Result<Vec<Mailbox>> {
        for mailbox in &mut mailboxes {
            for entries in mailbox.entries.chunks_mut(PAGE) {
                let keys: Vec<_> = entries.iter().map(|entry| (self.user, entry.id)).collect();
                let rows = within("reading history", self.seams.history.private(&keys)).await?;
                for (entry, row) in entries.iter_mut().zip(rows) {
                    match row {
                        Some(row) => entry.row = place(&row),
                        None => entry.copy = self.copy(entry).await?,
                    }
                }
            }
        }
        Ok(mailboxes)
    }

    /// What can be made of the other side's row.
    async fn copy(&self, entry: &Entry) -> Result<Option<PrivateRow>> {
        let Body::Says(conversation, _) = entry.body else {
            return Ok(None);
        };
        let Some(peer) = conversation.peer_of(self.user) else {
            return Ok(None);
        };
        let key = [(peer, entry.id)];
        let rows = within("reading history", self.seams.history.private(&key)).await?;
        let row = rows.into_iter().flatten().next();
        Ok(row.and_then(|row| side_of(&row, self.user)))
    }

    /// The list, then heads, then rows.
    async fn conversations(&self, extent: &mut Extent) -> Result<Vec<Conversation>> {
        let mut listed = self.listed(extent).await?;
        for conversation in self.written_lately().await? {
            listed.entry(conversation).or_insert(None);
        }
        let began = Instant::now();
        let (mut found, all) = (Vec::new(), listed.len());
        for (id, listed) in listed {
            if began.elapsed() >= TIME {
                let rest = all - found.len();
                extent
                    .left_off
                    .push(format!("{rest} conversations, as it took too long"));
                break;
            }
            found.push(self.conversation(id, listed, extent).await?);
        }
        Ok(found)
    }

    async fn listed(
        &self,
        extent: &mut Extent,
    ) -> Result<BTreeMap<ConversationId, Option<Listed>>> {
        let mut listed = BTreeMap::new();
        let mut after = None;
        loop {
            let asked = self
                .seams
                .conversations
                .changed(self.user, Timestamp::ZERO, after, PAGE);
            let page = within("reading the conversation list", asked).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|one| one.row.conversation);
            listed.extend(page.into_iter().map(|one| {
                let known = Listed {
                    row: one.row,
                    read_seq: one.read_seq,
                    received_seq: one.received_seq,
                };
                (one.row.conversation, Some(known))
            }));
            if is_last {
                return Ok(listed);
            }
            if listed.len() >= CONVERSATIONS {
                let text = format!("conversations beyond the first {CONVERSATIONS}");
                extent.left_off.push(text);
                return Ok(listed);
            }
        }
    }

    /// Conversations of the newest rows, listed or not.
    async fn written_lately(&self) -> Result<BTreeSet<ConversationId>> {
        let all = IdRange::default();
        let asked = self
            .seams
            .history
            .find_private(self.user, all, Order::Backward, NEWEST);
        let rows = within("reading history", asked).await?;
        Ok(rows.iter().filter_map(PrivateRow::conversation).collect())
    }

    async fn conversation(
        &self,
        id: ConversationId,
        listed: Option<Listed>,
        extent: &mut Extent,
    ) -> Result<Conversation> {
        let heads = within("reading heads", self.seams.heads.load(&[id])).await?;
        let head = heads.into_iter().next().flatten();
        let of_head = head.and_then(|head| Some((head.seq, head.last_id?)));
        let of_list = listed.map(|listed| (listed.row.position.seq, listed.row.last_id));
        let names: Vec<(Seq, MessageId)> = of_head.into_iter().chain(of_list).collect();
        let claimed = names.iter().map(|(seq, _)| *seq).max();
        let claimed = claimed.unwrap_or(Seq::ZERO);
        let skipped = Seq(claimed.0.saturating_sub(POSITIONS));
        if skipped > Seq::ZERO {
            let text = format!("positions up to {skipped} of {id}");
            extent.left_off.push(text);
        }
        let side = Side {
            history: self.seams.history.as_ref(),
            owner: self.user,
            conversation: id,
        };
        // Its calls have the stores' own deadlines; together they have what the whole examination has.
        let asked = side.scan(skipped, claimed, names);
        let asked = timeout(TIME, asked).await;
        let Scan {
            newest,
            max_id,
            holes,
            rows,
            given_up,
            ..
        } = asked
            .map_err(|_| anyhow!("history takes longer than {TIME:?} for {id}"))?
            .map_err(spoken)
            .context("reading history")?;
        extent.rows += rows;
        if let Some(last) = given_up {
            let text = format!("positions of {id} after {last}, as there are too many holes");
            extent.left_off.push(text);
        }
        Ok(Conversation {
            id,
            listed,
            head,
            newest,
            max_id,
            holes,
            skipped,
        })
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

/// A call under a deadline; its error says what was being done.
async fn within<T>(
    doing: &'static str,
    call: impl Future<Output = backend::Result<T>>,
) -> Result<T> {
    match timeout(PATIENCE, call).await {
        Ok(answer) => answer.map_err(spoken).context(doing),
        Err(_) => Err(anyhow!("no answer within {PATIENCE:?}").context(doing)),
    }
}

fn spoken(error: backend::Error) -> anyhow::Error {
    anyhow!("{error}: {}", error.source)
}
