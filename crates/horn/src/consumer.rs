//! The loop of a horn: reads notifications, has them sent, and commits those that have an outcome.
//!
//! A failed notification waits beside the others and occupies no call; it does hold the commit of
//! its partition, so that a crash brings it back. `pending_max` bounds them: at the bound the
//! partitions are paused, and the log is polled all the same, as a consumer that does not poll
//! leaves the group and attempts would begin anew.

mod burials;
mod mutes;
mod push_queue;
mod settle;
mod spans;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::dead_letter;
use api::task::{NotificationTask, Value};
use api::trace::{self, Spans};
use backend::clock::{Clock, Entropy};
use backend::queue::{Consumer, Partition, Polled, Record};
use protocol::MessageId;
use protocol::delivery::{OffsetTracker, Source};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::message::Target;
use protocol::notify::{Collapse, NextAttempt, NotifyFailure, NotifyLimits};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::burials::{Burial, Burials};
use self::mutes::Mutes;
use self::push_queue::{PendingPush, PushQueue};
use self::settle::{AttemptEnd, AttemptOutcome, OutcomeResult, OutcomeWrite, Registry};
use self::spans::{call_context, record_call};
use crate::config::Config;
use crate::metrics::HornMetrics;
use crate::provider::{Provider, ProviderError, ProviderPush};
use crate::start::Parts;

/// Pause between attempts to reach a log or a ledger that does not answer.
const STORE_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for which revoked partitions are kept for calls in flight: less than the log waits for
/// them.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(20);
/// Redriven letters remembered, the newest: as many as one task takes.
const REDRIVEN_LETTERS_MAX: usize = 10_000;
/// (Message, user, platform) triples remembered, so that each is notified once. The newest are
/// kept; a forgotten one may be notified twice.
const COLLAPSE_MAX: usize = 65_536;

/// One horn. Everything but the calls themselves happens in its one task.
pub(crate) struct Horn {
    provider: Arc<dyn Provider>,
    mutes: Mutes,
    registry: Registry,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<HornMetrics>,
    spans: Spans,
    limits: NotifyLimits,
    timeout: Duration,
    concurrency: usize,
    pending_max: usize,
    pending_bytes_max: usize,

    assigned_partitions: Vec<Partition>,
    /// Partitions paused for lack of room.
    paused_partitions: Vec<Partition>,
    /// Bytes of all notifications without a recorded outcome.
    bytes: usize,
    offsets: OffsetTracker,
    /// Targets that were notified of a message, or are about to be.
    collapse: Collapse<(MessageId, Target)>,
    /// Dead letters whose redrive has an outcome: another record of it is a repeat.
    redriven_letters: Collapse<String>,
    queue: PushQueue,
    calls: JoinSet<Result<(), ProviderError>>,
    in_flight: HashMap<Id, PendingPush>,
    /// Partitions to give up once their calls have ended.
    revoked_partitions: Vec<Partition>,
    /// Deadline by which the revoked partitions are given up.
    revoked_until: Option<Instant>,
    /// Letters that are not in the log yet.
    burials: Burials,
    /// Notifications with an outcome that is not recorded yet.
    attempt_ends: Vec<AttemptEnd>,
    outcome_write: Option<OutcomeWrite>,
    /// End of the pause that the provider asked for.
    hold_until: Option<Instant>,
    /// Earliest next poll after the log did not answer.
    poll_at: Option<Instant>,
    /// Earliest next try after log or ledger did not take the outcomes.
    settle_at: Option<Instant>,
}

enum Turn {
    Stop,
    Called(Result<(Id, Result<(), ProviderError>), JoinError>),
    Polled(backend::Result<Polled>),
    Recorded(OutcomeResult),
    Buried(Burial),
    Due,
}

