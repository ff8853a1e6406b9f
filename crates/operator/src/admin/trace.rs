//! The life of one message, in order and in words.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use protocol::ledger::LedgerEntry;
use protocol::ledger::trace::MessageLife;
use protocol::mailbox::MailLocation;
use protocol::message::Target;
use protocol::{MessageId, SendId, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::log::{Log, Reader};
use super::truncated::Shortlist;

/// Limit of events, and of sentences, in one report.
const EVENTS: usize = 1000;
/// Longest wait for the mailbox: without it a trace says what the ledger knows.
const MAILBOX_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub msg_id: String,
    /// Time at which the server accepted the message, milliseconds since 1970.
    pub accepted_at: i64,
    pub settled: bool,
    /// Fate of the message, then of each (user, platform), a sentence each.
    pub verdict: Shortlist<String>,
    pub events: Shortlist<Event>,
}

/// One event in the life of a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub at: i64,
    /// `user/platform`, if the event concerns one.
    pub target: Option<String>,
    pub event: protocol::ledger::LedgerEvent,
}

/// A message id, or the send_id that a client gave it.
#[derive(Clone, Copy, Debug)]
pub enum Name {
    Message(MessageId),
    Send(SendId),
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        if let Ok(id) = text.parse() {
            return Ok(Name::Message(id));
        }
        text.parse().map(Name::Send).map_err(|_| {
            format!("{text:?} is neither a message id (a number) nor a send_id (a UUID)")
        })
    }
}

/// Sources of a trace.
#[derive(Clone, Copy)]
pub struct Witnesses<'a> {
    pub log: &'a Log,
    pub history: &'a dyn HistoryStore,
    pub ledger: &'a dyn LedgerStore,
    pub mailbox: &'a dyn MailboxStore,
}

impl Witnesses<'_> {
    /// Lives of all messages of that name: one, or none if nothing is known of it. Reads the log
    /// only for names that history and the ledger do not know, and asks the mailbox only for
    /// messages that the ledger believes there.
    ///
    /// # Errors
    /// `Busy` if others read the log for long before this question begins; a log or a ledger that
    /// does not answer.
    pub async fn trace(&self, name: Name, now: Timestamp) -> Result<Vec<Report>> {
        let (mut lives, mut reader) = (Vec::new(), self.log.reader());
        for id in self.named(name, &mut reader).await? {
            let entries = self.ledger.trace(&[id]).await?;
            let entries: Vec<_> = entries.into_iter().flatten().collect();
            if !entries.is_empty() || reader.has(id).await? {
                lives.push(self.report(id, entries, now).await);
            }
            yield_now().await;
        }
        Ok(lives)
    }

    async fn named(&self, name: Name, reader: &mut Reader<'_>) -> Result<Vec<MessageId>> {
        let send_id = match name {
            Name::Message(id) => return Ok(vec![id]),
            Name::Send(send_id) => send_id,
        };
        match self.history.sent_as(send_id).await? {
            sent if sent.is_empty() => reader.sent_as(send_id).await,
            sent => Ok(sent.into_iter().map(|(_, id)| id).collect()),
        }
    }

    async fn report(&self, id: MessageId, mut entries: Vec<LedgerEntry>, now: Timestamp) -> Report {
        entries.sort_by_key(|entry| entry.at);
        let life = MessageLife::of(id, &entries);
        let mailboxes = self.mailboxes(&life, now).await;
        Report {
            msg_id: id.to_string(),
            accepted_at: id.timestamp().millis(),
            settled: life.is_settled(),
            verdict: Shortlist::of(life.verdict(&mailboxes), EVENTS),
            events: Shortlist::of(entries.into_iter().map(event), EVENTS),
        }
    }

    /// Asks the mailboxes that have the message, by the ledger, as many as a report has room for.
    async fn mailboxes(
        &self,
        life: &MessageLife,
        now: Timestamp,
    ) -> BTreeMap<Target, MailLocation> {
        let targets = life.stored_for().take(EVENTS);
        let asked: Vec<_> = targets.map(|target| (target, life.message)).collect();
        if asked.is_empty() {
            return BTreeMap::new();
        }
        let found = timeout(MAILBOX_WAIT, self.mailbox.find(&asked, now)).await;
        let found = found.unwrap_or_default();
        if let Some(error) = found.iter().find_map(|found| found.as_ref().err()) {
            tracing::info!(%error, "a mailbox did not answer a trace");
        }
        let answered = |((target, _), found): ((Target, _), backend::Result<_>)| {
            let found = found.ok()?;
            Some((target, found))
        };
        asked.into_iter().zip(found).filter_map(answered).collect()
    }
}

fn event(entry: LedgerEntry) -> Event {
    Event {
        at: entry.at.millis(),
        target: entry.target.map(|t| format!("{}/{}", t.user, t.platform)),
        event: entry.event,
    }
}
