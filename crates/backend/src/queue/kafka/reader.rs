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
use super::{SEAM, SPREAD, record, settings};
use crate::queue::{Partition, Record};
use crate::{Error, Result};

pub(super) type Client = BaseConsumer<Reporter>;

/// Maximum number of concurrent questions; further ones wait for their turn.
const TURNS: usize = 4;

/// Maximum number of idle clients: one for the group of each topic that an audit asks about, and
/// some for reading.
const KEPT: usize = 16;

/// Time for a client to read its token.
const TOKEN_WAIT: Duration = Duration::from_secs(2);

/// Time to search a client's events for the reason of a failure.
const SAID_WAIT: Duration = Duration::from_millis(100);

/// Idle time after which a client is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Pool of clients for questions and reads.
pub(super) struct Readers {
    shared: Arc<ReaderState>,
    turns: Arc<Semaphore>,
    sweeping: AbortHandle,
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
    since: Instant,
}

impl Readers {
    pub(super) fn new(
        config: Arc<KafkaConfig>,
        layout: Arc<Layout>,
        renewals: Renewals,
    ) -> Readers {
        let shared = Arc::new(ReaderState {
            config,
            layout,
            idle: Mutex::default(),
            renewals,
        });
        let sweeping = tokio::spawn(sweep(Arc::downgrade(&shared))).abort_handle();
        Readers {
            shared,
            turns: Arc::new(Semaphore::new(TURNS)),
            sweeping,
        }
    }

    /// Asks `question` on a client that acts for `group`; each request inside must respect the
    /// duration it is given. The question runs to its end even if the future is dropped.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        group: Option<String>,
        question: impl FnOnce(&Client, Duration) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let patience = self.shared.config.request_timeout;
        let turn = match timeout(patience, self.turns.clone().acquire_owned()).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) | Err(_) => {
                let why = format!("{TURNS} others were asking for {patience:?}");
                return Err(Error::unavailable(SEAM, why));
            }
        };
        let shared = self.shared.clone();
        let group = group.unwrap_or_else(|| shared.layout.reader());
        blocking(move || {
            let _turn = turn;
            let renewal = *shared.renewals.borrow();
            let client = shared.client(&group)?;
            let answer = question(&client, patience).map_err(|error| explained(&client, error))?;
            shared.keep(group, client, renewal);
            Ok(answer)
        })
        .await
    }

    /// First retained offset, and the offset of the next record.
    pub(super) async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        let (topic, number) = self.shared.layout.place(partition)?;
        let topic = topic.to_owned();
        self.ask(None, move |client, patience| {
            bounds(client, &topic, number, patience)
        })
        .await
    }

    pub(super) async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        let (topic, number) = self.shared.layout.place(partition)?;
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, number);
        let group = self.shared.layout.group(group, partition.topic);
        self.ask(Some(group), move |client, patience| {
            let found = committed(client, &list, patience)?;
            let elements = found.elements();
            Ok(elements.first().and_then(|at| offset_of(at.offset())))
        })
        .await
    }

    pub(super) async fn read(
        &self,
        partition: Partition,
        from: u64,
        max: usize,
    ) -> Result<Vec<Record>> {
        let (topic, number) = self.shared.layout.place(partition)?;
        let (topic, layout) = (topic.to_owned(), self.shared.layout.clone());
        self.ask(None, move |client, patience| {
            let (first, end) = bounds(client, &topic, number, patience)?;
            let from = from.max(first);
            if from >= end || max == 0 {
                return Ok(Vec::new());
            }
            let keep = |message: &rdkafka::message::BorrowedMessage<'_>| {
                record::read(message, &layout).filter(|record| record.partition == partition)
            };
            read(client, &topic, number, from..end, max, patience, keep)
        })
        .await
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.sweeping.abort();
        let idle = std::mem::take(&mut *self.shared.idle.lock());
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
        if let Some(place) = idle.iter().position(|idle| idle.group == group) {
            let client = idle.swap_remove(place).client;
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

    fn keep(&self, group: String, client: Client, renewal: u64) {
        let since = Instant::now();
        let mut idle = self.idle.lock();
        let oldest = (idle.len() >= KEPT).then(|| idle.remove(0));
        idle.push(Idle {
            group,
            client,
            renewal,
            since,
        });
        drop(idle);
        drop(oldest);
    }
}

async fn sweep(shared: Weak<ReaderState>) {
    loop {
        sleep(IDLE / 2).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let swept = blocking(move || {
            let now = Instant::now();
            let mut idle = shared.idle.lock();
            let old: Vec<Idle> = idle
                .extract_if(.., |idle| now.duration_since(idle.since) >= IDLE)
                .collect();
            drop(idle);
            drop(old);
            Ok(())
        });
        // Only the end of the runtime can fail it.
        let _ = swept.await;
    }
}

/// Starts a client and waits for its token, if it needs one.
pub(super) fn connect(config: &KafkaConfig, group: &str) -> Result<Client> {
    let client: Client = settings::reader(config, group)?
        .set("enable.partition.eof", "true")
        .create_with_context(Reporter::new(config))
        .map_err(|error| failed("starting a reader", error))?;
    // librdkafka asks for a token only while it is polled.
    let until = Instant::now() + TOKEN_WAIT;
    while !client.context().is_equipped() && Instant::now() < until {
        drop(client.poll(AGAIN));
    }
    Ok(client)
}

