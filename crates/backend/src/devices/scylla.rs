//! Devices in ScyllaDB or Cassandra: table `device`, a row per user and platform, written at the
//! time of the sign-in. Every message queries the platforms of its receiver, so a user has seven
//! rows at most, whatever device names clients sign in with.

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::{Platform, Timestamp, UserId};
use std::time::Duration;

use super::{DeviceSeen, DeviceStore};
use crate::embedded::aging_map::AgingMap;
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "devices";

/// Age below which a platform's row is not rewritten.
const REWRITE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Devices in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaDevices {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
    recent_writes: Mutex<AgingMap<(UserId, Platform), Timestamp>>,
}

impl ScyllaDevices {
    pub fn new(cql: Cql) -> ScyllaDevices {
        ScyllaDevices {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO device (uid, platform, seen, device) VALUES (?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            select: Statement::new("SELECT platform, seen FROM device WHERE uid = ?"),
            recent_writes: Mutex::default(),
        }
    }

    async fn active_platforms(
        &self,
        user: UserId,
        lower_bound: Timestamp,
    ) -> Result<Vec<Platform>> {
        let rows: Vec<(i8, i64)> = self.cql.rows(&self.select, (user.get(),)).await?;
        rows.into_iter()
            .filter(|(_, seen)| *seen >= lower_bound.millis())
            .map(|(number, _)| {
                let platform = u8::try_from(number).ok().and_then(Platform::from_number);
                platform.ok_or_else(|| {
                    Error::corrupt(SEAM, format!("user {user} has a platform {number}"))
                })
            })
            .collect()
    }
}

#[async_trait]
impl DeviceStore for ScyllaDevices {
    async fn seen(&self, sighting: DeviceSeen) -> Result<()> {
        let key = (sighting.user, sighting.platform);
        let last = self.recent_writes.lock().get(&key);
        if last.is_some_and(|last| sighting.at < last + REWRITE_AFTER) {
            return Ok(());
        }
        let time = write_time::from_time(SEAM, sighting.at)?;
        let (user, platform) = (sighting.user.get(), sighting.platform.number() as i8);
        let values = (
            user,
            platform,
            sighting.at.millis(),
            sighting.device.as_str(),
            time,
        );
        self.cql.write(&self.insert, values).await?;
        self.recent_writes.lock().put(key, sighting.at);
        Ok(())
    }

    async fn platforms(
        &self,
        users: &[UserId],
        lower_bound: Timestamp,
    ) -> Result<Vec<Vec<Platform>>> {
        let reads = users
            .iter()
            .map(|&user| self.active_platforms(user, lower_bound));
        self.cql.all(reads.collect()).await
    }
}

#[cfg(test)]
mod tests {
    use super::ScyllaDevices;
    use crate::devices::contract;
    use crate::scylla::fixture::on_cql;

    contract::checks!(on_cql!("devices", ScyllaDevices::new));
}
