//! A log behind a hook, along with its producers and consumers.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use protocol::keys::Topic;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Consumer, NewRecord, Partition, Polled, Producer, Queue, Record};
use crate::Result;
use crate::hook::{Fate, Hook, Hooked, Names, Op, failures, merge, sort};

/// Names of the calls below, written by hand because no macro collects them.
pub(crate) const NAMES: Names = Names {
    seam: "queue",
    calls: &[
        "subscribe",
        "read",
        "bounds",
        "committed",
        "publish",
        "poll",
        "commit",
    ],
    kinds: &[
        "message",
        "retry",
        "dead",
        "notification",
        "notification-dead",
        "operation",
    ],
};

#[async_trait]
impl Queue for Hooked<dyn Queue> {
    fn producer(&self) -> Arc<dyn Producer> {
        Hooked::new(self.inner.producer(), &self.hook)
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        let op = op("subscribe", topic);
        let inner = self.whole(op, self.inner.subscribe(group, topic)).await?;
        Ok(Box::new(HookedConsumer {
            inner: Some(inner),
            pending_poll: None,
            hook: self.hook.clone(),
            topic,
        }))
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.inner.partitions(topic)
    }

    fn epoch(&self) -> u32 {
        self.inner.epoch()
    }

    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>> {
        let op = partition_op("read", partition);
        self.hook.before(&op).await?;
        let mut records = self.inner.read(partition, from, max).await?;
        records.retain(|record| self.hook.shows(&op, record));
        self.hook.after(&op, records.len()).await?;
        Ok(records)
    }

    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        let op = partition_op("bounds", partition);
        self.whole(op, self.inner.bounds(partition)).await
    }

    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        let op = partition_op("committed", partition);
        self.whole(op, self.inner.committed(group, partition)).await
    }
}

/// Makes one call per kind of topic, so that none waits for another.
#[async_trait]
impl Producer for Hooked<dyn Producer> {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let publish = |records| async {
            let answers = self.publish_kind(records).await;
            answers.into_iter().map(Some).collect()
        };
        let answers = each_kind(records, publish).await;
        answers.into_iter().flatten().collect()
    }

    async fn publish_within(
        &self,
        records: Vec<NewRecord>,
        time_limit: Duration,
    ) -> Vec<Option<Result<u64>>> {
        let deadline = Instant::now() + time_limit;
        each_kind(records, |records| {
            self.publish_kind_until(records, deadline)
        })
        .await
    }
}

impl Hooked<dyn Producer> {
    async fn publish_kind(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let (op, count) = (publish_op(&records), records.len());
        if let Err(error) = self.hook.before(&op).await {
            return failures(&error, count);
        }
        let fates: Vec<Fate> = records.iter().map(|new| self.hook.publish(new)).collect();
        let answers = match sort(&fates, records) {
            none if none.is_empty() => Vec::new(),
            to_publish => self.inner.publish(to_publish).await,
        };
        let success_count = answers.iter().filter(|answer| answer.is_ok()).count();
        match self.hook.after(&op, success_count).await {
            Ok(()) => merge(fates, answers).await,
            Err(error) => failures(&error, count),
        }
    }

    async fn publish_kind_until(
        &self,
        records: Vec<NewRecord>,
        deadline: Instant,
    ) -> Vec<Option<Result<u64>>> {
        let (op, count) = (publish_op(&records), records.len());
        let all_failed = |error| failures(&error, count).into_iter().map(Some).collect();
        let no_answers = || (0..count).map(|_| None).collect();
        match timeout_at(deadline, self.hook.before(&op)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return all_failed(error),
            Err(_) => return no_answers(),
        }
        let fates: Vec<Fate> = records.iter().map(|new| self.hook.publish(new)).collect();
        let remaining = deadline.saturating_duration_since(Instant::now());
        let publish = self.inner.publish_within(sort(&fates, records), remaining);
        let answers = publish.await;
        if fates.iter().any(|fate| matches!(fate, Fate::Hang)) {
            sleep_until(deadline).await;
        }
        let is_done = |answer: &&Option<Result<u64>>| matches!(answer, Some(Ok(_)));
        let success_count = answers.iter().filter(is_done).count();
        match timeout_at(deadline, self.hook.after(&op, success_count)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return all_failed(error),
            Err(_) => return no_answers(),
        }
        let mut answers = answers.into_iter();
        let results = fates.into_iter().map(|fate| match fate {
            Fate::Pass => answers.next().flatten(),
            Fate::Fail(error) => Some(Err(error)),
            Fate::Hang => None,
        });
        results.collect()
    }
}

