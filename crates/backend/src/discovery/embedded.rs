//! Discovery inside one process: leases live in memory as long as their guards; state that must
//! survive the process (incarnations, reservations of node numbers, the cluster number) is in the
//! store, fsynced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::drain::{BoatLoad, Load};
use protocol::presence::BoatLife;
use protocol::{BoatId, Incarnation, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Directory, Instance, LeaseGuard, NodeLease, Registration, Registry, Role};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch, WriteMark};
use crate::{Error, Result};

const SEAM: &str = "embedded discovery";

/// Node numbers are 0 to 1023.
const NODES: u16 = 1024;

const CLUSTER_KEY: &[u8] = b"c";
const INCARNATION_PREFIX: &[u8] = b"i";
const NODE_PREFIX: &[u8] = b"n";

/// The registry of one process; clones share it.
#[derive(Clone)]
pub struct EmbeddedRegistry {
    state: Arc<RegistryState>,
}

struct RegistryState {
    engine: Engine,
    /// Held while a number in the store is read and written, never across an await.
    numbers: Mutex<()>,
    leases: Mutex<BTreeMap<(Role, String), RegisteredInstance>>,
    /// Updated under the lock of `leases`, so that a directory never goes back in time. Each
    /// watcher has its own channel, because the waiters of a shared one wake in any order.
    watchers: Mutex<BTreeMap<Role, Vec<watch::Sender<Directory>>>>,
    /// Leasing that holds each node number. Locked before `numbers`.
    nodes: Mutex<BTreeMap<u16, u64>>,
    next_lease_id: AtomicU64,
}

struct RegisteredInstance {
    instance: Instance,
    lost_token: CancellationToken,
    load: Option<BoatLoad>,
}

impl EmbeddedRegistry {
    pub fn new(engine: Engine) -> EmbeddedRegistry {
        EmbeddedRegistry {
            state: Arc::new(RegistryState {
                engine,
                numbers: Mutex::new(()),
                leases: Mutex::default(),
                watchers: Mutex::default(),
                nodes: Mutex::default(),
                next_lease_id: AtomicU64::new(0),
            }),
        }
    }

    /// Revokes the lease of a live service, as a partition from etcd would: its registration
    /// becomes *lost* and watchers see the instance disappear. Returns false if there was no lease.
    pub fn revoke(&self, role: Role, name: &str) -> bool {
        self.state.end_lease(role, name, None)
    }

    /// Revokes the node number of a live station, which can then reserve nothing more. Returns
    /// false if nobody held it.
    pub fn revoke_node(&self, number: u16) -> bool {
        self.state.nodes.lock().remove(&number).is_some()
    }

    /// Forgets the installation's number, all node numbers and their holders, like an etcd that is
    /// set up anew.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn lose_numbers(&self) -> Result<()> {
        let mut nodes = self.state.nodes.lock();
        let _one_at_a_time = self.state.numbers.lock();
        let mut batch = WriteBatch::new();
        batch.remove(Table::Registry, CLUSTER_KEY.to_vec());
        for node in self.state.reservations()?.keys() {
            batch.remove(Table::Registry, node_key(*node));
        }
        self.state.engine.write(batch)?;
        nodes.clear();
        Ok(())
    }
}

impl RegistryState {
    fn hold(
        self: &Arc<Self>,
        nodes: &mut BTreeMap<u16, u64>,
        number: u16,
        not_before: Timestamp,
    ) -> EmbeddedNode {
        let lease_id = self.next_lease_id.fetch_add(1, Ordering::Relaxed);
        nodes.insert(number, lease_id);
        EmbeddedNode {
            state: Arc::clone(self),
            number,
            lease_id,
            not_before,
        }
    }

    /// Ends a lease; given an incarnation, only the lease of that life.
    fn end_lease(&self, role: Role, name: &str, incarnation: Option<Incarnation>) -> bool {
        let mut leases = self.leases.lock();
        let key = (role, name.to_owned());
        let is_match = leases.get(&key).is_some_and(|lease| {
            incarnation.is_none_or(|life| lease.instance.life.incarnation == life)
        });
        if !is_match {
            return false;
        }
        if let Some(lease) = leases.remove(&key) {
            if incarnation.is_none() {
                lease.lost_token.cancel();
            }
            self.notify_watchers(role, &leases);
        }
        true
    }

