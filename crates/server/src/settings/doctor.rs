//! Settings that a doctor judges.

use operator::doctor::DoctorSettings;

use super::Settings;

impl Settings {
    /// Settings of this process, as its doctor judges them.
    pub fn for_doctor(&self) -> DoctorSettings {
        let (boat, station) = (&self.boat, &self.station);
        DoctorSettings {
            listen: self.admin.listen,
            audit: self.audit.clone(),
            identity: self.identity.clone(),
            clients: [boat.websocket, boat.tcp],
            connections_max: boat.connections_max,
            boat: boat.listen,
            station: station.listen,
            is_well_known: station.auth.is_well_known(),
            has_ticket_keys: station.tickets.keys_file.is_some(),
            requires_tickets: station.tickets.required,
            retry_delays: self.carrier.retry_delays,
            #[cfg(feature = "cluster")]
            kafka: self.kafka.clone(),
            #[cfg(feature = "cluster")]
            scylla: self.scylla.clone(),
            #[cfg(feature = "cluster")]
            links: self.links(),
            #[cfg(feature = "cluster")]
            has_collector: !self.log.otlp.collectors().is_empty(),
        }
    }
}
