//! Reads and queries without a group, for operators.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::config::KafkaConfig;
use super::layout::Layout;
use super::renewal::Renewals;
use super::report::{Reporter, blocking, failed};
use super::{PROPAGATION_TIMEOUT, SEAM, record, settings};
use crate::queue::{Partition, Record};
use crate::{Error, Result};

pub(super) type Client = BaseConsumer<Reporter>;

/// Maximum number of concurrent questions; further ones wait for their turn.
const MAX_CONCURRENT_QUERIES: usize = 4;

/// Maximum number of idle clients: one for the group of each topic that an audit asks about, and
/// some for reading.
const MAX_IDLE_CLIENTS: usize = 16;

/// Time for a client to read its token.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to search a client's events for the reason of a failure.
const FAILURE_REASON_TIMEOUT: Duration = Duration::from_millis(100);

/// Idle time after which a client is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Pool of clients for questions and reads.
pub(super) struct Readers {
    state: Arc<ReaderState>,
    permits: Arc<Semaphore>,
    sweeper: AbortHandle,
}

struct ReaderState {
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    idle: Mutex<Vec<Idle>>,
    renewals: Renewals,
}

struct Idle {
    group: String,
    client: Client,
    /// Number of the newest accepted credentials when the client was requested.
    renewal: u64,
    idle_since: Instant,
}

impl Readers {
    pub(super) fn new(
        config: Arc<KafkaConfig>,
        layout: Arc<Layout>,
        renewals: Renewals,
    ) -> Readers {
        let state = Arc::new(ReaderState {
            config,
            layout,
            idle: Mutex::default(),
            renewals,
        });
        let sweeper = tokio::spawn(sweep(Arc::downgrade(&state))).abort_handle();
        Readers {
            state,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES)),
            sweeper,
        }
    }

    /// Runs `question` on a client that acts for `group`; each request inside must respect the
    /// duration it is given. The question runs to its end even if the future is dropped.
    pub(super) async fn with_client<T: Send + 'static>(
        &self,
        group: Option<String>,
        question: impl FnOnce(&Client, Duration) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let request_timeout = self.state.config.request_timeout;
        let permit = match timeout(request_timeout, self.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) | Err(_) => {
                let why = format!(
                    "all {MAX_CONCURRENT_QUERIES} readers were busy for {request_timeout:?}"
                );
                return Err(Error::unavailable(SEAM, why));
            }
        };
        let state = self.state.clone();
        let group = group.unwrap_or_else(|| state.layout.reader());
        blocking(move || {
            let _turn = permit;
            let renewal = *state.renewals.borrow();
            let client = state.client(&group)?;
            let answer =
                question(&client, request_timeout).map_err(|error| add_reason(&client, error))?;
            state.return_client(group, client, renewal);
            Ok(answer)
        })
        .await
    }

    /// First retained offset, and the offset of the next record.
    pub(super) async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        let (topic, number) = self.state.layout.place(partition)?;
        let topic = topic.to_owned();
        self.with_client(None, move |client, timeout| {
            bounds(client, &topic, number, timeout)
        })
        .await
    }

    pub(super) async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        let (topic, number) = self.state.layout.place(partition)?;
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, number);
        let group = self.state.layout.group(group, partition.topic);
        self.with_client(Some(group), move |client, timeout| {
            let offsets = committed(client, &list, timeout)?;
            let elements = offsets.elements();
            Ok(elements
                .first()
                .and_then(|element| to_offset(element.offset())))
        })
        .await
    }

    pub(super) async fn read(
        &self,
        partition: Partition,
        from: u64,
        max: usize,
    ) -> Result<Vec<Record>> {
        let (topic, number) = self.state.layout.place(partition)?;
        let (topic, layout) = (topic.to_owned(), self.state.layout.clone());
        self.with_client(None, move |client, timeout| {
            let (first, end) = bounds(client, &topic, number, timeout)?;
            let from = from.max(first);
            if from >= end || max == 0 {
                return Ok(Vec::new());
            }
            let to_record = |message: &rdkafka::message::BorrowedMessage<'_>| {
                record::read(message, &layout).filter(|record| record.partition == partition)
            };
            read(client, &topic, number, from..end, max, timeout, to_record)
        })
        .await
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.sweeper.abort();
        let idle = std::mem::take(&mut *self.state.idle.lock());
        // Dropped on this thread if none can be spawned.
        let _ = std::thread::Builder::new()
            .name("kafka-readers-end".into())
            .spawn(move || drop(idle));
    }
}

