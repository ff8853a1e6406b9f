//! All connections of a boat, by session.

use std::collections::HashMap;
use std::sync::Arc;

use backend::table;
use parking_lot::Mutex;
use protocol::SessionId;

use crate::connection::Connection;

/// Many small maps: pushes from several carriers meet rarely in one.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Connections {
    shards: [Mutex<HashMap<SessionId, Arc<Connection>>>; SHARDS],
}

impl Connections {
    pub(crate) fn new() -> Connections {
        Connections {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    pub(crate) fn insert(&self, connection: &Arc<Connection>) {
        let id = connection.id();
        self.shard(id).lock().insert(id, Arc::clone(connection));
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<Arc<Connection>> {
        self.shard(id).lock().get(&id).cloned()
    }

    pub(crate) fn remove(&self, id: SessionId) {
        let mut shard = self.shard(id).lock();
        shard.remove(&id);
        table::shrink(&mut shard);
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.by_shard().flatten().collect()
    }

    /// One shard after the other, for those who go through all slowly.
    pub(crate) fn by_shard(&self) -> impl Iterator<Item = Vec<Arc<Connection>>> + '_ {
        (self.shards.iter()).map(|shard| shard.lock().values().cloned().collect())
    }

    /// How many shards hold any.
    pub(crate) fn shards_used(&self) -> usize {
        let used = self.shards.iter().filter(|shard| !shard.lock().is_empty());
        used.count()
    }

    /// Ids are random: any bits will do.
    fn shard(&self, id: SessionId) -> &Mutex<HashMap<SessionId, Arc<Connection>>> {
        &self.shards[id.get() as usize % SHARDS]
    }
}
