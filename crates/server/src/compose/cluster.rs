//! The real parts: Kafka, Redis, etcd, ScyllaDB. Each service connects to those it needs and no
//! more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::transport::Connector;
use backend::Backends;
use backend::audit::ScyllaAudit;
use backend::cache::{CacheConfig, RedisCache};
use backend::changes::ScyllaChanges;
use backend::clock::{SystemClock, SystemEntropy};
use backend::conversations::ScyllaConversations;
use backend::devices::ScyllaDevices;
use backend::discovery::{EtcdRegistry, Registry};
use backend::groups::ScyllaGroups;
use backend::heads::ScyllaHeads;
use backend::installation::ScyllaInstallation;
use backend::ledger::ScyllaLedger;
use backend::mailbox::RedisMailbox;
use backend::messages::{MessageStore, ScyllaMessages};
use backend::queue::{KafkaQueue, Queue};
use backend::revocations::ScyllaRevocations;
use backend::scylla::Cql;
use backend::timeline::RedisTimeline;

use super::environment::Environment;
use crate::settings::Settings;

/// Connects all parts of a station or a carrier; returns the registry once more, to be flushed at
/// the end.
pub(super) async fn connect(
    settings: &Settings,
    connector: Connector,
) -> Result<(Environment, Arc<EtcdRegistry>)> {
    let (queue, cql, mailbox, timeline, cache, registry) = tokio::try_join!(
        queue(settings),
        cql(settings),
        mailbox(settings),
        timeline(settings),
        cache(settings),
        registry(settings)
    )?;
    let backends = Backends {
        queue,
        mailbox,
        messages: Arc::new(ScyllaMessages::new(cql.clone())),
        heads: Arc::new(ScyllaHeads::new(cql.clone())),
        conversations: Arc::new(ScyllaConversations::new(cql.clone())),
        changes: Arc::new(ScyllaChanges::new(cql.clone())),
        groups: Arc::new(ScyllaGroups::new(cql.clone())),
        timeline,
        cache,
        devices: Arc::new(ScyllaDevices::new(cql.clone())),
        ledger: Arc::new(ScyllaLedger::new(cql.clone())),
        audit: Arc::new(ScyllaAudit::new(cql.clone())),
        installation: Arc::new(ScyllaInstallation::new(cql.clone())),
        revocations: Arc::new(ScyllaRevocations::new(cql)),
        registry: registry.clone(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let environment = Environment {
        backends,
        connector,
        upkeep: None,
        takes_writes: None,
    };
    Ok((environment, registry))
}

impl Environment {
    /// Environment of a station on the real parts that the settings name.
    ///
    /// # Errors
    /// A part that does not answer, or is not set up.
    pub async fn on_real_parts(settings: &Settings) -> Result<Environment> {
        let (environment, _) = connect(settings, Connector::default()).await?;
        Ok(environment)
    }
}

/// Deadline for dialing one part: longer than any of them takes by its own settings.
const DIAL_MAX: Duration = Duration::from_secs(30);

/// Dials each part by itself, all concurrently.
pub async fn dial(settings: &Settings) -> [(&'static str, Result<()>); 4] {
    async fn within<T>(part: impl Future<Output = Result<T>>) -> Result<()> {
        let result = tokio::time::timeout(DIAL_MAX, part).await;
        result.context("no answer within 30 s")?.map(drop)
    }
    let (kafka, redis, etcd, scylla) = tokio::join!(
        within(queue(settings)),
        within(mailbox(settings)),
        within(async { Ok(registry(settings).await?.cluster().await?) }),
        within(cql(settings)),
    );
    [
        ("Kafka", kafka),
        ("Redis", redis),
        ("etcd", etcd),
        ("ScyllaDB", scylla),
    ]
}

pub(super) async fn registry(settings: &Settings) -> Result<Arc<EtcdRegistry>> {
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let registry = EtcdRegistry::connect(&settings.etcd, clock, entropy).await;
    Ok(Arc::new(registry.context("connecting to etcd")?))
}

pub(super) async fn queue(settings: &Settings) -> Result<Arc<dyn Queue>> {
    let queue = KafkaQueue::connect(settings.kafka.clone()).await;
    Ok(Arc::new(queue.context("connecting to Kafka")?))
}

pub(super) async fn messages(settings: &Settings) -> Result<Arc<dyn MessageStore>> {
    Ok(Arc::new(ScyllaMessages::new(cql(settings).await?)))
}

pub(super) async fn cql(settings: &Settings) -> Result<Cql> {
    let cql = Cql::connect(&settings.scylla).await;
    cql.context("connecting to ScyllaDB")
}

async fn timeline(settings: &Settings) -> Result<Arc<RedisTimeline>> {
    let timeline = RedisTimeline::connect(&settings.redis, settings.timeline.clone()).await;
    Ok(Arc::new(
        timeline.context("connecting to Redis for timelines")?,
    ))
}

async fn cache(settings: &Settings) -> Result<Arc<RedisCache>> {
    let entropy = Arc::new(SystemEntropy);
    let cache = RedisCache::connect(&settings.redis, CacheConfig::default(), entropy).await;
    Ok(Arc::new(cache.context("connecting to Redis for copies")?))
}

async fn mailbox(settings: &Settings) -> Result<Arc<RedisMailbox>> {
    let mailbox = RedisMailbox::connect(&settings.redis, Arc::new(SystemEntropy)).await;
    let mailbox = mailbox.context("connecting to Redis")?;
    Ok(Arc::new(
        mailbox.with_sessions(settings.station.sessions.capacity()),
    ))
}