impl ReaderState {
    fn client(&self, group: &str) -> Result<Client> {
        let renewal = *self.renewals.borrow();
        let mut idle = self.idle.lock();
        // Clients with older credentials are of no more use.
        let old: Vec<Idle> = idle
            .extract_if(.., |idle| idle.renewal != renewal)
            .collect();
        if let Some(index) = idle.iter().position(|idle| idle.group == group) {
            let client = idle.swap_remove(index).client;
            drop(idle);
            drop(old);
            // Polling renews a token that is about to expire.
            drop(client.poll(Duration::ZERO));
            return Ok(client);
        }
        drop(idle);
        drop(old);
        connect(&self.config, group)
    }

    fn return_client(&self, group: String, client: Client, renewal: u64) {
        let idle_since = Instant::now();
        let mut idle = self.idle.lock();
        let oldest = (idle.len() >= MAX_IDLE_CLIENTS).then(|| idle.remove(0));
        idle.push(Idle {
            group,
            client,
            renewal,
            idle_since,
        });
        drop(idle);
        drop(oldest);
    }
}

async fn sweep(state: Weak<ReaderState>) {
    loop {
        sleep(IDLE_TIMEOUT / 2).await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let outcome = blocking(move || {
            let now = Instant::now();
            let mut idle = state.idle.lock();
            let old: Vec<Idle> = idle
                .extract_if(.., |idle| {
                    now.duration_since(idle.idle_since) >= IDLE_TIMEOUT
                })
                .collect();
            drop(idle);
            drop(old);
            Ok(())
        });
        // Only the end of the runtime can fail it.
        let _ = outcome.await;
    }
}

/// Starts a client and waits for its token, if it needs one.
pub(super) fn connect(config: &KafkaConfig, group: &str) -> Result<Client> {
    let client: Client = settings::reader(config, group)?
        .set("enable.partition.eof", "true")
        .create_with_context(Reporter::new(config))
        .map_err(|error| failed("starting a reader", error))?;
    // librdkafka asks for a token only while it is polled.
    let deadline = Instant::now() + TOKEN_TIMEOUT;
    while !client.context().is_equipped() && Instant::now() < deadline {
        drop(client.poll(RETRY_INTERVAL));
    }
    Ok(client)
}

/// Adds to `error` the reason for the missing connection, if librdkafka reported one.
pub(super) fn add_reason(client: &Client, error: Error) -> Error {
    // Errors surface only in polls, and a poll that returns a line of the client's log returns
    // nothing else.
    let deadline = Instant::now() + FAILURE_REASON_TIMEOUT;
    let mut refusal = None;
    while refusal.is_none() && Instant::now() < deadline {
        drop(client.poll(FAILURE_REASON_TIMEOUT / 20));
        refusal = client.context().refusal();
    }
    match refusal.or_else(|| client.context().suspected_cause(&error)) {
        Some(refusal) => Error::new(SEAM, error.kind, format!("{}: {refusal}", error.source)),
        None => error,
    }
}

/// Pause before a question is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// First retained offset, and the offset of the next record. Blocks.
pub(super) fn bounds<C: ConsumerContext>(
    client: &impl Consumer<C>,
    topic: &str,
    number: i32,
    timeout: Duration,
) -> Result<(u64, u64)> {
    let answer = with_retries(timeout, |remaining| {
        client.fetch_watermarks(topic, number, remaining)
    });
    let query_failed = |error| failed(format!("asking for the bounds of {topic}/{number}"), error);
    let (first, end) = answer.map_err(query_failed)?;
    let offset = |raw| u64::try_from(raw).unwrap_or_default();
    Ok((offset(first), offset(end)))
}

/// Committed offsets of the client's group. Blocks.
pub(super) fn committed<C: ConsumerContext>(
    client: &impl Consumer<C>,
    list: &TopicPartitionList,
    timeout: Duration,
) -> Result<TopicPartitionList> {
    let answer = with_retries(timeout, |remaining| {
        let offsets = client.committed_offsets(list.clone(), remaining)?;
        offsets
            .elements()
            .iter()
            .try_for_each(|element| element.error())?;
        Ok(offsets)
    });
    answer.map_err(|error| failed("asking for committed offsets", error))
}

