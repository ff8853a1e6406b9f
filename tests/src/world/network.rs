//! Calls between services: late, lost, and without an answer once either end is dead.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use api::transport::Gate;
use async_trait::async_trait;
use parking_lot::Mutex;
use tonic::Status;

use super::{Fate, Life};

/// Current life behind each name that calls may go to.
pub type Names = Mutex<BTreeMap<String, Arc<Life>>>;

/// Network as one life of a host sees it.
#[derive(Debug)]
pub struct HostGate {
    pub life: Arc<Life>,
    pub names: Arc<Names>,
}

impl HostGate {
    fn current_life(&self, name: &str) -> Option<Arc<Life>> {
        self.names.lock().get(name).cloned()
    }
}

#[async_trait]
impl Gate for HostGate {
    async fn request(&self, to: &str) -> Result<(), Status> {
        self.life.note(format_args!("calls {to}"));
        self.life.chance.wait().await;
        if self.life.is_dead() {
            return pending().await;
        }
        let is_there = |life: Arc<Life>| !life.is_dead() && !life.is_isolated();
        let is_there = !self.life.is_isolated() && self.current_life(to).is_some_and(is_there);
        match self.life.chance.fate() {
            _ if !is_there => Err(Status::unavailable("nobody listens there")),
            Fate::Fail => Err(Status::unavailable("the call got lost")),
            Fate::Hang => pending().await,
            Fate::Lose | Fate::Pass => Ok(()),
        }
    }

    async fn response(&self, from: &str) -> Result<(), Status> {
        self.life.chance.wait().await;
        self.life.note(format_args!("is answered by {from}"));
        if self.life.is_dead() {
            return pending().await;
        }
        match self.life.chance.fate() {
            Fate::Lose => Err(Status::unavailable("the answer got lost")),
            Fate::Hang => pending().await,
            Fate::Fail | Fate::Pass => Ok(()),
        }
    }

    async fn broken(&self, with: &str) -> Status {
        match self.current_life(with) {
            Some(life) => tokio::select! {
                biased;
                () = self.life.cut() => {}
                () = life.cut() => {}
            },
            // No life has that name: the call itself finds out.
            None => self.life.cut().await,
        }
        Status::unavailable("the connection broke")
    }
}
