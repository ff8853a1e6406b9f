//! The instances of a role, as of one revision of etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{Event, EventType, GetResponse, KeyValue};
use protocol::presence::BoatLife;
use protocol::{BoatId, Incarnation};
use serde::{Deserialize, Serialize};

use super::super::{Instance, Role, Roster};
use crate::Error;

/// The value of an instance's key; its name is in the key. Later versions may say more.
#[derive(Serialize, Deserialize)]
struct Entry {
    incarnation: u64,
    address: String,
}

/// What stands in etcd for an instance.
pub(super) fn entry(instance: &Instance) -> Result<String, Error> {
    let entry = Entry {
        incarnation: instance.life.incarnation.0,
        address: instance.address.clone(),
    };
    serde_json::to_string(&entry).map_err(|error| Error::corrupt(super::SEAM, error))
}

/// Everybody of a role, by name.
pub(super) struct Known {
    role: Role,
    /// What all names come after.
    prefix: String,
    pub(super) revision: i64,
    instances: BTreeMap<String, Instance>,
}

impl Known {
    pub(super) fn listed(role: Role, prefix: &str, answer: &GetResponse) -> Known {
        let mut known = Known {
            role,
            prefix: prefix.to_owned(),
            revision: answer
                .header()
                .map_or(0, etcd_client::ResponseHeader::revision),
            instances: BTreeMap::new(),
        };
        for kv in answer.kvs() {
            known.put(kv);
        }
        known
    }

    pub(super) fn roster(&self) -> Roster {
        Arc::new(self.instances.values().cloned().collect())
    }

    /// Takes over what happened; what a list has told already is passed over.
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
        // Afterwards: several events may be of one revision.
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
            Err(why) => tracing::warn!(%key, why, "an instance in etcd cannot be read"),
        }
    }

    fn delete(&mut self, kv: &KeyValue) {
        if let Some(name) = kv.key().strip_prefix(self.prefix.as_bytes()) {
            self.instances.remove(&*String::from_utf8_lossy(name));
        }
    }

    fn decode(&self, key: &str, value: &[u8]) -> Result<(String, Instance), String> {
        let name = key.strip_prefix(&self.prefix).ok_or("not below its role")?;
        let entry: Entry = serde_json::from_slice(value).map_err(|error| error.to_string())?;
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
impl Known {
    pub(super) fn forget(&mut self) {
        self.instances.clear();
    }
}
