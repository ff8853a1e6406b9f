//! What the settings say of themselves.

use backend::discovery::Role;
use protocol::doctor::{
    AdminPort, Auditing, DeskCertificate, Finding, ServiceIdentity, SessionTickets, TokenKey,
};
#[cfg(feature = "cluster")]
use protocol::doctor::{Copies, Link};

use super::Doctor;
#[cfg(feature = "cluster")]
use super::Stores;

impl Doctor {
    /// Findings about settings of this role.
    pub(super) fn said(&self) -> Vec<Finding> {
        let settings = &self.parts.settings;
        let port = AdminPort {
            listen: settings.admin.listen,
            operators: self.parts.operators.count(),
            by_proxy: self.parts.operators.by_proxy(),
        };
        let mut findings = vec![port.finding()];
        if let Some(certificates) = &self.parts.certificates {
            let expires_in = certificates.expires_in();
            findings.push(DeskCertificate { expires_in }.finding());
        }
        if self.is(Role::Station) {
            findings.push(self.token_key().finding());
            findings.push(self.tickets().finding());
        }
        let listen = match self.parts.role {
            Some(Role::Boat) => Some(settings.boat.listen),
            Some(Role::Station) => Some(settings.station.listen),
            _ => None,
        };
        if let Some(listen) = listen {
            let identity = ServiceIdentity {
                is_on: settings.identity.is_on(),
                required: settings.identity.required,
                open: listen.filter(|address| !address.ip().is_loopback()),
            };
            findings.push(identity.finding());
        }
        if self.parts.access.whole.is_some() {
            let continuous = settings.audit.continuous;
            findings.push(Auditing { continuous }.finding());
        }
        #[cfg(feature = "cluster")]
        if self.parts.stores == Stores::Real && self.parts.access.queue.is_some() {
            findings.push(self.copies().finding());
        }
        #[cfg(feature = "cluster")]
        if self.parts.stores == Stores::Real {
            findings.extend(self.links().map(Link::finding));
        }
        findings
    }

    fn token_key(&self) -> TokenKey {
        let settings = &self.parts.settings;
        let mut served = vec![settings.boat.websocket, settings.boat.tcp];
        served.extend(settings.station.listen);
        served.retain(|address| !address.ip().is_loopback());
        TokenKey {
            is_well_known: settings.station.auth.is_well_known(),
            open: served,
        }
    }

    fn tickets(&self) -> SessionTickets {
        let station = &self.parts.settings.station;
        let open = station.listen.filter(|address| !address.ip().is_loopback());
        SessionTickets {
            is_on: station.listen.is_none() || station.tickets.keys_file.is_some(),
            required: station.tickets.required,
            names_proved: self.parts.settings.identity.required,
            open,
        }
    }

    /// To the parts that this process speaks to.
    #[cfg(feature = "cluster")]
    fn links(&self) -> impl Iterator<Item = Link> {
        let access = &self.parts.access;
        let spoken_to = [
            access.queue.is_some(),
            access.whole.is_some(),
            access.registry.is_some(),
            access.ledger.is_some(),
            !self.parts.settings.log.otlp.collectors().is_empty(),
        ];
        let links = self.parts.settings.links().into_iter().zip(spoken_to);
        links.filter(|(_, is_one)| *is_one).map(|(link, _)| link)
    }

    #[cfg(feature = "cluster")]
    fn copies(&self) -> Copies {
        let (kafka, rows) = (
            &self.parts.settings.kafka,
            &self.parts.settings.scylla.replication,
        );
        let fewest = rows.datacenters.values().min();
        Copies {
            log: kafka.replication_factor,
            accepted: kafka.min_insync_replicas,
            rows: fewest.copied().unwrap_or(rows.factor),
        }
    }
}
