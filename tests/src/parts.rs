//! The parts that a test's system stands on: embedded ones in memory, or, with `PACKETBOAT_TESTS_ON=real`, the real ones
//! that `make real-up` started, in topics, keys and tables of the test's own.

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

/// So the keyspaces of tests begin.
const TABLES: &str = "packetboat_it_";

/// For how long a part is asked again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Do the parts of a test stand on real ones?
pub(crate) fn are_real() -> bool {
    std::env::var("PACKETBOAT_TESTS_ON").is_ok_and(|parts| parts == "real")
}

/// New parts; the settings are changed to name them.
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
    answered(|| topics::apply(&settings.kafka)).await;
    answered(|| schema::apply(&settings.scylla)).await;
    answered(|| Box::pin(Environment::on_real_parts(settings))).await
}

/// The tables of a test that has ended: with those of all tests the server would be slow in the end.
pub(crate) async fn forget(settings: &Settings) {
    let config = &settings.scylla;
    // Who stands on embedded parts names the default one.
    if !config.keyspace.starts_with(TABLES) {
        return;
    }
    let session = SessionBuilder::new().known_nodes(&config.contact_points);
    let session = session.build().await.expect("the real parts answer");
    let mut drop = Statement::new(format!("DROP KEYSPACE IF EXISTS {}", config.keyspace));
    drop.set_request_timeout(Some(PATIENCE));
    let dropped = session.query_unpaged(drop, ()).await;
    dropped.expect("the tables go");
}

/// On a slow machine the parts are busy for seconds with the tables of the tests before.
async fn answered<T, E: Debug, F: Future<Output = Result<T, E>>>(ask: impl Fn() -> F) -> T {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(_) if begun.elapsed() < PATIENCE => sleep(Duration::from_secs(1)).await,
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
