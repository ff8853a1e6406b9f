//! Checks of the flow: progress of consumers, clocks, dead letters, closed minutes.

use std::sync::Arc;
use std::time::Duration;

use backend::Result;
use backend::queue::{Partition, Queue};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::Timestamp;
use protocol::keys::{CARRIERS, HORNS, RETRY_TIERS, Topic};
use tokio::time::timeout;

use super::{Doctor, MORE_PATIENCE, PATIENCE, look};
use crate::admin::api::Desk;
use crate::answer::Time;
use crate::dead_letters::Stats;
use crate::doctor::{
    Backlog, Check, ClosedMinutes, Finding, Inspection, Letters, LogClock, Progress, WaitingLetters,
};

/// Partitions asked at the same time.
const TOGETHER: usize = 8;

impl Doctor {
    fn now(&self) -> Timestamp {
        use backend::clock::{Clock, SystemClock};
        let whole = self.parts.access.whole.as_ref();
        whole.map_or_else(|| SystemClock.now(), |backends| backends.clock.now())
    }

    /// Progress of carriers and horns, by their committed offsets.
    pub(super) async fn progress(&self) -> Vec<Finding> {
        let Some(queue) = &self.parts.access.queue else {
            return Vec::new();
        };
        let delays = &self.parts.settings.retry_delays;
        let tiers = (1..=RETRY_TIERS).zip(delays);
        let carried = tiers.map(|(tier, delay)| (Topic::Retry(tier), *delay));
        let carried = carried.chain([(Topic::Message, Duration::ZERO)]).collect();
        let notified = vec![(Topic::Notification, Duration::ZERO)];
        let (carriers, horns) = tokio::join!(
            look(MORE_PATIENCE, backlogs(queue, CARRIERS, carried)),
            look(MORE_PATIENCE, backlogs(queue, HORNS, notified)),
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
    pub(super) async fn log_clock(&self) -> Vec<Finding> {
        let Some(queue) = &self.parts.access.queue else {
            return Vec::new();
        };
        let asked = async {
            let newest = newest(queue).await?;
            let head = match &self.parts.access.whole {
                Some(backends) => backends.audit.head().await?,
                None => None,
            };
            let head = head.map(|head| (head.at, "the audit".to_owned()));
            Ok(newest.max(head))
        };
        let newest = look(MORE_PATIENCE, asked).await;
        let now = self.now();
        vec![LogClock { now, newest }.finding()]
    }

    pub(super) async fn letters(&self) -> Vec<Finding> {
        let Some(desk) = &self.parts.desk else {
            return Vec::new();
        };
        let waiting = match timeout(MORE_PATIENCE, counted(desk)).await {
            Ok(Ok(waiting)) => Inspection::Saw(waiting),
            Ok(Err(error)) => Inspection::Failed(format!("{error:#}")),
            Err(_) => Inspection::Late(MORE_PATIENCE),
        };
        let now = self.now();
        vec![Letters { now, waiting }.finding()]
    }

    pub(super) async fn closed_minutes(&self) -> Vec<Finding> {
        let audit = &self.parts.settings.audit;
        let Some(backends) = self
            .parts
            .access
            .whole
            .as_ref()
            .filter(|_| audit.continuous)
        else {
            return Vec::new();
        };
        let head = look(PATIENCE, backends.audit.head()).await;
        let minutes = ClosedMinutes {
            now: self.now(),
            up: self.began.elapsed(),
            settle: audit.settle,
            until: head.map(|head| head.map(|head| head.until)),
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
        .buffer_unordered(TOGETHER)
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
    let committed = queue.committed(group, partition).await?;
    let (first, end) = queue.bounds(partition).await?;
    let next = committed.unwrap_or(first).max(first);
    let oldest = match next < end {
        true => queue.read(partition, next, 1).await?.into_iter().next(),
        false => None,
    };
    Ok(Backlog {
        topic: partition.topic,
        partition: partition.number,
        first,
        end,
        committed,
        since: oldest.map(|record| record.appended_at),
        delay,
    })
}

/// Append time of the newest record in topic `message`, and its partition.
async fn newest(queue: &Arc<dyn Queue>) -> Result<Option<(Timestamp, String)>> {
    let topic = Topic::Message;
    let newest: Vec<_> = stream::iter(0..queue.partitions(topic))
        .map(|number| newest_of(queue, Partition { topic, number }))
        .buffer_unordered(TOGETHER)
        .try_collect()
        .await?;
    Ok(newest.into_iter().flatten().max())
}

async fn newest_of(
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
async fn counted(desk: &Desk) -> anyhow::Result<WaitingLetters> {
    let _turn = desk.log.turn().await?;
    Ok(waiting(&desk.letters.stats().await?))
}

fn waiting(stats: &Stats) -> WaitingLetters {
    let summaries = stats.reasons.iter().map(|reason| &reason.summary);
    let open = |letters: u64, redriven: u64, discarded: u64| {
        letters.saturating_sub(redriven.saturating_add(discarded))
    };
    let mut waiting = WaitingLetters {
        uncounted: stats.uncounted,
        ..WaitingLetters::default()
    };
    for summary in summaries {
        let letters = open(summary.letters, summary.redriven, summary.discarded);
        waiting.letters += letters;
        // The oldest letter of a reason may be among those already redriven or discarded.
        let oldest = summary.oldest.filter(|_| letters == summary.letters);
        let oldest = oldest.map(Time::at);
        waiting.oldest = waiting.oldest.into_iter().chain(oldest).min();
    }
    let causes = stats.causes.items.iter().map(|cause| {
        let summary = &cause.summary;
        (
            open(summary.letters, summary.redriven, summary.discarded),
            &cause.cause,
        )
    });
    let most = causes.max_by_key(|(letters, _)| *letters);
    waiting.cause = most
        .filter(|(letters, _)| *letters > 0)
        .map(|(_, cause)| cause.to_string());
    waiting
}
