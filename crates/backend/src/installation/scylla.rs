//! The installation in ScyllaDB or Cassandra: table `installation` with its one row, written once,
//! and table `id_node`, a row per node number, written at the time it reserves: the latest wins.

use async_trait::async_trait;
use protocol::Timestamp;

use super::InstallationStore;
use crate::Result;
use crate::scylla::{Cql, SeamCql, Statement, write_time};

const SEAM: &str = "installation";

/// The installation in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaInstallation {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
    reserve: Statement,
    select_node: Statement,
}

impl ScyllaInstallation {
    pub fn new(cql: Cql) -> ScyllaInstallation {
        ScyllaInstallation {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO installation (singleton, number, created) VALUES (0, ?, ?) IF NOT EXISTS",
            ),
            select: Statement::new("SELECT number FROM installation WHERE singleton = 0"),
            reserve: Statement::new(
                "INSERT INTO id_node (node, until) VALUES (?, ?) USING TIMESTAMP ?",
            ),
            select_node: Statement::new("SELECT until FROM id_node WHERE node = ?"),
        }
    }
}

#[async_trait]
impl InstallationStore for ScyllaInstallation {
    async fn number(&self) -> Result<Option<u64>> {
        let rows: Vec<(i64,)> = self.cql.rows_after_conditions(&self.select, ()).await?;
        // Stored as bit pattern: all 64 bits are used.
        Ok(rows.first().map(|(number,)| *number as u64))
    }

    async fn record(&self, number: u64, created_at: Timestamp) -> Result<u64> {
        let values = (number as i64, created_at.millis());
        self.cql.write_if(&self.insert, values).await?;
        let error = || crate::Error::unavailable(SEAM, "the number was written but is missing");
        self.number().await?.ok_or_else(error)
    }

    async fn reserve_node(&self, node: u16, deadline: Timestamp) -> Result<()> {
        let time = write_time::from_time(SEAM, deadline)?;
        let values = (i32::from(node), deadline.millis(), time);
        self.cql.write(&self.reserve, values).await
    }

    async fn reserved(&self, node: u16) -> Result<Timestamp> {
        let rows: Vec<(i64,)> = (self.cql.rows(&self.select_node, (i32::from(node),))).await?;
        let deadline = rows.first().map_or(0, |(deadline,)| *deadline);
        Ok(Timestamp::from_millis(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::ScyllaInstallation;
    use crate::installation::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("installation", ScyllaInstallation::new));
}
