//! Who the masters are, looked for again whenever somebody doubts; and whether each is what it was.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout_at};

use super::finder::Address;
use super::node::Node;
use super::pool::Pool;
use crate::credentials::Shown;

/// How long no search follows another.
const FIND_REST: Duration = Duration::from_millis(50);

impl Pool {
    /// Waits until it was looked once more for who the masters are.
    pub(crate) async fn search(&self, until: Instant) {
        let mut ended = self.searches.subscribe();
        self.doubt.notify_one();
        // Without one until then, the call fails for the reason it has.
        let _ = timeout_at(until, ended.changed()).await;
    }

    /// For the task that watches: looks for masters whenever somebody doubts, asks after each of them in
    /// between, and connects anew with credentials that changed.
    pub(crate) async fn watch(
        self: Arc<Pool>,
        interval: Duration,
        mut changes: Receiver<Arc<Shown>>,
    ) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.doubt.notified() => {
                    self.find().await;
                    self.searches.send_modify(|searches| *searches += 1);
                    tokio::time::sleep(FIND_REST).await;
                }
                // Not ready any more once nobody can change them.
                Ok(()) = changes.changed() => self.renew().await,
                _ = tick.tick() => self.verify(interval).await,
            }
        }
    }

    async fn renew(&self) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let renewed = join_all(nodes.iter().map(|node| node.renew(&self.manner))).await;
        for (node, renewed) in nodes.iter().zip(renewed) {
            if let Err(failure) = renewed {
                let server = &node.address;
                tracing::warn!(%server, %failure, "new credentials are refused; connections of before stay");
            }
        }
    }

    async fn find(&self) {
        let known: Vec<Address> = self.nodes.lock().keys().cloned().collect();
        match self.finder.find(&known, &self.manner).await {
            Ok(map) => {
                self.nodes.lock().retain(|address, _| map.holds(address));
                *self.map.write() = map;
            }
            Err(failure) => tracing::debug!(%failure, "the masters of Redis were not found"),
        }
    }

    /// Drops connections that are dead, or whose server is another master than it was: its replid is what
    /// tells that data may have been lost.
    async fn verify(&self, within: Duration) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let until = Instant::now() + within;
        let checks = nodes.iter().map(|node| node.verify(&self.manner, until));
        if join_all(checks).await.contains(&false) {
            self.doubt.notify_one();
        }
    }
}
