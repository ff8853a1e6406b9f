//! One librdkafka producer, from start to disposal.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::super::config::KafkaConfig;
use super::super::layout::Layout;
use super::super::report::{Reporter, blocking, failed};
use super::super::{SEAM, record, settings};
use super::batch::{Batch, InFlight, PendingAnswers, RecordAnswers};
use super::confirmations::{Confirmations, Readiness};
use crate::queue::{NewRecord, Partition};
use crate::{Error, Result};

/// Outcome of handing records over.
pub(super) enum SendState {
    /// Handed over as far as possible; the rest waits for these answers.
    Over(PendingAnswers),
    /// Nothing handed over: another publish's first record in one of the partitions is in flight.
    Later,
    /// Nothing handed over, and never again.
    Closed,
}

/// Granularity of room, in bytes.
const ROOM_UNIT: usize = 1 << 10;

pub(super) struct Generation {
    /// Present until drop. Closing it takes a while and must not happen on the runtime.
    client: Option<Arc<ThreadedProducer<Deliveries>>>,
    state: Arc<State>,
    room: Arc<Semaphore>,
    room_max: u32,
    /// False once the remaining records were discarded. Nothing may be handed over after that,
    /// because a later record would then be appended although an earlier one was not.
    is_open: RwLock<bool>,
}

#[derive(Default)]
struct State {
    in_flight: Arc<InFlight>,
    proofs: Confirmations,
    is_broken: AtomicBool,
    broken_signal: Notify,
}

/// Callbacks of librdkafka.
struct Deliveries {
    state: Arc<State>,
    reporter: Reporter,
}

struct RecordSlot {
    batch: Arc<Batch>,
    place: usize,
    /// Partition whose first record this is, if it is one.
    first_of: Option<Partition>,
}

impl Generation {
    /// Starts a producer with its threads; blocks briefly.
    pub(super) fn start(config: &KafkaConfig) -> Result<Generation> {
        let state = Arc::new(State::default());
        let context = Deliveries {
            state: state.clone(),
            reporter: Reporter::new(config),
        };
        let client = settings::producer(config)?
            .create_with_context(context)
            .map_err(|error| failed("starting a producer", error))?;
        let units = (config.producer.buffer_bytes / ROOM_UNIT).max(1);
        let room_max = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(Generation {
            client: Some(Arc::new(client)),
            state,
            room: Arc::new(Semaphore::new(room_max as usize)),
            room_max,
            is_open: RwLock::new(true),
        })
    }

    /// Waits until the brokers have told this client the leaders of the topics.
    pub(super) async fn warm_up(&self, layout: &Layout, timeout: Duration) -> Result<()> {
        let Some(client) = self.client.clone() else {
            return Ok(());
        };
        let topics: Vec<String> = layout
            .topics()
            .map(|(_, name, _)| name.to_owned())
            .collect();
        blocking(move || {
            for topic in &topics {
                let metadata = client.client().fetch_metadata(Some(topic), timeout);
                metadata.map_err(|error| failed(format!("asking for topic {topic}"), error))?;
            }
            Ok(())
        })
        .await
    }

