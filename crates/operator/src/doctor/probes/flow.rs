//! Checks of the flow: progress of consumers, clocks, dead letters, closed minutes.

use std::sync::Arc;
use std::time::Duration;

use backend::Result;
use backend::queue::{Partition, Queue};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::Timestamp;
use protocol::keys::{CARRIERS, HORNS, RETRY_TIERS, Topic};
use tokio::time::timeout;

use crate::answer::Time;
use crate::dead_letters::Stats;
use crate::doctor::rules::{
    Backlog, Check, ClosedMinutes, Finding, Inspection, Letters, LogClock, Progress, WaitingLetters,
};
use crate::doctor::{ANSWER_TIMEOUT, Doctor, SCAN_TIMEOUT, look};
use crate::port::desk::Desk;

/// Partitions asked at the same time.
const MAX_CONCURRENT_READS: usize = 8;

impl Doctor {
    fn now(&self) -> Timestamp {
        use backend::clock::{Clock, SystemClock};
        let all_backends = self.parts.access.backends.as_ref();
        all_backends.map_or_else(|| SystemClock.now(), |backends| backends.clock.now())
    }

    /// Progress of carriers and horns, by their committed offsets.
    pub(in crate::doctor) async fn progress(&self) -> Vec<Finding> {
        let Some(queue) = &self.parts.access.queue else {
            return Vec::new();
        };
        let delays = &self.parts.settings.retry_delays;
        let tiers = (1..=RETRY_TIERS).zip(delays);
        let message_topics = tiers.map(|(tier, delay)| (Topic::Retry(tier), *delay));
        let message_topics = message_topics
            .chain([(Topic::Message, Duration::ZERO)])
            .collect();
        let notification_topics = vec![(Topic::Notification, Duration::ZERO)];
        let (carriers, horns) = tokio::join!(
            look(SCAN_TIMEOUT, backlogs(queue, CARRIERS, message_topics)),
            look(SCAN_TIMEOUT, backlogs(queue, HORNS, notification_topics)),
        );
        let now = self.now();
        let finding = |check, backlogs| {
            let progress = Progress {
                check,
                now,
                backlogs,
            };
            progress.finding()
        };
        vec![
            finding(Check::Carriers, carriers),
            finding(Check::Horns, horns),
        ]
    }

    /// Newest timestamp that other processes wrote by their clocks, against the clock here.
    pub(in crate::doctor) async fn log_clock(&self) -> Vec<Finding> {
        let Some(queue) = &self.parts.access.queue else {
            return Vec::new();
        };
        let query = async {
            let newest = newest(queue).await?;
            let head = match &self.parts.access.backends {
                Some(backends) => backends.audit.head().await?,
                None => None,
            };
            let head = head.map(|head| (head.at, "the audit".to_owned()));
            Ok(newest.max(head))
        };
        let newest = look(SCAN_TIMEOUT, query).await;
        let now = self.now();
        vec![LogClock { now, newest }.finding()]
    }

    pub(in crate::doctor) async fn letters(&self) -> Vec<Finding> {
        let Some(desk) = &self.parts.desk else {
            return Vec::new();
        };
        let waiting_letters = match timeout(SCAN_TIMEOUT, count_letters(desk)).await {
            Ok(Ok(waiting_letters)) => Inspection::Saw(waiting_letters),
            Ok(Err(error)) => Inspection::Failed(format!("{error:#}")),
            Err(_) => Inspection::Late(SCAN_TIMEOUT),
        };
        let now = self.now();
        vec![
            Letters {
                now,
                waiting_letters,
            }
            .finding(),
        ]
    }

    pub(in crate::doctor) async fn closed_minutes(&self) -> Vec<Finding> {
        let audit = &self.parts.settings.audit;
        let Some(backends) = self
            .parts
            .access
            .backends
            .as_ref()
            .filter(|_| audit.continuous)
        else {
            return Vec::new();
        };
        let head = look(ANSWER_TIMEOUT, backends.audit.head()).await;
        let minutes = ClosedMinutes {
            now: self.now(),
            uptime: self.started_at.elapsed(),
            settle: audit.settle,
            closed_until: head.map(|head| head.map(|head| head.until)),
        };
        vec![minutes.finding()]
    }
}

