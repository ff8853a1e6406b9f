//! Servers of a cluster, and times at which nobody reaches them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Servers that the parts of a cluster live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    Discovery,
    Log,
    /// Mailboxes, timelines and caches.
    Memory,
    /// Everything kept for good.
    Store,
}

impl Server {
    pub const ALL: [Server; 4] = [
        Server::Discovery,
        Server::Log,
        Server::Memory,
        Server::Store,
    ];

    /// Server of a seam, by its name.
    pub fn of(seam: &str) -> Server {
        match seam {
            "discovery" => Server::Discovery,
            "queue" => Server::Log,
            "mailbox" | "timeline" | "cache" => Server::Memory,
            _ => Server::Store,
        }
    }
}

/// Servers out of reach, each with the end of its outage.
#[derive(Debug, Default)]
pub struct Outages(Mutex<BTreeMap<Server, Instant>>);

impl Outages {
    /// Begins an outage now.
    pub fn begin(&self, server: Server, duration: Duration) {
        self.0.lock().insert(server, Instant::now() + duration);
    }

    /// Whether nobody reaches the server of this seam now.
    pub fn has(&self, seam: &str) -> bool {
        let end = self.0.lock().get(&Server::of(seam)).copied();
        end.is_some_and(|end| end > Instant::now())
    }
}
