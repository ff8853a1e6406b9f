//! Parts below a test's system: embedded ones in memory, or, with `PACKETBOAT_TESTS_ON=real`, the
//! real ones that `make real-up` started, in topics, keys and tables of the test's own.

use std::fmt::Debug;
use std::time::Duration;

use backend::mailbox::RedisMode;
use backend::queue::topics;
use backend::scylla::schema;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::unprepared::Statement;
use server::compose::Environment;
use server::settings::Settings;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// Prefix of the keyspaces of tests.
const TABLES: &str = "packetboat_it_";

/// Time for which a part is asked again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether tests run on the real parts.
pub(crate) fn are_real() -> bool {
    std::env::var("PACKETBOAT_TESTS_ON").is_ok_and(|parts| parts == "real")
}

/// Creates new parts, and names them in the settings.
pub(crate) async fn new(settings: &mut Settings) -> Environment {
    match std::env::var("PACKETBOAT_TESTS_ON").as_deref() {
        Ok("real") => Box::pin(real(settings)).await,
        Ok(other) => panic!("PACKETBOAT_TESTS_ON is `real` or not set, not {other:?}"),
        Err(_) => Environment::in_memory(&settings.embedded, settings.station.sessions.capacity())
            .expect("stores in memory"),
    }
}

async fn real(settings: &mut Settings) -> Environment {
    let name = format!("t{}", &Uuid::new_v4().simple().to_string()[..8]);
    let kafka = &mut settings.kafka;
    kafka.brokers = addresses("KAFKA");
    (kafka.replication_factor, kafka.min_insync_replicas) = match kafka.brokers.len() {
        1 | 2 => (1, 1),
        _ => (3, 2),
    };
    kafka.topic_prefix = format!("{name}-");
    kafka.partitions.message = 2;
    settings.redis.mode = RedisMode::Cluster;
    settings.redis.addresses = addresses("REDIS_CLUSTER");
    settings.redis.key_prefix.clone_from(&name);
    settings.etcd.endpoints = addresses("ETCD");
    settings.etcd.prefix = format!("/{name}");
    settings.scylla.contact_points = addresses("CQL");
    settings.scylla.keyspace = format!("{TABLES}{name}");
    settings.scylla.replication.factor = 1;
    retry_until_answered(|| topics::apply(&settings.kafka)).await;
    retry_until_answered(|| schema::apply(&settings.scylla)).await;
    retry_until_answered(|| Box::pin(Environment::on_real_parts(settings))).await
}

/// Drops the tables of a test that has ended: those of all tests would slow the server down.
pub(crate) async fn drop_keyspace(settings: &Settings) {
    let config = &settings.scylla;
    // Systems on embedded parts have the default keyspace.
    if !config.keyspace.starts_with(TABLES) {
        return;
    }
    let session = SessionBuilder::new().known_nodes(&config.contact_points);
    let session = session.build().await.expect("the real parts answer");
    let mut drop_keyspace = Statement::new(format!("DROP KEYSPACE IF EXISTS {}", config.keyspace));
    drop_keyspace.set_request_timeout(Some(RETRY_TIMEOUT));
    let result = session.query_unpaged(drop_keyspace, ()).await;
    result.expect("the tables go");
}

/// Retries a call: on a slow machine the parts are busy for seconds with the tables of earlier
/// tests.
async fn retry_until_answered<T, E: Debug, F: Future<Output = Result<T, E>>>(
    ask: impl Fn() -> F,
) -> T {
    let started_at = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(_) if started_at.elapsed() < RETRY_TIMEOUT => sleep(Duration::from_secs(1)).await,
            Err(error) => panic!("the real parts do not answer: {error:?}"),
        }
    }
}

fn addresses(part: &str) -> Vec<String> {
    let name = format!("PACKETBOAT_REAL_{part}");
    let list = std::env::var(&name);
    let list = list.unwrap_or_else(|_| panic!("{name} is not set: `make real-up` says where"));
    list.split(',').map(str::to_owned).collect()
}