impl Horn {
    pub(crate) fn new(config: &Config, parts: Parts, provider: Arc<dyn Provider>) -> Horn {
        let producer = parts.queue.producer();
        Horn {
            metrics: Arc::new(HornMetrics::new(provider.name())),
            spans: Spans::here(),
            mutes: Mutes {
                conversations: parts.conversations,
                clock: parts.clock.clone(),
            },
            registry: Registry {
                ledger: parts.ledger,
                provider: provider.name(),
                dead_partitions: parts.queue.partitions(Topic::NotificationDead),
            },
            provider,
            clock: parts.clock,
            entropy: parts.entropy,
            limits: config.limits(),
            timeout: config.timeout,
            concurrency: config.concurrency.max(1),
            pending_max: config.pending_max.max(1),
            pending_bytes_max: config.pending_bytes_max,
            assigned_partitions: Vec::new(),
            paused_partitions: Vec::new(),
            bytes: 0,
            offsets: OffsetTracker::default(),
            collapse: Collapse::new(COLLAPSE_MAX),
            redriven_letters: Collapse::new(REDRIVEN_LETTERS_MAX),
            queue: PushQueue::default(),
            calls: JoinSet::new(),
            in_flight: HashMap::new(),
            revoked_partitions: Vec::new(),
            revoked_until: None,
            burials: Burials::new(producer),
            attempt_ends: Vec::new(),
            outcome_write: None,
            hold_until: None,
            poll_at: None,
            settle_at: None,
        }
    }

    pub(crate) async fn run(
        mut self,
        mut consumer: Box<dyn Consumer>,
        shutdown: CancellationToken,
    ) {
        loop {
            self.call_due();
            self.settle(consumer.as_mut(), Instant::now()).await;
            self.release_revoked();
            self.make_room(consumer.as_mut());
            match self.next_turn(consumer.as_mut(), &shutdown).await {
                Turn::Stop => break,
                Turn::Called(result) => self.finish_all(result),
                Turn::Polled(Ok(poll)) => self.handle_poll(poll),
                Turn::Polled(Err(error)) => {
                    tracing::warn!(%error, "cannot read notifications from the log");
                    self.poll_at = Some(Instant::now() + STORE_RETRY_PAUSE);
                }
                Turn::Recorded(outcome) => self.finish_recording(outcome),
                Turn::Buried(burial) => self.buried(burial),
                Turn::Due => {}
            }
            self.metrics.pending.set(self.pending() as f64);
        }
        // Notifications waiting for another attempt are not committed and come again.
        while let Some(result) = self.calls.join_next_with_id().await {
            self.finish(result);
        }
        self.settle_all(consumer.as_mut()).await;
        self.metrics.pending.set(0.0);
    }

    async fn next_turn(
        &mut self,
        consumer: &mut dyn Consumer,
        shutdown: &CancellationToken,
    ) -> Turn {
        let now = Instant::now();
        // At least one: a poll is due even while the partitions are paused.
        let room = self.pending_max.saturating_sub(self.pending()).max(1);
        let can_poll =
            self.revoked_partitions.is_empty() && self.poll_at.is_none_or(|at| at <= now);
        let wake_at = self.next_due(now);
        let outcome_write = async {
            match &mut self.outcome_write {
                Some(outcome_write) => outcome_write.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Turn::Stop,
            Some(result) = self.calls.join_next_with_id() => Turn::Called(result),
            outcome = outcome_write => Turn::Recorded(outcome),
            burial = self.burials.wait() => Turn::Buried(burial),
            () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => Turn::Due,
            poll = consumer.poll(room), if can_poll => Turn::Polled(poll),
        }
    }

    /// Next deadline that nothing else wakes for.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let has_free_call = self.calls.len() < self.concurrency;
        let next_call = self.queue.next_due().filter(|_| has_free_call);
        let next_call = next_call.map(|due| self.hold_until.map_or(due, |hold| hold.max(due)));
        let poll = self.poll_at.filter(|&at| at > now);
        let letters = self.burials.next_due();
        [next_call, self.settle_at, poll, self.revoked_until, letters]
            .into_iter()
            .flatten()
            .min()
    }

    fn pending(&self) -> usize {
        let recording_count = self.outcome_write.as_ref().map_or(0, OutcomeWrite::len);
        let ended_count = self.burials.len() + self.attempt_ends.len() + recording_count;
        self.calls.len() + self.queue.len() + ended_count
    }

    /// Pauses all partitions while there is no room for more, until a quarter of it is free again:
    /// each resumption costs the log a fetch.
    fn make_room(&mut self, consumer: &mut dyn Consumer) {
        let limit = |max: usize| {
            if self.paused_partitions.is_empty() {
                max - 1
            } else {
                max / 4 * 3
            }
        };
        let is_full =
            self.pending() > limit(self.pending_max) || self.bytes > limit(self.pending_bytes_max);
        let partitions = if is_full {
            self.assigned_partitions.clone()
        } else {
            Vec::new()
        };
        if partitions != self.paused_partitions {
            consumer.resume(&self.paused_partitions);
            consumer.pause(&partitions);
            self.paused_partitions = partitions;
        }
    }

