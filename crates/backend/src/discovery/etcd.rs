//! Discovery on etcd: every registered service has a key under a lease; state that must outlive
//! leases (incarnations, pasts of node numbers, the cluster number) has keys without one.
//!
//! An ended lease does not prove that a process is dead, and nothing is ever deleted because of it.

mod calls;
mod config;
mod directory_snapshot;
mod keeper;
mod keys;
mod loads;
mod node;
#[cfg(test)]
mod tests;
mod watchers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use protocol::drain::Load;
use protocol::presence::BoatLife;
use protocol::{BoatId, Incarnation};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::calls::Calls;
pub use self::config::EtcdConfig;
use self::directory_snapshot::entry;
use self::keeper::{LeaseKeeper, LeaseMark, LeasePatience, keep_alive};
use self::keys::Keys;
use self::loads::{EtcdLease, to_loads};
use self::watchers::Watchers;
use super::{Directory, Instance, NodeLease, Registration, Registry, Role};
use crate::clock::{Clock, Entropy};
use crate::{Error, Result};

const SEAM: &str = "etcd discovery";

/// Maximum number of attempts to raise an incarnation while others are faster, and the mean pause
/// between.
const MAX_INCARNATION_ATTEMPTS: usize = 16;
const INCARNATION_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The registry of one process; clones share it. Dropping the last clone ends all watches;
/// registrations and node numbers live on with their holders.
#[derive(Clone)]
pub struct EtcdRegistry {
    state: Arc<EtcdState>,
}

struct EtcdState {
    lease_ttl: Duration,
    call_deadline: Duration,
    keys: Keys,
    keeper: LeaseKeeper,
    watchers: Arc<Watchers>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    _stop: DropGuard,
}

impl EtcdRegistry {
    /// Opens the registry. Contacts etcd only if it has to sign in; otherwise the first call does.
    /// Background work (leases, watches) runs on the caller's runtime.
    ///
    /// # Errors
    /// `Conflict` for a setting that cannot work, `Unavailable` if nobody answers the sign-in.
    pub async fn connect(
        config: &EtcdConfig,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<EtcdRegistry> {
        config.check()?;
        let calls = Arc::new(Calls::open(config, entropy.clone()).await?);
        let (keys, runtime) = (Keys::below(&config.prefix), Handle::current());
        let stop = CancellationToken::new();
        let revocations = TaskTracker::new();
        revocations.close();
        let watchers = Watchers {
            calls: calls.clone(),
            keys: keys.clone(),
            list_every: config.list_every,
            runtime: runtime.clone(),
            stop: stop.clone(),
            senders: Default::default(),
        };
        Ok(EtcdRegistry {
            state: Arc::new(EtcdState {
                lease_ttl: config.lease_ttl,
                call_deadline: config.call_deadline,
                keys,
                keeper: LeaseKeeper {
                    calls,
                    runtime,
                    revocations,
                },
                watchers: Arc::new(watchers),
                clock,
                entropy,
                _stop: stop.drop_guard(),
            }),
        })
    }

    /// Waits until released leases are revoked, for at most the deadline of a call. A process that
    /// ends without it may leave them to expire.
    pub async fn flush(&self) {
        let revocations = self.state.keeper.revocations.wait();
        let _ = timeout(self.state.call_deadline, revocations).await;
    }
}

impl EtcdState {
    /// Raises the incarnation of a name, and applies `extra_ops` in the same transaction.
    ///
    /// The result is never below the time of day, so that an etcd that lost its data does not
    /// repeat earlier incarnations.
    async fn raise(
        &self,
        name: &str,
        extra_ops: impl Fn(Incarnation) -> Result<Vec<TxnOp>>,
    ) -> Result<Incarnation> {
        let (key, calls) = (self.keys.incarnation(name), &self.keeper.calls);
        for _ in 0..MAX_INCARNATION_ATTEMPTS {
            let answer = calls.get(&key).await?;
            let (last, revision) = match answer.kvs().first() {
                Some(kv) => (read_number(kv.value(), &key)?, kv.mod_revision()),
                None => (0, 0),
            };
            let successor = last.checked_add(1).ok_or_else(|| {
                Error::corrupt(
                    SEAM,
                    format!("{key}: its value is the largest possible number"),
                )
            })?;
            let now = u64::try_from(self.clock.now().millis()).unwrap_or(0);
            let next = Incarnation(successor.max(now));
            let mut puts = vec![TxnOp::put(key.as_str(), next.to_string(), None)];
            puts.extend(extra_ops(next)?);
            let is_unchanged = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
            let txn = Txn::new().when([is_unchanged]).and_then(puts);
            if calls.txn(txn).await?.succeeded() {
                return Ok(next);
            }
            sleep(calls.jitter(INCARNATION_RETRY_PAUSE)).await;
        }
        let text = format!("too many register as {name:?} at once; try again");
        Err(Error::unavailable(SEAM, text))
    }
}

fn read_number(value: &[u8], key: &str) -> Result<u64> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::corrupt(SEAM, format!("{key}: the value is not a number")))
}

