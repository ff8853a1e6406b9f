//! One service as a process of its own, on the real parts: a member of a cluster.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::transport::{self, Connector, StandardServices};
use backend::clock::{SystemClock, SystemEntropy};
use backend::conversations::ScyllaConversations;
use backend::discovery::{EtcdRegistry, Registry, Role};
use backend::ledger::ScyllaLedger;
use backend::queue::Queue;
use operator::Access;
use operator::lifecycle::{Condition, Phases};
use protocol::keys::Topic;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::around::Around;
use super::cluster;
use super::environment::Environment;
use super::identity;
use super::readiness::{log_answers, registration_condition};
use crate::edges::{self, EdgePort};
use crate::settings::Settings;

/// Dependencies of a service, connected but not started.
pub struct Parts {
    service_parts: ServiceParts,
    /// Held as long as the service runs: the watches of discovery end with it.
    registry: Option<Arc<EtcdRegistry>>,
    stop: CancellationToken,
}

enum ServiceParts {
    Boat(Box<boat::BoatParts>),
    Station(Box<Environment>),
    Carrier(Box<Environment>),
    Horn(Box<horn::Parts>),
}

impl Parts {
    /// Connects the parts that the service needs. A boat serves its clients on the runtime
    /// `connections`; the health of the gRPC services follows `phases`.
    ///
    /// # Errors
    /// A part that does not answer, or is not set up.
    pub async fn connect(
        role: Role,
        settings: &Settings,
        connections: Handle,
        (around, phases): (&dyn Around, &Phases),
    ) -> Result<Parts> {
        let stop = CancellationToken::new();
        let mut connector = Connector::new(transport::Config::default());
        // A horn calls no service, and none calls it.
        if role != Role::Horn
            && let Some(identity) = identity::prove(settings, role.into(), &stop)?
        {
            connector = connector.with_identity(identity);
        }
        if let Some(standard) = standard_services(role, settings, phases) {
            connector = connector.with_standard_services(standard);
        }
        let (service_parts, registry) = match role {
            Role::Boat => {
                let registry = cluster::registry(settings).await?;
                let wrapped_registry = around.registry(registry.clone());
                let parts = boat_parts(wrapped_registry, connector, connections);
                (ServiceParts::Boat(Box::new(parts)), Some(registry))
            }
            Role::Station => {
                let (environment, registry) = cluster::connect(settings, connector).await?;
                (
                    ServiceParts::Station(Box::new(environment.with(around))),
                    Some(registry),
                )
            }
            Role::Carrier => {
                let (environment, registry) = cluster::connect(settings, connector).await?;
                (
                    ServiceParts::Carrier(Box::new(environment.with(around))),
                    Some(registry),
                )
            }
            Role::Horn => {
                let mut parts = horn_parts(settings).await?;
                parts.queue = around.queue(parts.queue);
                parts.ledger = around.ledger(parts.ledger);
                (ServiceParts::Horn(Box::new(parts)), None)
            }
        };
        Ok(Parts {
            service_parts,
            registry,
            stop,
        })
    }

    /// Environment of an operators' desk, if this service has one.
    pub fn whole(&self) -> Option<&Environment> {
        match &self.service_parts {
            ServiceParts::Station(environment) | ServiceParts::Carrier(environment) => {
                Some(environment)
            }
            ServiceParts::Boat(_) | ServiceParts::Horn(_) => None,
        }
    }

    /// Parts outside that the service can reach.
    pub fn access(&self) -> Access {
        match &self.service_parts {
            ServiceParts::Station(environment) | ServiceParts::Carrier(environment) => {
                Access::from(&environment.backends)
            }
            ServiceParts::Boat(parts) => Access {
                registry: Some(parts.registry.clone()),
                ..Access::default()
            },
            ServiceParts::Horn(parts) => Access {
                queue: Some(parts.queue.clone()),
                ledger: Some(parts.ledger.clone()),
                ..Access::default()
            },
        }
    }
}

/// Health and reflection beside a service's own calls; nobody calls carriers and horns.
fn standard_services(role: Role, settings: &Settings, phases: &Phases) -> Option<StandardServices> {
    let (services, reflection) = match role {
        Role::Boat => (&["packetboat.v1.BoatService"], settings.boat.reflection),
        Role::Station => (
            &["packetboat.v1.StationService"],
            settings.station.reflection,
        ),
        Role::Carrier | Role::Horn => return None,
    };
    Some(StandardServices {
        services,
        ready: phases.readiness(),
        reflection,
    })
}

fn boat_parts(
    registry: Arc<dyn Registry>,
    connector: Connector,
    connections: Handle,
) -> boat::BoatParts {
    boat::BoatParts {
        registry,
        connector,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        connections,
    }
}

async fn horn_parts(settings: &Settings) -> Result<horn::Parts> {
    let (queue, cql) = tokio::try_join!(cluster::queue(settings), cluster::cql(settings))?;
    Ok(horn::Parts {
        queue,
        ledger: Arc::new(ScyllaLedger::new(cql.clone())),
        conversations: Arc::new(ScyllaConversations::new(cql)),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    })
}

