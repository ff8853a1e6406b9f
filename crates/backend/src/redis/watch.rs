//! Watches the masters: searches for them again in doubt, and checks that each is unchanged.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout_at};

use super::finder::Address;
use super::node::Node;
use super::pool::Pool;
use crate::credentials::CredentialSnapshot;

/// Shortest pause between two searches.
const MIN_SEARCH_PAUSE: Duration = Duration::from_millis(50);

impl Pool {
    /// Waits for a new search for the masters to finish.
    pub(crate) async fn search(&self, deadline: Instant) {
        let mut searches = self.searches.subscribe();
        self.doubt.notify_one();
        // Without a search that ends in time, the call fails for its original reason.
        let _ = timeout_at(deadline, searches.changed()).await;
    }

    /// Loop of the watching task: searches for masters in doubt, checks each of them in between,
    /// and reconnects with changed credentials.
    pub(crate) async fn watch(
        self: Arc<Pool>,
        interval: Duration,
        mut changes: Receiver<Arc<CredentialSnapshot>>,
    ) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                // No longer ready once nobody can change the credentials.
                Ok(()) = changes.changed() => self.renew().await,
                // Doubt lasts while a server is silent, and only a check ends the silence.
                _ = tick.tick() => {
                    self.verify(interval).await;
                    // Checks may take the whole interval; a search must fit between two.
                    tick.reset();
                }
                () = self.doubt.notified() => {
                    self.find().await;
                    self.searches.send_modify(|searches| *searches += 1);
                    tokio::time::sleep(MIN_SEARCH_PAUSE).await;
                }
            }
        }
    }

    async fn renew(&self) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let renewal = join_all(nodes.iter().map(|node| node.renew(&self.mode))).await;
        for (node, renewal) in nodes.iter().zip(renewal) {
            if let Err(failure) = renewal {
                let server = &node.address;
                tracing::warn!(%server, %failure, "Redis rejected the new credentials; keeping the \
                                                   current connections");
            }
        }
    }

    async fn find(&self) {
        let servers: Vec<Address> = self.nodes.lock().keys().cloned().collect();
        match self.finder.find(&servers, &self.mode).await {
            Ok(map) => {
                self.nodes.lock().retain(|address, _| map.holds(address));
                *self.map.write() = map;
            }
            Err(failure) => tracing::debug!(%failure, "cannot find the Redis masters"),
        }
    }

    /// Drops connections that are dead or whose server is no longer the same master: its replid
    /// reveals that data may have been lost.
    async fn verify(&self, timeout: Duration) {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().values().cloned().collect();
        let deadline = Instant::now() + timeout;
        let checks = nodes.iter().map(|node| node.verify(&self.mode, deadline));
        if join_all(checks).await.contains(&false) {
            self.doubt.notify_one();
        }
    }
}
