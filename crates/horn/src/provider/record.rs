//! Keeps the newest notifications in memory: for one machine, and for tests.

use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::notify::Notification;
use tokio::sync::watch;

use super::{Provider, ProviderError, ProviderPush};

/// Provider that accepts everything and remembers the newest.
#[derive(Debug)]
pub struct Recorder {
    newest: Mutex<VecDeque<Notification>>,
    kept_max: usize,
    total: watch::Sender<u64>,
}

impl Recorder {
    pub fn new(kept_max: usize) -> Recorder {
        Recorder {
            newest: Mutex::default(),
            kept_max: kept_max.max(1),
            total: watch::Sender::new(0),
        }
    }

    /// The newest notifications, oldest first.
    pub fn recorded(&self) -> Vec<Notification> {
        self.newest.lock().iter().copied().collect()
    }

    /// Number of notifications in all.
    pub fn total(&self) -> u64 {
        *self.total.borrow()
    }

    /// Waits until the total reaches `total`.
    pub async fn reached(&self, total: u64) {
        let mut totals = self.total.subscribe();
        // The sender lives as long as `self`.
        let _ = totals.wait_for(|&now| now >= total).await;
    }
}

#[async_trait]
impl Provider for Recorder {
    fn name(&self) -> &'static str {
        "record"
    }

    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError> {
        let notification = push.notification;
        tracing::debug!(
            user = %notification.target.user,
            platform = %notification.target.platform,
            message = %notification.message,
            conversation = %notification.conversation,
            "notification: mail waits for an absent user"
        );
        {
            let mut newest = self.newest.lock();
            if newest.len() == self.kept_max {
                newest.pop_front();
            }
            newest.push_back(notification);
        }
        self.total.send_modify(|total| *total += 1);
        Ok(())
    }
}
