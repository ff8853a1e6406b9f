//! Publishing: idempotent, acknowledged by all in-sync replicas, and in order even on failure.
//!
//! librdkafka times out records one by one, so a later record of a publish could still be appended
//! after an earlier one was given up. Here records never time out in librdkafka. When one waits too
//! long, its whole [`Generation`] (a librdkafka producer) is replaced and then discarded with
//! everything left in it: the brokers have a prefix of each partition's records, because the
//! sequence of one producer has no gaps. Healthy partitions first finish their records in flight,
//! and do not notice.

mod batch;
mod confirmations;
mod generation;
mod lane;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use self::batch::{PendingAnswers, RecordAnswers};
use self::generation::{Generation, SendState, failed_before};
use self::lane::{Lane, LaneBatch, LaneGuard};
use super::config::KafkaConfig;
use super::layout::Layout;
use super::renewal::Renewals;
use super::report::blocking;
use super::{SEAM, record};
use crate::queue::{NewRecord, Partition, Producer, split};
use crate::{Error, Result};

/// Time a replaced generation has to finish its records in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Shortest time between two replacements.
const REPLACE_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct KafkaProducer {
    state: Arc<ProducerState>,
    watcher: AbortHandle,
}

struct ProducerState {
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    current: watch::Sender<Arc<Generation>>,
    /// Previous generation, while it finishes its records in flight.
    previous: Mutex<Option<Arc<Generation>>>,
    /// One lane per partition, so their number is bounded.
    lanes: Mutex<BTreeMap<Partition, Arc<Lane>>>,
}

impl KafkaProducer {
    /// Starts a producer. It connects on its own, and is warm shortly after the brokers answer.
    pub(super) async fn start(
        config: Arc<KafkaConfig>,
        layout: Arc<Layout>,
        renewals: Renewals,
    ) -> Result<KafkaProducer> {
        let first = start_generation(&config).await?;
        let state = Arc::new(ProducerState {
            config,
            layout,
            current: watch::Sender::new(first),
            previous: Mutex::new(None),
            lanes: Mutex::default(),
        });
        let watcher = tokio::spawn(watch_over(Arc::downgrade(&state), renewals)).abort_handle();
        Ok(KafkaProducer { state, watcher })
    }

