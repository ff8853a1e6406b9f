//! The installation in the embedded store: table `installation`, fsynced.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::Timestamp;

use super::InstallationStore;
use crate::embedded::{Engine, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "installation";

const NUMBER: &[u8] = b"number";
const NODE: &[u8] = b"node";

/// The installation in the embedded store.
pub struct EmbeddedInstallation {
    engine: Engine,
    /// Held from a read to the write after it, never across an await.
    write_lock: Mutex<()>,
}

impl EmbeddedInstallation {
    pub fn new(engine: Engine) -> EmbeddedInstallation {
        EmbeddedInstallation {
            engine,
            write_lock: Mutex::new(()),
        }
    }

    fn read(&self, key: &[u8]) -> Result<Option<u64>> {
        let value = self.engine.get(Table::Installation, key)?;
        value
            .map(|bytes| {
                let bytes = bytes.as_ref().try_into();
                let bytes = bytes.map_err(|_| Error::corrupt(SEAM, "a number of another size"));
                bytes.map(u64::from_be_bytes)
            })
            .transpose()
    }

    /// Replaces the current value by the result of `choose`, and returns it once it is durable.
    async fn change(&self, key: Vec<u8>, choose: impl FnOnce(Option<u64>) -> u64) -> Result<u64> {
        let (value, mark) = {
            let _write_guard = self.write_lock.lock();
            // Even an unchanged value is rewritten: its first writer may not have awaited the
            // fsync.
            let value = choose(self.read(&key)?);
            let mut batch = WriteBatch::new();
            batch.put(Table::Installation, key, value.to_be_bytes().to_vec());
            (value, self.engine.write(batch)?)
        };
        self.engine.durable(mark).await?;
        Ok(value)
    }
}

#[async_trait]
impl InstallationStore for EmbeddedInstallation {
    async fn number(&self) -> Result<Option<u64>> {
        self.read(NUMBER)
    }

    async fn record(&self, number: u64, _created_at: Timestamp) -> Result<u64> {
        let stands = |present: Option<u64>| present.unwrap_or(number);
        self.change(NUMBER.to_vec(), stands).await
    }

    async fn reserve_node(&self, node: u16, deadline: Timestamp) -> Result<()> {
        let deadline = u64::try_from(deadline.millis()).unwrap_or(0);
        let latest = |present: Option<u64>| present.unwrap_or(0).max(deadline);
        self.change(key(node), latest).await.map(drop)
    }

    async fn reserved(&self, node: u16) -> Result<Timestamp> {
        let millis = self.read(&key(node))?.unwrap_or(0);
        let millis = i64::try_from(millis).unwrap_or(i64::MAX);
        Ok(Timestamp::from_millis(millis))
    }
}

fn key(node: u16) -> Vec<u8> {
    [NODE, &node.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::EmbeddedInstallation;
    use crate::installation::contract;
    use crate::test_ids::on_memory_and_disk;

    contract::checks!(on_memory_and_disk!(super::EmbeddedInstallation::new));
}
