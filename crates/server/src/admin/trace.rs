//! The life of one message, in order and in words.

use anyhow::Result;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use protocol::ledger::LedgerEntry;
use protocol::ledger::trace::Life;
use protocol::{MessageId, SendId};
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;

use super::log::Log;
use super::shortlist::Shortlist;

/// Events, and sentences, of one report.
const EVENTS: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub msg_id: String,
    /// When the server accepted it, milliseconds since 1970.
    pub accepted_at: i64,
    pub settled: bool,
    /// What became of it, a sentence each: the message, then each (user, platform).
    pub verdict: Shortlist<String>,
    pub events: Shortlist<Event>,
}

/// One thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub at: i64,
    /// `user/platform`, where it concerns one.
    pub target: Option<String>,
    pub event: protocol::ledger::Event,
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

/// The lives of all messages of that name: one, or none if nothing is known of it. The log is read only
/// for what history and the ledger do not know.
///
/// # Errors
/// `Busy`, where another question is reading the log; a log or a ledger that does not answer.
pub async fn trace(
    log: &Log,
    history: &dyn HistoryStore,
    ledger: &dyn LedgerStore,
    name: Name,
) -> Result<Vec<Report>> {
    let ids = match name {
        Name::Message(id) => vec![id],
        Name::Send(send_id) => match history.sent_as(send_id).await? {
            sent if sent.is_empty() => log.turn().await?.sent_as(send_id).await?,
            sent => sent.into_iter().map(|(_, id)| id).collect(),
        },
    };
    let mut lives = Vec::new();
    for id in ids {
        let entries: Vec<_> = ledger.trace(&[id]).await?.into_iter().flatten().collect();
        if !entries.is_empty() || log.turn().await?.has(id).await? {
            lives.push(report(id, entries));
        }
        yield_now().await;
    }
    Ok(lives)
}

fn report(id: MessageId, mut entries: Vec<LedgerEntry>) -> Report {
    entries.sort_by_key(|entry| entry.at);
    let life = Life::of(id, &entries);
    Report {
        msg_id: id.to_string(),
        accepted_at: id.timestamp().millis(),
        settled: life.is_settled(),
        verdict: Shortlist::of(life.verdict(), EVENTS),
        events: Shortlist::of(entries.into_iter().map(event), EVENTS),
    }
}

fn event(entry: LedgerEntry) -> Event {
    Event {
        at: entry.at.millis(),
        target: entry.target.map(|t| format!("{}/{}", t.user, t.platform)),
        event: entry.event,
    }
}
