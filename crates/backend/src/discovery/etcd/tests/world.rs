//! Processes on an etcd: each has its own runtime, so that it can die without cleanup.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions};
use protocol::id::snowflake::NODES;
use tokio::runtime::{Builder, Runtime};

use super::super::super::contract;
use super::super::keys::Keys;
use super::super::*;
use crate::clock::{SystemClock, SystemEntropy};

/// An installation under a prefix of its own, with one process.
pub(super) struct World {
    pub(super) config: EtcdConfig,
    pub(super) process: Process,
    /// Client of an operator.
    pub(super) client: Client,
}

pub(super) struct Process {
    pub(super) registry: EtcdRegistry,
    /// `None` once the process is dead.
    runtime: Option<Runtime>,
}

impl Process {
    pub(super) async fn start(config: &EtcdConfig) -> Process {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let config = config.clone();
        let connect = runtime.spawn(async move {
            EtcdRegistry::connect(&config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await
        });
        Process {
            registry: connect.await.unwrap().unwrap(),
            runtime: Some(runtime),
        }
    }

    /// Stops the process at once; it gives nothing back.
    pub(super) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Stops the process, as with SIGSTOP, until the guard is dropped.
    pub(super) fn pause(&self) -> StandsStill {
        let (stands, stood) = mpsc::channel();
        let (resume_sender, resume_receiver) = mpsc::channel::<()>();
        let runtime = self.runtime.as_ref().unwrap();
        runtime.spawn(async move {
            let _ = stands.send(());
            let _ = resume_receiver.recv();
        });
        stood.recv().expect("its only worker stands");
        StandsStill {
            _go_on: resume_sender,
        }
    }
}

/// Guard whose drop lets the process continue.
#[must_use]
pub(super) struct StandsStill {
    _go_on: mpsc::Sender<()>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn config(endpoints: Vec<String>) -> EtcdConfig {
    EtcdConfig {
        endpoints,
        prefix: format!("/test/{:016x}", SystemEntropy.next()),
        lease_ttl: Duration::from_secs(5),
        ..EtcdConfig::default()
    }
}

/// Configures this machine's etcd, with the credentials it requires.
pub(super) fn config_real() -> EtcdConfig {
    let access = crate::test_servers::access("etcd");
    EtcdConfig {
        username: access.username,
        password_file: access.password_file,
        tls: access.tls,
        ..config(crate::test_servers::addresses("etcd"))
    }
}

impl World {
    pub(super) async fn on(endpoints: Vec<String>) -> World {
        World::with(config(endpoints)).await
    }

    async fn with(config: EtcdConfig) -> World {
        let snapshot = config.credentials().unwrap().current();
        let client = super::super::calls::dial(&config, &snapshot).await.unwrap();
        World {
            process: Process::start(&config).await,
            config,
            client,
        }
    }

    pub(super) async fn shared() -> World {
        World::with(config_real()).await
    }

    pub(super) fn etcd(&self) -> EtcdRegistry {
        self.process.registry.clone()
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::below(&self.config.prefix)
    }

    pub(super) async fn keys_below(&self, prefix: &str) -> usize {
        let count = GetOptions::new().with_prefix().with_count_only();
        let answer = self.client.kv_client().get(prefix, Some(count)).await;
        answer.unwrap().count() as usize
    }

    /// Ends the lease of a key.
    pub(super) async fn revoke_key_lease(&self, key: String) {
        let mut client = self.client.clone();
        let answer = client.get(key, None).await.unwrap();
        let lease = answer.kvs().first().expect("the key is there").lease();
        client.lease_revoke(lease).await.unwrap();
    }
}

#[async_trait]
impl contract::World for World {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.etcd())
    }

    async fn crash(&mut self) {
        self.process.kill();
        self.process = Process::start(&self.config).await;
    }

    async fn revoke(&self, instance: &Instance) {
        let name = instance.life.boat.as_str();
        let key = self.keys().instance(instance.role, name);
        self.revoke_key_lease(key).await;
    }

    async fn hold_all_but(&mut self, number: u16) {
        let lease = self.client.lease_grant(60, None).await.unwrap().id();
        let other_numbers: Vec<u16> = (0..NODES).filter(|other| *other != number).collect();
        // etcd accepts 128 puts per transaction.
        for chunk in other_numbers.chunks(128) {
            let put = |other: &u16| {
                let under_lease = PutOptions::new().with_lease(lease);
                TxnOp::put(self.keys().node(*other), "another", Some(under_lease))
            };
            let puts: Vec<_> = chunk.iter().map(put).collect();
            let txn = Txn::new().and_then(puts);
            self.client.txn(txn).await.unwrap();
        }
    }

    async fn revoke_node(&self, number: u16) {
        self.revoke_key_lease(self.keys().node(number)).await;
    }
}
