//! The loop of a horn: reads notifications, has them sent, and commits what has an outcome.
//!
//! A notification that failed waits beside the others and holds no call; it does hold the commit of its
//! partition, so that a crash brings it back. Bounded by `pending_max`: at it the partitions are paused, and the
//! log is polled all the same, as who does not poll is out of the group and attempts would begin anew.

mod burials;
mod mutes;
mod pending;
mod settle;
mod spans;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::dead_letter;
use api::task::NotificationTask;
use api::trace::{self, Spans};
use backend::clock::{Clock, Entropy};
use backend::queue::{Consumer, Partition, Polled, Record};
use protocol::delivery::{Offsets, Source};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::notify::{Collapse, Failure, Limits, Next};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::burials::{Burial, Burials};
use self::mutes::Mutes;
use self::pending::{Pending, Waiting};
use self::settle::{Ended, Outcome, Recorded, Recording, Registry};
use self::spans::{calling, record_call};
use crate::config::Config;
use crate::metrics::HornMetrics;
use crate::provider::{Provider, ProviderError, Push};
use crate::start::Parts;

/// Between attempts to reach a log or a ledger that does not answer.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// How long revoked partitions are kept for what is under way: below what the log waits for them.
const REVOKE_WAIT: Duration = Duration::from_secs(20);

/// One horn. Everything but the calls themselves happens in its one task.
pub(crate) struct Horn {
    provider: Arc<dyn Provider>,
    mutes: Mutes,
    registry: Registry,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    metrics: Arc<HornMetrics>,
    spans: Spans,
    limits: Limits,
    timeout: Duration,
    concurrency: usize,
    pending_max: usize,
    pending_bytes_max: usize,

    assigned: Vec<Partition>,
    /// Hand out nothing, as there is no room.
    paused: Vec<Partition>,
    /// Of all that has no recorded outcome.
    bytes: usize,
    offsets: Offsets,
    collapse: Collapse,
    waiting: Waiting,
    calls: JoinSet<Result<(), ProviderError>>,
    called: HashMap<Id, Pending>,
    /// Partitions to be given away once their calls have ended.
    revoked: Vec<Partition>,
    /// When they go at the latest.
    revoked_until: Option<Instant>,
    /// Letters that the log does not have yet.
    burials: Burials,
    /// Have an outcome that is not recorded yet.
    ended: Vec<Ended>,
    recording: Option<Recording>,
    /// The provider asked to be left alone until then.
    hold: Option<Instant>,
    /// The log did not answer: not before then.
    poll_at: Option<Instant>,
    /// Log or ledger did not take the outcomes: not before then.
    settle_at: Option<Instant>,
}

