//! All connections of a boat, by session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backend::clock::{Clock, Entropy, TimerClock};
use backend::table;
use metrics::{Gauge, gauge};
use parking_lot::Mutex;
use protocol::{SessionId, Timestamp};

use super::Connection;

/// Many small maps, so that pushes from several carriers rarely contend for one.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Connections {
    shards: [Mutex<HashMap<SessionId, Arc<Connection>>>; SHARDS],
    /// Number of admitted sessions, and the gauge that shows it.
    sessions: AtomicUsize,
    session_gauge: Gauge,
    is_abandoned: AtomicBool,
    /// Time of day at the start, advanced by the runtime's timer: it never steps.
    clock: TimerClock,
}

impl Connections {
    pub(crate) fn new(clock: TimerClock) -> Connections {
        Connections {
            shards: std::array::from_fn(|_| Mutex::default()),
            sessions: AtomicUsize::new(0),
            session_gauge: gauge!("boat_sessions"),
            is_abandoned: AtomicBool::new(false),
            clock,
        }
    }

    /// Time that the sessions live by.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns an unguessable session id that no connection here uses.
    pub(crate) fn new_id(&self, entropy: &dyn Entropy) -> SessionId {
        loop {
            if let Ok(id) = SessionId::new((entropy.next() >> 1) as i64)
                && self.get(id).is_none()
            {
                return id;
            }
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

    /// Number of admitted sessions.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn record_admission(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        self.session_gauge.increment(1.0);
    }

    pub(crate) fn record_session_end(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.session_gauge.decrement(1.0);
    }

    /// True once connections are to end at their next turn.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Drops the remaining connections without a frame to anybody.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        for connection in self.all() {
            Connection::wake(&connection);
        }
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