#[async_trait]
impl Registry for EtcdRegistry {
    /// Writes the counter and the key in one transaction: of two lives the later one holds the key,
    /// in whatever order their registrations arrive.
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration> {
        let state = &self.state;
        let boat = BoatId::new(name).map_err(|error| Error::conflict(SEAM, error))?;
        let key = state.keys.instance(role, name);
        let instance = |incarnation| Instance {
            role,
            life: BoatLife {
                boat: boat.clone(),
                incarnation,
            },
            address: address.to_owned(),
        };
        // Dropped, and so revoked, if this call is dropped or fails.
        let held_lease = state.keeper.grant(state.lease_ttl).await?;
        let lease = held_lease.lease.id;
        let put_instance = |incarnation| {
            let value = entry(&instance(incarnation))?;
            let under_lease = PutOptions::new().with_lease(lease);
            Ok(vec![TxnOp::put(key.as_str(), value, Some(under_lease))])
        };
        let instance = instance(state.raise(name, put_instance).await?);
        let value = entry(&instance)?;
        let instance_entry = (key.clone(), value.clone());
        let lost_token = CancellationToken::new();
        let guard = keep_alive(
            held_lease,
            LeaseMark { key, value },
            LeasePatience::Ttl,
            lost_token.clone(),
        );
        let lease = EtcdLease {
            guard,
            incarnation: instance.life.incarnation,
            instance: instance_entry,
            load: state.keys.load(name),
        };
        Ok(Registration {
            instance,
            lost_token,
            lease: Box::new(lease),
        })
    }

    async fn watch(&self, role: Role) -> Result<watch::Receiver<Directory>> {
        self.state.watchers.watch(role).await
    }

    async fn loads(&self) -> Result<Vec<Load>> {
        let prefix = self.state.keys.loads();
        let answer = self.state.keeper.calls.list(&prefix).await?;
        Ok(to_loads(&prefix, &answer))
    }

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>> {
        let state = &self.state;
        let held_lease = state.keeper.grant(state.lease_ttl).await?;
        let node = node::lease(&state.keeper, &state.keys, held_lease, &*state.entropy);
        Ok(Box::new(node.await?))
    }

    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>> {
        let state = &self.state;
        let held_lease = state.keeper.grant(state.lease_ttl).await?;
        let (keeper, keys) = (&state.keeper, &state.keys);
        let new_node = node::lease_again(keeper, keys, held_lease, &*state.entropy, number).await?;
        Ok(new_node.map(|node| Box::new(node) as Box<dyn NodeLease>))
    }

    async fn cluster(&self) -> Result<Option<u64>> {
        let key = self.state.keys.cluster();
        let answer = self.state.keeper.calls.get(&key).await?;
        let first = answer.kvs().first();
        first.map(|kv| read_number(kv.value(), &key)).transpose()
    }

    async fn claim_cluster(&self, number: u64) -> Result<u64> {
        let key = self.state.keys.cluster();
        let none = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let txn = Txn::new()
            .when([none])
            .and_then([TxnOp::put(key.as_str(), number.to_string(), None)])
            .or_else([TxnOp::get(key.as_str(), None)]);
        let answer = self.state.keeper.calls.txn(txn).await?;
        if answer.succeeded() {
            return Ok(number);
        }
        match answer.op_responses().first() {
            Some(TxnOpResponse::Get(response)) if !response.kvs().is_empty() => {
                read_number(response.kvs()[0].value(), &key)
            }
            _ => Err(Error::unavailable(SEAM, format!("{key} has disappeared"))),
        }
    }

    async fn next_incarnation(&self, name: &str) -> Result<Incarnation> {
        let name = BoatId::new(name).map_err(|error| Error::conflict(SEAM, error))?;
        self.state.raise(name.as_str(), |_| Ok(Vec::new())).await
    }
}
