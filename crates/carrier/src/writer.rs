//! Step 4 of a message's way: the single writer of the conversations whose partitions this carrier owns.
//!
//! Decisions are [`protocol::writer`]'s; `load` reads the facts that are missing, and `apply` applies the plan. Only
//! written records are delivered. A crash anywhere brings the records back, and they are decided the same way.
//!
//! Single records are to blame where a store refuses a row, or cannot read what it has of a conversation: they become
//! dead letters, and the others pass.

mod apply;
mod groups;
mod heads;
mod load;
mod stamp_retry;

use std::sync::Arc;
use std::time::Duration;

use api::trace::{self, Spans};
use backend::Backends;
use backend::clock::Clock;
use backend::queue::Partition;
use backend::{Error, Kind};
use protocol::event::Encode;
use protocol::ledger::{DeadReason, dead_entries};
use protocol::record::TaskRecord;
use protocol::trace::{Span, Step};
use protocol::writer::{
    self, Batch, DeadRecord, Facts, Handover, Missing, NoPlan, Parts, Plan, ROUNDS_MAX,
    RecordOutcome, Rules,
};
use protocol::{ConversationId, MessageId, Timestamp};
use tokio::time::Instant;

use self::groups::Groups;
use self::heads::Heads;
use crate::Config;
use crate::deadline::StoreDeadline;
use crate::decoded_record::{DecodedRecord, PoisonRecord};
use crate::executor_queue::{ExecutorBatch, SettleWork};
use crate::platforms::Platforms;
use crate::records::Records;

/// Tolerance of the age that a send names for its first attempt. The search for an unsure send goes
/// back by that age and this margin.
const UNSURE_MARGIN: Duration = Duration::from_secs(60);
/// Time for writing the records of one poll, or for looking up the state of due retries; then the
/// rest waits for another poll. Far below the time after which a consumer that does not poll drops
/// out of its group.
pub(crate) const WRITE_TIME: Duration = Duration::from_secs(5);

pub(crate) struct Writer {
    epoch: u32,
    backends: Backends,
    heads: Heads,
    groups: Groups,
    platforms: Platforms,
    records: Records,
    clock: Arc<dyn Clock>,
    store_deadline: StoreDeadline,
    list_margin: Duration,
    group_push_max: usize,
    encode: Arc<dyn Encode>,
    spans: Spans,
}

/// Outcome of a write.
#[derive(Default)]
pub(crate) struct WriteOutcome {
    /// Work of the records that took effect.
    pub(crate) batch: ExecutorBatch,
    /// Records that come later, in order. Nothing of them may be settled.
    pub(crate) rest: Vec<Arc<DecodedRecord>>,
    /// Reason why the first of these did not take effect; `None`: there was no time.
    pub(crate) halt: Option<Halt>,
    /// Records of the part that did not take effect: next time it is smaller.
    pub(crate) too_many: Option<usize>,
}

/// Reason why records did not take effect; they are to be repeated, later.
#[derive(Debug)]
pub(crate) enum Halt {
    Store(Error),
    /// A later writer is ahead of this one in this conversation.
    Overtaken(ConversationId),
    /// More rounds of reading than any batch needs: a bug.
    Undecidable(Box<Missing>),
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Halt::Store(error) => write!(f, "{error}: {}", error.source),
            Halt::Overtaken(conversation) => {
                write!(f, "another writer has moved {conversation} ahead")
            }
            Halt::Undecidable(missing) => {
                write!(
                    f,
                    "a bug: not decided after {ROUNDS_MAX} rounds: {missing:?}"
                )
            }
        }
    }
}

enum WriteFailure {
    /// The store refuses a row of this batch, or cannot read what it has of one of its conversations.
    Refused(Error),
    Halt(Halt),
}

impl From<Halt> for WriteFailure {
    fn from(halt: Halt) -> Self {
        WriteFailure::Halt(halt)
    }
}

impl From<Error> for WriteFailure {
    fn from(error: Error) -> Self {
        match error.kind {
            Kind::Corrupt => WriteFailure::Refused(error),
            Kind::Unavailable | Kind::Conflict => WriteFailure::Halt(Halt::Store(error)),
        }
    }
}