/// A running service.
pub struct ServiceProcess {
    service: Service,
    conditions: Vec<Condition>,
    /// Kept open for the conditions, which hold it weakly.
    _queue: Option<Arc<dyn Queue>>,
    registry: Option<Arc<EtcdRegistry>>,
    stop: CancellationToken,
}

enum Service {
    Boat(boat::BoatHandle),
    /// The station and its port for clients, which ends last: balancers send requests until they
    /// see that the station leaves.
    Station(station::StationHandle, Option<EdgePort>),
    Carrier(carrier::CarrierHandle),
    Horn(horn::HornHandle),
}

impl Service {
    /// Conditions of the service for new work. `queue`: the log, if it has one.
    fn conditions(&self, queue: Option<&Arc<dyn Queue>>) -> Vec<Condition> {
        let log = |part, topic| queue.map(|queue| log_answers(&[part], queue, topic));
        match self {
            Service::Boat(boat) => vec![registration_condition("boat", boat.ready())],
            Service::Station(station, _) => {
                let mut conditions = vec![registration_condition("station", station.ready())];
                conditions.extend(log("station", Topic::Message).unwrap_or_default());
                conditions
            }
            Service::Carrier(_) => log("carrier", Topic::Message).unwrap_or_default(),
            Service::Horn(_) => log("horn", Topic::Notification).unwrap_or_default(),
        }
    }
}

impl ServiceProcess {
    /// # Errors
    /// A setting that is not valid, or an address that is taken.
    pub async fn start(settings: &Settings, parts: Parts) -> Result<ServiceProcess> {
        let stop = parts.stop.clone();
        let queue = parts.access().queue;
        let service = match parts.service_parts {
            ServiceParts::Boat(parts) => {
                let boat = boat::start(settings.boat.clone(), *parts, stop.clone()).await;
                Service::Boat(boat.context("starting the boat")?)
            }
            ServiceParts::Station(environment) => {
                let Environment {
                    backends,
                    connector,
                    ..
                } = *environment;
                let registry = backends.registry.clone();
                let config = settings.station.clone();
                let station = station::start(config, backends, connector, stop.clone()).await;
                let station = station.context("starting the station")?;
                let edges = edges::start(&settings.station.http, registry).await?;
                Service::Station(station, edges)
            }
            ServiceParts::Carrier(environment) => {
                let Environment {
                    backends,
                    connector,
                    ..
                } = *environment;
                let config = settings.carrier.clone();
                let carrier = carrier::start(config, backends, connector, stop.clone()).await;
                Service::Carrier(carrier.context("starting the carrier")?)
            }
            ServiceParts::Horn(parts) => {
                let horn = horn::start(settings.horn.clone(), *parts, stop.clone()).await;
                Service::Horn(horn.context("starting the horn")?)
            }
        };
        let conditions = service.conditions(queue.as_ref());
        Ok(ServiceProcess {
            service,
            conditions,
            _queue: queue,
            registry: parts.registry,
            stop,
        })
    }

    /// Addresses for clients, over WebSocket and over TCP, if this is a boat.
    pub fn clients(&self) -> Option<(SocketAddr, SocketAddr)> {
        match &self.service {
            Service::Boat(boat) => Some((boat.websocket(), boat.tcp())),
            _ => None,
        }
    }

    /// Counts of connections by client address, if this is a boat.
    pub fn address_usage(&self) -> Option<boat::AddressUsage> {
        match &self.service {
            Service::Boat(boat) => Some(boat.address_usage()),
            _ => None,
        }
    }

    /// Port at which clients learn the addresses of boats, if this is a station that has one.
    pub fn edges(&self) -> Option<SocketAddr> {
        match &self.service {
            Service::Station(_, edges) => edges.as_ref().map(|port| port.address),
            _ => None,
        }
    }

    /// Address for other services, if they call this one.
    pub fn address(&self) -> Option<String> {
        match &self.service {
            Service::Boat(boat) => boat.grpc().map(|_| boat.address().to_owned()),
            Service::Station(station, _) => Some(station.instance().address.clone()),
            Service::Carrier(_) | Service::Horn(_) => None,
        }
    }

    /// Conditions that must hold for the service to take new work.
    pub fn conditions(&self) -> Vec<Condition> {
        self.conditions.clone()
    }

    /// Waits until the service ends unasked, and names it.
    pub async fn failed(&mut self) -> &'static str {
        match &self.service {
            Service::Boat(boat) => {
                boat.left().await;
                "boat"
            }
            Service::Station(station, _) => {
                station.drained().await;
                "station"
            }
            Service::Carrier(carrier) => {
                carrier.drained().await;
                "carrier"
            }
            Service::Horn(horn) => {
                horn.drained().await;
                "horn"
            }
        }
    }

    /// Leaves in order, and waits at the end until its registration is revoked, so that others see
    /// it at once.
    pub async fn drain(self) {
        self.stop.cancel();
        match self.service {
            Service::Boat(boat) => boat.drained().await,
            Service::Station(station, edges) => {
                station.drained().await;
                drop(edges);
            }
            Service::Carrier(carrier) => carrier.drained().await,
            Service::Horn(horn) => horn.drained().await,
        }
        if let Some(registry) = self.registry {
            registry.flush().await;
        }
    }
}