/// Adds to `error` the reason for the missing connection, if librdkafka reported one.
pub(super) fn explained(client: &Client, error: Error) -> Error {
    // Errors surface only in polls, and a poll that returns a line of the client's log returns
    // nothing else.
    let until = Instant::now() + SAID_WAIT;
    let mut refusal = None;
    while refusal.is_none() && Instant::now() < until {
        drop(client.poll(SAID_WAIT / 20));
        refusal = client.context().refusal();
    }
    match refusal.or_else(|| client.context().doubt(&error)) {
        Some(refusal) => Error::new(SEAM, error.kind, format!("{}: {refusal}", error.source)),
        None => error,
    }
}

/// Pause before a question is repeated.
const AGAIN: Duration = Duration::from_millis(50);

/// First retained offset, and the offset of the next record. Blocks.
pub(super) fn bounds<C: ConsumerContext>(
    client: &impl Consumer<C>,
    topic: &str,
    number: i32,
    patience: Duration,
) -> Result<(u64, u64)> {
    let asked = patiently(patience, |left| {
        client.fetch_watermarks(topic, number, left)
    });
    let asking = |error| failed(format!("asking for the bounds of {topic}/{number}"), error);
    let (first, end) = asked.map_err(asking)?;
    let offset = |raw| u64::try_from(raw).unwrap_or_default();
    Ok((offset(first), offset(end)))
}

/// Committed offsets of the client's group. Blocks.
pub(super) fn committed<C: ConsumerContext>(
    client: &impl Consumer<C>,
    list: &TopicPartitionList,
    patience: Duration,
) -> Result<TopicPartitionList> {
    let asked = patiently(patience, |left| {
        let found = client.committed_offsets(list.clone(), left)?;
        found.elements().iter().try_for_each(|at| at.error())?;
        Ok(found)
    });
    asked.map_err(|error| failed("asking for committed offsets", error))
}

/// Repeats a question while leaders change, and for [`SPREAD`] while brokers do not know the
/// partition: they take a moment to tell each other about a new topic.
fn patiently<T>(
    patience: Duration,
    mut ask: impl FnMut(Duration) -> Result<T, KafkaError>,
) -> Result<T, KafkaError> {
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        match ask(left) {
            Err(error) => {
                let left = match error.rdkafka_error_code() {
                    Some(
                        // The first is a broker's answer, the others are the client's own cache.
                        RDKafkaErrorCode::UnknownTopicOrPartition
                        | RDKafkaErrorCode::UnknownPartition
                        | RDKafkaErrorCode::UnknownTopic,
                    ) => left.min(SPREAD.saturating_sub(begun.elapsed())),
                    _ if super::is_passing(&error) => left,
                    _ => Duration::ZERO,
                };
                if left <= AGAIN {
                    return Err(error);
                }
                std::thread::sleep(AGAIN);
            }
            answered => return answered,
        }
    }
}

/// Reads within `offsets` and returns at most `max` of the values that `keep` yields.
pub(super) fn read<T>(
    client: &Client,
    topic: &str,
    number: i32,
    offsets: std::ops::Range<u64>,
    max: usize,
    patience: Duration,
    mut keep: impl FnMut(&rdkafka::message::BorrowedMessage<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    use rdkafka::Message;
    let reading = |error| failed(format!("reading {topic}/{number}"), error);
    let mut list = TopicPartitionList::new();
    let start = Offset::Offset(offsets.start.cast_signed());
    list.add_partition_offset(topic, number, start)
        .map_err(reading)?;
    client.assign(&list).map_err(reading)?;
    let deadline = Instant::now() + patience;
    let mut read = Vec::new();
    while read.len() < max {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("{topic}/{number} was not read within {patience:?}");
            return Err(Error::unavailable(SEAM, why));
        }
        match client.poll(left.min(Duration::from_millis(100))) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(_))) => break,
            Some(Err(error)) if super::is_passing(&error) => {}
            Some(Err(error)) => return Err(reading(error)),
            Some(Ok(message)) => {
                let offset = offset_of(Offset::Offset(message.offset()));
                if offset.is_some_and(|offset| offset < offsets.end) {
                    read.extend(keep(&message));
                }
                if offset.is_some_and(|offset| offset + 1 >= offsets.end) {
                    break;
                }
            }
        }
    }
    client.unassign().map_err(reading)?;
    Ok(read)
}

fn offset_of(offset: Offset) -> Option<u64> {
    match offset {
        Offset::Offset(raw) => u64::try_from(raw).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(codes: &[RDKafkaErrorCode]) -> (usize, Result<(), KafkaError>) {
        let mut asked = 0;
        let answer = patiently(Duration::from_secs(10), |_| {
            asked += 1;
            match codes.get(asked - 1) {
                Some(code) => Err(KafkaError::MetadataFetch(*code)),
                None => Ok(()),
            }
        });
        (asked, answer)
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
                let begun = Instant::now();
                let answered = answers(&[code, code]);
                (begun.elapsed() < SPREAD).then_some(answered)
            };
            let answered = (0..20).find_map(|_| in_time());
            assert_eq!(answered, Some((3, Ok(()))), "{code}");
        }
        let refused = answers(&[RDKafkaErrorCode::TopicAuthorizationFailed]);
        assert!(matches!(refused, (1, Err(_))), "{refused:?}");
    }

    #[test]
    fn a_partition_that_does_not_exist_is_refused_within_the_time_of_spread() {
        let begun = Instant::now();
        let unknown = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
        let refused = patiently::<()>(SPREAD * 1000, |_| Err(unknown.clone()));
        assert_eq!(refused, Err(unknown));
        assert!(begun.elapsed() < SPREAD * 30);
    }
}
