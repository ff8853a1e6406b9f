//! Records that a carrier publishes: retries, dead letters, notifications.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::dead_letter::{DeadLetter, Origin};
use api::task::{DeliverTask, NotificationTask, Task, Work};
use backend::queue::{NewRecord, Partition, Queue};
use bytes::Bytes;
use protocol::change::ChangeKind;
use protocol::delivery::{self, Letter, Owed, Retry, Settlement};
use protocol::frame::{ListDeed, ListWord, ServerFrame};
use protocol::group::Role;
use protocol::keys::{self, Topic};
use protocol::notify::Notification;
use protocol::{Placed, Timestamp, TraceContext, UserId};

use crate::batch::Effects;
use crate::work::{Spoilt, key_of};

/// Makes records for the topics of one queue.
#[derive(Clone)]
pub(crate) struct Records {
    queue: Arc<dyn Queue>,
    carrier: Arc<str>,
}

impl Records {
    pub(crate) fn new(queue: Arc<dyn Queue>, carrier: &str) -> Records {
        Records {
            queue,
            carrier: carrier.into(),
        }
    }

    fn record(&self, topic: Topic, key: Bytes, value: Bytes) -> NewRecord {
        let number = keys::partition_of(&key, self.queue.partitions(topic));
        NewRecord {
            partition: Partition { topic, number },
            key,
            headers: Vec::new(),
            value,
        }
    }

    /// Any task, on the topic that it belongs on now.
    pub(crate) fn task(&self, topic: Topic, task: &Task) -> Option<NewRecord> {
        let key = Bytes::copy_from_slice(&key_of(&task.work)?);
        Some(NewRecord {
            headers: task.headers(),
            ..self.record(topic, key, task.encode())
        })
    }

    /// Exactly these bytes, under this key.
    pub(crate) fn raw(&self, topic: Topic, key: Bytes, value: Bytes) -> NewRecord {
        self.record(topic, key, value)
    }

    pub(crate) fn letter(&self, letter: &DeadLetter, key: Bytes, value: Bytes) -> NewRecord {
        let mut record = self.record(Topic::Dead, key, value);
        record.headers = letter.to_headers();
        record
    }

    pub(crate) fn spoilt(&self, spoilt: &Spoilt, now: Timestamp) -> NewRecord {
        let letter = spoilt.letter(now, &self.carrier);
        let raw = &spoilt.record;
        self.letter(&letter, raw.key.clone(), raw.value.clone())
    }

    fn notification(&self, notification: Notification, trace: Option<TraceContext>) -> NewRecord {
        let key = keys::control_key(notification.target.user);
        let task = NotificationTask {
            notification,
            retry_count: 0,
            trace,
        };
        let key = Bytes::copy_from_slice(&key);
        NewRecord {
            headers: task.headers(),
            ..self.record(Topic::Notification, key, task.encode())
        }
    }

    /// What a settlement wants to be durable.
    pub(crate) fn settlement(&self, settlement: Settlement, now: Timestamp) -> Effects {
        let mut records = Vec::new();
        let task = &settlement.task;
        for retry in &settlement.retries {
            records.extend(self.retry(task, retry));
        }
        if let Some(letter) = &settlement.letter {
            records.push(self.max_retries(&settlement, letter, now));
        }
        for notification in &settlement.notifications {
            let target = Some(notification.target);
            let trace = task.trace;
            let trace = trace.map(|trace| trace.delivery(settlement.source, target));
            records.push(self.notification(*notification, trace));
        }
        Effects {
            source: settlement.source,
            records,
            ledger: settlement.ledger,
        }
    }

    fn retry(&self, task: &delivery::Task, retry: &Retry) -> Option<NewRecord> {
        let again = deliver_task(
            task,
            &retry.owed,
            retry.retry_count,
            retry.due_at,
            retry.cause.text(),
        );
        self.task(Topic::Retry(retry.tier), &again)
    }

