//! The life of one message, in order and in words.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::messages::MessageStore;
use protocol::ledger::trace::MessageLife;
use protocol::ledger::{DeadReason, FailureCause, LedgerEntry, LedgerEvent};
use protocol::mailbox::MailLocation;
use protocol::message::Target;
use protocol::{MessageId, SendId, SessionId, Timestamp, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::log::{Log, Reader};
use crate::answer::reason::Reason;
use crate::answer::{List, Time, id};

/// Limit of events, and of sentences, in one report.
const EVENTS: usize = 1000;
/// Longest wait for the mailbox: without it a trace says what the ledger knows.
const MAILBOX_WAIT: Duration = Duration::from_secs(5);

/// Life of a message.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "MessageTrace")]
pub struct Report {
    pub msg_id: String,
    /// Time at which the server accepted the message.
    pub accepted_at: Time,
    pub settled: bool,
    /// Fate of the message, then of each (user, platform), a sentence each.
    pub verdict: List<String>,
    pub events: List<Event>,
}

/// One event in the life of a message.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "MessageEvent")]
pub struct Event {
    pub at: Time,
    /// Such as `12/ios`, if the event concerns a user on a platform.
    pub target: Option<String>,
    pub event: EventDetail,
}

/// Event of the ledger. Its stored form is `protocol::ledger::LedgerEvent`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventDetail {
    /// The message got its position.
    Placed {
        conversation: String,
        seq: u64,
        #[serde(with = "id")]
        #[schemars(with = "String")]
        from: UserId,
        #[serde(with = "id")]
        #[schemars(with = "String")]
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// A change got its rev.
    Changed {
        conversation: String,
        /// Id of the changed message.
        #[serde(with = "id")]
        #[schemars(with = "String")]
        subject: MessageId,
        rev: u64,
        #[serde(with = "id")]
        #[schemars(with = "String")]
        from: UserId,
        #[serde(with = "id")]
        #[schemars(with = "String")]
        send_id: SendId,
        partition: u32,
        offset: u64,
    },
    /// A conversation list was changed.
    Listed { conversation: String },
    /// An accepted message was refused at its place in the log.
    Refused { conversation: String, why: String },
    /// A change had no effect.
    Unchanged {
        conversation: String,
        /// Id of the message that was to be changed.
        #[serde(with = "id")]
        #[schemars(with = "String")]
        subject: MessageId,
        /// Rule that refused it; null if the state was that already.
        why: Option<String>,
    },
    /// A repeat, dropped: the first one counts.
    Repeat {
        /// Id of the first one.
        #[serde(with = "id")]
        #[schemars(with = "String")]
        original: MessageId,
    },
    /// Pushed to a session.
    Pushed {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        session: SessionId,
        boat: String,
        incarnation: u64,
        attempt: u32,
    },
    /// A device acknowledged.
    Acked {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        session: SessionId,
    },
    /// Pushed to a session that is not asked for an acknowledgement.
    Written {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        session: SessionId,
    },
    /// A push failed.
    Failed {
        #[serde(with = "PushFailure")]
        cause: FailureCause,
        attempt: u32,
    },
    /// Published to a retry topic.
    Retried { attempt: u32, tier: u8 },
    /// Stored in the mailbox.
    StoredOffline,
    /// A device acknowledged mail.
    Fetched {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        session: SessionId,
    },
    /// Left to sync, which reads the message from history.
    ReachableBySync,
    /// Neither stored nor pushed, as the options wish.
    Dropped,
    /// A notification task was published.
    Notified,
    /// A provider accepted or rejected the notification.
    NotificationSent { provider: String, ok: bool },
    /// Written as a dead letter.
    Dead {
        #[serde(with = "Reason")]
        reason: DeadReason,
        /// Id of the letter.
        letter: String,
    },
    /// An operator redrove the dead letter.
    Redriven {
        /// Id of the letter.
        letter: String,
    },
    /// The record in the log needs no more work.
    Settled,
}

/// Reason of a failed push, as answers write it.
#[derive(JsonSchema, Serialize, Deserialize)]
#[serde(remote = "FailureCause", rename_all = "snake_case")]
enum PushFailure {
    /// The session did not acknowledge in time.
    NoAck,
    /// The boat has no such session.
    NoSession,
    /// The boat did not answer, or is gone.
    BoatUnreachable,
    /// The session's bounds are reached.
    SessionFull,
    /// The mailbox store did not answer.
    MailboxUnavailable,
    /// The mailbox store refused.
    MailboxRefused,
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
        text.parse()
            .map(Name::Send)
            .map_err(|_| format!("{text:?} is neither a message id (number) nor a send_id (UUID)"))
    }
}

