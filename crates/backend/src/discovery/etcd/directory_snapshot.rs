//! The instances of a role, as of one revision of etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{Event, EventType, GetResponse, KeyValue};
use protocol::presence::BoatLife;
use protocol::{BoatId, Incarnation};
use serde::{Deserialize, Serialize};

use super::super::{Directory, Instance, Role};
use crate::Error;

/// Value of an instance's key; the name is in the key. Later versions may add fields.
#[derive(Serialize, Deserialize)]
struct InstanceValue {
    incarnation: u64,
    address: String,
}

/// Value of an instance in etcd.
pub(super) fn entry(instance: &Instance) -> Result<String, Error> {
    let entry = InstanceValue {
        incarnation: instance.life.incarnation.0,
        address: instance.address.clone(),
    };
    serde_json::to_string(&entry).map_err(|error| Error::corrupt(super::SEAM, error))
}

/// Instances of a role, by name.
pub(super) struct DirectorySnapshot {
    role: Role,
    /// Prefix of the keys; the name follows.
    prefix: String,
    pub(super) revision: i64,
    instances: BTreeMap<String, Instance>,
}

impl DirectorySnapshot {
    pub(super) fn from_list(role: Role, prefix: &str, answer: &GetResponse) -> DirectorySnapshot {
        let mut snapshot = DirectorySnapshot {
            role,
            prefix: prefix.to_owned(),
            revision: answer
                .header()
                .map_or(0, etcd_client::ResponseHeader::revision),
            instances: BTreeMap::new(),
        };
        for kv in answer.kvs() {
            snapshot.put(kv);
        }
        snapshot
    }

    pub(super) fn to_directory(&self) -> Directory {
        Arc::new(self.instances.values().cloned().collect())
    }

    /// Applies events, skipping those that a list already included.
    pub(super) fn apply(&mut self, events: &[Event]) {
        for event in events {
            let Some(kv) = event.kv().filter(|kv| kv.mod_revision() > self.revision) else {
                continue;
            };
            match event.event_type() {
                EventType::Put => self.put(kv),
                EventType::Delete => self.delete(kv),
            }
        }
        // Raised only now, because several events may share a revision.
        let newest = events
            .iter()
            .filter_map(Event::kv)
            .map(KeyValue::mod_revision);
        self.revision = newest.fold(self.revision, i64::max);
    }

    fn put(&mut self, kv: &KeyValue) {
        let key = String::from_utf8_lossy(kv.key());
        match self.decode(&key, kv.value()) {
            Ok((name, instance)) => {
                self.instances.insert(name, instance);
            }
            Err(why) => tracing::warn!(%key, why, "cannot decode an instance in etcd"),
        }
    }

    fn delete(&mut self, kv: &KeyValue) {
        if let Some(name) = kv.key().strip_prefix(self.prefix.as_bytes()) {
            self.instances.remove(&*String::from_utf8_lossy(name));
        }
    }

    fn decode(&self, key: &str, value: &[u8]) -> Result<(String, Instance), String> {
        let name = key.strip_prefix(&self.prefix).ok_or("not below its role")?;
        let entry: InstanceValue =
            serde_json::from_slice(value).map_err(|error| error.to_string())?;
        let life = BoatLife {
            boat: BoatId::new(name).map_err(|error| error.to_string())?,
            incarnation: Incarnation(entry.incarnation),
        };
        let instance = Instance {
            role: self.role,
            life,
            address: entry.address,
        };
        Ok((name.to_owned(), instance))
    }
}

#[cfg(test)]
impl DirectorySnapshot {
    pub(super) fn forget(&mut self) {
        self.instances.clear();
    }
}
