//! Revocations in ScyllaDB or Cassandra: table `revocation`, a partition per hour. Rows expire by
//! themselves.

use std::time::Duration;

use async_trait::async_trait;
use protocol::revocation::{PageStart, Revocation};
use protocol::{Timestamp, UserId};

use super::RevocationStore;
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "revocations";

/// Twenty years: the longest time that a server accepts.
const TTL_MAX: i32 = 630_720_000;

/// Revocations in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaRevocations {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
}

/// Time, user, before, reason, by.
type RevocationColumns = (i64, i64, i64, String, String);

impl ScyllaRevocations {
    pub fn new(cql: Cql) -> ScyllaRevocations {
        ScyllaRevocations {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO revocation (hour, tm, uid, before, reason, done_by) VALUES (?, ?, ?, ?, ?, ?) \
                 USING TTL ? AND TIMESTAMP ?",
            ),
            select: Statement::new(
                "SELECT tm, uid, before, reason, done_by FROM revocation \
                 WHERE hour = ? AND (tm, uid) > (?, ?) LIMIT ?",
            ),
        }
    }
}

#[async_trait]
impl RevocationStore for ScyllaRevocations {
    async fn add(&self, revocation: &Revocation, retention: Duration) -> Result<()> {
        let Revocation {
            user,
            before: cutoff,
            reason,
            by,
            at,
        } = revocation;
        let seconds = i32::try_from(retention.as_secs()).unwrap_or(i32::MAX);
        let values = (
            revocation.hour(),
            at.millis(),
            user.get(),
            cutoff.millis(),
            reason,
            by,
            seconds.clamp(1, TTL_MAX),
            write_time::from_time(SEAM, *cutoff)?,
        );
        self.cql.write(&self.insert, values).await
    }

    async fn page(&self, hour: i64, from: PageStart, limit: usize) -> Result<Vec<Revocation>> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let after_user = from.cursor.map_or(0, UserId::get);
        let values = (hour, from.start.millis(), after_user, limit);
        let rows: Vec<RevocationColumns> = self.cql.rows(&self.select, values).await?;
        let revocation = |(tm, uid, cutoff, reason, by): RevocationColumns| {
            let user = UserId::new(uid).map_err(|error| Error::corrupt(SEAM, error))?;
            Ok(Revocation {
                user,
                before: Timestamp::from_millis(cutoff),
                reason,
                by,
                at: Timestamp::from_millis(tm),
            })
        };
        rows.into_iter().map(revocation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ScyllaRevocations;
    use crate::revocations::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("revocations", ScyllaRevocations::new));
}
