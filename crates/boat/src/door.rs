//! The way in: listeners, and the limits and shortages that turn newcomers away.

pub(crate) mod arrivals;
pub(crate) mod certificates;
pub(crate) mod connection_limit;
pub mod listener;
pub(crate) mod memory;
mod memory_pressure;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use backend::rate_limit::AddressLimit;
use protocol::Timestamp;
use protocol::proxy::TrustedNetworks;

use self::arrivals::{Arrivals, ClientSocket, IncomingClient};
use self::certificates::ListenerTls;
use self::connection_limit::ConnectionLimit;
use crate::Config;
use crate::config::ProxyHeader;
use crate::connection::connection_loop::ConnectionLoops;
use crate::connection::driver::{ConnectionDriver, DriverParts, HELLO_BYTES_MAX};
use crate::metrics::DoorMetrics;
use crate::stack::Wire;
use crate::status::Shortage;
use crate::uplink::pace::Pace;

pub(crate) struct Door {
    /// Accept rate, shared by all listeners.
    accepts: Pace,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    arrivals: Arc<Arrivals>,
    /// Rate of new connections from one address.
    arrival_limit: AddressLimit,
    balancers: TrustedNetworks,
    tls: Option<ListenerTls>,
    proxy_header: ProxyHeader,
    origins: Vec<String>,
    arrival_timeout: Duration,
    tls_timeout: Duration,
    upgrade_timeout: Duration,
    pub(crate) loops: ConnectionLoops,
    pub(crate) drivers: Arc<DriverParts>,
    metrics: DoorMetrics,
}

impl Door {
    pub(crate) fn new(
        config: &Config,
        tls: Option<ListenerTls>,
        loops: ConnectionLoops,
        drivers: Arc<DriverParts>,
    ) -> Arc<Door> {
        Arc::new(Door {
            accepts: Pace::new(config.accepts_here()),
            connection_limit: ConnectionLimit::new(config),
            arrivals: Arrivals::new(config.arriving_max),
            arrival_limit: AddressLimit::new(
                "arrivals_per_address",
                "boat.arrivals_per_address",
                config.address_bounds().arrivals,
            ),
            balancers: TrustedNetworks::new(config.proxy.networks.clone()),
            tls,
            proxy_header: config.proxy.header,
            origins: config.origins.clone(),
            arrival_timeout: config.arrival_timeout,
            tls_timeout: config.tls_timeout,
            upgrade_timeout: config.upgrade_timeout,
            loops,
            drivers,
            metrics: DoorMetrics::new(),
        })
    }

    fn now(&self) -> Timestamp {
        self.drivers.connections.now()
    }

    /// Whether the address may open one more connection now.
    fn may_arrive(&self, address: IpAddr) -> bool {
        self.arrival_limit.check(address).is_ok()
    }

    /// Whether a trusted balancer is at this address, which names its clients.
    fn is_balancer(&self, address: IpAddr) -> bool {
        self.proxy_header != ProxyHeader::None && self.balancers.contains(address)
    }

    /// Whether the head of a request from this address names the client, as a trusted balancer's
    /// does.
    fn is_forwarded(&self, address: IpAddr) -> bool {
        self.proxy_header == ProxyHeader::XForwardedFor && self.balancers.contains(address)
    }

    /// Bound of a stranger's frames.
    fn hello_bytes_max(&self) -> usize {
        HELLO_BYTES_MAX.min(self.drivers.frame_bytes_max())
    }

    /// Hands a client over to the loops, with a refusal if it is not welcome.
    fn serve(&self, socket: ClientSocket, wire: Wire, mut client: IncomingClient) {
        let refusal = client.refusal.take();
        let inbox = self.loops.next();
        let driver = ConnectionDriver::new(&self.drivers, inbox.queue(), wire, client);
        // Only now: a boat that begins to drain has either found the connection, or is seen here.
        let (status, now) = (&self.drivers.status, self.now());
        let refusal = refusal.or_else(|| status.draining_refusal()).or_else(|| {
            let is_short = status.is_short_of(Shortage::Memory);
            is_short.then(|| memory::refusal(&*self.drivers.entropy))
        });
        if let Some(refusal) = refusal {
            let connection = driver.connection();
            connection.update(|session| session.close(refusal, now));
        }
        inbox.add(driver, socket);
    }
}
