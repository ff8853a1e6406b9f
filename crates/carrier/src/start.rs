//! Puts a carrier together, and takes it apart in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::trace::Spans;
use api::transport::Connector;
use backend::Backends;
use backend::clock::TimerClock;
use backend::discovery::Role;
use protocol::delivery::{Delivery, Limits};
use protocol::keys::{RETRY_TIERS, Topic};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::backoff::Backoff;
use crate::batch::Shard;
use crate::consumer::Line;
use crate::executor::{Backlog, Executor};
use crate::fleet::Fleet;
use crate::intake::Intake;
use crate::kickout::Kicker;
use crate::metrics::Gauges;
use crate::progress::{Progress, Ways};
use crate::records::Records;
use crate::roster::{self, Roster};
use crate::routes::Routes;
use crate::settler::Settler;
use crate::stores::Timed;
use crate::tier::{Present, Tier};
use crate::writer::Writer;

/// The consumer group of all carriers.
pub const GROUP: &str = "carrier";

/// Why a carrier does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("retry_delays must grow from tier to tier")]
    RetryDelays,
    #[error("a part is not there")]
    Part(#[from] backend::Error),
}

/// A carrier at work.
#[derive(Debug)]
pub struct Running {
    tasks: TaskTracker,
}

impl Running {
    /// Waits until the carrier has ended: what could finish is committed, and it has left its group. It
    /// ends when its token is cancelled; when it ends before, one of its parts has panicked.
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }
}

/// Starts a carrier that runs until `shutdown`.
///
/// # Errors
/// A setting that cannot be, or a part that does not answer.
pub async fn start(
    config: Config,
    backends: Backends,
    connector: Connector,
    shutdown: CancellationToken,
) -> Result<Running, StartError> {
    let limits = config.limits().ok_or(StartError::RetryDelays)?;
    let leases = backends.registry.watch(Role::Boat);
    let leases = Timed::new(&config).within(leases).await?;
    let (roster, lookout) = roster::roster(
        leases,
        connector.clone(),
        Arc::new(TimerClock::starting_at(backends.clock.now())),
        &config,
    );
    let carrier = Carrier {
        records: Records::new(backends.queue.clone(), &config.name, config.retry_bytes_max),
        config: Arc::new(config),
        limits,
        backends,
        connector,
        roster,
        spans: Spans::here(),
        tasks: TaskTracker::new(),
        stop: shutdown.child_token(),
        ended: CancellationToken::new(),
    };
    // Nothing that was started outlives a start that fails.
    let unless_started = carrier.ended.clone().drop_guard();
    let consumers = carrier.assemble().await?;
    unless_started.disarm();

    let (tasks, ended) = (carrier.tasks.clone(), carrier.ended.clone());
    let until = ended.clone();
    tasks.spawn(async move {
        until.run_until_cancelled(lookout.run()).await;
    });
    tasks.spawn(async move {
        // Every consumer finishes first; then nobody needs the shards and their streams.
        consumers.wait().await;
        ended.cancel();
    });
    tasks.close();
    Ok(Running { tasks })
}

struct Carrier {
    config: Arc<Config>,
    limits: Limits,
    backends: Backends,
    connector: Connector,
    records: Records,
    roster: Roster,
    spans: Spans,
    tasks: TaskTracker,
    /// Consumers stop.
    stop: CancellationToken,
    /// Shards and streams end.
    ended: CancellationToken,
}

impl Carrier {
    /// Joins the group with every consumer, then sets all of them to work. The tracker waits for the
    /// consumers.
    async fn assemble(&self) -> Result<TaskTracker, StartError> {
        let mut tiers = Vec::new();
        for tier in 1..=RETRY_TIERS {
            let topic = Topic::Retry(tier);
            let consumer = self.backends.queue.subscribe(GROUP, topic).await?;
            tiers.push((tier, consumer, Arc::new(Progress::default())));
        }
        let mut intakes = Vec::new();
        for _ in 0..self.config.shards.max(1) {
            let consumer = self.backends.queue.subscribe(GROUP, Topic::Message).await?;
            intakes.push((consumer, Arc::new(Progress::default())));
        }

        let consumers = TaskTracker::new();
        let mut shards = Vec::new();
        for (number, (consumer, progress)) in intakes.into_iter().enumerate() {
            let mut ways: BTreeMap<Topic, Arc<Progress>> = tiers
                .iter()
                .map(|(tier, _, progress)| (Topic::Retry(*tier), progress.clone()))
                .collect();
            ways.insert(Topic::Message, progress.clone());
            let shard = self.start_shard(number, Ways::new(ways));
            let line = self.line(consumer, progress, shard.clone());
            self.consume(&consumers, self.intake(line).run(self.stop.clone()));
            shards.push(shard);
        }
        for (tier, consumer, progress) in tiers {
            let shard = shards[usize::from(tier) % shards.len()].clone();
            let line = self.line(consumer, progress, shard);
            self.consume(&consumers, self.tier(line, tier).run(self.stop.clone()));
        }
        consumers.close();
        Ok(consumers)
    }

