//! Step 8 of a message's way: makes the effects of settled records durable, many at a time, and only then
//! lets their offsets be committed.
//!
//! One call is under way at a time; what settles meanwhile goes with the next. A record whose effects
//! cannot be made durable (a dead-letter topic that does not take writes) holds its own offset, and is
//! tried again; the others pass, except those that would overtake it under the same key.
//!
//! What the log refuses for good is not tried again: a retry becomes a dead letter, a letter loses its
//! body, and what is left after that is given up and counted.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::task::NotificationTask;
use api::trace::TRACEPARENT;
use backend::clock::{Clock, Entropy};
use backend::ledger::LedgerStore;
use backend::queue::{NewRecord, Partition, Producer};
use backend::{Error, Kind};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::Topic;
use protocol::ledger::{Event, LedgerEntry};
use protocol::trace::TraceId;
use protocol::{Timestamp, TraceContext};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::batch::Effects;
use crate::records::Records;
use crate::stores::Timed;
use crate::work::Spoilt;
use crate::writer::give_up;
use crate::{Config, Parts};

/// Effects of so many records in one call at most.
const BATCH: usize = 2048;
/// What only the ledger is to be told waits for this many, or so long: nobody waits for it, and a call for
/// each costs more than what it writes.
const COMPANY: usize = 256;
const LINGER: Duration = Duration::from_millis(20);

pub(crate) struct Settler {
    way: Way,
    entropy: Arc<dyn Entropy>,
    waiting: VecDeque<Effects>,
    /// When what waits goes at the latest; `None`: nothing waits.
    due: Option<Instant>,
    /// Could not be made durable, or must not overtake such, and wait for the next try. In order.
    held: Vec<Effects>,
    /// Under which keys they are to be published.
    held_keys: BTreeSet<(Partition, Bytes)>,
    again_at: Option<Instant>,
    backoff: Backoff,
    call: Option<Pin<Box<dyn Future<Output = Settled> + Send>>>,
    calling: usize,
}

/// What a call came to.
#[derive(Default)]
struct Settled {
    done: Vec<Source>,
    failed: Vec<Effects>,
    error: Option<String>,
}

impl Settler {
    pub(crate) fn new(parts: &Parts, config: &Config, records: Records) -> Settler {
        Settler {
            way: Way {
                producer: parts.queue.producer(),
                ledger: parts.ledger.clone(),
                clock: parts.clock.clone(),
                stores: Timed::new(config),
                records,
            },
            entropy: parts.entropy.clone(),
            waiting: VecDeque::new(),
            due: None,
            held: Vec::new(),
            held_keys: BTreeSet::new(),
            again_at: None,
            backoff: Backoff::new(config),
            call: None,
            calling: 0,
        }
    }

    pub(crate) fn add(&mut self, effects: Effects) {
        let now = Instant::now();
        let lingers = effects.records.is_empty() && self.waiting.len() < COMPANY;
        let due = if lingers { now + LINGER } else { now };
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
        self.waiting.push_back(effects);
    }

    /// Records that are decided, and not settled yet.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.held.len() + self.calling
    }

    /// Begins the next call where there is something to do and none is under way.
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.call.is_some() {
            return;
        }
        let mut batch = Vec::new();
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.held_keys.clear();
            batch.append(&mut self.held);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.take_waiting(&mut batch);
        }
        if batch.is_empty() {
            return;
        }
        self.calling = batch.len();
        self.call = Some(Box::pin(self.way.clone().settle(batch)));
    }

    fn take_waiting(&mut self, batch: &mut Vec<Effects>) {
        while batch.len() < BATCH
            && let Some(effects) = self.waiting.pop_front()
        {
            if keys(&effects).any(|key| self.held_keys.contains(&key)) {
                self.hold(effects);
            } else {
                batch.push(effects);
            }
        }
        if self.waiting.is_empty() {
            self.due = None;
        }
    }

    fn hold(&mut self, effects: Effects) {
        self.held_keys.extend(keys(&effects));
        self.held.push(effects);
    }

    /// When `begin` should be called again, if nothing else happens.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let due = self.again_at.into_iter().chain(self.due).min();
        due.filter(|_| self.call.is_none())
    }

    /// Completes with the records that are settled when the present call ends; never, where none is
    /// under way. Cancel safe.
    pub(crate) async fn settled(&mut self) -> Vec<Source> {
        let Some(call) = &mut self.call else {
            return std::future::pending().await;
        };
        let settled = call.await;
        self.call = None;
        self.calling = 0;
        match settled.error {
            None => self.backoff.succeeded(),
            Some(error) => {
                let pause = self.backoff.failed(&*self.entropy);
                let again_at = Instant::now() + pause;
                self.again_at = Some(self.again_at.map_or(again_at, |at| at.min(again_at)));
                tracing::warn!(
                    error,
                    records = settled.failed.len(),
                    pause_ms = pause.as_millis() as u64,
                    "settled records cannot be made durable: their offsets are held"
                );
                metrics::counter!("carrier_settle_failures_total").increment(1);
            }
        }
        settled.failed.into_iter().for_each(|e| self.hold(e));
        settled.done
    }
}

