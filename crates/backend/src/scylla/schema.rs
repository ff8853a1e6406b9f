//! The tables: made by the program, as numbered migrations that a table records.
//!
//! A migration only adds, and every statement may be repeated: an interrupted migration is run
//! again from its beginning, and programs of the version before go on while one runs. Concurrent
//! runs do no harm either: both send their changes to the same node (the one with the smallest host
//! id among those that answer), which makes one change after the other, and *if not exists* does
//! the rest.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::unprepared::Statement;
use tokio::time::timeout;

use super::session::{decode_rows, open};
use super::{SEAM, ScyllaConfig, error};
use crate::{Error, Result};

const RECORD_TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migration (
    number int, name text,
    PRIMARY KEY (number)
)";

struct Migration {
    number: i32,
    name: &'static str,
    /// Statements, each ended by a semicolon at the end of a line.
    text: &'static str,
}

/// Migrations in order; they are never changed, only followed by others.
const MIGRATIONS: [Migration; 15] = [
    Migration {
        number: 1,
        name: "history",
        text: include_str!("schema/0001_history.cql"),
    },
    Migration {
        number: 2,
        name: "heads",
        text: include_str!("schema/0002_heads.cql"),
    },
    Migration {
        number: 3,
        name: "conversations",
        text: include_str!("schema/0003_conversations.cql"),
    },
    Migration {
        number: 4,
        name: "devices",
        text: include_str!("schema/0004_devices.cql"),
    },
    Migration {
        number: 5,
        name: "ledger",
        text: include_str!("schema/0005_ledger.cql"),
    },
    Migration {
        number: 6,
        name: "audit",
        text: include_str!("schema/0006_audit.cql"),
    },
    Migration {
        number: 7,
        name: "tallies",
        text: include_str!("schema/0007_tallies.cql"),
    },
    Migration {
        number: 8,
        name: "changes",
        text: include_str!("schema/0008_changes.cql"),
    },
    Migration {
        number: 9,
        name: "group history",
        text: include_str!("schema/0009_group_history.cql"),
    },
    Migration {
        number: 10,
        name: "groups",
        text: include_str!("schema/0010_groups.cql"),
    },
    Migration {
        number: 11,
        name: "hidden",
        text: include_str!("schema/0011_hidden.cql"),
    },
    Migration {
        number: 12,
        name: "installation",
        text: include_str!("schema/0012_installation.cql"),
    },
    Migration {
        number: 13,
        name: "revocations",
        text: include_str!("schema/0013_revocations.cql"),
    },
    Migration {
        number: 14,
        name: "pins",
        text: include_str!("schema/0014_pins.cql"),
    },
    Migration {
        number: 15,
        name: "large_groups",
        text: include_str!("schema/0015_large_groups.cql"),
    },
];

impl Migration {
    fn statements(&self) -> impl Iterator<Item = &'static str> {
        let statements = self.text.split(";\n").map(str::trim);
        statements.filter(|statement| !statement.is_empty())
    }
}

/// Migration that the keyspace now has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedMigration {
    pub number: i32,
    pub name: &'static str,
    /// Whether this call applied it.
    pub new: bool,
}

/// Renders all changes of [`apply`] to an empty cluster, as a script for `cqlsh`.
pub fn print(config: &ScyllaConfig) -> String {
    let mut script = format!("{};\n\nUSE {};\n\n", keyspace(config), config.keyspace);
    _ = writeln!(script, "{RECORD_TABLE};");
    for Migration { number, name, text } in &MIGRATIONS {
        _ = writeln!(
            script,
            "\n-- {number}: {name}\n{text}INSERT INTO schema_migration (number, name) VALUES ({number}, '{name}');"
        );
    }
    script
}