    /// A consumer that ends by itself, by a panic, takes the carrier with it, as a shard does: nobody
    /// would read its partitions.
    fn consume(
        &self,
        consumers: &TaskTracker,
        consumer: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone().drop_guard();
        consumers.spawn(async move {
            let _stop = stop;
            consumer.await;
        });
    }

    fn line(
        &self,
        consumer: Box<dyn backend::queue::Consumer>,
        progress: Arc<Progress>,
        shard: Shard,
    ) -> Line {
        Line::new(
            consumer,
            progress,
            shard,
            &self.backends,
            self.config.clone(),
        )
    }

    fn intake(&self, line: Line) -> Intake {
        Intake {
            line,
            writer: Writer::new(
                &self.backends,
                &self.config,
                self.records.clone(),
                self.spans.clone(),
            ),
            records: self.records.clone(),
            partitions: self.backends.queue.partitions(Topic::Message),
            stalled: Vec::new(),
        }
    }

    fn tier(&self, line: Line, tier: u8) -> Tier {
        Tier {
            line,
            tier,
            delay: self.limits.tiers.delay(tier),
            present: Present {
                history: self.backends.history.clone(),
                changes: self.backends.changes.clone(),
                groups: self.backends.groups.clone(),
                group_history: self.backends.group_history.clone(),
                stores: Timed::new(&self.config),
            },
            records: self.records.clone(),
            partitions: self.backends.queue.partitions(Topic::Retry(tier)),
            timer: TimerClock::starting_at(self.backends.clock.now()),
            held: BTreeMap::new(),
            loads: BTreeMap::new(),
            not_before: None,
            backoff: Backoff::new(&self.config),
        }
    }

    fn start_shard(&self, number: usize, ways: Ways) -> Shard {
        /// What boats said that waits for its shard.
        const HEARD: usize = 1024;
        let (shard, batches, abandons) = Shard::new();
        let (heard, heard_out) = mpsc::channel(HEARD);
        let (backends, config) = (&self.backends, &self.config);
        let stores = Timed::new(config);
        let streams = TaskTracker::new();
        let executor = Executor {
            delivery: Delivery::new(self.limits),
            fleet: Fleet::new(
                self.connector.clone(),
                self.roster.clone(),
                heard,
                streams.clone(),
                backends.entropy.clone(),
                config.clone(),
            ),
            roster: self.roster.clone(),
            settler: Settler::new(backends, config, self.records.clone()),
            kicker: Kicker {
                mailbox: backends.mailbox.clone(),
                connector: self.connector.clone(),
                roster: self.roster.clone(),
                records: self.records.clone(),
                clock: backends.clock.clone(),
                stores,
                limits: self.limits,
                timeout: config.kickout_timeout,
            },
            records: self.records.clone(),
            ways,
            clock: backends.clock.clone(),
            timer: TimerClock::starting_at(backends.clock.now()),
            batches,
            abandons,
            heard: heard_out,
            kickouts_max: config.kickouts_max,
            backlog: Backlog::default(),
            routes: Routes::new(backends.mailbox.clone(), backends.cache.clone(), stores),
            gauges: Gauges::new(number),
            spans: self.spans.clone(),
        };
        let ended = self.ended.clone();
        // A shard that ends by itself, by a panic, takes the carrier with it: one that only takes records
        // and delivers none would be worse.
        let stop = self.stop.clone().drop_guard();
        self.tasks.spawn(async move {
            let _stop = stop;
            executor.run(ended).await;
            // Its streams end with its fleet.
            streams.close();
            streams.wait().await;
        });
        shard
    }
}
