//! All connections of a boat, by session.

use std::collections::HashMap;
use std::sync::Arc;

use backend::table;
use parking_lot::Mutex;
use protocol::SessionId;

use crate::connection::Connection;

/// Many small maps, so that pushes from several carriers rarely contend for one.
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

    /// All connections, in the order of [`Connections::by_shard`].
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.by_shard().flatten().collect()
    }

    /// Connections shard by shard, for slow passes over all of them. Each shard is sorted by id, so
    /// that every pass visits the same connections in the same order.
    pub(crate) fn by_shard(&self) -> impl Iterator<Item = Vec<Arc<Connection>>> + '_ {
        self.shards.iter().map(in_order)
    }

    /// Number of shards in use.
    pub(crate) fn shards_used(&self) -> usize {
        let used_shards = self.shards.iter().filter(|shard| !shard.lock().is_empty());
        used_shards.count()
    }

    /// Ids are random: any bits will do.
    fn shard(&self, id: SessionId) -> &Mutex<HashMap<SessionId, Arc<Connection>>> {
        &self.shards[id.get() as usize % SHARDS]
    }
}

/// Sorts a shard by id, as maps iterate in a different order in each process. Sorts outside the
/// lock, which pushes wait for.
fn in_order<T: Clone>(shard: &Mutex<HashMap<SessionId, T>>) -> Vec<T> {
    let copy = |(id, it): (&SessionId, &T)| (*id, it.clone());
    let mut entries: Vec<_> = shard.lock().iter().map(copy).collect();
    entries.sort_unstable_by_key(|(id, _)| *id);
    entries.into_iter().map(|(_, it)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_gone_through_in_the_order_of_ids() {
        let shard = Mutex::new(HashMap::new());
        // A map hardly ever iterates over a hundred numbers in order.
        for id in (1..=100).rev() {
            let id = SessionId::new(id * 7919 % 101).expect("positive");
            shard.lock().insert(id, id);
        }
        assert!(in_order(&shard).is_sorted());
        assert_eq!(in_order(&shard).len(), 100);
    }
}
