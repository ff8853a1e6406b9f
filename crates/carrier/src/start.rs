//! Puts a carrier together, and takes it apart in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::codec::EventFrames;
use api::trace::Spans;
use api::transport::Connector;
use backend::Backends;
use backend::clock::TimerClock;
use backend::discovery::Role;
use protocol::delivery::{Delivery, DeliveryLimits};
use protocol::event::Encode;
use protocol::keys::{CARRIERS, RETRY_TIERS, Topic};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::boat_directory::{BoatDirectory, boat_directory};
use crate::boat_streams::BoatStreams;
use crate::deadline::StoreDeadline;
use crate::executor::{Backlog, Executor};
use crate::executor_queue::ExecutorHandle;
use crate::kickout::KickoutSender;
use crate::message_consumer::MessageConsumer;
use crate::metrics::Gauges;
use crate::offsets::{AllOffsets, PartitionOffsets};
use crate::partition_consumer::PartitionConsumer;
use crate::records::Records;
use crate::retry_consumer::RetryConsumer;
use crate::router::RouteQueue;
use crate::settler::Settler;

/// The consumer group of all carriers.
pub const GROUP: &str = CARRIERS;

/// Errors of starting a carrier.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("retry_delays must be increasing")]
    RetryDelays,
    #[error("a backend is unavailable")]
    Part(#[from] backend::Error),
}

/// A carrier at work.
#[derive(Debug)]
pub struct CarrierHandle {
    tasks: TaskTracker,
}

impl CarrierHandle {
    /// Waits until the carrier has ended: everything that could finish is committed, and it has
    /// left its group. A carrier ends when its token is cancelled; if it ends earlier, one of its
    /// parts has panicked.
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }
}

/// Starts a carrier that runs until `shutdown`.
///
/// # Errors
/// A setting that cannot work, or a backend that does not answer.
pub async fn start(
    config: Config,
    backends: Backends,
    connector: Connector,
    shutdown: CancellationToken,
) -> Result<CarrierHandle, StartError> {
    start_with(config, backends, connector, Arc::new(EventFrames), shutdown).await
}

/// As [`start`], with frames of new records made by `encode`: worlds of tests have records whose
/// handling panics.
///
/// # Errors
/// As [`start`].
pub async fn start_with(
    config: Config,
    backends: Backends,
    connector: Connector,
    encode: Arc<dyn Encode>,
    shutdown: CancellationToken,
) -> Result<CarrierHandle, StartError> {
    let limits = config.limits().ok_or(StartError::RetryDelays)?;
    let leases = backends.registry.watch(Role::Boat);
    let leases = StoreDeadline::new(&config).within(leases).await?;
    let (directory, probe) = boat_directory(&backends, connector.clone(), leases);
    let carrier = Carrier {
        records: Records::new(&backends, &config),
        config: Arc::new(config),
        limits,
        backends,
        connector,
        directory,
        encode,
        spans: Spans::here(),
        tasks: TaskTracker::new(),
        stop: shutdown.child_token(),
        shard_stop: CancellationToken::new(),
    };
    // A start that fails leaves nothing running.
    let start_guard = carrier.shard_stop.clone().drop_guard();
    let consumers = carrier.assemble().await?;
    start_guard.disarm();

    let (tasks, shard_stop) = (carrier.tasks.clone(), carrier.shard_stop.clone());
    let probe_stop = shard_stop.clone();
    tasks.spawn(async move {
        probe_stop.run_until_cancelled(probe.run()).await;
    });
    tasks.spawn(async move {
        // All consumers finish first; after that nobody needs the shards and their streams.
        consumers.wait().await;
        shard_stop.cancel();
    });
    tasks.close();
    Ok(CarrierHandle { tasks })
}

struct Carrier {
    config: Arc<Config>,
    limits: DeliveryLimits,
    backends: Backends,
    connector: Connector,
    records: Records,
    directory: BoatDirectory,
    encode: Arc<dyn Encode>,
    spans: Spans,
    tasks: TaskTracker,
    /// Stops the consumers.
    stop: CancellationToken,
    /// Ends the shards and their streams.
    shard_stop: CancellationToken,
}

