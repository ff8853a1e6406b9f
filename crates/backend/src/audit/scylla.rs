//! Closed minutes in ScyllaDB or Cassandra: table `audit_minute`, a partition per day, and
//! `audit_head`, one row that is compared and set.

use std::ops::Range;

use async_trait::async_trait;
use protocol::Timestamp;
use protocol::ledger::chain::ChainHead;
use protocol::ledger::minute::{Amendment, ClosedMinute, MinuteRow};

use super::AuditStore;
use crate::embedded::value::{decode, encode};
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "audit";

const DAY_MILLIS: i64 = 86_400_000;

/// Partition of the head: the store has a single chain.
const CHAIN: i8 = 0;

/// Closed minutes in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaAudit {
    cql: SeamCql,
    select_head: Statement,
    first_head: Statement,
    next_head: Statement,
    insert_closed: Statement,
    insert_amendment: Statement,
    select: Statement,
    delete: Statement,
}

type AuditColumns = (i64, Option<Vec<u8>>, Option<Vec<u8>>);

impl ScyllaAudit {
    pub fn new(cql: Cql) -> ScyllaAudit {
        ScyllaAudit {
            cql: cql.at(SEAM),
            select_head: Statement::new("SELECT head FROM audit_head WHERE chain = ?"),
            first_head: Statement::new(
                "INSERT INTO audit_head (chain, turn, head) VALUES (?, ?, ?) IF NOT EXISTS",
            ),
            next_head: Statement::new(
                "UPDATE audit_head SET turn = ?, head = ? WHERE chain = ? IF turn = ?",
            ),
            insert_closed: Statement::new(
                "INSERT INTO audit_minute (day, minute, closed) VALUES (?, ?, ?) USING TIMESTAMP ?",
            ),
            insert_amendment: Statement::new(
                "INSERT INTO audit_minute (day, minute, amendment) VALUES (?, ?, ?) \
                 USING TIMESTAMP ?",
            ),
            select: Statement::new(
                "SELECT minute, closed, amendment FROM audit_minute \
                 WHERE day = ? AND minute >= ? AND minute < ? LIMIT ?",
            ),
            delete: Statement::new(
                "DELETE FROM audit_minute WHERE day = ? AND minute >= ? AND minute < ?",
            ),
        }
    }

    async fn try_to_advance(&self, head: &ChainHead) -> Result<bool> {
        let value = encode(SEAM, head)?;
        let turn = number(head.turn)?;
        match turn {
            1 => {
                let values = (CHAIN, turn, value);
                self.cql.write_if(&self.first_head, values).await
            }
            _ => {
                let values = (turn, value, CHAIN, turn - 1);
                self.cql.write_if(&self.next_head, values).await
            }
        }
    }
}

#[async_trait]
impl AuditStore for ScyllaAudit {
    async fn head(&self) -> Result<Option<ChainHead>> {
        let query = self.cql.rows_after_conditions(&self.select_head, (CHAIN,));
        let rows: Vec<(Vec<u8>,)> = query.await?;
        let row = rows.into_iter().next();
        row.map(|(head,)| decode(SEAM, &head)).transpose()
    }

    async fn advance(&self, head: &ChainHead) -> Result<bool> {
        // The head may have moved already, by a request whose answer was lost.
        Ok(self.try_to_advance(head).await? || self.head().await?.as_ref() == Some(head))
    }

    async fn save(&self, closed_minute: &ClosedMinute) -> Result<()> {
        let minute = closed_minute.minute;
        let time = write_time::from_time(SEAM, minute)?;
        let values = (
            day(minute),
            minute.millis(),
            encode(SEAM, closed_minute)?,
            time,
        );
        self.cql.write(&self.insert_closed, values).await
    }

    async fn amend(&self, minute: Timestamp, amendment: &Amendment) -> Result<()> {
        let time = write_time::from_time(SEAM, amendment.looked_at)?;
        let values = (day(minute), minute.millis(), encode(SEAM, amendment)?, time);
        self.cql.write(&self.insert_amendment, values).await
    }

    async fn rows(&self, minutes: Range<Timestamp>, limit: usize) -> Result<Vec<MinuteRow>> {
        let mut result = Vec::new();
        for part in days(&minutes) {
            let remaining = i32::try_from(limit - result.len()).unwrap_or(i32::MAX);
            if remaining == 0 {
                break;
            }
            let (first, end) = (part.start.millis(), part.end.millis());
            let values = (day(part.start), first, end, remaining);
            let rows: Vec<AuditColumns> = self.cql.rows(&self.select, values).await?;
            result.extend(
                rows.into_iter()
                    .map(|(minute, bytes, amendment)| MinuteRow {
                        minute: Timestamp::from_millis(minute),
                        closed_minute: bytes.and_then(|value| decode(SEAM, &value).ok()),
                        amendment: amendment.and_then(|value| decode(SEAM, &value).ok()),
                    }),
            );
        }
        Ok(result)
    }

    async fn forget(&self, minutes: Range<Timestamp>) -> Result<()> {
        for part in days(&minutes) {
            let values = (day(part.start), part.start.millis(), part.end.millis());
            self.cql.write(&self.delete, values).await?;
        }
        Ok(())
    }
}

/// Splits a range of minutes at the borders of days.
fn days(minutes: &Range<Timestamp>) -> impl Iterator<Item = Range<Timestamp>> {
    let (mut at, end) = (minutes.start.max(Timestamp::ZERO), minutes.end);
    std::iter::from_fn(move || {
        let start = at;
        let midnight = (start.millis() / DAY_MILLIS + 1) * DAY_MILLIS;
        at = Timestamp::from_millis(midnight).min(end);
        (start < end).then_some(start..at)
    })
}

fn day(minute: Timestamp) -> i32 {
    i32::try_from(minute.millis() / DAY_MILLIS).unwrap_or(i32::MAX)
}

fn number(turn: u64) -> Result<i64> {
    i64::try_from(turn).map_err(|error| Error::conflict(SEAM, error))
}

#[cfg(test)]
mod tests {
    use super::ScyllaAudit;
    use crate::audit::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("audit", ScyllaAudit::new));
}
