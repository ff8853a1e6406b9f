//! Discovery behind a hook, along with its leases of node numbers.

use std::sync::Arc;

use async_trait::async_trait;
use protocol::drain::Load;
use protocol::{Incarnation, Timestamp};
use tokio::sync::watch;

use super::{Directory, NodeLease, Registration, Registry, Role};
use crate::Result;
use crate::hook::{Hook, Hooked, Names, Op};

/// Names of the calls below, written by hand because no macro collects them.
pub(crate) const NAMES: Names = Names {
    seam: "discovery",
    calls: &[
        "register",
        "watch",
        "loads",
        "lease_node",
        "cluster",
        "claim_cluster",
        "next_incarnation",
        "reserve_node",
    ],
    kinds: &[],
};

#[async_trait]
impl Registry for Hooked<dyn Registry> {
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration> {
        let register = self.inner.register(role, name, address);
        self.whole(write("register"), register).await
    }

    async fn watch(&self, role: Role) -> Result<watch::Receiver<Directory>> {
        self.whole(read("watch"), self.inner.watch(role)).await
    }

    async fn loads(&self) -> Result<Vec<Load>> {
        self.whole(read("loads"), self.inner.loads()).await
    }

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>> {
        let op = write("lease_node");
        let inner = self.whole(op, self.inner.lease_node()).await?;
        Ok(lease(inner, &self.hook))
    }

    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>> {
        let op = Op {
            subjects: vec![u64::from(number)],
            ..write("lease_node")
        };
        let node = self.whole(op, self.inner.lease_node_again(number)).await?;
        Ok(node.map(|inner| lease(inner, &self.hook)))
    }

    async fn cluster(&self) -> Result<Option<u64>> {
        self.whole(read("cluster"), self.inner.cluster()).await
    }

    async fn claim_cluster(&self, number: u64) -> Result<u64> {
        let op = write("claim_cluster");
        self.whole(op, self.inner.claim_cluster(number)).await
    }

    async fn next_incarnation(&self, name: &str) -> Result<Incarnation> {
        let op = write("next_incarnation");
        self.whole(op, self.inner.next_incarnation(name)).await
    }
}

struct HookedLease {
    inner: Box<dyn NodeLease>,
    hook: Arc<dyn Hook>,
}

fn lease(inner: Box<dyn NodeLease>, hook: &Arc<dyn Hook>) -> Box<dyn NodeLease> {
    let hook = hook.clone();
    Box::new(HookedLease { inner, hook })
}

#[async_trait]
impl NodeLease for HookedLease {
    fn number(&self) -> u16 {
        self.inner.number()
    }

    fn not_before(&self) -> Timestamp {
        self.inner.not_before()
    }

    async fn reserve(&self, limit: Timestamp) -> Result<()> {
        let op = Op {
            subjects: vec![u64::from(self.number())],
            ..write("reserve_node")
        };
        self.hook.before(&op).await?;
        self.inner.reserve(limit).await?;
        self.hook.after(&op, 1).await
    }
}

const fn read(name: &'static str) -> Op {
    Op::new(NAMES.seam, name)
}

fn write(name: &'static str) -> Op {
    Op {
        has_effect: true,
        ..read(name)
    }
}