enum Turn {
    Stop,
    Called(Result<(Id, Result<(), ProviderError>), JoinError>),
    Polled(backend::Result<Polled>),
    Recorded(Recorded),
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
            pending_bytes_max: config.pending_bytes_max.max(1),
            assigned: Vec::new(),
            paused: Vec::new(),
            bytes: 0,
            offsets: Offsets::default(),
            collapse: Collapse::new(config.collapse_max),
            waiting: Waiting::default(),
            calls: JoinSet::new(),
            called: HashMap::new(),
            revoked: Vec::new(),
            revoked_until: None,
            burials: Burials::new(producer),
            ended: Vec::new(),
            recording: None,
            hold: None,
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
            self.give_away();
            self.make_room(consumer.as_mut());
            match self.next_turn(consumer.as_mut(), &shutdown).await {
                Turn::Stop => break,
                Turn::Called(result) => self.finish_all(result),
                Turn::Polled(Ok(polled)) => self.take(polled),
                Turn::Polled(Err(error)) => {
                    tracing::warn!(%error, "the log of notifications cannot be read");
                    self.poll_at = Some(Instant::now() + STORE_RETRY);
                }
                Turn::Recorded(recorded) => self.recorded(recorded),
                Turn::Buried(burial) => self.buried(burial),
                Turn::Due => {}
            }
            self.metrics.pending.set(self.pending() as f64);
        }
        // What waits for another attempt is not committed and comes again.
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
        // At least one, for a poll is due even where the partitions are paused.
        let room = self.pending_max.saturating_sub(self.pending()).max(1);
        let polls = self.revoked.is_empty() && self.poll_at.is_none_or(|at| at <= now);
        let due = self.next_due(now);
        let recording = async {
            match &mut self.recording {
                Some(recording) => recording.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => Turn::Stop,
            Some(result) = self.calls.join_next_with_id() => Turn::Called(result),
            recorded = recording => Turn::Recorded(recorded),
            burial = self.burials.ended() => Turn::Buried(burial),
            () = sleep_until(due.unwrap_or(now)), if due.is_some() => Turn::Due,
            polled = consumer.poll(room), if polls => Turn::Polled(polled),
        }
    }

    /// When something is to be done that nothing else wakes for.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let free = self.calls.len() < self.concurrency;
        let next_call = self.waiting.next_due().filter(|_| free);
        let next_call = next_call.map(|due| self.hold.map_or(due, |hold| hold.max(due)));
        let poll = self.poll_at.filter(|&at| at > now);
        let letters = self.burials.next_due();
        [next_call, self.settle_at, poll, self.revoked_until, letters]
            .into_iter()
            .flatten()
            .min()
    }

    fn pending(&self) -> usize {
        let recording = self.recording.as_ref().map_or(0, Recording::len);
        let ended = self.burials.len() + self.ended.len() + recording;
        self.calls.len() + self.waiting.len() + ended
    }

    /// Pauses all partitions while there is no room for more, until a quarter of it is free again: each resumption
    /// costs the log a fetch.
    fn make_room(&mut self, consumer: &mut dyn Consumer) {
        let most = |max: usize| {
            if self.paused.is_empty() {
                max - 1
            } else {
                max / 4 * 3
            }
        };
        let full =
            self.pending() > most(self.pending_max) || self.bytes > most(self.pending_bytes_max);
        let wanted = if full {
            self.assigned.clone()
        } else {
            Vec::new()
        };
        if wanted != self.paused {
            consumer.resume(&self.paused);
            consumer.pause(&wanted);
            self.paused = wanted;
        }
    }

    fn take(&mut self, polled: Polled) {
        match polled {
            Polled::Records(records) => records.into_iter().for_each(|record| self.read(record)),
            Polled::Assigned(partitions) => self.assigned.extend(partitions),
            Polled::Revoked(partitions) => {
                self.let_go(&partitions);
                self.revoked = partitions;
                self.revoked_until = Some(Instant::now() + REVOKE_WAIT);
                self.give_away();
            }
            Polled::Lost(partitions) => {
                self.let_go(&partitions);
                for partition in partitions {
                    self.offsets.revoke((partition.topic, partition.number));
                }
            }
        }
    }

    /// Forgets what waits of these partitions, and what is under way counts for nobody: whoever holds
    /// the partition next does it again.
    fn let_go(&mut self, partitions: &[Partition]) {
        let ours = |source: Source| {
            partitions
                .iter()
                .any(|p| (p.topic, p.number) == (source.topic, source.partition))
        };
        self.assigned.retain(|ours| !partitions.contains(ours));
        self.paused.retain(|ours| !partitions.contains(ours));
        for pending in self.waiting.remove_if(|pending| ours(pending.source)) {
            self.bytes -= pending.bytes();
            let notification = pending.task.notification;
            self.collapse
                .forget(notification.message, notification.target);
        }
        for pending in self.called.values_mut().filter(|p| ours(p.source)) {
            pending.abandoned = true;
            let notification = pending.task.notification;
            self.collapse
                .forget(notification.message, notification.target);
        }
    }

    /// Revoked partitions go when their calls have ended and the outcomes are committed: a commit after
    /// that would be refused, and the next holder would tell everybody again. A log or a ledger that does not
    /// take outcomes does not keep them for ever.
    fn give_away(&mut self) {
        let under_way = self.called.values().map(|pending| pending.source);
        let ended = self.ended.iter().map(|ended| ended.source);
        let recording = self.recording.iter().flat_map(Recording::sources);
        let letters = self.burials.sources();
        let late = self.revoked_until.is_some_and(|at| at <= Instant::now());
        let busy = !late
            && under_way
                .chain(ended)
                .chain(recording)
                .chain(letters)
                .any(|source| {
                    self.revoked
                        .iter()
                        .any(|p| (p.topic, p.number) == (source.topic, source.partition))
                });
        if !busy {
            self.revoked_until = None;
            for partition in self.revoked.drain(..) {
                self.offsets.revoke((partition.topic, partition.number));
            }
        }
    }

    fn read(&mut self, record: Record) {
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
                let unreadable = Ended::unreadable(source, key, value, parent, refusal.text);
                return self.ended.push(unreadable);
            }
        };
        let notification = task.notification;
        let pending = Pending {
            source,
            key,
            value,
            task,
            parent,
            attempts: 0,
            failed_first: None,
            abandoned: false,
        };
        if self
            .collapse
            .admit(notification.message, notification.target)
        {
            self.waiting.add(Instant::now(), pending);
        } else {
            self.ended.push(Ended::new(pending, Outcome::Collapsed));
        }
    }

    /// Calls the provider for what is due, as far as there is room.
    fn call_due(&mut self) {
        let now = Instant::now();
        self.hold = self.hold.filter(|&hold| hold > now);
        if self.hold.is_some() {
            return;
        }
        while self.calls.len() < self.concurrency
            && let Some(mut pending) = self.waiting.take_due(now)
        {
            let accepted_at = pending.task.notification.accepted_at;
            if !self.limits.is_news(accepted_at, self.clock.now()) {
                let text = format!("the message is older than {:?}", self.limits.age_max);
                let expired = Outcome::Dead(DeadReason::Expired, text);
                self.ended.push(Ended::new(pending, expired));
                continue;
            }
            pending.attempts += 1;
            let id = self.call(&pending);
            self.called.insert(id, pending);
        }
    }

    fn call(&mut self, pending: &Pending) -> Id {
        let (provider, metrics) = (self.provider.clone(), self.metrics.clone());
        let mutes = self.mutes.clone();
        let wait = self.timeout;
        let push = Push {
            notification: pending.task.notification,
            attempt: pending.attempts,
            trace: calling(pending),
        };
        let (spans, parent) = (self.spans.clone(), pending.task.trace);
        let call = async move {
            let began = Instant::now();
            let sent = timeout(wait, async {
                mutes.check(&push.notification).await?;
                provider.send(&push).await
            });
            let answer = trace::within(push.trace, sent).await;
            metrics.called(began.elapsed());
            let answer = answer.unwrap_or_else(|_| {
                let text = format!("{} did not answer within {wait:?}", provider.name());
                Err(ProviderError::new(Failure::Unavailable, text))
            });
            record_call(&spans, parent, &push, began.elapsed(), &answer);
            answer
        };
        self.calls.spawn(call).id()
    }

    /// All that have ended meanwhile are settled together.
    fn finish_all(&mut self, first: Result<(Id, Result<(), ProviderError>), JoinError>) {
        self.finish(first);
        while let Some(next) = self.calls.try_join_next_with_id() {
            self.finish(next);
        }
    }

    fn finish(&mut self, result: Result<(Id, Result<(), ProviderError>), JoinError>) {
        let (id, result) = match result {
            Ok(answered) => answered,
            Err(error) => {
                let text = format!("the provider's code failed: {error}");
                tracing::error!(%error, "a provider panicked");
                (error.id(), Err(ProviderError::new(Failure::Panicked, text)))
            }
        };
        let Some(pending) = self.called.remove(&id) else {
            return;
        };
        match result {
            Ok(()) => self.ended.push(Ended::new(pending, Outcome::Sent)),
            Err(error) => self.fail(pending, error),
        }
    }

    fn fail(&mut self, mut pending: Pending, error: ProviderError) {
        pending.failed_first.get_or_insert_with(|| self.clock.now());
        let chance = self.entropy.next();
        let next = self
            .limits
            .after(error.failure, pending.attempts, error.retry_after, chance);
        match next {
            Next::Again { .. } if pending.abandoned => self.bytes -= pending.bytes(),
            Next::Again { after } => {
                let due = Instant::now() + after;
                if error.failure == Failure::Throttled {
                    self.hold = self.hold.max(Some(due));
                }
                tracing::debug!(
                    error = error.text,
                    attempts = pending.attempts,
                    ?after,
                    "again"
                );
                self.metrics.retried.increment(1);
                self.waiting.add(due, pending);
            }
            Next::GiveUp(reason) => {
                let dead = Outcome::Dead(reason, error.text);
                self.ended.push(Ended::new(pending, dead));
            }
            Next::Nobody => self.ended.push(Ended::new(pending, Outcome::Nobody)),
            Next::Muted => self.ended.push(Ended::new(pending, Outcome::Muted)),
        }
    }
}
