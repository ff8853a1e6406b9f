use super::*;
use crate::Kind;
use crate::clock::{Entropy, SystemEntropy};
use crate::scylla::{Cql, fixture};

#[test]
fn migrations_are_numbered_and_repeatable() {
    let numbers = MIGRATIONS.map(|migration| migration.number);
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    for migration in &MIGRATIONS {
        assert!(migration.statements().count() > 0);
        for statement in migration.statements() {
            let is_repeatable =
                statement.contains("IF NOT EXISTS") || added_column(statement).is_some();
            assert!(is_repeatable, "{statement}");
        }
    }
}

#[test]
fn the_script_names_keyspace_tables_and_migrations() {
    let config = ScyllaConfig {
        keyspace: "chat".into(),
        ..ScyllaConfig::default()
    };
    let script = print(&config);
    assert!(script.starts_with("CREATE KEYSPACE IF NOT EXISTS chat"));
    assert!(script.contains("USE chat;"));
    assert!(script.contains("CREATE TABLE IF NOT EXISTS pchat ("));
    assert!(script.contains("VALUES (8, 'changes')"));
    let adds = "-- why\nALTER TABLE head ADD from_low bigint";
    assert_eq!(added_column(adds), Some(("head", "from_low")));
}

/// One keyspace more a run would make the server slow in the end.
async fn drop_keyspace(config: &ScyllaConfig) {
    let session = open(config).await.expect("connects");
    let mut drop = Statement::new(format!("DROP KEYSPACE IF EXISTS {}", config.keyspace));
    drop.set_request_timeout(Some(config.schema_timeout));
    session.query_unpaged(drop, ()).await.expect("drops");
}

/// Before: an error that says what to do. Two at once make the tables, and a third finds them.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn applying_at_once_and_again_makes_the_tables_once() {
    let mut config = fixture::config();
    config.keyspace = format!("packetboat_apply_{:x}", SystemEntropy.next());
    let error = Cql::connect(&config).await.expect_err("no keyspace");
    assert_eq!(error.kind, Kind::Conflict);
    let text = error.source.to_string();
    assert!(text.contains("packetboat schema apply"), "{text}");

    let (one, other) = tokio::join!(apply(&config), apply(&config));
    let numbers = |applied: &[Applied]| applied.iter().map(|one| one.number).collect::<Vec<_>>();
    let all = MIGRATIONS.map(|migration| migration.number);
    assert_eq!(numbers(&one.expect("applies")), all);
    assert_eq!(numbers(&other.expect("applies")), all);
    check(&config).await.expect("they are there");
    let again = apply(&config).await.expect("applies again");
    assert!(again.iter().all(|one| !one.new), "{again:?}");
    Cql::connect(&config).await.expect("connects");

    // One that was broken off is run again.
    let session = open(&config).await.expect("connects");
    let keyspace = &config.keyspace;
    let forget = format!("DELETE FROM {keyspace}.schema_migration WHERE number = 3");
    ask(&session, &forget, ()).await.expect("forgets");
    let error = Cql::connect(&config).await.expect_err("one is missing");
    assert!(error.source.to_string().contains("3 (conversations)"));
    let again = apply(&config).await.expect("applies again");
    let new: Vec<_> = again.iter().filter(|one| one.new).collect();
    assert_eq!(new.len(), 1, "{again:?}");
    drop_keyspace(&config).await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn copies_that_no_node_could_keep_are_refused() {
    let mut config = fixture::config();
    config.keyspace = format!("packetboat_copies_{:x}", SystemEntropy.next());
    config.replication.factor = 200;
    let error = apply(&config).await.expect_err("too many");
    assert_eq!(error.kind, Kind::Conflict);
    let text = error.source.to_string();
    assert!(text.contains("scylla.replication.factor"), "{text}");
    config.datacenter = "atlantis".into();
    let error = apply(&config).await.expect_err("nowhere");
    assert!(
        error.source.to_string().contains("data_center"),
        "{error:?}"
    );
}
