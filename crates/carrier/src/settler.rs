//! Step 8 of a message's way: makes the effects of settled records durable, many at a time, and
//! only then lets their offsets be committed.
//!
//! Each partition has a call of its own under way, and so has the ledger; effects that arrive
//! meanwhile go with the next call. A record whose effects cannot be made durable (a dead-letter
//! topic that takes no writes) holds its own offset, and is tried again; the others pass, except
//! those that would overtake it under the same key. An unavailable partition holds the records that
//! depend on it, up to a bound; at the bound the source partitions of these records are paused.
//!
//! Records that the log refuses for good are not tried again: a retry becomes a dead letter, a
//! letter loses its body, and anything left after that is given up and counted.

mod entries;
mod lane;
mod schedule;
mod size;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::task::{NotificationTask, Value};
use api::trace::TRACEPARENT;
use backend::Backends;
use backend::clock::{Clock, Entropy};
use backend::ledger::LedgerStore;
use backend::queue::{NewRecord, Partition, Producer};
use backend::{Error, Kind};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::trace::TraceId;
use protocol::{Timestamp, TraceContext};
use tokio::time::Instant;

use self::entries::Portion;
use self::lane::Item;
use self::schedule::{PublishResult, Schedule, ScheduleLimits, ScheduledCall};
use crate::Config;
use crate::backoff::Backoff;
use crate::deadline::StoreDeadline;
use crate::decoded_record::PoisonRecord;
use crate::executor_queue::SettleWork;
use crate::records::Records;
use crate::writer::dead_letter;

/// Records of one call to a partition at most, and their bytes.
const CALL_RECORDS: usize = 1024;
const CALL_BYTES: usize = 4 << 20;
/// Ledger entries of one call at most.
const CALL_ENTRIES: usize = 2048;
/// Bytes that wait for one partition.
const LANE_BYTES: usize = 16 << 20;
/// Ledger entries that wait.
const LEDGER_ENTRIES: usize = 262_144;

pub(crate) struct Settler {
    writer: SettleWriter,
    entropy: Arc<dyn Entropy>,
    schedule: Schedule,
    calls: FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    crowded_partitions: BTreeSet<Partition>,
}

/// Result of a call, and its duration.
struct Answer {
    took: Duration,
    result: CallResult,
}

enum CallResult {
    Published(Partition, Vec<PublishResult>, Option<String>),
    Appended(Vec<Portion>, Result<(), Error>),
}

impl Settler {
    pub(crate) fn new(backends: &Backends, config: &Config, records: Records) -> Settler {
        Settler {
            writer: SettleWriter {
                producer: backends.queue.producer(),
                ledger: backends.ledger.clone(),
                clock: backends.clock.clone(),
                store_deadline: StoreDeadline::new(config),
                records,
            },
            entropy: backends.entropy.clone(),
            schedule: Schedule::new(ScheduleLimits {
                deadline: config.store_timeout,
                backoff: Backoff::new(config),
                call_records: CALL_RECORDS,
                call_bytes: CALL_BYTES,
                call_entries: CALL_ENTRIES,
                lane_records: config.in_flight_max,
                lane_bytes: LANE_BYTES,
                ledger_records: config.in_flight_max,
                ledger_entries: LEDGER_ENTRIES,
            }),
            calls: FuturesUnordered::new(),
            crowded_partitions: BTreeSet::new(),
        }
    }

    pub(crate) fn add(&mut self, effects: SettleWork) {
        self.schedule.add(Instant::now(), effects);
    }

    /// Records that are decided and not settled yet.
    pub(crate) fn len(&self) -> usize {
        self.schedule.len()
    }

    /// Whether the ledger has no room for more, and nothing more may begin.
    pub(crate) fn is_full(&self) -> bool {
        self.schedule.is_full()
    }

    /// Partitions to pause, as the effects of their records have no room; `None` if they are the
    /// same as at the last call.
    pub(crate) fn crowded(&mut self) -> Option<&BTreeSet<Partition>> {
        let partitions = self.schedule.crowded();
        if partitions == self.crowded_partitions {
            return None;
        }
        self.crowded_partitions = partitions;
        Some(&self.crowded_partitions)
    }

    /// Begins the calls that are due.
    pub(crate) fn begin(&mut self, now: Instant) {
        for call in self.schedule.calls(now) {
            self.calls.push(Box::pin(self.writer.clone().call(call)));
        }
    }

    /// Time at which `begin` should be called again, if nothing else happens.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.schedule.wakes_at(Instant::now())
    }

    /// Completes with the settled records, perhaps none, when a call ends; never if none is under
    /// way. Cancel safe.
    pub(crate) async fn settled(&mut self) -> Vec<Source> {
        let sources = self.schedule.settled();
        if !sources.is_empty() {
            return sources;
        }
        let Some(answer) = self.calls.next().await else {
            return std::future::pending().await;
        };
        self.handle_answer(answer);
        while let Some(Some(answer)) = self.calls.next().now_or_never() {
            self.handle_answer(answer);
        }
        self.schedule.settled()
    }

    fn handle_answer(&mut self, answer: Answer) {
        let (now, took) = (Instant::now(), answer.took);
        let entropy = &*self.entropy;
        let (place, pause, error) = match answer.result {
            CallResult::Published(partition, answers, error) => {
                let pause = (self.schedule).published(now, took, partition, answers, entropy);
                let place = format!("{}/{}", partition.topic, partition.number);
                (place, pause, error)
            }
            CallResult::Appended(portions, Ok(())) => {
                return self.schedule.appended(took, portions);
            }
            CallResult::Appended(portions, Err(error)) => {
                let pause = (self.schedule).not_appended(now, took, portions, entropy);
                ("ledger".to_owned(), Some(pause), Some(error_text(&error)))
            }
        };
        if let Some(pause) = pause {
            tracing::warn!(
                error,
                place,
                pause_ms = pause.as_millis() as u64,
                "cannot persist settled records: holding their offsets"
            );
            metrics::counter!("carrier_settle_failures_total").increment(1);
        }
    }
}