    fn notify_watchers(&self, role: Role, leases: &BTreeMap<(Role, String), RegisteredInstance>) {
        let directory = to_directory(role, leases);
        if let Some(watchers) = self.watchers.lock().get_mut(&role) {
            watchers.retain(|watcher| watcher.send(directory.clone()).is_ok());
        }
    }

    fn read_u64(&self, key: &[u8]) -> Result<Option<u64>> {
        self.engine
            .get(Table::Registry, key)?
            .map(|bytes| number(&bytes))
            .transpose()
    }

    fn write_u64(&self, key: &[u8], value: u64) -> Result<WriteMark> {
        let mut batch = WriteBatch::new();
        let value = value.to_be_bytes().to_vec();
        batch.put(Table::Registry, key.to_vec(), value);
        self.engine.write(batch)
    }

    fn raise_incarnation(&self, name: &str) -> Result<(Incarnation, WriteMark)> {
        let key = [INCARNATION_PREFIX, name.as_bytes()].concat();
        let _one_at_a_time = self.numbers.lock();
        let next = self.read_u64(&key)?.unwrap_or(0) + 1;
        Ok((Incarnation(next), self.write_u64(&key, next)?))
    }

    /// Time up to which earlier holders of each number may have made ids.
    fn reservations(&self) -> Result<BTreeMap<u16, Timestamp>> {
        let rows = self.engine.prefix(
            Table::Registry,
            NODE_PREFIX,
            ScanOrder::Forward,
            usize::from(NODES),
        )?;
        rows.iter()
            .map(|(key, value)| {
                let node = key
                    .get(NODE_PREFIX.len()..)
                    .and_then(|node| node.try_into().ok())
                    .map(u16::from_be_bytes)
                    .ok_or_else(|| Error::corrupt(SEAM, "invalid node number"))?;
                Ok((node, timestamp(number(value)?)))
            })
            .collect()
    }
}

fn to_directory(role: Role, leases: &BTreeMap<(Role, String), RegisteredInstance>) -> Directory {
    let role_leases = leases
        .iter()
        .filter(|((lease_role, _), _)| *lease_role == role);
    let instances: Vec<Instance> = role_leases
        .map(|(_, lease)| lease.instance.clone())
        .collect();
    Arc::new(instances)
}

fn number(bytes: &[u8]) -> Result<u64> {
    bytes
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| Error::corrupt(SEAM, "a number that is not eight bytes"))
}