/// Applies missing migrations, and returns all of them. `Unavailable` may be repeated; `Conflict`
/// names the fault of the settings.
pub async fn apply(config: &ScyllaConfig) -> Result<Vec<AppliedMigration>> {
    let session = connect(config).await?;
    let node = OneNode::choose(&session, config)?;
    let keyspace_exists = has_keyspace(&session, config).await?;
    if !keyspace_exists {
        node.check_replication()?;
    }
    // Another process may be creating the keyspace: a node shows its row before it can be used. The
    // same change waits for that.
    if !keyspace_exists || use_keyspace(&session, config).await.is_err() {
        node.change(&keyspace(config)).await?;
        await_agreement(&session).await?;
        use_keyspace(&session, config).await?;
    }
    node.change(RECORD_TABLE).await?;
    await_agreement(&session).await?;
    let applied_numbers = recorded_numbers(&session, config).await?;
    let mut migrations = Vec::with_capacity(MIGRATIONS.len());
    for migration in &MIGRATIONS {
        let new = !applied_numbers.contains(&migration.number);
        if new {
            for statement in migration.statements() {
                if has_column(&session, config, statement).await? {
                    continue;
                }
                match node.change(statement).await {
                    // Another process added it meanwhile.
                    Err(_) if has_column(&session, config, statement).await? => {}
                    outcome => outcome?,
                }
            }
            await_agreement(&session).await?;
            record(&session, migration).await?;
        }
        migrations.push(AppliedMigration {
            number: migration.number,
            name: migration.name,
            new,
        });
    }
    await_agreement(&session).await?;
    Ok(migrations)
}

/// Checks that all tables needed by this program exist; if not, `Conflict` names the remedy.
/// Additions of a later program do no harm.
pub async fn check(config: &ScyllaConfig) -> Result<()> {
    let session = connect(config).await?;
    check_on(&session, config).await
}

async fn connect(config: &ScyllaConfig) -> Result<Session> {
    match timeout(config.connect_timeout, open(config)).await {
        Ok(session) => session,
        Err(_) => Err(Error::unavailable(SEAM, "connecting timed out")),
    }
}

pub(super) async fn check_on(session: &Session, config: &ScyllaConfig) -> Result<()> {
    let applied_numbers = recorded_numbers(session, config).await?;
    let missing_migrations: Vec<_> = MIGRATIONS
        .iter()
        .filter(|migration| !applied_numbers.contains(&migration.number))
        .map(|migration| format!("{} ({})", migration.number, migration.name))
        .collect();
    if missing_migrations.is_empty() {
        return Ok(());
    }
    let text = format!(
        "keyspace {} lacks migration {}: run `packetboat schema apply` (`packetboat schema print` \
         shows what it does)",
        config.keyspace,
        missing_migrations.join(", ")
    );
    Err(Error::conflict(SEAM, text))
}

/// Numbers of the migrations recorded in the keyspace; none if it does not exist.
async fn recorded_numbers(session: &Session, config: &ScyllaConfig) -> Result<BTreeSet<i32>> {
    let text = format!("SELECT number FROM {}.schema_migration", config.keyspace);
    match session.query_unpaged(text, ()).await {
        Ok(answer) => {
            let rows: Vec<(i32,)> = decode_rows(SEAM, answer)?;
            Ok(rows.into_iter().map(|(number,)| number).collect())
        }
        // Keyspace or table is missing.
        Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(
            DbError::Invalid,
            _,
        ))) => Ok(BTreeSet::new()),
        Err(error) => Err(error::request(SEAM, error)),
    }
}

async fn record(session: &Session, migration: &Migration) -> Result<()> {
    let text = "INSERT INTO schema_migration (number, name) VALUES (?, ?)";
    ask(session, text, (migration.number, migration.name))
        .await
        .map(drop)
}

async fn has_keyspace(session: &Session, config: &ScyllaConfig) -> Result<bool> {
    let text = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let answer = ask(session, text, (config.keyspace.as_str(),)).await?;
    let rows: Vec<(String,)> = decode_rows(SEAM, answer)?;
    Ok(!rows.is_empty())
}

/// Whether a statement adds a column that exists. Such a statement cannot say *if not exists* on
/// every server.
async fn has_column(session: &Session, config: &ScyllaConfig, statement: &str) -> Result<bool> {
    let Some((table, column)) = added_column(statement) else {
        return Ok(false);
    };
    let text = "SELECT column_name FROM system_schema.columns \
                WHERE keyspace_name = ? AND table_name = ? AND column_name = ?";
    let keyspace = config.keyspace.as_str();
    let answer = ask(session, text, (keyspace, table, column)).await?;
    let rows: Vec<(String,)> = decode_rows(SEAM, answer)?;
    Ok(!rows.is_empty())
}

