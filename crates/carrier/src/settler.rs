//! Step 8 of a message's way: makes the effects of settled records durable, many at a time, and only then
//! lets their offsets be committed.
//!
//! One call is under way at a time; what settles meanwhile goes with the next. A record whose effects
//! cannot be made durable (a dead-letter topic that does not take writes) holds its own offset, and is
//! tried again; the others pass.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use backend::clock::Entropy;
use backend::ledger::LedgerStore;
use backend::queue::Producer;
use backend::{Error, Kind};
use bytes::Bytes;
use protocol::delivery::Source;
use protocol::keys::Topic;
use tokio::time::Instant;

use crate::Config;
use crate::backoff::Backoff;
use crate::batch::Effects;
use crate::stores::Timed;

/// Effects of so many records in one call at most.
const BATCH: usize = 2048;

pub(crate) struct Settler {
    producer: Arc<dyn Producer>,
    ledger: Arc<dyn LedgerStore>,
    entropy: Arc<dyn Entropy>,
    stores: Timed,
    waiting: VecDeque<Effects>,
    /// Could not be made durable, and wait for the next try.
    held: Vec<Effects>,
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
    pub(crate) fn new(
        producer: Arc<dyn Producer>,
        ledger: Arc<dyn LedgerStore>,
        entropy: Arc<dyn Entropy>,
        config: &Config,
    ) -> Settler {
        Settler {
            producer,
            ledger,
            entropy,
            stores: Timed::new(config),
            waiting: VecDeque::new(),
            held: Vec::new(),
            again_at: None,
            backoff: Backoff::new(config),
            call: None,
            calling: 0,
        }
    }

    pub(crate) fn add(&mut self, effects: Effects) {
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
            batch.append(&mut self.held);
        }
        let room = BATCH.saturating_sub(batch.len()).min(self.waiting.len());
        batch.extend(self.waiting.drain(..room));
        if batch.is_empty() {
            return;
        }
        self.calling = batch.len();
        let (producer, ledger) = (self.producer.clone(), self.ledger.clone());
        self.call = Some(Box::pin(settle(producer, ledger, self.stores, batch)));
    }

    /// When `begin` should be called again, if nothing else happens.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.again_at.filter(|_| self.call.is_none())
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
                self.again_at = Some(Instant::now() + pause);
                tracing::warn!(
                    error,
                    records = settled.failed.len(),
                    pause_ms = pause.as_millis() as u64,
                    "settled records cannot be made durable: their offsets are held"
                );
                metrics::counter!("carrier_settle_failures_total").increment(1);
            }
        }
        self.held.extend(settled.failed);
        settled.done
    }
}

async fn settle(
    producer: Arc<dyn Producer>,
    ledger: Arc<dyn LedgerStore>,
    stores: Timed,
    mut batch: Vec<Effects>,
) -> Settled {
    let mut settled = Settled::default();
    publish(&*producer, stores, &mut batch, &mut settled).await;
    let entries: Vec<_> = batch
        .iter()
        .flat_map(|effects| effects.ledger.iter().cloned())
        .collect();
    if !entries.is_empty()
        && let Err(error) = stores.within(ledger.append(entries)).await
    {
        settled.error = Some(format!("{error}: {}", error.source));
        settled.failed.append(&mut batch);
    }
    settled.done = batch.iter().map(|effects| effects.source).collect();
    settled
}

/// Publishes all records of the batch in one call, and moves what was not taken to `failed`.
async fn publish(
    producer: &dyn Producer,
    stores: Timed,
    batch: &mut Vec<Effects>,
    settled: &mut Settled,
) {
    let records: Vec<_> = batch
        .iter()
        .flat_map(|effects| effects.records.iter().cloned())
        .collect();
    if records.is_empty() {
        return;
    }
    let published = async { Ok(producer.publish(records).await) };
    let mut answers = match stores.within(published).await {
        Ok(answers) => answers.into_iter(),
        Err(error) => {
            // Whether they were taken is unknown, so all are published again: a retry, a letter or a
            // notification that comes twice does no more than one, as after a crash.
            settled.error = Some(format!("{error}: {}", error.source));
            settled.failed.append(batch);
            return;
        }
    };
    for mut effects in std::mem::take(batch) {
        let mut left = Vec::new();
        for mut record in std::mem::take(&mut effects.records) {
            let missing = || Err(Error::unavailable("queue", "no answer for a record"));
            let Err(error) = answers.next().unwrap_or_else(missing) else {
                continue;
            };
            let whole = !record.value.is_empty();
            if error.kind == Kind::Conflict && record.partition.topic == Topic::Dead && whole {
                // The letter would never fit. Its origin still has the bytes.
                let why = format!("{} bytes, which the log refused", record.value.len());
                record
                    .headers
                    .push(("value-omitted".to_owned(), why.into()));
                record.value = Bytes::new();
            }
            settled.error = Some(format!("{error}: {}", error.source));
            left.push(record);
        }
        if left.is_empty() {
            batch.push(effects);
        } else {
            effects.records = left;
            settled.failed.push(effects);
        }
    }
}
