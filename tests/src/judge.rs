//! Judges of any system at rest, whatever its test was about: the audit, the log against history,
//! changes, groups, registers and lists, and the doctor.

use std::collections::{BTreeMap, BTreeSet};

use api::task::Value;
use backend::Backends;
use backend::queue::Partition;
use operator::audit::log::Log;
use operator::doctor::rules::CheckVerdict;
use operator::doctor::{self, Doctor, Stores};
use operator::lifecycle::Phases;
use operator::port::Operators;
use operator::{Access, audit};
use protocol::history::{IdRange, Order};
use protocol::keys::Topic;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::message_row::{MessageRow, Owner};
use protocol::record::{Task, Work};
use protocol::{ConversationId, MessageId, Recipient, Seq, UserId};
use server::settings::Settings;

use crate::conversations::StoredConversation;
use crate::evidence::Evidence;
use crate::model::{Model, Talk};

/// Upper bound of the rows of an owner.
const MAX_ROWS: usize = 100_000;
/// Records of the log read at a time.
const PAGE_SIZE: usize = 500;

pub type Rows = BTreeMap<(Owner, MessageId), MessageRow>;
pub type Ledger = BTreeMap<MessageId, Vec<LedgerEntry>>;

/// Judges over the parts as the services have them.
pub(crate) struct Judges<'a> {
    backends: &'a Backends,
    doctor: Doctor,
}

