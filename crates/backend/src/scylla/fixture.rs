//! Keyspace on the real server for all tests of this program, made once.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use scylla::client::session::Session;
use tokio::sync::OnceCell;

use super::{Cql, ScyllaConfig, ScyllaTlsConfig, schema};
use crate::clock::{Entropy, SystemEntropy};
use crate::test_ids::TestIds;
use crate::test_servers;

static APPLIED: OnceCell<()> = OnceCell::const_new();

/// Settings for the server started by `make real-up`. A hash of the tables names the keyspace, so
/// that it may stay for the next run.
pub(crate) fn config() -> ScyllaConfig {
    let mut tables = DefaultHasher::new();
    schema::print(&ScyllaConfig::default()).hash(&mut tables);
    let access = test_servers::access("cql");
    ScyllaConfig {
        username: access.username.unwrap_or_default(),
        password_file: access.password_file,
        tls: ScyllaTlsConfig {
            ca_file: access.tls.ca_file,
            cert_file: access.tls.cert_file,
            key_file: access.tls.key_file,
            ..ScyllaTlsConfig::default()
        },
        contact_points: test_servers::addresses("cql"),
        keyspace: format!("packetboat_test_{:x}", tables.finish()),
        // Tests share two cores with all other work.
        connect_timeout: Duration::from_secs(30),
        request_timeout: Duration::from_secs(10),
        schema_timeout: Duration::from_secs(60),
        ..ScyllaConfig::default()
    }
}

/// Connects, once the tables exist.
pub(crate) async fn cql() -> Cql {
    let config = config();
    let apply = async || _ = schema::apply(&config).await.expect("makes the tables");
    APPLIED.get_or_init(apply).await;
    Cql::connect(&config).await.expect("connects")
}

/// Session of another program, without knowledge of ours.
pub(crate) async fn foreign_session() -> Session {
    super::session::open(&config()).await.expect("connects")
}

/// Users and messages unused by earlier runs.
pub(crate) fn fresh() -> TestIds {
    TestIds::new((SystemEntropy.next() % 2_000_000) as i64)
}

/// Runs each check of a contract on the real server.
macro_rules! on_cql {
    ($suite:literal, $open:path: $($check:ident),* $(,)?) => {
        #[tokio::test]
        #[ignore = "needs the real parts: make e2e"]
        async fn all_of_them_on_cql() {
            let store = $open(crate::scylla::fixture::cql().await);
            let fresh = crate::scylla::fixture::fresh();
            $(contract::$check(&store, &fresh).await;)*
            crate::test_servers::ran($suite, "cql");
        }
    };
}
pub(crate) use on_cql;
