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
const GRACE: Duration = Duration::from_secs(1);

/// Shortest time between two replacements.
const REPLACE_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct KafkaProducer {
    shared: Arc<ProducerState>,
    watching: AbortHandle,
}

struct ProducerState {
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    current: watch::Sender<Arc<Generation>>,
    /// Previous generation, while it finishes its records in flight.
    finishing: Mutex<Option<Arc<Generation>>>,
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
        let shared = Arc::new(ProducerState {
            config,
            layout,
            current: watch::Sender::new(first),
            finishing: Mutex::new(None),
            lanes: Mutex::default(),
        });
        let watching = tokio::spawn(watch_over(Arc::downgrade(&shared), renewals)).abort_handle();
        Ok(KafkaProducer { shared, watching })
    }

    /// Waits until the brokers have answered the producer too.
    pub(super) async fn warm_up(&self) -> Result<()> {
        let generation = self.shared.current.borrow().clone();
        generation
            .warm_up(&self.shared.layout, self.shared.config.request_timeout)
            .await
    }
}

impl Drop for KafkaProducer {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[async_trait]
impl Producer for KafkaProducer {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        // An unavailable partition holds back only its own records.
        let published =
            split::each_partition(records, |records| publish(&self.shared, records)).await;
        let answer = |answer: Option<_>| answer.unwrap_or_else(|| Err(silent()));
        published.into_iter().map(answer).collect()
    }
}

