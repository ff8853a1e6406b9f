//! Steps 5 to 8: one loop that owns a shard's [`Delivery`], carries out its actions, and reports
//! the outcomes back.
//!
//! Nothing blocks in the loop. Actions gather during a turn and go out together: one call to each
//! server of the mailbox, one batch to each boat, one call to make settled records durable. While a
//! call is under way the next one gathers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::trace::Spans;
use backend::clock::{Clock, TimerClock};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::Moment;
use protocol::delivery::{Action, Delivery, DeliveryTask, PushOutcome, Source};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::boat_directory::BoatDirectory;
use crate::boat_streams::{BoatMessage, BoatStreams};
use crate::decoded_record::{DecodedRecord, partition_key};
use crate::executor_queue::{ExecutorBatch, ReleaseRequest};
use crate::kickout::KickoutSender;
use crate::metrics::Gauges;
use crate::offsets::AllOffsets;
use crate::records::Records;
use crate::router::RouteQueue;
use crate::settler::Settler;
use crate::spans::record_deliveries;

/// Resolution of deadlines, which are seconds long.
const TICK: Duration = Duration::from_millis(50);
/// Reports of boats handled in one turn.
const MAX_BOAT_MESSAGES: usize = 256;
/// Kickouts of one shard under way at the same time.
const MAX_CONCURRENT_KICKOUTS: usize = 64;

pub(crate) struct Executor {
    pub(crate) delivery: Delivery,
    pub(crate) boats: BoatStreams,
    pub(crate) directory: BoatDirectory,
    pub(crate) settler: Settler,
    pub(crate) kickout_sender: KickoutSender,
    pub(crate) records: Records,
    pub(crate) offsets: AllOffsets,
    pub(crate) clock: Arc<dyn Clock>,
    /// Keeps deadlines even if the time of day is set.
    pub(crate) timer: TimerClock,
    pub(crate) batches: mpsc::Receiver<ExecutorBatch>,
    pub(crate) releases: mpsc::Receiver<ReleaseRequest>,
    pub(crate) messages: mpsc::Receiver<BoatMessage>,
    pub(crate) kickouts_max: usize,
    pub(crate) backlog: Backlog,
    pub(crate) routes: RouteQueue,
    pub(crate) gauges: Gauges,
    pub(crate) spans: Spans,
}

/// Work handed over and not begun. While deliveries wait nothing more is taken. Kickouts have a
/// bound of their own, so that a boat that does not answer them holds up nobody's messages.
#[derive(Default)]
pub(crate) struct Backlog {
    deliver: VecDeque<(Source, DeliveryTask)>,
    kickouts: VecDeque<DecodedRecord>,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.deliver.is_empty() && self.kickouts.is_empty()
    }
}