/// Publishes once per kind of topic; answers are in record order.
async fn each_kind<P>(
    records: Vec<NewRecord>,
    publish: impl Fn(Vec<NewRecord>) -> P,
) -> Vec<Option<Result<u64>>>
where
    P: Future<Output = Vec<Option<Result<u64>>>>,
{
    let mut order = Vec::with_capacity(records.len());
    let mut kinds: BTreeMap<&str, Vec<NewRecord>> = BTreeMap::new();
    for record in records {
        order.push(kind(record.partition.topic));
        kinds
            .entry(kind(record.partition.topic))
            .or_default()
            .push(record);
    }
    let publishes = kinds.into_iter().map(|(kind, records)| {
        let answers = publish(records);
        async move { (kind, answers.await.into_iter()) }
    });
    let mut answers: BTreeMap<&str, _> = join_all(publishes).await.into_iter().collect();
    let next = |kind: &str| answers.get_mut(kind).and_then(Iterator::next).flatten();
    order.into_iter().map(next).collect()
}

/// Describes a publish of records of one kind.
fn publish_op(records: &[NewRecord]) -> Op {
    let numbers = records
        .iter()
        .map(|record| u64::from(record.partition.number));
    Op {
        has_effect: true,
        subjects: numbers.collect(),
        kind: records
            .first()
            .map_or("", |record| kind(record.partition.topic)),
        ..Op::new(NAMES.seam, "publish")
    }
}

struct HookedConsumer {
    /// `None` once the process has ended and the member has left its group.
    inner: Option<Box<dyn Consumer>>,
    /// Polled from the member but not yet handed out, because a poll may be dropped.
    pending_poll: Option<Polled>,
    hook: Arc<dyn Hook>,
    topic: Topic,
}

impl HookedConsumer {
    async fn poll_member(&mut self, max: usize) -> Result<Polled> {
        let op = op("poll", self.topic);
        if self.pending_poll.is_none() {
            self.hook.before(&op).await?;
        }
        loop {
            if self.pending_poll.is_some() {
                self.hook.after(&op, 1).await?;
            }
            if let Some(outcome) = self.pending_poll.take() {
                return Ok(outcome);
            }
            let Some(inner) = &mut self.inner else {
                return pending().await;
            };
            let mut outcome = inner.poll(max).await?;
            if let Polled::Records(records) = &mut outcome {
                records.retain(|record| self.hook.shows(&op, record));
                if records.is_empty() {
                    continue;
                }
            }
            self.pending_poll = Some(outcome);
        }
    }
}

#[async_trait]
impl Consumer for HookedConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        let hook = self.hook.clone();
        tokio::select! {
            biased;
            () = hook.ended() => {}
            outcome = self.poll_member(max) => return outcome,
        }
        self.inner = None;
        pending().await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        if let Some(inner) = &mut self.inner {
            inner.pause(partitions);
        }
    }

    fn resume(&mut self, partitions: &[Partition]) {
        if let Some(inner) = &mut self.inner {
            inner.resume(partitions);
        }
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        let op = Op {
            has_effect: true,
            subjects: next
                .iter()
                .map(|(partition, _)| u64::from(partition.number))
                .collect(),
            ..op("commit", self.topic)
        };
        self.hook.before(&op).await?;
        let Some(inner) = &mut self.inner else {
            return pending().await;
        };
        inner.commit(next).await?;
        self.hook.after(&op, 1).await
    }
}

fn op(name: &'static str, topic: Topic) -> Op {
    Op {
        kind: kind(topic),
        ..Op::new(NAMES.seam, name)
    }
}

fn partition_op(name: &'static str, partition: Partition) -> Op {
    Op {
        subjects: vec![u64::from(partition.number)],
        ..op(name, partition.topic)
    }
}

/// Name of the topic's kind; all retry topics are one kind.
const fn kind(topic: Topic) -> &'static str {
    match topic {
        Topic::Message => "message",
        Topic::Retry(_) => "retry",
        Topic::Dead => "dead",
        Topic::Notification => "notification",
        Topic::NotificationDead => "notification-dead",
        Topic::Operation => "operation",
    }
}
