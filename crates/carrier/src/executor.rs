//! Steps 5 to 8: one loop that owns a shard's [`Delivery`], does what it says, and tells it what came of
//! it.
//!
//! Nothing waits in the loop. What its actions ask for is gathered in a turn and goes out together: one
//! call to each server of the mailbox, one batch for each boat, one call to make settled records durable. While a call is
//! under way the next one gathers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use api::trace::Spans;
use backend::clock::{Clock, TimerClock};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use protocol::Moment;
use protocol::delivery::{Action, Delivery, Outcome, Source, Task};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::batch::{Abandon, Batch};
use crate::fleet::{Fleet, Heard};
use crate::kickout::Kicker;
use crate::metrics::Gauges;
use crate::progress::Ways;
use crate::records::Records;
use crate::roster::Roster;
use crate::routes::Routes;
use crate::settler::Settler;
use crate::spans::record_deliveries;
use crate::work::{Read, partition_key};

/// How exactly deadlines are kept; they are seconds.
const TICK: Duration = Duration::from_millis(50);
/// What boats said that is handled in one turn.
const HEARD: usize = 256;
/// Kickouts of one shard that are done at the same time.
const KICKOUTS: usize = 64;

pub(crate) struct Executor {
    pub(crate) delivery: Delivery,
    pub(crate) fleet: Fleet,
    pub(crate) roster: Roster,
    pub(crate) settler: Settler,
    pub(crate) kicker: Kicker,
    pub(crate) records: Records,
    pub(crate) ways: Ways,
    pub(crate) clock: Arc<dyn Clock>,
    /// Keeps deadlines wherever the time of day goes.
    pub(crate) timer: TimerClock,
    pub(crate) batches: mpsc::Receiver<Batch>,
    pub(crate) abandons: mpsc::Receiver<Abandon>,
    pub(crate) heard: mpsc::Receiver<Heard>,
    pub(crate) kickouts_max: usize,
    pub(crate) backlog: Backlog,
    pub(crate) routes: Routes,
    pub(crate) gauges: Gauges,
    pub(crate) spans: Spans,
}

/// Work that was handed over and is not begun. While deliveries wait nothing more is taken; kickouts
/// have a bound of their own, so that a boat that does not answer them holds nobody's messages.
#[derive(Default)]
pub(crate) struct Backlog {
    deliver: VecDeque<(Source, Task)>,
    kickouts: VecDeque<Read>,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.deliver.is_empty() && self.kickouts.is_empty()
    }
}