impl Writer {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        records: Records,
        encode: Arc<dyn Encode>,
        spans: Spans,
    ) -> Writer {
        Writer {
            epoch: backends.queue.epoch(),
            heads: Heads::new(backends.heads.clone(), config),
            groups: Groups::new(backends.groups.clone(), config),
            platforms: Platforms::new(backends.devices.clone(), config),
            records,
            clock: backends.clock.clone(),
            store_deadline: StoreDeadline::new(config),
            list_margin: config.list_margin,
            group_push_max: config.group_push_max,
            encode,
            spans,
            backends: backends.clone(),
        }
    }

    /// Forgets heads and groups of partitions that another carrier owns now.
    pub(crate) fn forget(&mut self, partitions: &[Partition]) {
        self.groups.forget(partitions);
        self.heads.forget(partitions);
    }

    /// Places and writes records in order, for `WRITE_TIME` and no longer than one part of them
    /// takes beyond it. A part has at most `part_max` records. Returns the work that follows.
    pub(crate) async fn write(
        &mut self,
        records: &[Arc<DecodedRecord>],
        part_max: usize,
    ) -> WriteOutcome {
        let mut outcome = WriteOutcome::default();
        let deadline = Instant::now() + WRITE_TIME;
        let tasks: Vec<TaskRecord<'_>> = records.iter().map(|record| record.as_task()).collect();
        let mut parts = Parts::of(&tasks, part_max);
        while let Some(part) = parts.take() {
            let (part_records, batch) = (&records[part.clone()], &tasks[part.clone()]);
            match self.write_part(part_records, batch, deadline).await {
                Ok(Some((batch, count))) => {
                    outcome.batch.append(batch);
                    parts.planned(part, count);
                }
                Ok(None) => {
                    outcome.too_many = Some(part.len());
                    parts.put_back(part);
                    break;
                }
                Err(WriteFailure::Halt(halt)) => {
                    outcome.halt = Some(halt);
                    outcome.too_many = Some(part.len());
                    parts.put_back(part);
                    break;
                }
                Err(WriteFailure::Refused(error)) => {
                    let Some(index) = parts.refused(part) else {
                        continue;
                    };
                    let one = index..index + 1;
                    let (record, task) = (&records[one.clone()], &tasks[one.clone()]);
                    match self.bury(record, task, &error, deadline).await {
                        Ok(Some(batch)) => outcome.batch.append(batch),
                        Ok(None) => {
                            parts.put_back(one);
                            break;
                        }
                        Err(halt) => {
                            outcome.halt = Some(halt);
                            parts.put_back(one);
                            break;
                        }
                    }
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        outcome.rest = parts
            .rest()
            .map_or(&[][..], |first| &records[first..])
            .to_vec();
        outcome
    }

    /// Writes a part, or its first records; returns their number. `None`: there was no time to read its groups, or all
    /// of its facts where it has several records.
    async fn write_part(
        &mut self,
        records: &[Arc<DecodedRecord>],
        tasks: &[TaskRecord<'_>],
        deadline: Instant,
    ) -> Result<Option<(ExecutorBatch, usize)>, WriteFailure> {
        let started_at = Instant::now();
        let Some(plan) = self.plan(tasks, writer::decide, deadline).await? else {
            return Ok(None);
        };
        let count = plan.outcomes.len();
        self.apply(plan.stages, deadline).await?;
        for (record, outcome) in records.iter().zip(plan.outcomes) {
            self.record_span(record, outcome, started_at.elapsed());
        }
        Ok(Some((self.build_batch(records, plan.handover), count)))
    }

    /// Buries a record that a store refuses. Where its head cannot be read or written, either, nothing behind it in its
    /// conversation can be placed, and it is a dead letter at once. `None`: there was no time.
    async fn bury(
        &mut self,
        record: &[Arc<DecodedRecord>],
        task: &[TaskRecord<'_>],
        refusal: &Error,
        deadline: Instant,
    ) -> Result<Option<ExecutorBatch>, Halt> {
        let error = format!("{refusal}: {}", refusal.source);
        let bury = |batch: &Batch<'_>, facts: &Facts, rules: &Rules<'_>, now: Timestamp| {
            writer::bury(batch, facts, rules, &error, now)
        };
        let burial = async {
            let Some(plan) = self.plan(task, bury, deadline).await? else {
                return Ok(None);
            };
            self.apply(plan.stages, deadline).await?;
            Ok(Some(plan.handover))
        };
        let handover = match burial.await {
            Ok(Some(handover)) => handover,
            Ok(None) => return Ok(None),
            Err(WriteFailure::Refused(_)) => Handover {
                dead: vec![DeadRecord {
                    index: 0,
                    reason: DeadReason::StoreRejected,
                    error: error.clone(),
                }],
                ..Handover::default()
            },
            Err(WriteFailure::Halt(halt)) => return Err(halt),
        };
        Ok(Some(self.build_batch(record, handover)))
    }

    /// The plan of the records, once all facts are read. `None`: there was no time to read their groups, or all of the
    /// facts of several records.
    async fn plan(
        &mut self,
        records: &[TaskRecord<'_>],
        decide: impl Fn(&Batch<'_>, &Facts, &Rules<'_>, Timestamp) -> Result<Plan, NoPlan>,
        deadline: Instant,
    ) -> Result<Option<Plan>, WriteFailure> {
        let now = self.clock.now();
        let batch = Batch {
            epoch: self.epoch,
            records,
        };
        let encode = Arc::clone(&self.encode);
        let rules = Rules {
            push_max: self.group_push_max,
            unsure_margin: UNSURE_MARGIN,
            encode: &*encode,
        };
        let mut facts = Facts::default();
        let mut rounds = 0;
        loop {
            match decide(&batch, &facts, &rules, now) {
                Ok(plan) => return Ok(Some(plan)),
                Err(NoPlan::Missing(missing)) if rounds == ROUNDS_MAX => {
                    return Err(Halt::Undecidable(missing).into());
                }
                Err(NoPlan::Missing(missing)) => {
                    if !self.load(*missing, &mut facts, deadline).await? {
                        return Ok(None);
                    }
                    rounds += 1;
                    if records.len() > 1 && Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(NoPlan::Overtaken(conversation)) => {
                    self.heads.forget_one(conversation);
                    if let ConversationId::Group(group) = conversation {
                        self.groups.forget_one(group);
                    }
                    return Err(Halt::Overtaken(conversation).into());
                }
            }
        }
    }

    fn build_batch(&self, records: &[Arc<DecodedRecord>], handover: Handover) -> ExecutorBatch {
        let settle_work = handover.settled_records.into_iter();
        let settle_work = settle_work.map(|(source, ledger)| {
            tracing::debug!(%source, ?ledger, "settled without a delivery");
            SettleWork {
                ledger,
                ..SettleWork::none(source)
            }
        });
        let dead = handover.dead.iter();
        let dead =
            dead.map(|dead| self.dead_letter(&records[dead.index], dead.reason, &dead.error));
        let kickouts = handover.kickouts.iter();
        ExecutorBatch {
            deliver: handover.deliver,
            kickouts: kickouts.map(|index| records[*index].copy()).collect(),
            effects: settle_work.chain(dead).collect(),
            notices: handover.notices,
        }
    }

    fn record_span(&self, record: &DecodedRecord, outcome: RecordOutcome, duration: Duration) {
        let (Some(parent), Some(name)) = (self.spans.sampled(record.task.trace), outcome.name())
        else {
            return;
        };
        let Some(context) = record.as_task().placing() else {
            return;
        };
        let source = record.source;
        let work = &record.task.work;
        self.spans.record(Span {
            is_failure: matches!(outcome, RecordOutcome::Dead(_)),
            message: work.message(),
            conversation: work.conversation().map(ConversationId::kind),
            record: Some((source.partition, source.offset)),
            attempt: Some(record.task.retry_count),
            ..Span::new(Step::Place, context, Some(parent.span), duration, name)
        });
    }

    fn dead_letter(
        &self,
        record: &Arc<DecodedRecord>,
        reason: DeadReason,
        error: &str,
    ) -> SettleWork {
        let poison = PoisonRecord::of(record.copy(), reason, error);
        dead_letter(&self.records, &poison, self.clock.now())
    }
}

/// A record becomes a dead letter.
pub(crate) fn dead_letter(records: &Records, poison: &PoisonRecord, now: Timestamp) -> SettleWork {
    tracing::warn!(
        source = %poison.source,
        reason = poison.reason.name(),
        error = poison.error,
        message = poison.message.map(MessageId::get),
        trace_id = trace::id(poison.trace),
        "dead letter"
    );
    metrics::counter!("carrier_dead_letters_total", "reason" => poison.reason.name()).increment(1);
    let recipients = (&poison.targets[..], poison.is_live);
    let ledger =
        (poison.message).map(|id| dead_entries(id, poison.source, recipients, poison.reason, now));
    SettleWork {
        source: poison.source,
        records: vec![records.poison_letter(poison, now)],
        ledger: ledger.unwrap_or_default(),
    }
}