impl Carrier {
    /// Joins the group with every consumer, then starts them all. The tracker waits for the
    /// consumers.
    async fn assemble(&self) -> Result<TaskTracker, StartError> {
        let mut tiers = Vec::new();
        for tier in 1..=RETRY_TIERS {
            let topic = Topic::Retry(tier);
            let consumer = self.backends.queue.subscribe(GROUP, topic).await?;
            tiers.push((tier, consumer, Arc::new(PartitionOffsets::default())));
        }
        let mut message_consumers = Vec::new();
        for _ in 0..self.config.shards.max(1) {
            let consumer = self.backends.queue.subscribe(GROUP, Topic::Message).await?;
            message_consumers.push((consumer, Arc::new(PartitionOffsets::default())));
        }

        let consumers = TaskTracker::new();
        let mut shards = Vec::new();
        for (number, (consumer, offsets)) in message_consumers.into_iter().enumerate() {
            let mut all_offsets: BTreeMap<Topic, Arc<PartitionOffsets>> = tiers
                .iter()
                .map(|(tier, _, offsets)| (Topic::Retry(*tier), offsets.clone()))
                .collect();
            all_offsets.insert(Topic::Message, offsets.clone());
            let shard = self.start_shard(number, AllOffsets::new(all_offsets));
            let partition_consumer =
                self.build_partition_consumer(consumer, offsets, shard.clone());
            let consumer = MessageConsumer::new(
                &self.backends,
                partition_consumer,
                self.records.clone(),
                self.encode.clone(),
                self.spans.clone(),
            );
            self.consume(&consumers, consumer.run(self.stop.clone()));
            shards.push(shard);
        }
        for (tier, consumer, offsets) in tiers {
            let shard = shards[usize::from(tier) % shards.len()].clone();
            let partition_consumer = self.build_partition_consumer(consumer, offsets, shard);
            let consumer = RetryConsumer::new(
                &self.backends,
                partition_consumer,
                tier,
                self.limits.tiers.delay(tier),
                self.records.clone(),
            );
            self.consume(&consumers, consumer.run(self.stop.clone()));
        }
        consumers.close();
        Ok(consumers)
    }

    /// Spawns a consumer. One that ends by itself, by a panic, takes the carrier with it, as a
    /// shard does: nobody would read its partitions.
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

    fn build_partition_consumer(
        &self,
        consumer: Box<dyn backend::queue::Consumer>,
        offsets: Arc<PartitionOffsets>,
        shard: ExecutorHandle,
    ) -> PartitionConsumer {
        PartitionConsumer::new(
            consumer,
            offsets,
            shard,
            &self.backends,
            self.config.clone(),
        )
    }

    fn start_shard(&self, number: usize, offsets: AllOffsets) -> ExecutorHandle {
        /// Reports of boats that wait for their shard.
        const MAX_BOAT_MESSAGES: usize = 1024;
        let (shard, batches, abandons) = ExecutorHandle::new();
        let (message_sender, message_receiver) = mpsc::channel(MAX_BOAT_MESSAGES);
        let (backends, config) = (&self.backends, &self.config);
        let streams = TaskTracker::new();
        let executor = Executor {
            delivery: Delivery::new(self.limits),
            boats: BoatStreams::new(
                backends,
                config.clone(),
                self.connector.clone(),
                self.directory.clone(),
                message_sender,
                streams.clone(),
            ),
            directory: self.directory.clone(),
            settler: Settler::new(backends, config, self.records.clone()),
            kickout_sender: KickoutSender::new(
                backends,
                config,
                self.limits,
                self.connector.clone(),
                self.directory.clone(),
                self.records.clone(),
            ),
            records: self.records.clone(),
            offsets,
            clock: backends.clock.clone(),
            timer: TimerClock::starting_at(backends.clock.now()),
            batches,
            releases: abandons,
            messages: message_receiver,
            kickouts_max: config.kickouts_max,
            backlog: Backlog::default(),
            routes: RouteQueue::new(backends, config),
            gauges: Gauges::new(number),
            spans: self.spans.clone(),
        };
        let stop = self.shard_stop.clone();
        // A shard that ends by itself, by a panic, takes the carrier with it: a carrier that takes
        // records and delivers none would be worse.
        let stop_guard = self.stop.clone().drop_guard();
        self.tasks.spawn(async move {
            let _stop = stop_guard;
            executor.run(stop).await;
            // The streams to its boats end with it.
            streams.close();
            streams.wait().await;
        });
        shard
    }
}