/// Table and column of `ALTER TABLE … ADD …`.
fn added_column(statement: &str) -> Option<(&str, &str)> {
    let code = statement.lines().filter(|line| !line.starts_with("--"));
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    match words[..] {
        ["ALTER", "TABLE", table, "ADD", column, _] => Some((table, column)),
        _ => None,
    }
}

async fn use_keyspace(session: &Session, config: &ScyllaConfig) -> Result<()> {
    let outcome = session.use_keyspace(config.keyspace.as_str(), false).await;
    outcome.map_err(|error| Error::unavailable(SEAM, error))
}

async fn ask(session: &Session, text: &str, values: impl SerializeRow) -> Result<QueryResult> {
    let outcome = session.query_unpaged(text, values).await;
    outcome.map_err(|error| error::request(SEAM, error))
}

async fn await_agreement(session: &Session) -> Result<()> {
    let agreement = session.await_schema_agreement().await;
    agreement
        .map(drop)
        .map_err(|error| Error::unavailable(SEAM, error))
}

fn keyspace(config: &ScyllaConfig) -> String {
    format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {}",
        config.keyspace,
        config.replication.to_cql()
    )
}

/// The node that makes the changes.
struct OneNode<'a> {
    session: &'a Session,
    config: &'a ScyllaConfig,
    profile: ExecutionProfile,
    datacenter: String,
    /// Number of nodes in its datacenter.
    neighbours: usize,
}

impl<'a> OneNode<'a> {
    fn choose(session: &'a Session, config: &'a ScyllaConfig) -> Result<OneNode<'a>> {
        let state = session.get_cluster_state();
        let is_in_datacenter =
            |node: &str| config.datacenter.is_empty() || config.datacenter == node;
        let nodes = state.get_nodes_info().iter();
        let first = nodes
            .filter(|node| is_in_datacenter(node.datacenter.as_deref().unwrap_or_default()))
            .min_by_key(|node| (!node.is_connected(), node.host_id));
        let Some(first) = first else {
            let text = format!(
                "no node is in datacenter {:?}: see `SELECT data_center FROM system.local`",
                config.datacenter
            );
            return Err(Error::conflict(SEAM, text));
        };
        let is_neighbour = |node: &&Arc<_>| datacenter_name(node) == datacenter_name(first);
        let node = NodeIdentifier::HostId(first.host_id);
        Ok(OneNode {
            session,
            config,
            profile: ExecutionProfile::builder()
                .consistency(config.consistency.into())
                .request_timeout(Some(config.schema_timeout))
                .load_balancing_policy(SingleTargetLoadBalancingPolicy::new(node, None))
                .build(),
            datacenter: datacenter_name(first).to_owned(),
            neighbours: state.get_nodes_info().iter().filter(is_neighbour).count(),
        })
    }

    /// Refuses a replication factor that is impossible or unsafe in this datacenter.
    fn check_replication(&self) -> Result<()> {
        let factor = self.config.replication.in_datacenter(&self.datacenter);
        let (datacenter, nodes) = (&self.datacenter, self.neighbours);
        if usize::from(factor) > nodes {
            let text = format!(
                "replication needs {factor} copies in datacenter {datacenter}, which has {nodes} \
                 node(s): add nodes, or lower scylla.replication.factor"
            );
            return Err(Error::conflict(SEAM, text));
        }
        if factor == 0 {
            let text = format!("scylla.replication.datacenters does not name {datacenter}");
            return Err(Error::conflict(SEAM, text));
        }
        if factor < 3 && nodes >= 3 {
            let text = format!(
                "replication keeps {factor} copies, and datacenter {datacenter} has {nodes} nodes: \
                 with fewer than 3 copies, losing one node stops or loses messages. Set \
                 scylla.replication.factor = 3"
            );
            return Err(Error::conflict(SEAM, text));
        }
        Ok(())
    }

    /// Makes one change. The driver waits until all nodes have it, but not for a change by another
    /// process.
    async fn change(&self, text: &str) -> Result<()> {
        let mut statement = Statement::new(text);
        statement.set_is_idempotent(true);
        statement.set_execution_profile_handle(Some(self.profile.clone().into_handle()));
        let outcome = self.session.query_unpaged(statement, ()).await;
        outcome
            .map(drop)
            .map_err(|error| error::request(SEAM, error))
    }
}

fn datacenter_name(node: &scylla::cluster::Node) -> &str {
    node.datacenter.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
