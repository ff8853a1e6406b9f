//! Judges of any system at rest, whatever its test was about: the audit, the log against history,
//! changes, groups, registers and lists, and the doctor.

use std::collections::{BTreeMap, BTreeSet};

use api::task::Value;
use backend::Backends;
use backend::queue::Partition;
use operator::Access;
use operator::admin::audit;
use operator::admin::doctor::{self, Stores};
use operator::admin::log::Log;
use operator::admin::{Doctor, Operators};
use operator::doctor::CheckVerdict;
use operator::lifecycle::Phases;
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
const ALL: usize = 100_000;
/// Records of the log read at a time.
const PAGE: usize = 500;

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
        let users: BTreeSet<UserId> = log.iter().flat_map(users_of).collect();
        let mut model = Model::of(&log);
        let rows = rows(self.backends, &users, model.talks.keys()).await;
        let rows = rows.map_err(text)?;
        let ledger = ledger(self.backends, &log).await.map_err(text)?;
        let late = late(&log, &ledger);
        let in_time = log.iter().filter_map(message_of);
        let in_time = in_time.filter(|(_, of)| of.is_some_and(|of| !late.contains(&of)));
        let evidence = Evidence {
            rows: &rows,
            ledger: &ledger,
            devices: Vec::new(),
            standing: Vec::new(),
            accepted: &BTreeMap::new(),
            asked: &in_time.map(|(id, _)| id).collect(),
            repeats: &BTreeMap::new(),
            late: &BTreeSet::new(),
        };
        evidence.judge_history()?;
        model.talks.retain(|of, _| !late.contains(of));
        let talks = model.talks.keys().copied();
        let stored = StoredConversation::read(self.backends, talks).await;
        let stored = stored.map_err(text)?;
        evidence.judge_changes(&model, &stored)?;
        evidence.judge_overlays(&model, &stored)?;
        evidence.judge_groups(&model, &stored)?;
        evidence.judge_registers(&model, &stored)?;
        evidence.judge_fates(&model, &stored, |_| true)?;
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
        match report.balanced && report.in_flight == 0 {
            true => Ok(()),
            false => Err(format!("the audit says {report:?}")),
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
        let incoming = talk.view().iter().filter(|said| said.from != owner).count();
        match (end.seq, end.incoming) == (talk.end(), incoming as u64) {
            true => Ok(()),
            false => Err(format!(
                "the list of {owner} has {conversation} up to {end:?}, \
                 the log {incoming} of others up to {}",
                talk.end()
            )),
        }
    }

    /// Examines the stores of each user, as a doctor does.
    async fn examine(&self, users: BTreeSet<UserId>) -> Result<(), String> {
        for user in users {
            let report = self.doctor.examine(user).await;
            let report = report.expect("it sees the stores");
            // Warnings are of sessions that come and go, and of mail that has expired.
            let mut differences = report.differences.items.iter();
            if let Some(found) = differences.find(|it| it.verdict == CheckVerdict::Failure) {
                return Err(format!("the doctor says of {user}: {found:?}"));
            }
        }
        Ok(())
    }
}

/// Conversations with a message that was a dead letter once: it may have its place later than the
/// log says, or none.
fn late(log: &[Work], ledger: &Ledger) -> BTreeSet<ConversationId> {
    let messages = log.iter().filter_map(message_of);
    let late = messages.filter_map(|(id, conversation)| {
        let mut events = ledger.get(&id)?.iter().map(|entry| &entry.event);
        let is_late = events.any(|event| matches!(event, LedgerEvent::Dead { .. }));
        conversation.filter(|_| is_late)
    });
    late.collect()
}

/// Checks that history has the messages of the log, in its order.
fn judge_order(
    owner: UserId,
    conversation: ConversationId,
    talk: &Talk,
    rows: &Rows,
) -> Result<(), String> {
    let own = rows.values().filter(|row| row.owner == Owner::User(owner));
    let own = own.filter(|row| row.placed.conversation == conversation);
    let mut got: Vec<(Seq, MessageId)> = own.map(|row| (row.seq(), row.id())).collect();
    got.sort_unstable();
    let said = talk.view();
    let expected: Vec<(Seq, MessageId)> = said.iter().map(|said| (said.seq, said.id)).collect();
    match got == expected {
        true => Ok(()),
        false => Err(format!(
            "history of {owner} has {got:?} of {conversation}, the log {expected:?}"
        )),
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
    let groups = conversations.into_iter().filter_map(|of| match of {
        ConversationId::Group(group) => Some(Owner::Group(*group)),
        ConversationId::Private { .. } | ConversationId::System(_) => None,
    });
    let owners = users.iter().copied().map(Owner::User).chain(groups);
    let (mut rows, all) = (Rows::new(), IdRange::default());
    for owner in owners {
        let messages = backends.messages.find(owner, all, Order::Forward, ALL);
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
    let ids = log.iter().filter_map(message_of).map(|(id, _)| id);
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
    let (queue, topic) = (&backends.queue, Topic::Message);
    let mut accepted = Vec::new();
    for number in 0..queue.partitions(topic) {
        let partition = Partition { topic, number };
        let (mut next, end) = queue.bounds(partition).await?;
        while next < end {
            let records = queue.read(partition, next, PAGE).await?;
            next = records.last().expect("it has not ended").offset + 1;
            let tasks = records.into_iter().map(|record| Task::decode(record.value));
            accepted.extend(tasks.map(|task| task.expect("a task").work));
        }
    }
    Ok(accepted)
}

/// Id and conversation of a message of the log.
pub fn message_of(work: &Work) -> Option<(MessageId, Option<ConversationId>)> {
    match work {
        Work::Message(task) => Some((task.message.id, task.message.conversation())),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

/// Sender and recipient of a message.
fn users_of(work: &Work) -> Vec<UserId> {
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