    fn max_retries(&self, settlement: &Settlement, letter: &Letter, now: Timestamp) -> NewRecord {
        let (task, source) = (&settlement.task, settlement.source);
        let dead = DeadLetter {
            origin: Origin {
                topic: source.topic,
                partition: source.partition,
                offset: source.offset,
            },
            message: Some(task.placed.message.id),
            conversation: Some(task.placed.conversation),
            targets: letter.owed.iter().flat_map(Owed::targets).collect(),
            retry_count: task.retry_count,
            first_failed_at: task.first_at,
            last_failed_at: now,
            reason: letter.reason,
            error_message: letter.cause.text().to_owned(),
            carrier: self.carrier.to_string(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            trace: task.trace,
            parent: task.letter.as_deref().map(str::to_owned),
        };
        let cause = letter.cause.text();
        let value = deliver_task(task, &letter.owed, task.retry_count, now, cause).encode();
        let key = keys::record_key(task.placed.conversation);
        self.letter(&dead, Bytes::copy_from_slice(&key), value)
    }
}

/// The task as it is queued again, for what is still owed.
fn deliver_task(
    task: &delivery::Task,
    owed: &[Owed],
    retry_count: u32,
    due_at: Timestamp,
    cause: &str,
) -> Task {
    let live = owed.iter().filter(|owed| owed.live);
    Task {
        retry_count,
        first_at: task.first_at,
        trace: task.trace,
        work: Work::Deliver(DeliverTask {
            placed: task.placed.clone(),
            rev: task.rev,
            targets: owed.iter().flat_map(Owed::targets).collect(),
            live_users: live.map(|owed| owed.user).collect(),
            due_at,
            cause: cause.to_owned(),
            letter: task.letter.as_deref().map(str::to_owned),
        }),
    }
}

/// The reverse: what a queued delivery owes.
pub(crate) fn owed_of(task: &DeliverTask) -> Vec<Owed> {
    let mut owed: Vec<Owed> = Vec::new();
    let mut known: BTreeMap<UserId, usize> = BTreeMap::new();
    let mut place = |user: UserId| {
        *known.entry(user).or_insert_with(|| {
            owed.push(Owed {
                user,
                platforms: Vec::new(),
                live: false,
            });
            owed.len() - 1
        })
    };
    let places: Vec<usize> = task.targets.iter().map(|t| place(t.user)).collect();
    let live: Vec<usize> = task.live_users.iter().map(|user| place(*user)).collect();
    for (place, target) in places.into_iter().zip(&task.targets) {
        if !owed[place].platforms.contains(&target.platform) {
            owed[place].platforms.push(target.platform);
        }
    }
    live.into_iter().for_each(|place| owed[place].live = true);
    owed
}

/// How users stand in a group.
pub(crate) type Roles = BTreeMap<UserId, Option<Role>>;

/// What a record says of its sender's list, if it does.
fn list_deed(placed: &Placed) -> Option<ListDeed> {
    match placed.message.content.change.as_deref()?.kind {
        ChangeKind::Clear => Some(ListDeed::Cleared(placed.position.seq)),
        ChangeKind::Arrange(arranged) => Some(ListDeed::Arranged(arranged)),
        // Whoever is told of it has a frame of their own.
        ChangeKind::Wish(_) => Some(ListDeed::Member(None)),
        ChangeKind::Recall | ChangeKind::Edit | ChangeKind::React { .. } => None,
    }
}

fn list_frame(placed: &Placed, deed: ListDeed) -> Bytes {
    api::codec::encode_server(&ServerFrame::Listed(ListWord {
        id: placed.message.id,
        send_id: placed.message.send_id,
        conversation: placed.conversation,
        deed,
    }))
}

/// The record is a wish about a group.
pub(crate) fn is_wish(placed: &Placed) -> bool {
    let change = placed.message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Wish(_)))
}

/// What each of these is told of a wish; nothing where the record is none.
pub(crate) fn frames_of(placed: &Placed, roles: &Roles) -> BTreeMap<UserId, Bytes> {
    if !is_wish(placed) {
        return BTreeMap::new();
    }
    let mut frames: BTreeMap<Option<Role>, Bytes> = BTreeMap::new();
    let frames = roles.iter().map(|(user, role)| {
        let frame = frames.entry(*role);
        let frame = frame.or_insert_with(|| list_frame(placed, ListDeed::Member(*role)));
        (*user, frame.clone())
    });
    frames.collect()
}

/// What every session gets: the message, or the change that it is.
pub(crate) fn frame_of(placed: &Placed, rev: u64, trace: Option<TraceContext>) -> Bytes {
    if let Some(deed) = list_deed(placed) {
        return list_frame(placed, deed);
    }
    match placed.changed(rev) {
        Some(changed) => api::codec::encode_server(&ServerFrame::Changed {
            conversation: placed.conversation,
            changed,
        }),
        None => api::codec::encode_traced(placed, trace),
    }
}

/// A queued delivery as the machine takes it; `roles`: how those stand now who are told of a wish.
pub(crate) fn task_of(task: Task, deliver: DeliverTask, roles: &Roles) -> delivery::Task {
    delivery::Task {
        own_frames: frames_of(&deliver.placed, roles),
        owed: owed_of(&deliver),
        frame: frame_of(&deliver.placed, deliver.rev, task.trace),
        placed: deliver.placed,
        rev: deliver.rev,
        retry_count: task.retry_count,
        first_at: task.first_at,
        origin: None,
        letter: deliver.letter.map(Arc::from),
        trace: task.trace,
        noted: Vec::new(),
    }
}