async fn backlogs(
    queue: &Arc<dyn Queue>,
    group: &str,
    topics: Vec<(Topic, Duration)>,
) -> Result<Vec<Backlog>> {
    let partitions = topics.into_iter().flat_map(|(topic, delay)| {
        let numbers = 0..queue.partitions(topic);
        numbers.map(move |number| (Partition { topic, number }, delay))
    });
    let partitions: Vec<_> = partitions.collect();
    stream::iter(partitions)
        .map(|(partition, delay)| backlog(queue, group, partition, delay))
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await
}

/// Backlog of a partition. Reads the committed offset first: the bounds can only be further on.
async fn backlog(
    queue: &Arc<dyn Queue>,
    group: &str,
    partition: Partition,
    delay: Duration,
) -> Result<Backlog> {
    let committed_offset = queue.committed(group, partition).await?;
    let (first, end) = queue.bounds(partition).await?;
    let next = committed_offset.unwrap_or(first).max(first);
    let oldest = if next < end {
        queue.read(partition, next, 1).await?.into_iter().next()
    } else {
        None
    };
    Ok(Backlog {
        topic: partition.topic,
        partition: partition.number,
        first,
        end,
        committed_offset,
        oldest_at: oldest.map(|record| record.appended_at),
        delay,
    })
}

/// Append time of the newest record in topic `message`, and its partition.
async fn newest(queue: &Arc<dyn Queue>) -> Result<Option<(Timestamp, String)>> {
    let topic = Topic::Message;
    let newest: Vec<_> = stream::iter(0..queue.partitions(topic))
        .map(|number| find_newest(queue, Partition { topic, number }))
        .buffer_unordered(MAX_CONCURRENT_READS)
        .try_collect()
        .await?;
    Ok(newest.into_iter().flatten().max())
}

async fn find_newest(
    queue: &Arc<dyn Queue>,
    partition: Partition,
) -> Result<Option<(Timestamp, String)>> {
    let (first, end) = queue.bounds(partition).await?;
    if first == end {
        return Ok(None);
    }
    let newest = queue.read(partition, end - 1, 1).await?;
    let Partition { topic, number } = partition;
    let newest = newest.first().map(|record| record.appended_at);
    Ok(newest.map(|at| (at, format!("{topic}/{number}"))))
}

/// Letters that are neither redriven nor discarded.
async fn count_letters(desk: &Desk) -> anyhow::Result<WaitingLetters> {
    let _turn = desk.log.turn().await?;
    Ok(count_waiting(&desk.letters.stats().await?))
}

fn count_waiting(stats: &Stats) -> WaitingLetters {
    let summaries = stats.reasons.iter().map(|reason| &reason.summary);
    let open = |letters: u64, redriven: u64, discarded: u64| {
        letters.saturating_sub(redriven.saturating_add(discarded))
    };
    let mut total = WaitingLetters {
        uncounted_letters: stats.uncounted,
        ..WaitingLetters::default()
    };
    for summary in summaries {
        let letters = open(summary.letters, summary.redriven, summary.discarded);
        total.letters += letters;
        // The oldest letter of a reason may be among those already redriven or discarded.
        let oldest = summary.oldest.filter(|_| letters == summary.letters);
        let oldest = oldest.map(Time::at);
        total.oldest = total.oldest.into_iter().chain(oldest).min();
    }
    let causes = stats.causes.items.iter().map(|cause| {
        let summary = &cause.summary;
        (
            open(summary.letters, summary.redriven, summary.discarded),
            &cause.cause,
        )
    });
    let main_cause = causes.max_by_key(|(letters, _)| *letters);
    total.cause = main_cause
        .filter(|(letters, _)| *letters > 0)
        .map(|(_, cause)| cause.to_string());
    total
}