    fn handle_poll(&mut self, poll: Polled) {
        match poll {
            Polled::Records(records) => records
                .into_iter()
                .for_each(|record| self.accept_record(record)),
            Polled::Assigned(partitions) => self.assigned_partitions.extend(partitions),
            Polled::Revoked(partitions) => {
                self.drop_partitions(&partitions);
                self.revoked_partitions = partitions;
                self.revoked_until = Some(Instant::now() + REVOKE_TIMEOUT);
                self.release_revoked();
            }
            Polled::Lost(partitions) => {
                self.drop_partitions(&partitions);
                for partition in partitions {
                    self.offsets.revoke((partition.topic, partition.number));
                }
            }
        }
    }

    /// Drops waiting notifications of these partitions, and ignores the results of those in flight:
    /// the partition's next holder repeats them.
    fn drop_partitions(&mut self, partitions: &[Partition]) {
        let is_ours = |source: Source| {
            partitions
                .iter()
                .any(|p| (p.topic, p.number) == (source.topic, source.partition))
        };
        self.assigned_partitions
            .retain(|partition| !partitions.contains(partition));
        self.paused_partitions
            .retain(|partition| !partitions.contains(partition));
        for pending in self.queue.remove_if(|pending| is_ours(pending.source)) {
            self.bytes -= pending.bytes();
            let notification = pending.task.notification;
            self.collapse
                .forget(&(notification.message, notification.target));
        }
        for pending in self.in_flight.values_mut().filter(|p| is_ours(p.source)) {
            pending.is_abandoned = true;
            let notification = pending.task.notification;
            self.collapse
                .forget(&(notification.message, notification.target));
        }
    }

    /// Gives up revoked partitions once their calls have ended and the outcomes are committed: a
    /// later commit would be refused, and the next holder would notify every target again. A log or
    /// a ledger that takes no outcomes does not hold them for ever.
    fn release_revoked(&mut self) {
        let in_flight = self.in_flight.values().map(|pending| pending.source);
        let ended_sources = self
            .attempt_ends
            .iter()
            .map(|ended_sources| ended_sources.source);
        let recording_sources = self.outcome_write.iter().flat_map(OutcomeWrite::sources);
        let letters = self.burials.sources();
        let is_late = self.revoked_until.is_some_and(|at| at <= Instant::now());
        let is_busy = !is_late
            && in_flight
                .chain(ended_sources)
                .chain(recording_sources)
                .chain(letters)
                .any(|source| {
                    self.revoked_partitions
                        .iter()
                        .any(|p| (p.topic, p.number) == (source.topic, source.partition))
                });
        if !is_busy {
            self.revoked_until = None;
            for partition in self.revoked_partitions.drain(..) {
                self.offsets.revoke((partition.topic, partition.number));
            }
        }
    }

    fn accept_record(&mut self, record: Record) {
        let source = Source {
            topic: record.partition.topic,
            partition: record.partition.number,
            offset: record.offset,
        };
        self.offsets.begin(source);
        let parent = dead_letter::parent(&record.headers);
        let (key, value) = (record.key, record.value);
        self.bytes += key.len() + value.len();
        let task = match NotificationTask::decode(value.clone()) {
            Ok(task) => task,
            Err(refusal) => {
                let unreadable = AttemptEnd::unreadable(source, key, value, parent, refusal.text);
                return self.attempt_ends.push(unreadable);
            }
        };
        let notification = task.notification;
        let pending = PendingPush {
            source,
            key,
            value,
            task,
            parent,
            attempts: 0,
            first_failed_at: None,
            is_abandoned: false,
        };
        let letter = pending.task.letter.as_ref();
        let is_repeat = letter.is_some_and(|letter| self.redriven_letters.contains(letter));
        if !is_repeat
            && self
                .collapse
                .admit((notification.message, notification.target))
        {
            self.queue.add(Instant::now(), pending);
        } else {
            self.attempt_ends
                .push(AttemptEnd::new(pending, AttemptOutcome::Collapsed));
        }
    }