fn keys(effects: &Effects) -> impl Iterator<Item = (Partition, Bytes)> {
    let records = effects.records.iter();
    records.map(|record| (record.partition, record.key.clone()))
}

/// How effects become durable; clones share it.
#[derive(Clone)]
struct Way {
    producer: Arc<dyn Producer>,
    ledger: Arc<dyn LedgerStore>,
    clock: Arc<dyn Clock>,
    stores: Timed,
    records: Records,
}

impl Settled {
    fn note(&mut self, error: &Error) {
        self.error = Some(format!("{error}: {}", error.source));
    }
}

impl Way {
    async fn settle(self, mut batch: Vec<Effects>) -> Settled {
        let mut settled = Settled::default();
        self.publish(&mut batch, &mut settled).await;
        let entries: Vec<_> = batch
            .iter()
            .flat_map(|effects| effects.ledger.iter().cloned())
            .collect();
        if !entries.is_empty()
            && let Err(error) = self.stores.within(self.ledger.append(entries)).await
        {
            settled.note(&error);
            settled.failed.append(&mut batch);
        }
        settled.done = batch.iter().map(|effects| effects.source).collect();
        settled
    }

    /// Publishes all records of the batch in one call, and moves what was not taken to `failed`.
    async fn publish(&self, batch: &mut Vec<Effects>, settled: &mut Settled) {
        let records: Vec<_> = batch
            .iter()
            .flat_map(|effects| effects.records.iter().cloned())
            .collect();
        if records.is_empty() {
            return;
        }
        let published = async { Ok(self.producer.publish(records).await) };
        let mut answers = match self.stores.within(published).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                // Whether they were taken is unknown, so all are published again: a retry, a letter or a
                // notification that comes twice does no more than one, as after a crash.
                settled.note(&error);
                settled.failed.append(batch);
                return;
            }
        };
        for mut effects in std::mem::take(batch) {
            let mut left = Vec::new();
            for record in std::mem::take(&mut effects.records) {
                let missing = || Err(Error::unavailable("queue", "no answer for a record"));
                let Err(error) = answers.next().unwrap_or_else(missing) else {
                    continue;
                };
                let again = match error.kind {
                    Kind::Conflict => self.refused(record, &mut effects, &error),
                    Kind::Unavailable | Kind::Corrupt => Some(record),
                };
                if let Some(again) = again {
                    settled.note(&error);
                    left.push(again);
                }
            }
            if left.is_empty() {
                batch.push(effects);
            } else {
                effects.records = left;
                settled.failed.push(effects);
            }
        }
    }

    /// The log will never take this record. Answers what is to be published in its place.
    fn refused(
        &self,
        mut record: NewRecord,
        effects: &mut Effects,
        error: &Error,
    ) -> Option<NewRecord> {
        let (topic, now) = (record.partition.topic, self.clock.now());
        match topic {
            Topic::Dead if !record.value.is_empty() => {
                // The letter would never fit. Its origin still has the bytes.
                let why = format!("{} bytes, which the log refused", record.value.len());
                record
                    .headers
                    .push(("value-omitted".to_owned(), why.into()));
                record.value = Bytes::new();
                return Some(record);
            }
            Topic::Retry(_) => {
                let why = error.source.to_string();
                if let Some(spoilt) = Spoilt::of_retry(effects.source, &record, why) {
                    let mut dead = give_up(&self.records, &spoilt, now);
                    effects.ledger.append(&mut dead.ledger);
                    return dead.records.pop();
                }
            }
            Topic::Notification => effects.ledger.extend(untold(&record, now)),
            Topic::Message | Topic::Dead | Topic::NotificationDead | Topic::Operation => {}
        }
        tracing::error!(
            source = %effects.source,
            %topic,
            %error,
            why = %error.source,
            trace_id = trace_of(&record).map(tracing::field::display),
            "a record that the log refuses for good is given up"
        );
        metrics::counter!("carrier_records_given_up_total", "topic" => topic.name()).increment(1);
        None
    }
}

/// As its header has it.
fn trace_of(record: &NewRecord) -> Option<TraceId> {
    let mut headers = record.headers.iter();
    let (_, text) = headers.find(|(name, _)| name == TRACEPARENT)?;
    let context = TraceContext::parse(std::str::from_utf8(text).ok()?)?;
    Some(context.trace)
}

/// That a notification never left, as the ledger says it.
fn untold(record: &NewRecord, now: Timestamp) -> Option<LedgerEntry> {
    let task = NotificationTask::decode(record.value.clone()).ok()?;
    Some(LedgerEntry {
        message: task.notification.message,
        at: now,
        target: Some(task.notification.target),
        event: Event::NotificationSent {
            provider: "log".to_owned(),
            ok: false,
        },
    })
}