    /// Waits for room for `bytes`; `None` once this generation accepts nothing more.
    pub(super) async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let units = units.clamp(1, self.room_max);
        self.room.clone().acquire_many_owned(units).await.ok()
    }

    /// Hands over the records without an answer; for a partition that does not know this producer
    /// yet, only the first of them.
    pub(super) fn hand_over(
        &self,
        records: &[NewRecord],
        answers: &RecordAnswers,
        room: OwnedSemaphorePermit,
        layout: &Layout,
    ) -> SendState {
        let is_open = self.is_open.read();
        let (true, Some(client)) = (*is_open && !self.is_broken(), &self.client) else {
            return SendState::Closed;
        };
        // The error is set before librdkafka calls back.
        if client.client().fatal_error().is_some() {
            self.state.fail();
            return SendState::Closed;
        }
        let mut places: Vec<usize> = (0..records.len())
            .filter(|&place| answers[place].is_none())
            .collect();
        let mut partitions = places
            .iter()
            .map(|&place| records[place].partition)
            .collect();
        let is_first = match self.state.proofs.claim(&partitions, Instant::now()) {
            Readiness::Nothing => return SendState::Later,
            Readiness::Everything => false,
            Readiness::First(mut unknown) => {
                partitions.clone_from(&unknown);
                places.retain(|&place| unknown.remove(&records[place].partition));
                true
            }
        };
        let in_flight = &self.state.in_flight;
        let (batch, receiver) = Batch::begin(places.len(), &partitions, in_flight, room);
        let mut failed_partitions = BTreeSet::new();
        for (n, &place) in places.iter().enumerate() {
            let record = &records[place];
            let slot = RecordSlot {
                batch: batch.clone(),
                place: n,
                first_of: is_first.then_some(record.partition),
            };
            if failed_partitions.contains(&record.partition) {
                slot.answer(&self.state, Err(failed_before()));
            } else if let Err((error, slot)) = send(client, record, Box::new(slot), layout) {
                failed_partitions.insert(record.partition);
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                    self.state.fail();
                }
                let partition = record.partition;
                let context = format!("publishing to {}/{}", partition.topic, partition.number);
                slot.answer(&self.state, Err(failed(context, error)));
            }
        }
        batch.close();
        SendState::Over(PendingAnswers {
            places,
            answers: receiver,
        })
    }

    /// Completes when a proof of a partition changes after this call.
    pub(super) fn proof_changed(&self) -> impl Future<Output = ()> + '_ {
        self.state.proofs.changed()
    }

    /// Discards the remaining records; each of them is answered. Blocks briefly.
    pub(super) fn kill(&self) {
        *self.is_open.write() = false;
        self.room.close();
        if let Some(client) = &self.client {
            client.purge(PurgeConfig::default().queue().inflight());
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state.is_broken.load(Ordering::Acquire)
    }

    /// Completes when librdkafka reports a fatal error.
    pub(super) async fn wait_until_broken(&self) {
        self.state.broken_signal.notified().await;
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.state.in_flight.oldest()
    }

    pub(super) fn has_others_than(&self, overdue: Instant) -> bool {
        self.state.in_flight.any_after(overdue)
    }

    pub(super) fn waiting_since(&self, overdue: Instant) -> BTreeSet<Partition> {
        self.state.in_flight.started_before(overdue)
    }

    pub(super) fn holds_any(&self, partitions: &BTreeSet<Partition>) -> bool {
        self.state.in_flight.holds_any(partitions)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let client = self.client.take();
        // Dropped on this thread if none can be spawned.
        let _ = std::thread::Builder::new()
            .name("kafka-producer-end".into())
            .spawn(move || drop(client));
    }
}

/// Error of a record that follows a failed one in its partition.
pub(super) fn failed_before() -> Error {
    Error::unavailable(SEAM, "an earlier record in the same partition failed")
}

fn send(
    client: &ThreadedProducer<Deliveries>,
    record: &NewRecord,
    slot: Box<RecordSlot>,
    layout: &Layout,
) -> Result<(), (KafkaError, Box<RecordSlot>)> {
    let Ok((topic, number)) = layout.place(record.partition) else {
        return Err((KafkaError::Canceled, slot));
    };
    let mut base_record = BaseRecord::with_opaque_to(topic, slot)
        .partition(number)
        .key(record.key.as_ref())
        .payload(record.value.as_ref());
    if let Some(headers) = record::owned_headers(record) {
        base_record = base_record.headers(headers);
    }
    client
        .send(base_record)
        .map_err(|(error, base_record)| (error, base_record.delivery_opaque))
}

impl RecordSlot {
    fn answer(&self, state: &State, answer: Result<u64>) {
        if let Some(partition) = self.first_of {
            state
                .proofs
                .record_answer(partition, answer.is_ok(), Instant::now());
        }
        self.batch.answer(self.place, answer);
    }
}

impl State {
    fn fail(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.broken_signal.notify_one();
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reporter.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.reporter.error(&error, reason);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.state.fail();
        }
    }

    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> std::result::Result<OAuthToken, Box<dyn StdError>> {
        self.reporter.token()
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<RecordSlot>;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: Box<RecordSlot>) {
        let answer = match result {
            Ok(message) => u64::try_from(message.offset()).map_err(|_| {
                // The brokers already had the record and no longer know its offset.
                Error::unavailable(SEAM, "acknowledged without an offset")
            }),
            Err((error, message)) => {
                let context = format!("publishing to {}/{}", message.topic(), message.partition());
                Err(failed(context, error.clone()))
            }
        };
        slot.answer(&self.state, answer);
    }
}
