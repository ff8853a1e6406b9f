//! Reads the log as the operators' commands need it: what was accepted, and what is still carried.

use std::collections::BTreeMap;

use anyhow::Result;
use api::task::{MessageTask, Task, Work};
use backend::queue::{Partition, Queue, Record};
use protocol::keys::{RETRY_TIERS, Topic};
use protocol::ledger::audit::Carried;
use protocol::{MessageId, SendId, Timestamp};

/// The consumer group of carriers.
const GROUP: &str = "carrier";
/// Records read at a time.
const PAGE: usize = 1000;

/// Goes over all kept records of a topic, oldest first in each partition.
async fn each(
    queue: &dyn Queue,
    topic: Topic,
    uncommitted_only: bool,
    mut seen: impl FnMut(&Record),
) -> Result<()> {
    for number in 0..queue.partitions(topic) {
        let partition = Partition { topic, number };
        let committed = queue.committed(GROUP, partition).await?.unwrap_or(0);
        let (first, end) = queue.bounds(partition).await?;
        let mut next = if uncommitted_only {
            committed.max(first)
        } else {
            first
        };
        while next < end {
            let records = queue.read(partition, next, PAGE).await?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            for record in &records {
                seen(record);
            }
        }
    }
    Ok(())
}

/// What the log accepted between two moments, and how many of its records are none of ours.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    pub(super) messages: BTreeMap<MessageId, SendId>,
    pub(super) unreadable: u64,
}

pub(super) async fn accepted(
    queue: &dyn Queue,
    since: Timestamp,
    until: Timestamp,
) -> Result<Accepted> {
    let mut accepted = Accepted::default();
    each(queue, Topic::Message, false, |record| {
        match Task::decode(record.value.clone()) {
            Ok(Task {
                work: Work::Message(MessageTask { message, .. }),
                ..
            }) => {
                if (since..until).contains(&message.accepted_at) {
                    accepted.messages.insert(message.id, message.send_id);
                }
            }
            Ok(_) => {}
            Err(_) => accepted.unreadable += 1,
        }
    })
    .await?;
    Ok(accepted)
}

/// What records that nobody has committed carry: they will be done, or done again.
pub(super) async fn carried(queue: &dyn Queue) -> Result<Carried> {
    let mut carried = Carried::default();
    let topics = (1..=RETRY_TIERS).map(Topic::Retry).chain([Topic::Message]);
    for topic in topics {
        each(queue, topic, true, |record| {
            match Task::decode(record.value.clone()) {
                Ok(Task {
                    work: Work::Message(task),
                    ..
                }) => carried.add_message(task.message.id),
                Ok(Task {
                    work: Work::Deliver(task),
                    ..
                }) => {
                    carried.add_targets(task.placed.message.id, task.targets);
                }
                Ok(Task {
                    work: Work::Kickout(_),
                    ..
                })
                | Err(_) => {}
            }
        })
        .await?;
    }
    Ok(carried)
}

/// The ids under which the log has a send: normally one.
pub(super) async fn sent_as(queue: &dyn Queue, send_id: SendId) -> Result<Vec<MessageId>> {
    let accepted = accepted(queue, Timestamp::ZERO, Timestamp::MAX).await?;
    let ids = accepted
        .messages
        .into_iter()
        .filter(|(_, sent)| *sent == send_id);
    Ok(ids.map(|(id, _)| id).collect())
}