impl Executor {
    /// Runs until `ended`: by then everybody who hands over work has stopped, and waited for what may
    /// still finish.
    pub(crate) async fn run(mut self, ended: CancellationToken) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Vec::with_capacity(HEARD);
        let mut kickouts = FuturesUnordered::new();
        loop {
            self.begin_deliveries();
            while kickouts.len() < KICKOUTS
                && let Some(read) = self.backlog.kickouts.pop_front()
            {
                kickouts.push(self.kicker.clone().kick(read));
            }
            self.act();
            self.fleet.flush();
            self.routes.begin(&self.roster.denied(), self.clock.now());
            self.settler.begin(Instant::now());
            if let Some(crowded) = self.settler.crowded() {
                self.ways.crowd(crowded);
            }

            // In no order: the mailbox may always have answered.
            tokio::select! {
                _ = self.heard.recv_many(&mut heard, HEARD) => {}
                routed = self.routes.answered() => {
                    let now = self.now();
                    for (token, answer) in routed {
                        self.delivery.handle_routed(now, token, answer);
                        self.act();
                    }
                }
                settled = self.settler.settled() => self.ways.settle(&settled),
                Some(abandon) = self.abandons.recv() => self.abandon(abandon),
                () = self.roster.changed() => self.follow(),
                Some(effects) = kickouts.next(), if !kickouts.is_empty() => {
                    self.settler.add(effects);
                }
                Some(batch) = self.batches.recv(), if self.has_room() => {
                    self.take(batch);
                }
                _ = tick.tick(), if self.ticks() => {
                    self.delivery.handle_timeout(self.now());
                    self.gauges.show(&self.delivery.load(), self.settler.len());
                }
                () = ended.cancelled() => return,
            }
            // What boats are ready to say in this turn of the runtime goes with it.
            tokio::task::yield_now().await;
            self.hear_all(&mut heard);
        }
    }

    fn now(&self) -> Moment {
        Moment {
            wall: self.clock.now(),
            timer: self.timer.now(),
        }
    }

    /// What came, and what came since.
    fn hear_all(&mut self, heard: &mut Vec<Heard>) {
        while heard.len() < HEARD
            && let Ok(more) = self.heard.try_recv()
        {
            heard.push(more);
        }
        let now = self.now();
        heard.drain(..).for_each(|heard| self.hear(now, heard));
    }

    /// Is there anything that time alone moves on?
    fn ticks(&self) -> bool {
        !self.delivery.is_idle() || self.settler.wakes_at().is_some() || !self.backlog.is_empty()
    }

    /// May more be taken? While the ledger is away not even what is decided already.
    fn has_room(&self) -> bool {
        self.backlog.deliver.is_empty() && !self.settler.is_full()
    }

    fn take(&mut self, batch: Batch) {
        self.backlog.deliver.extend(batch.deliver);
        for read in batch.kickouts {
            if self.backlog.kickouts.len() < self.kickouts_max {
                self.backlog.kickouts.push_back(read);
            } else {
                self.settler.add(self.kicker.put_off(read));
            }
        }
        batch.effects.into_iter().for_each(|e| self.settler.add(e));
        for notice in batch.notices {
            self.fleet.notice(notice);
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

    /// Does, or begins, all that the machine asks for.
    fn act(&mut self) {
        let mut unreachable = Vec::new();
        let now = self.now();
        loop {
            while let Some(action) = self.delivery.poll_action() {
                match action {
                    Action::Route(route) => self.routes.ask(route),
                    Action::Forget(key) => self.routes.forget(key),
                    Action::Push(push) => {
                        let token = push.token;
                        if !self.fleet.push(push, now.timer) {
                            unreachable.push(token);
                        }
                    }
                    Action::Notice(notice) => self.fleet.notice(notice),
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
                .handle_outcome(now, token, Outcome::Unreachable);
        }
    }

    fn hear(&mut self, now: Moment, heard: Heard) {
        match heard {
            Heard::Outcomes(outcomes) => {
                for (token, outcome) in outcomes {
                    if let Some(latency) = self.delivery.handle_outcome(now, token, outcome) {
                        self.gauges.acked(latency);
                    }
                }
            }
            Heard::Lost(life) => {
                self.fleet.clear(&life);
                self.delivery.handle_boat_lost(now, &life);
            }
        }
        self.act();
    }

    fn follow(&mut self) {
        let now = self.now();
        for life in self.fleet.follow(&self.roster.view()) {
            self.delivery.handle_boat_lost(now, &life);
            self.act();
        }
    }

    fn abandon(&mut self, abandon: Abandon) {
        // Whoever gave the partitions away sends nothing of them until it is answered.
        while let Ok(batch) = self.batches.try_recv() {
            self.take(batch);
        }
        let keys: Vec<_> = abandon
            .partitions
            .iter()
            .copied()
            .map(partition_key)
            .collect();
        let kept = |source: &Source| !keys.contains(&(source.topic, source.partition));
        self.backlog.deliver.retain(|(source, _)| kept(source));
        self.backlog.kickouts.retain(|read| kept(&read.source));
        self.delivery.handle_revoked(self.now(), &keys);
        self.act();
        // Nobody waits where the consumer has gone.
        let _ = abandon.done.send(());
    }
}