    /// Waits until the brokers have answered the producer too.
    pub(super) async fn warm_up(&self) -> Result<()> {
        let generation = self.state.current.borrow().clone();
        generation
            .warm_up(&self.state.layout, self.state.config.request_timeout)
            .await
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

#[async_trait]
impl Producer for KafkaProducer {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        // An unavailable partition holds back only its own records.
        let answers = split::each_partition(records, |records| publish(&self.state, records)).await;
        let answer = |answer: Option<_>| answer.unwrap_or_else(|| Err(no_answer()));
        answers.into_iter().map(answer).collect()
    }
}

impl ProducerState {
    /// Publishes a batch gathered for one partition.
    async fn publish(&self, batch: &LaneBatch) -> Vec<Result<u64>> {
        let records = &batch.records;
        let bytes_max = self.config.record_bytes_max;
        let refusals = records.iter().map(|record| {
            let location = self.layout.place(record.partition).map(drop);
            location
                .and_then(|()| record::check(record, bytes_max))
                .err()
                .map(Err)
        });
        let mut answers: RecordAnswers = refusals.collect();
        let publish_timeout = self.config.producer.publish_timeout;
        while answers.iter().any(Option::is_none) {
            let handover = timeout(publish_timeout, self.hand_over(batch, &mut answers)).await;
            let Ok(Some(pending)) = handover else {
                let why =
                    format!("earlier records were not acknowledged within {publish_timeout:?}");
                give_up(&mut answers, &why);
                break;
            };
            // Every record is answered at the latest when its generation is discarded.
            match timeout(publish_timeout + 10 * DRAIN_TIMEOUT, pending.answers).await {
                Ok(Ok(batch_answers)) => {
                    merge_answers(&mut answers, records, pending.places, batch_answers)
                }
                Ok(Err(_)) | Err(_) => give_up(&mut answers, "the producer does not answer"),
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Waits for room, then hands over in one step all records that may go. A publish dropped
    /// before that step has no effect; after it, its records take their course. `None` if nobody
    /// waits for any of them.
    async fn hand_over(
        &self,
        batch: &LaneBatch,
        answers: &mut RecordAnswers,
    ) -> Option<PendingAnswers> {
        let records = &batch.records;
        let (partitions, bytes) = {
            let open = records.iter().zip(&*answers);
            let open = open.filter(|(_, answer)| answer.is_none());
            let partitions: BTreeSet<_> =
                open.clone().map(|(record, _)| record.partition).collect();
            let bytes = open.map(|(record, _)| record::wire_size(record)).sum();
            (partitions, bytes)
        };
        loop {
            let mut generations = self.current.subscribe();
            let generation = generations.borrow_and_update().clone();
            self.wait_for_older(&partitions).await;
            let room = tokio::select! {
                biased;
                // A permit from a replaced generation is worthless.
                _ = generations.changed() => continue,
                room = generation.room(bytes) => room,
            };
            let proof_change = generation.proof_changed();
            for place in batch.dropped() {
                answers[place].get_or_insert_with(|| Err(no_answer()));
            }
            if answers.iter().all(Option::is_some) {
                return None;
            }
            let send_state = match room {
                Some(room) => generation.hand_over(records, answers, room, &self.layout),
                None => SendState::Closed,
            };
            match send_state {
                SendState::Over(pending) => return Some(pending),
                SendState::Later => tokio::select! {
                    biased;
                    _ = generations.changed() => {}
                    () = proof_change => {}
                },
                SendState::Closed => {
                    let _ = generations.changed().await;
                }
            }
        }
    }

    /// Waits until the previous generation has nothing left of these partitions, so that it goes
    /// first.
    async fn wait_for_older(&self, partitions: &BTreeSet<Partition>) {
        loop {
            let older = self.previous.lock().clone();
            if !older.is_some_and(|older| older.holds_any(partitions)) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Replaces a generation that cannot continue or has old credentials.
    async fn replace(&self, old: Arc<Generation>, is_renewal: bool) -> Result<()> {
        let new = start_generation(&self.config).await?;
        let overdue = Instant::now() - self.config.producer.publish_timeout;
        if is_renewal {
            tracing::info!("credentials changed: replacing the producer");
            new.warm_up(&self.layout, self.config.request_timeout)
                .await?;
        } else if !old.is_broken() {
            tracing::warn!(
                timeout_ms = self.config.producer.publish_timeout.as_millis() as u64,
                partitions = ?old.waiting_since(overdue),
                "records were not acknowledged in time: replacing the producer"
            );
            // Best effort: healthy partitions should not wait for the new generation to connect.
            let _ = new.warm_up(&self.layout, DRAIN_TIMEOUT).await;
        }
        *self.previous.lock() = Some(old.clone());
        self.current.send_replace(new);
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !old.is_broken() && old.has_others_than(overdue) && Instant::now() < deadline {
            sleep(Duration::from_millis(5)).await;
        }
        let outcome = blocking(move || {
            old.kill();
            Ok(())
        });
        let outcome = outcome.await;
        *self.previous.lock() = None;
        outcome
    }
}

/// Publishes records of one partition together with others waiting for it.
async fn publish(state: &Arc<ProducerState>, records: Vec<NewRecord>) -> Vec<Result<u64>> {
    let Some(partition) = records.first().map(|record| record.partition) else {
        return Vec::new();
    };
    let bytes = records.iter().map(record::wire_size).sum();
    let lane = state.lanes.lock().entry(partition).or_default().clone();
    let (answers, guard) = lane.add(records, bytes);
    if let Some(guard) = guard {
        tokio::spawn(run_lane(state.clone(), guard));
    }
    // A lane that never answers yields `no_answer` for each record.
    answers.await.unwrap_or_default()
}

async fn run_lane(state: Arc<ProducerState>, mut guard: LaneGuard) {
    let bytes_max = state.config.record_bytes_max;
    let publish_timeout = state.config.producer.publish_timeout;
    while let Some(batch) = guard.next(bytes_max, publish_timeout) {
        let answers = state.publish(&batch).await;
        batch.answer(answers);
    }
}

/// Enters the answers. A failed record fails the later records of its partition too.
fn merge_answers(
    answers: &mut RecordAnswers,
    records: &[NewRecord],
    places: Vec<usize>,
    batch_answers: Vec<Result<u64>>,
) {
    for (place, answer) in places.into_iter().zip(batch_answers) {
        if answer.is_err() {
            let partition = records[place].partition;
            for (record, later_answer) in records.iter().zip(answers.iter_mut()).skip(place + 1) {
                if record.partition == partition && later_answer.is_none() {
                    *later_answer = Some(Err(failed_before()));
                }
            }
        }
        answers[place] = Some(answer);
    }
}

fn no_answer() -> Error {
    Error::unavailable(SEAM, "the producer does not answer")
}

fn give_up(answers: &mut RecordAnswers, why: &str) {
    for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
        *answer = Some(Err(Error::unavailable(SEAM, why)));
    }
}

async fn start_generation(config: &Arc<KafkaConfig>) -> Result<Arc<Generation>> {
    let config = config.clone();
    blocking(move || Generation::start(&config).map(Arc::new)).await
}

/// Replaces the generation when it breaks, a record waits too long, or credentials are new.
async fn watch_over(state: Weak<ProducerState>, renewals: Renewals) {
    // Number of the credentials that the generation uses, or of older ones.
    let mut renewal = *renewals.borrow();
    let Some(publish_timeout) = state
        .upgrade()
        .map(|state| state.config.producer.publish_timeout)
    else {
        return;
    };
    let tick = (publish_timeout / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        let Some(generation) = state.upgrade().map(|state| state.current.borrow().clone()) else {
            return;
        };
        tokio::select! {
            biased;
            () = generation.wait_until_broken() => {}
            () = sleep(tick) => {}
        }
        let newest = *renewals.borrow();
        let is_late = generation
            .oldest()
            .is_some_and(|oldest| oldest.elapsed() >= publish_timeout);
        let cannot_go_on = is_late || generation.is_broken();
        if !cannot_go_on && newest == renewal {
            continue;
        }
        let Some(state) = state.upgrade() else {
            return;
        };
        match state.replace(generation, !cannot_go_on).await {
            Ok(()) => renewal = newest,
            Err(error) => {
                tracing::warn!(%error, source = %error.source, "cannot create a new producer")
            }
        }
        sleep(REPLACE_PAUSE).await;
    }
}
