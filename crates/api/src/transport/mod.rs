//! Calls between services, near or far.
//!
//! A [`Channel`] is a tower service that every generated client takes. It leads to a server in the
//! same process (`inproc:<name>`) or over the network (`http://host:port`), and its caller cannot
//! tell which: codes, metadata, deadlines, size limits and the effects of a lost server are the
//! same (the contract in `tests.rs` runs on both). In process nothing is spawned: a call is polled
//! by its caller, as is a stream by its reader, so do not keep one around unpolled.

mod body;
mod call;
mod channel;
mod config;
mod gate;
mod identity;
mod in_process;
mod listen;
mod opening;
mod outside;
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
pub use gate::Gate;
pub use identity::Identity;
pub use listen::ServeError;
pub use opening::OpeningStream;
pub use outside::outside;
pub use standard::StandardServices;

use crate::access::Peer;
use channel::{Near, Path};
use in_process::{InProcessServer, InProcessSlot};

/// Largest message of a call, in either direction; larger ones are refused with `OUT_OF_RANGE`.
/// Generated clients and servers have this limit by default.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Beginning of an address in this process.
pub const IN_PROCESS: &str = "inproc:";

/// Makes channels, and knows the servers in this process. Clones share that knowledge; two
/// connectors know nothing of each other, so that two systems can live in one process.
#[derive(Clone, Default)]
pub struct Connector {
    config: Config,
    slots: Arc<Mutex<HashMap<String, Weak<InProcessSlot>>>>,
    identity: Option<Arc<dyn Identity>>,
    peer: Peer,
    gate: Option<Arc<dyn Gate>>,
    standard: Option<StandardServices>,
}

impl Connector {
    pub fn new(config: Config) -> Connector {
        Connector {
            config,
            ..Connector::default()
        }
    }

    /// Proves the identity of this process on the network, and requires proof of its peers.
    #[must_use]
    pub fn with_identity(mut self, identity: Arc<dyn Identity>) -> Connector {
        self.identity = Some(identity);
        self
    }

    /// Makes calls in this process as `caller`: the composition says here what a certificate says
    /// elsewhere.
    #[must_use]
    pub fn with_caller(mut self, caller: Caller) -> Connector {
        self.peer = Peer(Some(caller));
        self
    }

    /// Sends its calls in this process through a gate, as a network may delay or lose them: for
    /// tests.
    #[must_use]
    pub fn with_gate(mut self, gate: Arc<dyn Gate>) -> Connector {
        self.gate = Some(gate);
        self
    }

    /// Adds health to its servers on the network, and reflection if wanted.
    #[must_use]
    pub fn with_standard_services(mut self, standard: StandardServices) -> Connector {
        self.standard = Some(standard);
        self
    }

    /// Sets the time that stopping servers wait for calls in flight, instead of `stop_grace`.
    #[must_use]
    pub fn with_stop_grace(mut self, stop_grace: Duration) -> Connector {
        self.config.stop_grace = stop_grace;
        self
    }

    /// Makes a channel to a service of `role` at `inproc:<name>`, `http://host:port` or
    /// `https://host:port`. The last one asks for an identity; with a required one, the second is
    /// called in TLS as well. The first call connects, and the next call after a lost connection
    /// connects again. If nobody serves, or another role does, calls are answered with
    /// `UNAVAILABLE`; so are all calls if `address` is none of these.
    ///
    /// A network channel must be made within a tokio runtime. Keep it and clone it: each one made
    /// here has a connection of its own.
    pub fn channel(&self, role: Role, address: &str) -> Channel {
        let path = match address.strip_prefix(IN_PROCESS) {
            Some(name) => Path::Near(Near {
                slot: self.slot(name),
                peer: self.peer.clone(),
                gate: self.gate.clone().map(|gate| gate::Passage::new(gate, name)),
            }),
            None => Path::far(address, &self.config, self.identity.as_ref(), role),
        };
        Channel::new(address, path, self.config.unary_timeout)
    }

    /// Address of a listener of [`Connector::serve`], as others call it.
    pub fn url(&self, address: SocketAddr) -> String {
        let is_secure = self.identity.as_ref().is_some_and(|it| it.required());
        format!("{}://{address}", if is_secure { "https" } else { "http" })
    }

    /// Serves `routes` on `listener` until `stop`: then no new calls are taken, calls in flight may
    /// finish for `stop_grace`, and the rest (streams) ends with `UNAVAILABLE`. Dropping the future
    /// ends all of them at once.
    ///
    /// # Errors
    /// The listener failed for good.
    pub async fn serve(
        &self,
        listener: TcpListener,
        routes: Routes,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let (routes, _health_task) = match self.standard.clone() {
            Some(standard) => {
                let (routes, health_task) = standard.add(routes, stop.clone());
                (routes, Some(health_task))
            }
            None => (routes, None),
        };
        listen::serve(listener, routes, &self.config, self.identity.clone(), stop).await
    }

    /// Serves `inproc:<name>` until the guard is dropped. A later server of the same name takes it
    /// over, like an address on the network that was given up and taken again.
    #[must_use = "serving ends when the guard is dropped"]
    pub fn serve_in_process(&self, name: &str, routes: Routes) -> InProcess {
        let slot = self.slot(name);
        let server = Arc::new(InProcessServer::new(routes));
        slot.put(Arc::clone(&server));
        InProcess { slot, server }
    }

    fn slot(&self, name: &str) -> Arc<InProcessSlot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(name).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(InProcessSlot::default());
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

/// Guard of a name served in this process. Dropping it is like a crash of the server on the
/// network: calls in flight end with `UNAVAILABLE`, and their handlers are dropped.
#[derive(Debug)]
pub struct InProcess {
    slot: Arc<InProcessSlot>,
    server: Arc<InProcessServer>,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.slot.take(&self.server);
        self.server.end();
    }
}

#[cfg(test)]
mod tests;