impl<'a> Judges<'a> {
    pub(crate) fn new(backends: &'a Backends, settings: &Settings) -> Judges<'a> {
        let doctor = Doctor::new(doctor::Parts {
            settings: settings.for_doctor(),
            role: None,
            stores: Stores::Memory,
            access: Access::from(backends),
            phases: Phases::default(),
            operators: Operators::default(),
            desk: None,
            certificates: None,
        });
        Judges { backends, doctor }
    }

    /// Judges everything that the log accepted.
    ///
    /// # Errors
    /// The first thing wrong, or not yet right.
    pub(crate) async fn judge(&self) -> Result<(), String> {
        self.audit().await?;
        let log = accepted(self.backends).await.map_err(text)?;
        let users: BTreeSet<UserId> = log.iter().flat_map(message_users).collect();
        let mut model = Model::of(&log);
        let rows = rows(self.backends, &users, model.talks.keys()).await;
        let rows = rows.map_err(text)?;
        let ledger = ledger(self.backends, &log).await.map_err(text)?;
        let late_conversations = late_conversations(&log, &ledger);
        let timely = log.iter().filter_map(message_key);
        let timely = timely.filter(|(_, conversation_id)| {
            conversation_id
                .is_some_and(|conversation_id| !late_conversations.contains(&conversation_id))
        });
        let evidence = Evidence {
            rows: &rows,
            ledger: &ledger,
            devices: Vec::new(),
            complete_devices: Vec::new(),
            accepted_ids: &BTreeMap::new(),
            judged_ids: &timely.map(|(id, _)| id).collect(),
            repeats: &BTreeMap::new(),
            late_ids: &BTreeSet::new(),
            open_letters: &BTreeSet::new(),
        };
        evidence.judge_history()?;
        model
            .talks
            .retain(|conversation_id, _| !late_conversations.contains(conversation_id));
        let talks = model.talks.keys().copied();
        let conversations = StoredConversation::read(self.backends, talks).await;
        let conversations = conversations.map_err(text)?;
        evidence.judge_changes(&model, &conversations)?;
        evidence.judge_overlays(&model, &conversations)?;
        evidence.judge_groups(&model, &conversations)?;
        evidence.judge_registers(&model, &conversations)?;
        evidence.judge_fates(&model, &conversations, |_| true)?;
        for (conversation, talk) in &model.talks {
            if let ConversationId::Private { low, high } = *conversation {
                for owner in [low, high] {
                    judge_order(owner, *conversation, talk, &rows)?;
                    self.judge_row(owner, *conversation, talk).await?;
                }
            }
        }
        self.examine(users).await
    }

    /// Audits the books, as an operator does.
    async fn audit(&self) -> Result<(), String> {
        let report = audit_all(self.backends).await?;
        if report.balanced && report.in_flight == 0 {
            Ok(())
        } else {
            Err(format!("the audit says {report:?}"))
        }
    }

    /// Checks that a user's list has the end of the conversation.
    async fn judge_row(
        &self,
        owner: UserId,
        conversation: ConversationId,
        talk: &Talk,
    ) -> Result<(), String> {
        let key = [(owner, conversation)];
        let entries = self.backends.conversations.get(&key).await.map_err(text)?;
        let end = entries[0].map(|entry| entry.row.end).unwrap_or_default();
        let incoming_count = talk
            .view()
            .iter()
            .filter(|message| message.from != owner)
            .count();
        if (end.seq, end.incoming) == (talk.end(), incoming_count as u64) {
            Ok(())
        } else {
            Err(format!(
                "the list of {owner} has {conversation} up to {end:?}, \
                 the log {incoming_count} of others up to {}",
                talk.end()
            ))
        }
    }

    /// Examines the stores of each user, as a doctor does.
    async fn examine(&self, users: BTreeSet<UserId>) -> Result<(), String> {
        for user in users {
            let report = self.doctor.examine(user).await;
            let report = report.expect("it sees the stores");
            // Warnings are of sessions that come and go, and of mail that has expired.
            let mut differences = report.differences.items.iter();
            if let Some(difference) = differences.find(|it| it.verdict == CheckVerdict::Failure) {
                return Err(format!("the doctor says of {user}: {difference:?}"));
            }
        }
        Ok(())
    }
}

/// Conversations with a message that was a dead letter once: it may have its place later than the
/// log says, or none.
fn late_conversations(log: &[Work], ledger: &Ledger) -> BTreeSet<ConversationId> {
    let messages = log.iter().filter_map(message_key);
    let late_conversations = messages.filter_map(|(id, conversation)| {
        let mut events = ledger.get(&id)?.iter().map(|entry| &entry.event);
        let is_late = events.any(|event| matches!(event, LedgerEvent::Dead { .. }));
        conversation.filter(|_| is_late)
    });
    late_conversations.collect()
}

/// Checks that history has the messages of the log, in its order.
fn judge_order(
    owner: UserId,
    conversation: ConversationId,
    talk: &Talk,
    rows: &Rows,
) -> Result<(), String> {
    let own_rows = rows.values().filter(|row| row.owner == Owner::User(owner));
    let own_rows = own_rows.filter(|row| row.placed.conversation == conversation);
    let mut actual: Vec<(Seq, MessageId)> = own_rows.map(|row| (row.seq(), row.id())).collect();
    actual.sort_unstable();
    let messages = talk.view();
    let expected: Vec<(Seq, MessageId)> = messages
        .iter()
        .map(|messages| (messages.seq, messages.id))
        .collect();
    if actual == expected {
        Ok(())
    } else {
        Err(format!(
            "history of {owner} has {actual:?} of {conversation}, the log {expected:?}"
        ))
    }
}

/// Messages of these users, and of the groups among these conversations.
///
/// # Errors
/// The store does not answer.
pub async fn rows(
    backends: &Backends,
    users: &BTreeSet<UserId>,
    conversations: impl IntoIterator<Item = &ConversationId>,
) -> backend::Result<Rows> {
    let groups = conversations
        .into_iter()
        .filter_map(|conversation| match conversation {
            ConversationId::Group(group) => Some(Owner::Group(*group)),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        });
    let owners = users.iter().copied().map(Owner::User).chain(groups);
    let (mut rows, full_range) = (Rows::new(), IdRange::default());
    for owner in owners {
        let messages = backends
            .messages
            .find(owner, full_range, Order::Forward, MAX_ROWS);
        for row in messages.await? {
            rows.insert((owner, row.id()), row);
        }
    }
    Ok(rows)
}

/// Entries of the ledger about each message of the log.
///
/// # Errors
/// The ledger does not answer.
pub async fn ledger(backends: &Backends, log: &[Work]) -> backend::Result<Ledger> {
    let ids = log.iter().filter_map(message_key).map(|(id, _)| id);
    let ids: Vec<MessageId> = ids.collect();
    let entries = backends.ledger.trace(&ids).await?;
    Ok(ids.into_iter().zip(entries).collect())
}

/// Audits the books from their beginning, as an operator does.
///
/// # Errors
/// The log or the ledger does not answer.
pub async fn audit_all(backends: &Backends) -> Result<audit::Report, String> {
    let log = Log::new(backends.queue.clone());
    let question = audit::AuditQuestion {
        all: true,
        ..audit::AuditQuestion::default()
    };
    let (ledger, now) = (backends.ledger.as_ref(), backends.clock.now());
    let report = audit::audit(&log, ledger, &question, now).await;
    report.map_err(|error| error.to_string())
}

/// Records of topic `message`, partition by partition in order.
///
/// # Errors
/// The log does not answer.
pub async fn accepted(backends: &Backends) -> backend::Result<Vec<Work>> {
    let records = accepted_records(backends).await?;
    Ok(records.into_iter().map(|(_, work)| work).collect())
}

/// The same, each with its offset in its partition.
///
/// # Errors
/// The log does not answer.
pub async fn accepted_records(backends: &Backends) -> backend::Result<Vec<(u64, Work)>> {
    let (queue, topic) = (&backends.queue, Topic::Message);
    let mut works = Vec::new();
    for number in 0..queue.partitions(topic) {
        let partition = Partition { topic, number };
        let (mut next, end) = queue.bounds(partition).await?;
        while next < end {
            let records = queue.read(partition, next, PAGE_SIZE).await?;
            next = records.last().expect("it has not ended").offset + 1;
            works.extend(records.into_iter().map(|record| {
                let task = Task::decode(record.value).expect("a task");
                (record.offset, task.work)
            }));
        }
    }
    Ok(works)
}

/// Id and conversation of a message of the log.
pub fn message_key(work: &Work) -> Option<(MessageId, Option<ConversationId>)> {
    match work {
        Work::Message(task) => Some((task.message.id, task.message.conversation())),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

/// Sender and recipient of a message.
fn message_users(work: &Work) -> Vec<UserId> {
    let Work::Message(task) = work else {
        return Vec::new();
    };
    match task.message.to {
        Recipient::User(to) => vec![task.message.from, to],
        Recipient::Group(_) => vec![task.message.from],
    }
}

fn text(error: backend::Error) -> String {
    error.to_string()
}
