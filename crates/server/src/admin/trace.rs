//! The life of one message, in order and in words.

use anyhow::Result;
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use protocol::ledger::LedgerEntry;
use protocol::ledger::trace::Life;
use protocol::{MessageId, SendId};
use serde::{Deserialize, Serialize};

use super::log;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub msg_id: String,
    /// When the server accepted it, milliseconds since 1970.
    pub accepted_at: i64,
    pub settled: bool,
    /// What became of it, a sentence each: the message, then each (user, platform).
    pub verdict: Vec<String>,
    pub events: Vec<Event>,
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

/// The lives of all messages of that name: one, or none if nothing is known of it.
pub async fn trace(queue: &dyn Queue, ledger: &dyn LedgerStore, name: Name) -> Result<Vec<Report>> {
    let ids = match name {
        Name::Message(id) => vec![id],
        Name::Send(send_id) => match ledger.sent_as(send_id).await? {
            ids if ids.is_empty() => log::sent_as(queue, send_id).await?,
            ids => ids,
        },
    };
    let mut lives = Vec::new();
    for (id, entries) in ids.iter().zip(ledger.trace(&ids).await?) {
        if !entries.is_empty() || is_in_log(queue, *id).await? {
            lives.push(report(*id, entries));
        }
    }
    Ok(lives)
}

async fn is_in_log(queue: &dyn Queue, id: MessageId) -> Result<bool> {
    let at = id.timestamp();
    let next = at + std::time::Duration::from_millis(1);
    Ok(log::accepted(queue, at, next)
        .await?
        .messages
        .contains_key(&id))
}

fn report(id: MessageId, mut entries: Vec<LedgerEntry>) -> Report {
    entries.sort_by_key(|entry| entry.at);
    let life = Life::of(id, &entries);
    Report {
        msg_id: id.to_string(),
        accepted_at: id.timestamp().millis(),
        settled: life.is_settled(),
        verdict: life.verdict(),
        events: entries
            .into_iter()
            .map(|entry| Event {
                at: entry.at.millis(),
                target: entry.target.map(|t| format!("{}/{}", t.user, t.platform)),
                event: entry.event,
            })
            .collect(),
    }
}
