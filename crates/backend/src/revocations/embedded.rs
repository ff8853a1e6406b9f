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
const REMOVED: usize = 100;

/// Revocations in the embedded store.
pub struct EmbeddedRevocations {
    engine: Engine,
    /// Held from a read to the write after it, never across an await.
    writing: Mutex<()>,
}

impl EmbeddedRevocations {
    pub fn new(engine: Engine) -> EmbeddedRevocations {
        EmbeddedRevocations {
            engine,
            writing: Mutex::new(()),
        }
    }
}

#[async_trait]
impl RevocationStore for EmbeddedRevocations {
    async fn add(&self, revocation: &Revocation, retention: Duration) -> Result<()> {
        let key = key(revocation.at, revocation.user.get());
        let mark = {
            let _writing = self.writing.lock();
            let standing = self.engine.get(Table::Revocation, &key)?;
            let standing: Option<Revocation> = standing
                .map(|value| decode(SEAM, &value))
                .transpose()?
                .filter(|standing: &Revocation| standing.before > revocation.before);
            // Even an unchanged value is rewritten: its first writer may not have awaited the
            // fsync.
            let value = encode(SEAM, standing.as_ref().unwrap_or(revocation))?;
            let mut batch = WriteBatch::new();
            batch.put(Table::Revocation, key, value);
            self.engine.write(batch)?
        };
        self.engine.durable(mark).await?;
        let (first, end) = (key_of(Timestamp::ZERO), key_of(revocation.at - retention));
        let old = &first[..]..&end[..];
        self.engine
            .remove_range(Table::Revocation, old, REMOVED)
            .map(drop)
    }

    async fn page(&self, hour: i64, from: PageStart, limit: usize) -> Result<Vec<Revocation>> {
        let begin = Timestamp::from_millis(hour.saturating_mul(HOUR_MILLIS));
        let end = key_of(begin + Duration::from_millis(HOUR_MILLIS.unsigned_abs()));
        // Pages continue after a user, at the next number.
        let behind = |user: protocol::UserId| user.get().saturating_add(1);
        let first = key(from.since, from.after.map_or(0, behind)).max(key_of(begin));
        if first >= end {
            return Ok(Vec::new());
        }
        let range = &first[..]..&end[..];
        let rows = (self.engine).range(Table::Revocation, range, ScanOrder::Forward, limit)?;
        rows.iter().map(|(_, value)| decode(SEAM, value)).collect()
    }
}

fn key_of(at: Timestamp) -> Vec<u8> {
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