/// Repeats a question while leaders change, and for [`PROPAGATION_TIMEOUT`]
/// while brokers do not know the partition: they take a moment to tell each other about a new
/// topic.
fn with_retries<T>(
    timeout: Duration,
    mut query: impl FnMut(Duration) -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    let start = Instant::now();
    loop {
        let remaining = timeout.saturating_sub(start.elapsed());
        match query(remaining) {
            Err(error) => {
                let budget = match error.rdkafka_error_code() {
                    Some(
                        // The first is a broker's answer, the others are the client's own cache.
                        RDKafkaErrorCode::UnknownTopicOrPartition
                        | RDKafkaErrorCode::UnknownPartition
                        | RDKafkaErrorCode::UnknownTopic,
                    ) => remaining.min(PROPAGATION_TIMEOUT.saturating_sub(start.elapsed())),
                    _ if super::is_transient(&error) => remaining,
                    _ => Duration::ZERO,
                };
                if budget <= RETRY_INTERVAL {
                    return Err(error);
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

/// Reads within `offsets` and returns at most `max` of the values that `decode` yields.
pub(super) fn read<T>(
    client: &Client,
    topic: &str,
    number: i32,
    offsets: std::ops::Range<u64>,
    max: usize,
    timeout: Duration,
    mut decode: impl FnMut(&rdkafka::message::BorrowedMessage<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    use rdkafka::Message;
    let read_failed = |error| failed(format!("reading {topic}/{number}"), error);
    let mut list = TopicPartitionList::new();
    let start = Offset::Offset(offsets.start.cast_signed());
    list.add_partition_offset(topic, number, start)
        .map_err(read_failed)?;
    client.assign(&list).map_err(read_failed)?;
    let deadline = Instant::now() + timeout;
    let mut values = Vec::new();
    while values.len() < max {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            let why = format!("{topic}/{number} was not read within {timeout:?}");
            return Err(Error::unavailable(SEAM, why));
        }
        match client.poll(remaining.min(Duration::from_millis(100))) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            Some(Err(error)) if super::is_transient(&error) => {}
            Some(Err(error)) => return Err(read_failed(error)),
            Some(Ok(message)) => {
                let offset = to_offset(Offset::Offset(message.offset()));
                if offset.is_some_and(|offset| offset < offsets.end) {
                    values.extend(decode(&message));
                }
                if offset.is_some_and(|offset| offset + 1 >= offsets.end) {
                    break;
                }
            }
        }
    }
    client.unassign().map_err(read_failed)?;
    Ok(values)
}

fn to_offset(offset: Offset) -> Option<u64> {
    match offset {
        Offset::Offset(raw) => u64::try_from(raw).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(codes: &[RDKafkaErrorCode]) -> (usize, Result<(), KafkaError>) {
        let mut attempts = 0;
        let answer = with_retries(Duration::from_secs(10), |_| {
            attempts += 1;
            match codes.get(attempts - 1) {
                Some(code) => Err(KafkaError::MetadataFetch(*code)),
                None => Ok(()),
            }
        });
        (attempts, answer)
    }

    #[test]
    fn a_partition_that_brokers_do_not_know_yet_is_asked_for_again() {
        for code in [
            RDKafkaErrorCode::UnknownTopicOrPartition,
            RDKafkaErrorCode::UnknownPartition,
            RDKafkaErrorCode::UnknownTopic,
            RDKafkaErrorCode::LeaderNotAvailable,
        ] {
            // A machine that stood still meanwhile proves nothing.
            let in_time = || {
                let start = Instant::now();
                let outcome = answers(&[code, code]);
                (start.elapsed() < PROPAGATION_TIMEOUT).then_some(outcome)
            };
            let outcome = (0..20).find_map(|_| in_time());
            assert_eq!(outcome, Some((3, Ok(()))), "{code}");
        }
        let refusal = answers(&[RDKafkaErrorCode::TopicAuthorizationFailed]);
        assert!(matches!(refusal, (1, Err(_))), "{refusal:?}");
    }

    #[test]
    fn missing_partition_is_refused_after_the_propagation_time() {
        let start = Instant::now();
        let unknown = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
        let refusal = with_retries::<()>(PROPAGATION_TIMEOUT * 1000, |_| Err(unknown.clone()));
        assert_eq!(refusal, Err(unknown));
        assert!(start.elapsed() < PROPAGATION_TIMEOUT * 30);
    }
}
