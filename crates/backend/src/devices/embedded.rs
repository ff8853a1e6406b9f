//! Devices in the embedded store: table `device`, user → devices signed in, so that the platforms
//! of a user are one small read.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::{DeviceId, Platform, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::{DeviceSeen, DeviceStore};
use crate::Result;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, Table, WriteBatch};

const SEAM: &str = "devices";

/// Age below which a device's sign-in is not rewritten.
const REWRITE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Devices remembered per user and platform; the least recently seen is forgotten.
const DEVICES_MAX: usize = 8;

/// Devices in the embedded store.
pub struct EmbeddedDevices {
    engine: Engine,
    /// Held from the read of a user's devices to their write, never across an await.
    write_lock: Mutex<()>,
}

type Devices = BTreeMap<Platform, BTreeMap<DeviceId, Timestamp>>;

#[derive(Default, Serialize, Deserialize)]
struct StoredRow(Devices);

impl EmbeddedDevices {
    pub fn new(engine: Engine) -> EmbeddedDevices {
        EmbeddedDevices {
            engine,
            write_lock: Mutex::new(()),
        }
    }
}

#[async_trait]
impl DeviceStore for EmbeddedDevices {
    async fn seen(&self, sighting: DeviceSeen) -> Result<()> {
        let key = key(sighting.user);
        let _write_guard = self.write_lock.lock();
        let mut user: StoredRow = match self.engine.get(Table::Device, &key)? {
            Some(value) => decode(SEAM, &value)?,
            None => StoredRow::default(),
        };
        let devices = user.0.entry(sighting.platform).or_default();
        match devices.get(&sighting.device) {
            Some(&last) if sighting.at < last + REWRITE_AFTER => return Ok(()),
            _ => devices.insert(sighting.device, sighting.at),
        };
        while devices.len() > DEVICES_MAX {
            let oldest = devices.iter().min_by_key(|(_, at)| **at);
            let Some(oldest) = oldest.map(|(device, _)| device.clone()) else {
                break;
            };
            devices.remove(&oldest);
        }
        let mut batch = WriteBatch::new();
        batch.put(Table::Device, key.to_vec(), encode(SEAM, &user)?);
        self.engine.write(batch)?;
        Ok(())
    }

    async fn platforms(
        &self,
        users: &[UserId],
        lower_bound: Timestamp,
    ) -> Result<Vec<Vec<Platform>>> {
        let keys: Vec<_> = users.iter().map(|&user| key(user)).collect();
        self.engine
            .multi_get(Table::Device, &keys)?
            .into_iter()
            .map(|value| {
                let StoredRow(devices) = match value {
                    Some(value) => decode(SEAM, &value)?,
                    None => StoredRow::default(),
                };
                Ok(devices
                    .into_iter()
                    .filter(|(_, devices)| devices.values().any(|&at| at >= lower_bound))
                    .map(|(platform, _)| platform)
                    .collect())
            })
            .collect()
    }
}

fn key(user: UserId) -> [u8; 8] {
    user.get().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::EmbeddedDevices;
    use crate::devices::contract;
    use crate::test_ids::on_memory_and_disk;

    contract::checks!(on_memory_and_disk!(super::EmbeddedDevices::new));
}
