//! Loads of boats: each has a key beside its registration, under the same lease. Loads are listed,
//! not watched: a boat writes one every few seconds, and few readers want them.

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetResponse, PutOptions, Txn, TxnOp};
use protocol::drain::{BoatLoad, Load};
use protocol::presence::BoatLife;
use protocol::{BoatId, Incarnation};
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::super::LeaseGuard;
use super::SEAM;
use super::keeper::HeldLease;
use crate::{Error, Result};

/// Value of a load's key; the name is in the key.
#[derive(Serialize, Deserialize)]
struct LoadValue {
    incarnation: u64,
    #[serde(flatten)]
    load: BoatLoad,
}

/// A lease that is kept alive, and the keys written under it.
pub(super) struct EtcdLease {
    pub(super) guard: (AbortOnDropHandle<()>, HeldLease),
    pub(super) incarnation: Incarnation,
    /// Key of the registration, with the value it has while this life holds the name.
    pub(super) instance: (String, String),
    /// Key of the load.
    pub(super) load: String,
}

#[async_trait]
impl LeaseGuard for EtcdLease {
    async fn publish(&self, load: &BoatLoad) -> Result<()> {
        let entry = LoadValue {
            incarnation: self.incarnation.0,
            load: load.clone(),
        };
        let value = serde_json::to_string(&entry).map_err(|error| Error::corrupt(SEAM, error))?;
        let (key, instance_value) = &self.instance;
        let (_, held_lease) = &self.guard;
        // The registration's key proves that the lease is alive.
        let is_mine = Compare::value(key.as_str(), CompareOp::Equal, instance_value.as_str());
        let under_lease = PutOptions::new().with_lease(held_lease.lease.id);
        let put = TxnOp::put(self.load.as_str(), value, Some(under_lease));
        let answer = held_lease
            .calls()
            .txn(Txn::new().when([is_mine]).and_then([put]));
        if answer.await?.succeeded() {
            Ok(())
        } else {
            Err(Error::conflict(SEAM, "the lease has expired"))
        }
    }
}

/// Loads of a listing, in order of name; unreadable ones are left out.
pub(super) fn to_loads(prefix: &str, answer: &GetResponse) -> Vec<Load> {
    let loads = answer.kvs().iter().filter_map(|kv| {
        let key = String::from_utf8_lossy(kv.key());
        let load = decode(prefix, &key, kv.value());
        load.inspect_err(|why| tracing::warn!(%key, why, "cannot decode a load report in etcd"))
            .ok()
    });
    loads.collect()
}

fn decode(prefix: &str, key: &str, value: &[u8]) -> Result<Load, String> {
    let name = key.strip_prefix(prefix).ok_or("not below its prefix")?;
    let entry: LoadValue = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    Ok(Load {
        life: BoatLife {
            boat: BoatId::new(name).map_err(|error| error.to_string())?,
            incarnation: Incarnation(entry.incarnation),
        },
        load: entry.load,
    })
}