/// Sources of a trace.
#[derive(Clone, Copy)]
pub struct Witnesses<'a> {
    pub log: &'a Log,
    pub messages: &'a dyn MessageStore,
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
        for id in self.resolve_ids(name, &mut reader).await? {
            let entries = self.ledger.trace(&[id]).await?;
            let entries: Vec<_> = entries.into_iter().flatten().collect();
            if !entries.is_empty() || reader.has(id).await? {
                lives.push(self.report(id, entries, now).await);
            }
            yield_now().await;
        }
        Ok(lives)
    }

    async fn resolve_ids(&self, name: Name, reader: &mut Reader<'_>) -> Result<Vec<MessageId>> {
        let send_id = match name {
            Name::Message(id) => return Ok(vec![id]),
            Name::Send(send_id) => send_id,
        };
        match self.messages.sent_as(send_id).await? {
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
            accepted_at: id.timestamp().into(),
            settled: life.is_settled(),
            verdict: List::of(life.verdict(&mailboxes), EVENTS),
            events: List::of(entries.into_iter().map(event), EVENTS),
        }
    }

    /// Asks the mailboxes that have the message, by the ledger, as many as a report has room for.
    async fn mailboxes(
        &self,
        life: &MessageLife,
        now: Timestamp,
    ) -> BTreeMap<Target, MailLocation> {
        let targets = life.stored_for().take(EVENTS);
        let queries: Vec<_> = targets.map(|target| (target, life.message)).collect();
        if queries.is_empty() {
            return BTreeMap::new();
        }
        let results = timeout(MAILBOX_WAIT, self.mailbox.find(&queries, now)).await;
        let results = results.unwrap_or_default();
        if let Some(error) = results.iter().find_map(|results| results.as_ref().err()) {
            tracing::info!(%error, "cannot read a mailbox for a trace");
        }
        let to_location = |((target, _), location): ((Target, _), backend::Result<_>)| {
            let location = location.ok()?;
            Some((target, location))
        };
        queries
            .into_iter()
            .zip(results)
            .filter_map(to_location)
            .collect()
    }
}

fn event(entry: LedgerEntry) -> Event {
    Event {
        at: entry.at.into(),
        target: entry.target.map(|t| format!("{}/{}", t.user, t.platform)),
        event: entry.event.into(),
    }
}