fn timestamp(millis: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

fn node_key(node: u16) -> Vec<u8> {
    [NODE_PREFIX, &node.to_be_bytes()].concat()
}

#[async_trait]
impl Registry for EmbeddedRegistry {
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration> {
        let boat = BoatId::new(name).map_err(|error| Error::conflict(SEAM, error))?;
        let incarnation = self.next_incarnation(name).await?;
        let instance = Instance {
            role,
            life: BoatLife { boat, incarnation },
            address: address.to_owned(),
        };
        let lost_token = CancellationToken::new();
        let lease = RegisteredInstance {
            instance: instance.clone(),
            lost_token: lost_token.clone(),
            load: None,
        };
        let mut leases = self.state.leases.lock();
        let key = (role, name.to_owned());
        let has_newer = leases
            .get(&key)
            .is_some_and(|other| other.instance.life.incarnation > incarnation);
        if has_newer {
            // Two registrations race for one name: the later life keeps it.
            lost_token.cancel();
        } else {
            if let Some(previous) = leases.insert(key, lease) {
                previous.lost_token.cancel();
            }
            self.state.notify_watchers(role, &leases);
        }
        drop(leases);
        Ok(Registration {
            instance,
            lost_token,
            lease: Box::new(Guard {
                state: self.state.clone(),
                role,
                name: name.to_owned(),
                incarnation,
            }),
        })
    }

    async fn watch(&self, role: Role) -> Result<watch::Receiver<Directory>> {
        // The lock keeps the list unchanged until the watcher is added.
        let leases = self.state.leases.lock();
        let (watcher, receiver) = watch::channel(to_directory(role, &leases));
        let mut watchers = self.state.watchers.lock();
        watchers.entry(role).or_default().push(watcher);
        Ok(receiver)
    }

    async fn loads(&self) -> Result<Vec<Load>> {
        let leases = self.state.leases.lock();
        let loads = leases.values().filter_map(|lease| {
            Some(Load {
                life: lease.instance.life.clone(),
                load: lease.load.clone()?,
            })
        });
        Ok(loads.collect())
    }

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>> {
        let mut nodes = self.state.nodes.lock();
        let reservations = self.state.reservations()?;
        // A never used number, or else the one whose reservation ended first, so that nobody waits
        // for it.
        let (not_before, number) = (0..NODES)
            .filter(|number| !nodes.contains_key(number))
            .map(|number| (reservations.get(&number).copied(), number))
            .min()
            .ok_or_else(|| Error::unavailable(SEAM, "all 1024 node numbers are in use"))?;
        let not_before = not_before.unwrap_or(Timestamp::ZERO);
        Ok(Box::new(self.state.hold(&mut nodes, number, not_before)))
    }

    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>> {
        let mut nodes = self.state.nodes.lock();
        let is_recorded = self.state.read_u64(&node_key(number))?.is_some();
        if is_recorded || nodes.contains_key(&number) {
            return Ok(None);
        }
        let lease = self.state.hold(&mut nodes, number, Timestamp::ZERO);
        Ok(Some(Box::new(lease)))
    }

    async fn cluster(&self) -> Result<Option<u64>> {
        self.state.read_u64(CLUSTER_KEY)
    }

    async fn claim_cluster(&self, number: u64) -> Result<u64> {
        let (cluster, mark) = {
            let _one_at_a_time = self.state.numbers.lock();
            // Write even a known number again: its writer may not have waited for durability.
            let cluster = self.state.read_u64(CLUSTER_KEY)?.unwrap_or(number);
            (cluster, self.state.write_u64(CLUSTER_KEY, cluster)?)
        };
        self.state.engine.durable(mark).await?;
        Ok(cluster)
    }

    async fn next_incarnation(&self, name: &str) -> Result<Incarnation> {
        let (incarnation, mark) = self.state.raise_incarnation(name)?;
        self.state.engine.durable(mark).await?;
        Ok(incarnation)
    }
}

/// Gives up the lease of one life when dropped.
struct Guard {
    state: Arc<RegistryState>,
    role: Role,
    name: String,
    incarnation: Incarnation,
}

#[async_trait]
impl LeaseGuard for Guard {
    async fn publish(&self, load: &BoatLoad) -> Result<()> {
        let mut leases = self.state.leases.lock();
        let lease = leases.get_mut(&(self.role, self.name.clone()));
        let lease = lease.filter(|lease| lease.instance.life.incarnation == self.incarnation);
        let lease = lease.ok_or_else(|| Error::conflict(SEAM, "the lease has expired"))?;
        lease.load = Some(load.clone());
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.state
            .end_lease(self.role, &self.name, Some(self.incarnation));
    }
}

struct EmbeddedNode {
    state: Arc<RegistryState>,
    number: u16,
    lease_id: u64,
    not_before: Timestamp,
}

impl EmbeddedNode {
    fn is_held(&self, nodes: &BTreeMap<u16, u64>) -> bool {
        nodes.get(&self.number) == Some(&self.lease_id)
    }
}

#[async_trait]
impl NodeLease for EmbeddedNode {
    fn number(&self) -> u16 {
        self.number
    }

    fn not_before(&self) -> Timestamp {
        self.not_before
    }

    async fn reserve(&self, limit: Timestamp) -> Result<()> {
        let key = node_key(self.number);
        let limit = u64::try_from(limit.millis()).unwrap_or(0);
        let mark = {
            // Under the lock: either the next holder reads this reservation, or this call is
            // refused.
            let nodes = self.state.nodes.lock();
            if !self.is_held(&nodes) {
                let text = format!(
                    "node number {} is no longer leased; lease another",
                    self.number
                );
                return Err(Error::conflict(SEAM, text));
            }
            let _one_at_a_time = self.state.numbers.lock();
            let limit = limit.max(self.state.read_u64(&key)?.unwrap_or(0));
            self.state.write_u64(&key, limit)?
        };
        self.state.engine.durable(mark).await
    }
}

impl Drop for EmbeddedNode {
    fn drop(&mut self) {
        let mut nodes = self.state.nodes.lock();
        if self.is_held(&nodes) {
            nodes.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::contract::{self, BehindAHook, World};
    use super::*;
    use crate::embedded::EngineOptions;
    use crate::embedded::engine::tests::copy_dir;

    struct Embedded {
        /// `None` for a world in memory.
        dir: Option<TempDir>,
        engine: Engine,
        registry: EmbeddedRegistry,
        seed: u64,
        held_leases: Vec<Box<dyn NodeLease>>,
    }

    impl Embedded {
        fn in_memory(seed: u64) -> Embedded {
            Embedded::over(None, Engine::memory(), seed)
        }

        fn on_disk(seed: u64) -> Embedded {
            let dir = TempDir::new().unwrap();
            let engine = Engine::open(dir.path(), EngineOptions::default()).unwrap();
            Embedded::over(Some(dir), engine, seed)
        }

        fn over(dir: Option<TempDir>, engine: Engine, seed: u64) -> Embedded {
            Embedded {
                dir,
                registry: EmbeddedRegistry::new(engine.clone()),
                engine,
                seed,
                held_leases: Vec::new(),
            }
        }
    }

    #[async_trait]
    impl World for Embedded {
        fn registry(&self) -> Arc<dyn Registry> {
            Arc::new(self.registry.clone())
        }

        async fn crash(&mut self) {
            let dir = self.dir.as_ref().map(|dir| copy_dir(dir.path()));
            let engine = match &dir {
                Some(dir) => Engine::open(dir.path(), EngineOptions::default()).unwrap(),
                None => self.engine.crash(0).unwrap(),
            };
            // A different seed, so that a number made anew would differ.
            *self = Embedded::over(dir, engine, self.seed + 100);
        }

        async fn revoke(&self, instance: &Instance) {
            let name = instance.life.boat.as_str();
            assert!(self.registry.revoke(instance.role, name));
        }

        async fn hold_all_but(&mut self, number: u16) {
            while let Ok(node) = self.registry.lease_node().await {
                self.held_leases.push(node);
            }
            self.held_leases.retain(|node| node.number() != number);
        }

        async fn revoke_node(&self, number: u16) {
            assert!(self.registry.revoke_node(number));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_the_contract_in_memory() {
        contract::all(|seed| Box::pin(async move { Embedded::in_memory(seed) })).await;
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_the_contract_behind_a_hook() {
        let world = |seed| BehindAHook(Embedded::in_memory(seed));
        contract::all(move |seed| Box::pin(async move { world(seed) })).await;
    }

    #[tokio::test]
    async fn keeps_the_contract_on_disk() {
        contract::all(|seed| Box::pin(async move { Embedded::on_disk(seed) })).await;
        crate::test_servers::ran("discovery", "embedded");
    }

    #[tokio::test]
    async fn a_number_that_rested_longest_is_leased_first() {
        let world = Embedded::in_memory(1);
        let first = world.registry.lease_node().await.unwrap();
        first.reserve(Timestamp::from_millis(1000)).await.unwrap();
        let number = first.number();
        drop(first);
        let next = world.registry.lease_node().await.unwrap();
        assert_ne!(next.number(), number);
        assert_eq!(next.not_before(), Timestamp::ZERO);
    }
}