impl ProducerState {
    /// Publishes a batch gathered for one partition.
    async fn publish(&self, gathered: &LaneBatch) -> Vec<Result<u64>> {
        let records = &gathered.records;
        let bytes_max = self.config.record_bytes_max;
        let refused = records.iter().map(|record| {
            let placed = self.layout.place(record.partition).map(drop);
            placed
                .and_then(|()| record::check(record, bytes_max))
                .err()
                .map(Err)
        });
        let mut answers: RecordAnswers = refused.collect();
        let patience = self.config.producer.publish_timeout;
        while answers.iter().any(Option::is_none) {
            let handed = timeout(patience, self.hand_over(gathered, &mut answers)).await;
            let Ok(Some(sent)) = handed else {
                let why =
                    format!("what was published before is not acknowledged within {patience:?}");
                give_up(&mut answers, &why);
                break;
            };
            // Every record is answered at the latest when its generation is discarded.
            match timeout(patience + 10 * GRACE, sent.answered).await {
                Ok(Ok(answered)) => take_in(&mut answers, records, sent.places, answered),
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
        gathered: &LaneBatch,
        answers: &mut RecordAnswers,
    ) -> Option<PendingAnswers> {
        let records = &gathered.records;
        let (partitions, bytes) = {
            let open = records.iter().zip(&*answers);
            let open = open.filter(|(_, answer)| answer.is_none());
            let partitions: BTreeSet<_> =
                open.clone().map(|(record, _)| record.partition).collect();
            let bytes = open.map(|(record, _)| record::size_of(record)).sum();
            (partitions, bytes)
        };
        loop {
            let mut replaced = self.current.subscribe();
            let generation = replaced.borrow_and_update().clone();
            self.wait_for_older(&partitions).await;
            let room = tokio::select! {
                biased;
                // A permit from a replaced generation is worthless.
                _ = replaced.changed() => continue,
                room = generation.room(bytes) => room,
            };
            let proved = generation.proved();
            for place in gathered.dropped() {
                answers[place].get_or_insert_with(|| Err(silent()));
            }
            if answers.iter().all(Option::is_some) {
                return None;
            }
            let handed = match room {
                Some(room) => generation.hand_over(records, answers, room, &self.layout),
                None => SendState::Closed,
            };
            match handed {
                SendState::Over(sent) => return Some(sent),
                SendState::Later => tokio::select! {
                    biased;
                    _ = replaced.changed() => {}
                    () = proved => {}
                },
                SendState::Closed => {
                    let _ = replaced.changed().await;
                }
            }
        }
    }

    /// Waits until the previous generation has nothing left of these partitions, so that it goes
    /// first.
    async fn wait_for_older(&self, partitions: &BTreeSet<Partition>) {
        loop {
            let older = self.finishing.lock().clone();
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
            tracing::info!("credentials are new: the producer is replaced");
            new.warm_up(&self.layout, self.config.request_timeout)
                .await?;
        } else if !old.is_broken() {
            tracing::warn!(
                timeout_ms = self.config.producer.publish_timeout.as_millis() as u64,
                partitions = ?old.waiting_since(overdue),
                "records were not acknowledged in time: the producer is replaced"
            );
            // Best effort: healthy partitions should not wait for the new generation to connect.
            let _ = new.warm_up(&self.layout, GRACE).await;
        }
        *self.finishing.lock() = Some(old.clone());
        self.current.send_replace(new);
        let until = Instant::now() + GRACE;
        while !old.is_broken() && old.has_others_than(overdue) && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
        let killed = blocking(move || {
            old.kill();
            Ok(())
        });
        let killed = killed.await;
        *self.finishing.lock() = None;
        killed
    }
}

/// Publishes records of one partition together with others waiting for it.
async fn publish(shared: &Arc<ProducerState>, records: Vec<NewRecord>) -> Vec<Result<u64>> {
    let Some(partition) = records.first().map(|record| record.partition) else {
        return Vec::new();
    };
    let bytes = records.iter().map(record::size_of).sum();
    let lane = shared.lanes.lock().entry(partition).or_default().clone();
    let (answers, carrying) = lane.add(records, bytes);
    if let Some(carrying) = carrying {
        tokio::spawn(carry(shared.clone(), carrying));
    }
    // A lane that never answers yields `silent` for each record.
    answers.await.unwrap_or_default()
}

async fn carry(shared: Arc<ProducerState>, mut carrying: LaneGuard) {
    let bytes_max = shared.config.record_bytes_max;
    let patience = shared.config.producer.publish_timeout;
    while let Some(gathered) = carrying.next(bytes_max, patience) {
        let answers = shared.publish(&gathered).await;
        gathered.answer(answers);
    }
}

/// Enters the answers. A failed record fails the later records of its partition too.
fn take_in(
    answers: &mut RecordAnswers,
    records: &[NewRecord],
    places: Vec<usize>,
    answered: Vec<Result<u64>>,
) {
    for (place, answer) in places.into_iter().zip(answered) {
        if answer.is_err() {
            let partition = records[place].partition;
            for (record, later) in records.iter().zip(answers.iter_mut()).skip(place + 1) {
                if record.partition == partition && later.is_none() {
                    *later = Some(Err(failed_before()));
                }
            }
        }
        answers[place] = Some(answer);
    }
}

fn silent() -> Error {
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
async fn watch_over(shared: Weak<ProducerState>, renewals: Renewals) {
    // Number of the credentials that the generation uses, or of older ones.
    let mut renewal = *renewals.borrow();
    let Some(patience) = shared
        .upgrade()
        .map(|shared| shared.config.producer.publish_timeout)
    else {
        return;
    };
    let tick = (patience / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        let Some(generation) = shared
            .upgrade()
            .map(|shared| shared.current.borrow().clone())
        else {
            return;
        };
        tokio::select! {
            biased;
            () = generation.broke() => {}
            () = sleep(tick) => {}
        }
        let newest = *renewals.borrow();
        let late = generation
            .oldest()
            .is_some_and(|since| since.elapsed() >= patience);
        let cannot_go_on = late || generation.is_broken();
        if !cannot_go_on && newest == renewal {
            continue;
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        match shared.replace(generation, !cannot_go_on).await {
            Ok(()) => renewal = newest,
            Err(error) => tracing::warn!(%error, source = %error.source, "no new producer"),
        }
        sleep(REPLACE_PAUSE).await;
    }
}
