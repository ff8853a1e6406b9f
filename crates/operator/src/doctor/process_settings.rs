//! Settings that the doctor judges, as plain values.

use std::net::SocketAddr;
use std::time::Duration;

#[cfg(feature = "cluster")]
use backend::queue::KafkaConfig;
#[cfg(feature = "cluster")]
use backend::scylla::ScyllaConfig;
use backend::tls::IdentityConfig;
use protocol::keys::RETRY_TIERS;

#[cfg(feature = "cluster")]
use super::rules::Link;
use crate::audit::auditor;

/// Settings of a process that its doctor judges.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// Address of the desk.
    pub listen: SocketAddr,
    pub audit: auditor::Config,
    pub identity: IdentityConfig,
    /// Addresses of a boat for clients.
    pub clients: [SocketAddr; 2],
    /// Clients that a boat takes at most.
    pub connections_max: usize,
    /// Address of a boat for services.
    pub boat: Option<SocketAddr>,
    /// Address of a station for services.
    pub station: Option<SocketAddr>,
    /// Whether tokens are proved by the development key, which everybody knows.
    pub is_well_known: bool,
    /// Whether a station has keys of tickets.
    pub has_ticket_keys: bool,
    /// Whether a station refuses calls without a ticket.
    pub requires_tickets: bool,
    /// Delay of each retry topic.
    pub retry_delays: [Duration; RETRY_TIERS as usize],
    #[cfg(feature = "cluster")]
    pub kafka: KafkaConfig,
    #[cfg(feature = "cluster")]
    pub scylla: ScyllaConfig,
    /// Links to Kafka, Redis, etcd, ScyllaDB and the collector.
    #[cfg(feature = "cluster")]
    pub links: [Link; 5],
    /// Whether traces or metrics go to a collector.
    #[cfg(feature = "cluster")]
    pub has_collector: bool,
}

/// Defaults of tests.
#[cfg(test)]
impl Default for DoctorSettings {
    fn default() -> DoctorSettings {
        let local = SocketAddr::from(([127, 0, 0, 1], 9000));
        DoctorSettings {
            listen: local,
            audit: auditor::Config::default(),
            identity: IdentityConfig::default(),
            clients: [local; 2],
            connections_max: 1000,
            boat: None,
            station: None,
            is_well_known: true,
            has_ticket_keys: false,
            requires_tickets: false,
            retry_delays: [1, 5, 30, 120, 600].map(Duration::from_secs),
            #[cfg(feature = "cluster")]
            kafka: KafkaConfig::default(),
            #[cfg(feature = "cluster")]
            scylla: ScyllaConfig::default(),
            #[cfg(feature = "cluster")]
            links: ["Kafka", "Redis", "etcd", "ScyllaDB", "the collector"].map(|part| Link {
                part,
                section: "",
                is_tls: false,
                far: None,
            }),
            #[cfg(feature = "cluster")]
            has_collector: false,
        }
    }
}
