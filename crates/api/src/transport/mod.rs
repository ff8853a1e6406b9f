//! How services call services, near or far.
//!
//! A [`Channel`] is a tower service that every generated client takes. It leads to a server in the
//! same process (`inproc:<name>`) or over the network (`http://host:port`), and its caller cannot
//! tell which: codes, metadata, deadlines, size limits and what happens when the server goes are the
//! same (the contract in `tests.rs` runs on both). In process nothing is spawned: a call is polled by
//! its caller, as is a stream by its reader, so do not keep one around unpolled.

mod body;
mod call;
mod channel;
mod config;
mod identity;
mod listen;
mod opening;
mod outside;
mod served;
mod standard;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::access::{Caller, Role};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use channel::Channel;
pub use config::Config;
pub use identity::Identity;
pub use listen::ServeError;
pub use opening::Opening;
pub use outside::outside;
pub use standard::StandardServices;

use crate::access::Peer;
use channel::Path;
use served::{Served, Slot};

/// The largest message of a call, either way; larger ones are refused with `OUT_OF_RANGE`. This is
/// the limit that generated clients and servers set by themselves.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What an address begins with that means this process.
pub const IN_PROCESS: &str = "inproc:";

/// Makes channels, and knows what is served in this process. Clones share what they know; two
/// connectors know nothing of each other, so that two systems can live in one process.
#[derive(Clone, Default)]
pub struct Connector {
    config: Config,
    slots: Arc<Mutex<HashMap<String, Weak<Slot>>>>,
    identity: Option<Arc<dyn Identity>>,
    peer: Peer,
    standard: Option<StandardServices>,
}

impl Connector {
    pub fn new(config: Config) -> Connector {
        Connector {
            config,
            ..Connector::default()
        }
    }

    /// Proves on the network what this process is, and wants a proof of its peers.
    #[must_use]
    pub fn with_identity(mut self, identity: Arc<dyn Identity>) -> Connector {
        self.identity = Some(identity);
        self
    }

    /// Calls in this process as `caller`: what a certificate says elsewhere, the composition says here.
    #[must_use]
    pub fn with_caller(mut self, caller: Caller) -> Connector {
        self.peer = Peer(Some(caller));
        self
    }

    /// Its servers on the network answer for their health, and by reflection where that is wanted.
    #[must_use]
    pub fn with_standard_services(mut self, standard: StandardServices) -> Connector {
        self.standard = Some(standard);
        self
    }

    /// Its servers wait so long for calls in flight when they stop, instead of `stop_grace`.
    #[must_use]
    pub fn with_stop_grace(mut self, stop_grace: Duration) -> Connector {
        self.config.stop_grace = stop_grace;
        self
    }

    /// A channel to a service of `role` at `inproc:<name>`, `http://host:port` or `https://host:port`. The last one asks
    /// for an identity; with one that is required the other is called in TLS, too. Nothing is connected before the
    /// first call, and a lost connection is made again by the next one. Where nobody serves, or where another role
    /// does, calls are answered with `UNAVAILABLE`; so are all calls where `address` is none of these.
    ///
    /// A network channel must be made within a tokio runtime. Keep it and clone it: each one that is
    /// made here has a connection of its own.
    pub fn channel(&self, role: Role, address: &str) -> Channel {
        let path = match address.strip_prefix(IN_PROCESS) {
            Some(name) => Path::Near(self.slot(name), self.peer.clone()),
            None => Path::far(address, &self.config, self.identity.as_ref(), role),
        };
        Channel::new(address, path, self.config.unary_timeout)
    }

    /// The address of a listener of [`Connector::serve`], as others call it.
    pub fn url(&self, bound: SocketAddr) -> String {
        let secure = self.identity.as_ref().is_some_and(|it| it.required());
        format!("{}://{bound}", if secure { "https" } else { "http" })
    }

    /// Serves `routes` on `listener` until `stop`: then nothing new is taken, calls in flight may finish
    /// for `stop_grace`, and what is left (streams) ends with `UNAVAILABLE`. Dropping the future ends
    /// those at once.
    ///
    /// # Errors
    /// The listener failed for good.
    pub async fn serve(
        &self,
        listener: TcpListener,
        routes: Routes,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let (routes, _following) = match self.standard.clone() {
            Some(standard) => {
                let (routes, following) = standard.add(routes, stop.clone());
                (routes, Some(following))
            }
            None => (routes, None),
        };
        listen::serve(listener, routes, &self.config, self.identity.clone(), stop).await
    }

    /// Serves `inproc:<name>` until the guard is dropped. Who serves the same name later takes it
    /// over, as with an address on the network that was given up and taken again.
    #[must_use = "serving ends when the guard is dropped"]
    pub fn serve_in_process(&self, name: &str, routes: Routes) -> InProcess {
        let slot = self.slot(name);
        let served = Arc::new(Served::new(routes));
        slot.put(Arc::clone(&served));
        InProcess { slot, served }
    }

    fn slot(&self, name: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(name).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot::default());
        slots.insert(name.to_owned(), Arc::downgrade(&slot));
        slot
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("config", &self.config)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// While this lives, a name is served in this process. Dropping it is what a crash of the server is on
/// the network: calls in flight end with `UNAVAILABLE`, their handlers are dropped.
#[derive(Debug)]
pub struct InProcess {
    slot: Arc<Slot>,
    served: Arc<Served>,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.slot.take(&self.served);
        self.served.end();
    }
}

#[cfg(test)]
mod tests;
