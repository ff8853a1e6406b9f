//! Checks of the settings by themselves.

use backend::discovery::Role;

use crate::doctor::Doctor;
#[cfg(feature = "cluster")]
use crate::doctor::Stores;
use crate::doctor::rules::{
    AdminPort, AuditState, DeskCertificate, Finding, ServiceIdentity, SessionTickets, TokenKey,
};
#[cfg(feature = "cluster")]
use crate::doctor::rules::{Copies, Link};

impl Doctor {
    /// Findings about settings of this role.
    pub(in crate::doctor) fn settings_findings(&self) -> Vec<Finding> {
        let settings = &self.parts.settings;
        let port = AdminPort {
            listen: settings.listen,
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
            Some(Role::Boat) => Some(settings.boat),
            Some(Role::Station) => Some(settings.station),
            _ => None,
        };
        if let Some(listen) = listen {
            let identity = ServiceIdentity {
                is_on: settings.identity.is_on(),
                is_required: settings.identity.required,
                open: listen.filter(|address| !address.ip().is_loopback()),
            };
            findings.push(identity.finding());
        }
        if self.parts.access.backends.is_some() {
            let continuous = settings.audit.continuous;
            findings.push(AuditState { continuous }.finding());
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
        let mut open_addresses = settings.clients.to_vec();
        open_addresses.extend(settings.station);
        open_addresses.retain(|address| !address.ip().is_loopback());
        TokenKey {
            is_well_known: settings.is_well_known,
            open: open_addresses,
        }
    }

    fn tickets(&self) -> SessionTickets {
        let settings = &self.parts.settings;
        let open = settings
            .station
            .filter(|address| !address.ip().is_loopback());
        SessionTickets {
            is_on: settings.station.is_none() || settings.has_ticket_keys,
            is_required: settings.requires_tickets,
            names_proved: settings.identity.required,
            open,
        }
    }

    /// Links to the parts that this process speaks to.
    #[cfg(feature = "cluster")]
    fn links(&self) -> impl Iterator<Item = Link> {
        let access = &self.parts.access;
        let spoken_to = [
            access.queue.is_some(),
            access.backends.is_some(),
            access.registry.is_some(),
            access.ledger.is_some(),
            self.parts.settings.has_collector,
        ];
        let links = self.parts.settings.links.clone().into_iter().zip(spoken_to);
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
            in_sync: kafka.min_insync_replicas,
            rows: fewest.copied().unwrap_or(rows.factor),
        }
    }
}