fn error_text(error: &Error) -> String {
    format!("{error}: {}", error.source)
}

/// Writes effects to the log and the ledger. Clones share the backends.
#[derive(Clone)]
struct SettleWriter {
    producer: Arc<dyn Producer>,
    ledger: Arc<dyn LedgerStore>,
    clock: Arc<dyn Clock>,
    store_deadline: StoreDeadline,
    records: Records,
}

impl SettleWriter {
    async fn call(self, call: ScheduledCall) -> Answer {
        let started_at = Instant::now();
        let result = match call {
            ScheduledCall::Publish(partition, items) => self.publish(partition, items).await,
            ScheduledCall::Append(portions) => {
                let entries = portions.iter().flat_map(|p| p.entries.iter().cloned());
                let append = self.ledger.append(entries.collect());
                let append = self.store_deadline.within(append).await;
                CallResult::Appended(portions, append)
            }
        };
        Answer {
            took: started_at.elapsed(),
            result,
        }
    }

    async fn publish(&self, partition: Partition, items: Vec<Item>) -> CallResult {
        let records = items.iter().map(|item| item.record.clone()).collect();
        let publish = async { Ok(self.producer.publish(records).await) };
        let mut answers = match self.store_deadline.within(publish).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                // Nobody knows whether the log took them, so all are published again: a second copy
                // of a retry, a letter or a notification has no further effect, as after a crash.
                let retries = items.into_iter().map(PublishResult::Again).collect();
                return CallResult::Published(partition, retries, Some(error_text(&error)));
            }
        };
        let mut failure = None;
        let mut judge = |item: Item| {
            let no_answer = || Err(Error::unavailable("queue", "no answer for a record"));
            let Err(error) = answers.next().unwrap_or_else(no_answer) else {
                return PublishResult::Taken(item);
            };
            match error.kind {
                Kind::Conflict => self.replace_refused(item, &error),
                Kind::Unavailable | Kind::Corrupt => {
                    failure = Some(error_text(&error));
                    PublishResult::Again(item)
                }
            }
        };
        let answers = items.into_iter().map(&mut judge).collect();
        CallResult::Published(partition, answers, failure)
    }

    /// Replaces a record that the log will never take.
    fn replace_refused(&self, item: Item, error: &Error) -> PublishResult {
        let mut record = item.record.clone();
        let (topic, now) = (record.partition.topic, self.clock.now());
        let mut entries = Vec::new();
        match topic {
            Topic::Dead if !record.value.is_empty() => {
                // The letter would never fit. Its origin still has the bytes.
                let reason = format!("{} bytes, which the log refused", record.value.len());
                record
                    .headers
                    .push(("value-omitted".to_owned(), reason.into()));
                record.value = Bytes::new();
                return PublishResult::Refused(item, Some(record), entries);
            }
            Topic::Retry(_) => {
                let reason = error.source.to_string();
                if let Some(poison) = PoisonRecord::from_retry(item.origin, &record, reason) {
                    let mut letter = dead_letter(&self.records, &poison, now);
                    return PublishResult::Refused(item, letter.records.pop(), letter.ledger);
                }
            }
            Topic::Notification => entries.extend(notification_failure(&record, now)),
            Topic::Message | Topic::Dead | Topic::NotificationDead | Topic::Operation => {}
        }
        tracing::error!(
            source = %item.origin,
            %topic,
            %error,
            why = %error.source,
            trace_id = record_trace(&record).map(tracing::field::display),
            "gave up a record that the log refused permanently"
        );
        metrics::counter!("carrier_records_given_up_total", "topic" => topic.name()).increment(1);
        PublishResult::Refused(item, None, entries)
    }
}

/// Trace in the record's header.
fn record_trace(record: &NewRecord) -> Option<TraceId> {
    let mut headers = record.headers.iter();
    let (_, text) = headers.find(|(name, _)| name == TRACEPARENT)?;
    let context = TraceContext::parse(std::str::from_utf8(text).ok()?)?;
    Some(context.trace)
}

/// Ledger entry of a notification that never left.
fn notification_failure(record: &NewRecord, now: Timestamp) -> Option<LedgerEntry> {
    let task = NotificationTask::decode(record.value.clone()).ok()?;
    Some(LedgerEntry {
        message: task.notification.message,
        at: now,
        target: Some(task.notification.target),
        event: LedgerEvent::NotificationSent {
            provider: "log".to_owned(),
            ok: false,
        },
    })
}
