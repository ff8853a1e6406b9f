//! Revocations in the embedded store: table `revocation`, by time and user, fsynced.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::revocation::{PageStart, Revocation};

use super::RevocationStore;
use crate::Result;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};

const SEAM: &str = "revocations";

const HOUR_MILLIS: i64 = 3_600_000;

/// Expired rows removed with each addition.
const REMOVAL_BATCH: usize = 100;

/// Revocations in the embedded store.
pub struct EmbeddedRevocations {
    engine: Engine,
    /// Held from a read to the write after it, never across an await.
    write_lock: Mutex<()>,
}

impl EmbeddedRevocations {
    pub fn new(engine: Engine) -> EmbeddedRevocations {
        EmbeddedRevocations {
            engine,
            write_lock: Mutex::new(()),
        }
    }
}

#[async_trait]
impl RevocationStore for EmbeddedRevocations {
    async fn add(&self, revocation: &Revocation, retention: Duration) -> Result<()> {
        let key = key(revocation.at, revocation.user.get());
        let mark = {
            let _write_guard = self.write_lock.lock();
            let current = self.engine.get(Table::Revocation, &key)?;
            let current: Option<Revocation> = current
                .map(|value| decode(SEAM, &value))
                .transpose()?
                .filter(|current: &Revocation| current.before > revocation.before);
            // Even an unchanged value is rewritten: its first writer may not have awaited the
            // fsync.
            let value = encode(SEAM, current.as_ref().unwrap_or(revocation))?;
            let mut batch = WriteBatch::new();
            batch.put(Table::Revocation, key, value);
            self.engine.write(batch)?
        };
        self.engine.durable(mark).await?;
        let (first, end) = (
            time_key(Timestamp::ZERO),
            time_key(revocation.at - retention),
        );
        let old = &first[..]..&end[..];
        self.engine
            .remove_range(Table::Revocation, old, REMOVAL_BATCH)
            .map(drop)
    }

    async fn page(&self, hour: i64, from: PageStart, limit: usize) -> Result<Vec<Revocation>> {
        let begin = Timestamp::from_millis(hour.saturating_mul(HOUR_MILLIS));
        let end = time_key(begin + Duration::from_millis(HOUR_MILLIS.unsigned_abs()));
        // Pages continue after a user, at the next number.
        let next_number = |user: protocol::UserId| user.get().saturating_add(1);
        let first = key(from.start, from.cursor.map_or(0, next_number)).max(time_key(begin));
        if first >= end {
            return Ok(Vec::new());
        }
        let range = &first[..]..&end[..];
        let rows = (self.engine).range(Table::Revocation, range, ScanOrder::Forward, limit)?;
        rows.iter().map(|(_, value)| decode(SEAM, value)).collect()
    }
}

fn time_key(at: Timestamp) -> Vec<u8> {
    key(at, 0)
}

/// Key of a revocation. Times are after 1970, so that their bytes sort as they do.
fn key(at: Timestamp, user: i64) -> Vec<u8> {
    [at.millis().max(0).to_be_bytes(), user.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::EmbeddedRevocations;
    use crate::revocations::contract;
    use crate::test_ids::on_memory_and_disk;

    contract::checks!(on_memory_and_disk!(super::EmbeddedRevocations::new));
}