    /// Calls the provider for due notifications, as far as there is room.
    fn call_due(&mut self) {
        let now = Instant::now();
        self.hold_until = self.hold_until.filter(|&hold| hold > now);
        if self.hold_until.is_some() {
            return;
        }
        while self.calls.len() < self.concurrency
            && let Some(mut pending) = self.queue.take_due(now)
        {
            let accepted_at = pending.task.notification.accepted_at;
            if !self.limits.is_news(accepted_at, self.clock.now()) {
                let text = format!("the message is older than {:?}", self.limits.age_max);
                let outcome = AttemptOutcome::Dead(DeadReason::Expired, text);
                self.attempt_ends.push(AttemptEnd::new(pending, outcome));
                continue;
            }
            pending.attempts += 1;
            let id = self.call(&pending);
            self.in_flight.insert(id, pending);
        }
    }

    fn call(&mut self, pending: &PendingPush) -> Id {
        let (provider, metrics) = (self.provider.clone(), self.metrics.clone());
        let mutes = self.mutes.clone();
        let wait = self.timeout;
        let push = ProviderPush {
            notification: pending.task.notification,
            attempt: pending.attempts,
            trace: call_context(pending),
        };
        let (spans, parent) = (self.spans.clone(), pending.task.trace);
        let call = async move {
            let started_at = Instant::now();
            let request = timeout(wait, async {
                mutes.check(&push.notification).await?;
                provider.send(&push).await
            });
            let answer = trace::within(push.trace, request).await;
            metrics.record_call(started_at.elapsed());
            let answer = answer.unwrap_or_else(|_| {
                let text = format!("{} did not answer within {wait:?}", provider.name());
                Err(ProviderError::new(NotifyFailure::Unavailable, text))
            });
            record_call(&spans, parent, &push, started_at.elapsed(), &answer);
            answer
        };
        self.calls.spawn(call).id()
    }

    /// Finishes all calls that have ended meanwhile, so that they settle together.
    fn finish_all(&mut self, first: Result<(Id, Result<(), ProviderError>), JoinError>) {
        self.finish(first);
        while let Some(next) = self.calls.try_join_next_with_id() {
            self.finish(next);
        }
    }

    fn finish(&mut self, result: Result<(Id, Result<(), ProviderError>), JoinError>) {
        let (id, result) = match result {
            Ok(answer) => answer,
            Err(error) => {
                let text = format!("the provider panicked: {error}");
                tracing::error!(%error, "a provider panicked");
                (
                    error.id(),
                    Err(ProviderError::new(NotifyFailure::Panicked, text)),
                )
            }
        };
        let Some(pending) = self.in_flight.remove(&id) else {
            return;
        };
        match result {
            Ok(()) => self
                .attempt_ends
                .push(AttemptEnd::new(pending, AttemptOutcome::Sent)),
            Err(error) => self.fail(pending, error),
        }
    }

    fn fail(&mut self, mut pending: PendingPush, error: ProviderError) {
        pending
            .first_failed_at
            .get_or_insert_with(|| self.clock.now());
        let chance = self.entropy.next();
        let next =
            self.limits
                .next_attempt(error.failure, pending.attempts, error.retry_after, chance);
        match next {
            NextAttempt::Again { .. } if pending.is_abandoned => self.bytes -= pending.bytes(),
            NextAttempt::Again { delay } => {
                let retry_at = Instant::now() + delay;
                if error.failure == NotifyFailure::Throttled {
                    self.hold_until = self.hold_until.max(Some(retry_at));
                }
                tracing::debug!(
                    error = error.text,
                    attempts = pending.attempts,
                    after = ?delay,
                    "retrying a notification"
                );
                self.metrics.retried_total.increment(1);
                self.queue.add(retry_at, pending);
            }
            NextAttempt::GiveUp(reason) => {
                let outcome = AttemptOutcome::Dead(reason, error.text);
                self.attempt_ends.push(AttemptEnd::new(pending, outcome));
            }
            NextAttempt::Nobody => self
                .attempt_ends
                .push(AttemptEnd::new(pending, AttemptOutcome::Nobody)),
            NextAttempt::Muted => self
                .attempt_ends
                .push(AttemptEnd::new(pending, AttemptOutcome::Muted)),
        }
    }
}