impl Executor {
    /// Runs until `stop` is cancelled. By then every consumer has stopped handing over work, and
    /// has waited for work that may still finish.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut messages = Vec::with_capacity(MAX_BOAT_MESSAGES);
        let mut kickouts = FuturesUnordered::new();
        loop {
            self.begin_deliveries();
            while kickouts.len() < MAX_CONCURRENT_KICKOUTS
                && let Some(record) = self.backlog.kickouts.pop_front()
            {
                kickouts.push(self.kickout_sender.clone().kick(record));
            }
            self.act();
            self.boats.flush();
            self.routes
                .begin(&self.directory.denied(), self.clock.now());
            self.settler.begin(Instant::now());
            if let Some(partitions) = self.settler.crowded() {
                self.offsets.set_crowded(partitions);
            }

            // Rare events first, then new work while there is room: the mailbox may always have an
            // answer ready, for a minute in case of a large group. Boats are heard in every turn.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(request) = self.releases.recv() => self.abandon(request),
                () = self.directory.changed() => self.follow(),
                _ = tick.tick(), if self.ticks() => {
                    self.delivery.handle_timeout(self.now());
                    self.gauges.show(&self.delivery.load(), self.settler.len());
                }
                Some(effects) = kickouts.next(), if !kickouts.is_empty() => {
                    self.settler.add(effects);
                }
                sources = self.settler.settled() => self.offsets.settle(&sources),
                Some(batch) = self.batches.recv(), if self.has_room() => {
                    self.accept_batch(batch);
                }
                results = self.routes.next_results() => {
                    let now = self.now();
                    for (token, answer) in results {
                        self.delivery.handle_routed(now, token, answer);
                        self.act();
                    }
                }
                _ = self.messages.recv_many(&mut messages, MAX_BOAT_MESSAGES) => {}
            }
            // Boats that are ready in this turn of the runtime get heard in this turn of the loop.
            tokio::task::yield_now().await;
            self.handle_messages(&mut messages);
        }
    }

    fn now(&self) -> Moment {
        Moment {
            wall: self.clock.now(),
            timer: self.timer.now(),
        }
    }

    /// Handles the reports received, and those that have arrived since.
    fn handle_messages(&mut self, messages: &mut Vec<BoatMessage>) {
        while messages.len() < MAX_BOAT_MESSAGES
            && let Ok(message) = self.messages.try_recv()
        {
            messages.push(message);
        }
        let now = self.now();
        messages
            .drain(..)
            .for_each(|message| self.handle_message(now, message));
    }

    /// Whether time alone moves anything on.
    fn ticks(&self) -> bool {
        !self.delivery.is_idle() || self.settler.wakes_at().is_some() || !self.backlog.is_empty()
    }

    /// Whether another batch may be taken. While the ledger is away, not even decided records are.
    fn has_room(&self) -> bool {
        self.backlog.deliver.is_empty() && !self.settler.is_full()
    }

    fn accept_batch(&mut self, batch: ExecutorBatch) {
        self.backlog.deliver.extend(batch.deliver);
        for record in batch.kickouts {
            if self.backlog.kickouts.len() < self.kickouts_max {
                self.backlog.kickouts.push_back(record);
            } else {
                self.settler.add(self.kickout_sender.put_off(record));
            }
        }
        batch.effects.into_iter().for_each(|e| self.settler.add(e));
        for notice in batch.notices {
            self.boats.notice(notice);
        }
    }

    fn begin_deliveries(&mut self) {
        if self.backlog.deliver.is_empty() {
            return;
        }
        let now = self.now();
        while !self.settler.is_full()
            && let Some((source, task)) = self.backlog.deliver.pop_front()
        {
            if let Err(task) = self.delivery.handle_task(now, source, task) {
                self.backlog.deliver.push_front((source, task));
                return;
            }
        }
    }

    /// Carries out, or begins, every action of the delivery machine.
    fn act(&mut self) {
        let mut unreachable = Vec::new();
        let now = self.now();
        loop {
            while let Some(action) = self.delivery.poll_action() {
                match action {
                    Action::Route(route) => self.routes.ask(route),
                    Action::Forget(key) => self.routes.forget(key),
                    Action::Push {
                        push,
                        life,
                        deadline,
                    } => {
                        let token = push.token;
                        let wait = deadline.since(now.timer);
                        if !self.boats.push(&life, push, wait) {
                            unreachable.push(token);
                        }
                    }
                    Action::Notice(notice) => self.boats.notice(notice),
                    Action::Settled(settlement) => {
                        self.gauges.settled(&settlement);
                        record_deliveries(&self.spans, &settlement, now.wall);
                        let effects = self.records.settlement(*settlement, now.wall);
                        self.settler.add(effects);
                    }
                }
            }
            let Some(token) = unreachable.pop() else {
                return;
            };
            self.delivery
                .handle_outcome(now, token, PushOutcome::Unreachable);
        }
    }

    fn handle_message(&mut self, now: Moment, message: BoatMessage) {
        match message {
            BoatMessage::Outcomes(outcomes) => {
                for (token, outcome) in outcomes {
                    if let Some(latency) = self.delivery.handle_outcome(now, token, outcome) {
                        self.gauges.record_ack(latency);
                    }
                }
            }
            BoatMessage::Lost(life) => {
                self.boats.clear(&life);
                self.delivery.handle_boat_lost(now, &life);
            }
        }
        self.act();
    }

    fn follow(&mut self) {
        let now = self.now();
        for life in self.boats.follow(&self.directory.view()) {
            self.delivery.handle_boat_lost(now, &life);
            self.act();
        }
    }

    fn abandon(&mut self, request: ReleaseRequest) {
        // A consumer that gave partitions away sends nothing of them until it is answered, so the
        // queue holds the last of their records.
        while let Ok(batch) = self.batches.try_recv() {
            self.accept_batch(batch);
        }
        let keys: Vec<_> = request
            .partitions
            .iter()
            .copied()
            .map(partition_key)
            .collect();
        let is_kept = |source: &Source| !keys.contains(&(source.topic, source.partition));
        self.backlog.deliver.retain(|(source, _)| is_kept(source));
        self.backlog
            .kickouts
            .retain(|record| is_kept(&record.source));
        self.delivery.handle_revoked(self.now(), &keys);
        self.act();
        // Fails only without the consumer, and then nobody waits.
        let _ = request.reply.send(());
    }
}