impl From<LedgerEvent> for EventDetail {
    fn from(event: LedgerEvent) -> EventDetail {
        match event {
            LedgerEvent::Placed {
                conversation,
                seq,
                from,
                send_id,
                partition,
                offset,
            } => EventDetail::Placed {
                conversation: conversation.to_string(),
                seq: seq.0,
                from,
                send_id,
                partition,
                offset,
            },
            LedgerEvent::Changed {
                conversation,
                subject,
                rev,
                from,
                send_id,
                partition,
                offset,
            } => EventDetail::Changed {
                conversation: conversation.to_string(),
                subject,
                rev,
                from,
                send_id,
                partition,
                offset,
            },
            LedgerEvent::Listed { conversation } => EventDetail::Listed {
                conversation: conversation.to_string(),
            },
            LedgerEvent::Refused {
                conversation,
                why: cause_text,
            } => EventDetail::Refused {
                conversation: conversation.to_string(),
                why: cause_text,
            },
            LedgerEvent::Unchanged {
                conversation,
                subject,
                refused,
            } => EventDetail::Unchanged {
                conversation: conversation.to_string(),
                subject,
                why: refused,
            },
            LedgerEvent::Repeat { of } => EventDetail::Repeat { original: of },
            LedgerEvent::Pushed {
                session,
                life,
                attempt,
            } => EventDetail::Pushed {
                session,
                boat: life.boat.to_string(),
                incarnation: life.incarnation.0,
                attempt,
            },
            LedgerEvent::Acked { session } => EventDetail::Acked { session },
            LedgerEvent::Written { session } => EventDetail::Written { session },
            LedgerEvent::Failed { cause, attempt } => EventDetail::Failed { cause, attempt },
            LedgerEvent::Retried { attempt, tier } => EventDetail::Retried { attempt, tier },
            LedgerEvent::StoredOffline => EventDetail::StoredOffline,
            LedgerEvent::Fetched { session } => EventDetail::Fetched { session },
            LedgerEvent::ReachableBySync => EventDetail::ReachableBySync,
            LedgerEvent::Dropped => EventDetail::Dropped,
            LedgerEvent::Notified => EventDetail::Notified,
            LedgerEvent::NotificationSent { provider, ok } => {
                EventDetail::NotificationSent { provider, ok }
            }
            LedgerEvent::Dead { reason, letter } => EventDetail::Dead { reason, letter },
            LedgerEvent::Redriven { letter } => EventDetail::Redriven { letter },
            LedgerEvent::Settled => EventDetail::Settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::presence::BoatLife;
    use protocol::{BoatId, ConversationId, Incarnation, Seq};
    use serde_json::{Value, json};

    use super::*;

    /// One event of each kind.
    fn events() -> Vec<LedgerEvent> {
        let user = |number| UserId::new(number).expect("positive");
        let conversation = ConversationId::private(user(1), user(i64::MAX)).expect("two users");
        let message = MessageId::new(i64::MAX).expect("positive");
        let session = SessionId::new(i64::MAX).expect("positive");
        let (from, send_id) = (user(1), SendId::from_bytes([7; 16]));
        let (subject, letter) = (message, "message-0-1".to_owned());
        let (seq, rev, partition, offset, attempt) = (Seq(3), 4, 5, 6, 1);
        let reason = "a rule".to_owned();
        vec![
            LedgerEvent::Placed {
                conversation,
                seq,
                from,
                send_id,
                partition,
                offset,
            },
            LedgerEvent::Changed {
                conversation,
                subject,
                rev,
                from,
                send_id,
                partition,
                offset,
            },
            LedgerEvent::Listed { conversation },
            LedgerEvent::Refused {
                conversation,
                why: reason.clone(),
            },
            LedgerEvent::Unchanged {
                conversation,
                subject,
                refused: Some(reason),
            },
            LedgerEvent::Repeat { of: message },
            LedgerEvent::Pushed {
                session,
                life: BoatLife {
                    boat: BoatId::new("boat-1").expect("a name"),
                    incarnation: Incarnation(4),
                },
                attempt,
            },
            LedgerEvent::Acked { session },
            LedgerEvent::Written { session },
            LedgerEvent::Failed {
                cause: FailureCause::NoAck,
                attempt,
            },
            LedgerEvent::Retried { attempt, tier: 2 },
            LedgerEvent::StoredOffline,
            LedgerEvent::Fetched { session },
            LedgerEvent::ReachableBySync,
            LedgerEvent::Dropped,
            LedgerEvent::Notified,
            LedgerEvent::NotificationSent {
                provider: "webhook".to_owned(),
                ok: true,
            },
            LedgerEvent::Dead {
                reason: DeadReason::TooLarge,
                letter: letter.clone(),
            },
            LedgerEvent::Redriven { letter },
            LedgerEvent::Settled,
        ]
    }

    fn shown(event: LedgerEvent) -> Value {
        let detail = EventDetail::from(event);
        let json = serde_json::to_value(&detail).expect("JSON");
        let back: EventDetail = serde_json::from_value(json.clone()).expect("back");
        assert_eq!(back, detail);
        json
    }

    #[test]
    fn an_event_says_its_type_and_comes_back() {
        let types = events()
            .into_iter()
            .map(|event| shown(event)["type"].clone());
        let expected = [
            "placed",
            "changed",
            "listed",
            "refused",
            "unchanged",
            "repeat",
            "pushed",
            "acked",
            "written",
            "failed",
            "retried",
            "stored_offline",
            "fetched",
            "reachable_by_sync",
            "dropped",
            "notified",
            "notification_sent",
            "dead",
            "redriven",
            "settled",
        ];
        assert_eq!(types.collect::<Vec<_>>(), expected.map(Value::from));
    }

    #[test]
    fn ids_are_text_and_enums_are_in_snake_case() {
        let all: Vec<Value> = events().into_iter().map(shown).collect();
        let large = "9223372036854775807";
        assert_eq!(all[0]["conversation"], format!("p:1:{large}"));
        assert_eq!((&all[0]["from"], &all[0]["seq"]), (&json!("1"), &json!(3)));
        assert_eq!(all[5]["original"], large);
        assert_eq!(all[6]["session"], large);
        assert_eq!(all[9]["cause"], "no_ack");
        assert_eq!(all[17]["reason"], "too_large");
    }
}
