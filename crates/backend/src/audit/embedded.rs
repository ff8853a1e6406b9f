//! Closed minutes in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `audit` | 0 | the head |
//! | | 1, minute | the closed minute |
//! | | 2, minute | its amendment |

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::Timestamp;
use protocol::ledger::chain::ChainHead;
use protocol::ledger::minute::{Amendment, ClosedMinute, MinuteRow};

use super::AuditStore;
use crate::Result;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};

const SEAM: &str = "audit";

const HEAD: [u8; 1] = [0];
const CLOSED: u8 = 1;
const AMENDMENT: u8 = 2;

/// Rows removed per batch.
const REMOVAL_BATCH: usize = 1000;

/// Closed minutes in the embedded store. One instance per store: it serializes writes of the head.
pub struct EmbeddedAudit {
    engine: Engine,
    /// Held from the read of the current row to its replacement, never across an await.
    write_lock: Mutex<()>,
}

impl EmbeddedAudit {
    pub fn new(engine: Engine) -> EmbeddedAudit {
        EmbeddedAudit {
            engine,
            write_lock: Mutex::default(),
        }
    }

    fn current_head(&self) -> Result<Option<ChainHead>> {
        let value = self.engine.get(Table::Audit, &HEAD)?;
        value.map(|value| decode(SEAM, &value)).transpose()
    }

    fn put(&self, key: Vec<u8>, value: Bytes) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(Table::Audit, key, value);
        self.engine.write(batch).map(drop)
    }
}

#[async_trait]
impl AuditStore for EmbeddedAudit {
    async fn head(&self) -> Result<Option<ChainHead>> {
        self.current_head()
    }

    async fn advance(&self, head: &ChainHead) -> Result<bool> {
        let _write_guard = self.write_lock.lock();
        let current = self.current_head()?;
        if current.as_ref() == Some(head) {
            return Ok(true);
        }
        if current.map_or(0, |current| current.turn) + 1 != head.turn {
            return Ok(false);
        }
        self.put(HEAD.to_vec(), encode(SEAM, head)?)?;
        Ok(true)
    }

    async fn save(&self, closed_minute: &ClosedMinute) -> Result<()> {
        self.put(
            key(CLOSED, closed_minute.minute),
            encode(SEAM, closed_minute)?,
        )
    }

    async fn amend(&self, minute: Timestamp, amendment: &Amendment) -> Result<()> {
        let _write_guard = self.write_lock.lock();
        let key = key(AMENDMENT, minute);
        if let Some(value) = self.engine.get(Table::Audit, &key)? {
            let current: Option<Amendment> = decode(SEAM, &value).ok();
            if current.is_some_and(|current| current.looked_at > amendment.looked_at) {
                return Ok(());
            }
        }
        self.put(key, encode(SEAM, amendment)?)
    }

    async fn rows(&self, minutes: Range<Timestamp>, limit: usize) -> Result<Vec<MinuteRow>> {
        let (start, end) = (key(CLOSED, minutes.start), key(CLOSED, minutes.end));
        let range = &start[..]..&end[..];
        let entries = self
            .engine
            .range(Table::Audit, range, ScanOrder::Forward, limit)?;
        let amendments: Vec<_> = entries
            .iter()
            .map(|(key, _)| [&[AMENDMENT], &key[1..]].concat())
            .collect();
        let amendments = self.engine.multi_get(Table::Audit, &amendments)?;
        let rows = entries.iter().zip(amendments);
        Ok(rows
            .filter_map(|((key, bytes), amendment)| {
                let minute = i64::from_be_bytes(*key.get(1..)?.first_chunk()?);
                Some(MinuteRow {
                    minute: Timestamp::from_millis(minute),
                    closed_minute: decode(SEAM, bytes).ok(),
                    amendment: amendment.and_then(|value| decode(SEAM, &value).ok()),
                })
            })
            .collect())
    }

    async fn forget(&self, minutes: Range<Timestamp>) -> Result<()> {
        for kind in [CLOSED, AMENDMENT] {
            let (start, end) = (key(kind, minutes.start), key(kind, minutes.end));
            let remove = || {
                let range = &start[..]..&end[..];
                self.engine.remove_range(Table::Audit, range, REMOVAL_BATCH)
            };
            while remove()? == REMOVAL_BATCH {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
}

/// Key of a minute. Minutes are after 1970, so that their bytes sort as they do.
fn key(kind: u8, minute: Timestamp) -> Vec<u8> {
    [&[kind][..], &minute.millis().max(0).to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::EmbeddedAudit;
    use crate::audit::contract;
    use crate::test_ids::on_memory_and_disk;

    contract::checks!(on_memory_and_disk!(super::EmbeddedAudit::new));
}
