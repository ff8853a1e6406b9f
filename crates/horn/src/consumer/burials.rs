//! Dead letters on their way into the log, partition by partition: an unavailable partition holds
//! back its own letters, and neither those of others nor outcomes that need none.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use backend::queue::{NewRecord, Producer};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::delivery::Source;
use tokio::time::Instant;

use super::STORE_RETRY_PAUSE;
use super::settle::{AttemptEnd, RECORD_MAX, STORE_TIMEOUT};

pub(super) struct Burials {
    producer: Arc<dyn Producer>,
    lanes: BTreeMap<u32, Lane>,
    calls: FuturesUnordered<Pin<Box<dyn Future<Output = Burial> + Send>>>,
}

/// Letters of one partition, with at most one call in flight.
#[derive(Default)]
struct Lane {
    pending: Vec<(NewRecord, AttemptEnd)>,
    in_flight: Vec<Source>,
    /// Earliest next try after the log failed to take them.
    not_before: Option<Instant>,
}

/// A finished call.
pub(super) struct Burial {
    partition: u32,
    ends: Vec<AttemptEnd>,
    failures: Vec<(NewRecord, AttemptEnd)>,
    error: Option<backend::Error>,
}

impl Burials {
    pub(super) fn new(producer: Arc<dyn Producer>) -> Burials {
        Burials {
            producer,
            lanes: BTreeMap::new(),
            calls: FuturesUnordered::new(),
        }
    }

    pub(super) fn add(&mut self, letter: NewRecord, end: AttemptEnd) {
        let lane = self.lanes.entry(letter.partition.number).or_default();
        lane.pending.push((letter, end));
    }

    pub(super) fn len(&self) -> usize {
        let lanes = self.lanes.values();
        lanes
            .map(|lane| lane.pending.len() + lane.in_flight.len())
            .sum()
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = Source> {
        self.lanes.values().flat_map(|lane| {
            let pending = lane.pending.iter().map(|(_, end)| end.source);
            pending.chain(lane.in_flight.iter().copied())
        })
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Earliest time at which `begin` has a call to make again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let idle_lanes = self.lanes.values().filter(|lane| lane.in_flight.is_empty());
        idle_lanes.filter_map(|lane| lane.not_before).min()
    }

    /// Starts a call for each partition that has letters and none in flight.
    pub(super) fn begin(&mut self, now: Instant) {
        for (&partition, lane) in &mut self.lanes {
            let is_resting = lane.not_before.is_some_and(|at| at > now);
            if lane.pending.is_empty() || !lane.in_flight.is_empty() || is_resting {
                continue;
            }
            lane.not_before = None;
            let count = lane.pending.len().min(RECORD_MAX);
            let batch: Vec<_> = lane.pending.drain(..count).collect();
            lane.in_flight = batch.iter().map(|(_, end)| end.source).collect();
            let call = bury(self.producer.clone(), partition, batch);
            self.calls.push(Box::pin(call));
        }
    }

    /// Returns the next call to finish; pending for ever if none is in flight. Cancel safe.
    pub(super) async fn wait(&mut self) -> Burial {
        match self.calls.next().await {
            Some(burial) => burial,
            None => std::future::pending().await,
        }
    }

    /// Returns the outcomes whose letters the log has. Failed letters go back in front of newer
    /// ones, so that letters stay in order.
    pub(super) fn finish(&mut self, burial: Burial, now: Instant) -> Vec<AttemptEnd> {
        let lane = self.lanes.entry(burial.partition).or_default();
        lane.in_flight.clear();
        if let Some(error) = burial.error {
            let pending_count = burial.failures.len() + lane.pending.len();
            let partition = burial.partition;
            tracing::warn!(%error, partition, waiting = pending_count, "cannot write dead letters");
            lane.not_before = Some(now + STORE_RETRY_PAUSE);
        }
        lane.pending.splice(..0, burial.failures);
        if lane.pending.is_empty() {
            self.lanes.remove(&burial.partition);
        }
        burial.ends
    }
}

/// Publishes these letters of one partition.
async fn bury(
    producer: Arc<dyn Producer>,
    partition: u32,
    batch: Vec<(NewRecord, AttemptEnd)>,
) -> Burial {
    let letters = batch.iter().map(|(letter, _)| letter.clone()).collect();
    let answers = producer.publish_within(letters, STORE_TIMEOUT).await;
    let mut burial = Burial {
        partition,
        ends: Vec::new(),
        failures: Vec::new(),
        error: None,
    };
    for ((letter, end), answer) in batch.into_iter().zip(answers) {
        let answer = answer.unwrap_or_else(|| {
            let text = format!("no answer within {STORE_TIMEOUT:?}");
            Err(backend::Error::unavailable("queue", text))
        });
        match answer {
            Ok(_) => burial.ends.push(end.buried()),
            Err(error) => {
                burial.error = Some(error);
                burial.failures.push((letter, end));
            }
        }
    }
    burial
}
