//! The installation in the embedded store: table `installation`, fsynced.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::Timestamp;

use super::InstallationStore;
use crate::embedded::{Batch, Engine, Table};
use crate::{Error, Result};

const SEAM: &str = "installation";

const NUMBER: &[u8] = b"number";
const NODE: &[u8] = b"node";

/// The installation in the embedded store.
pub struct EmbeddedInstallation {
    engine: Engine,
    /// Held between reading and writing, never across an await.
    writing: Mutex<()>,
}

impl EmbeddedInstallation {
    pub fn new(engine: Engine) -> EmbeddedInstallation {
        EmbeddedInstallation {
            engine,
            writing: Mutex::new(()),
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

    /// Writes what `choose` makes of the present value, and answers it when it is durable.
    async fn change(&self, key: Vec<u8>, choose: impl FnOnce(Option<u64>) -> u64) -> Result<u64> {
        let (value, mark) = {
            let _writing = self.writing.lock();
            // Written again rather than only read: whoever wrote it may not have waited.
            let value = choose(self.read(&key)?);
            let mut batch = Batch::new();
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

    async fn record(&self, number: u64, _created: Timestamp) -> Result<u64> {
        let stands = |present: Option<u64>| present.unwrap_or(number);
        self.change(NUMBER.to_vec(), stands).await
    }

    async fn reserve_node(&self, node: u16, until: Timestamp) -> Result<()> {
        let until = u64::try_from(until.millis()).unwrap_or(0);
        let later = |present: Option<u64>| present.unwrap_or(0).max(until);
        self.change(key(node), later).await.map(drop)
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
    use crate::fresh::on_memory_and_disk;
    use crate::installation::contract;

    contract::checks!(on_memory_and_disk!(super::EmbeddedInstallation::new));
}
