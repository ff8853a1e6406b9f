//! `packetboat boat|station|carrier|horn`: runs one service as a process, on the real parts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use backend::discovery::Role;
use clap::Args;
use operator::doctor::{self, Doctor, Stores};
use operator::lifecycle::{Phase, Phases};
use operator::port::{self, Desk, Operators};
use operator::pulse::Pulse;
use serde_json::json;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Output;
use super::daemon::{
    StopSignals, announce, busiest_addresses, client_urls, edges_url, fit_files, runtime,
    serve_to_the_end,
};
use super::reload::Reload;
use crate::compose::process::{self, Parts};
use crate::compose::{Around, StationProvers};
use crate::settings::Settings;
use crate::telemetry;

pub(super) const BOAT_EXAMPLES: &str = "Examples:
  packetboat --config packetboat.toml boat
  packetboat boat --name boat-2 --listen 127.0.0.1:9111 --admin [::1]:9194 --health [::1]:9184";

pub(super) const STATION_EXAMPLES: &str = "Examples:
  packetboat --config packetboat.toml station
  packetboat station --name station-2 --listen 127.0.0.1:9102 --admin [::1]:9195 --health [::1]:9185";

pub(super) const CARRIER_EXAMPLES: &str = "Examples:
  packetboat --config packetboat.toml carrier
  packetboat carrier --name carrier-2 --admin 127.0.0.1:9196 --health 127.0.0.1:9186";

pub(super) const HORN_EXAMPLES: &str = "Examples:
  packetboat --config packetboat.toml horn
  packetboat horn --admin 127.0.0.1:9197 --health 127.0.0.1:9187";

#[derive(Debug, Args)]
pub struct Member {
    /// Name, unique among services of this kind (settings: <service>.name).
    #[arg(long)]
    name: Option<String>,
    /// Address of gRPC, for boat and station (settings: <service>.listen; otherwise 127.0.0.1:9110
    /// for a boat, 127.0.0.1:9100 for a station).
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,
    /// Address of the desk, with health and metrics beside it (settings: admin.listen).
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<SocketAddr>,
    /// Address of health and metrics alone (settings: health.listen).
    #[arg(long, value_name = "HOST:PORT")]
    health: Option<SocketAddr>,
    /// Format of the addresses printed once everything is ready.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Member {
    pub(super) fn run(
        self,
        role: Role,
        config: Option<&Path>,
        around: &dyn Around,
    ) -> Result<ExitCode> {
        let mut settings = Settings::load(config)?;
        let operators = Operators::open(&settings.admin, &StationProvers)?;
        let reload = Reload::new(config, settings.clone(), operators);
        self.apply(role, &mut settings);
        settings.check_member(role)?;
        telemetry::start_logs(&settings.log)?;
        let boat = (role == Role::Boat).then_some(&mut settings.boat);
        let http = (role == Role::Station).then_some(&mut settings.station.http);
        fit_files(boat, http);
        let services = runtime("services")?;
        // Only a boat has clients.
        let connections = match role {
            Role::Boat => Some(runtime("connections")?),
            Role::Station | Role::Carrier | Role::Horn => None,
        };
        let clients = connections.as_ref().unwrap_or(&services).handle().clone();
        services.block_on(self.serve(role, reload, settings, clients, around))
    }

    /// Applies flags, which win over file and environment.
    fn apply(&self, role: Role, settings: &mut Settings) {
        if let Some(admin) = self.admin {
            settings.admin.listen = admin;
        }
        if let Some(health) = self.health {
            settings.health.listen = health;
        }
        let (name, listen, port) = match role {
            Role::Boat => (
                Some(&mut settings.boat.name),
                Some(&mut settings.boat.listen),
                9110,
            ),
            Role::Station => (
                Some(&mut settings.station.name),
                Some(&mut settings.station.listen),
                9100,
            ),
            Role::Carrier => (Some(&mut settings.carrier.name), None, 0),
            Role::Horn => (None, None, 0),
        };
        if let (Some(name), Some(own)) = (name, &self.name) {
            name.clone_from(own);
        }
        if let Some(listen) = listen {
            let default = SocketAddr::from(([127, 0, 0, 1], port));
            *listen = Some(self.listen.or(*listen).unwrap_or(default));
        }
    }

    async fn serve(
        self,
        role: Role,
        reload: Reload,
        settings: Settings,
        clients: Handle,
        around: &dyn Around,
    ) -> Result<ExitCode> {
        let phases = Phases::default();
        let metrics = telemetry::start_metrics(role.name())?;
        let operators = reload.operators();
        reload.start()?;
        let stop_admin = CancellationToken::new();
        operators.keep(stop_admin.clone());
        let services = Handle::current();
        // Only a boat has a runtime of connections.
        let runtimes = match role {
            Role::Boat => &[("services", &services), ("connections", &clients)][..],
            Role::Station | Role::Carrier | Role::Horn => &[("services", &services)],
        };
        let health = port::Health {
            phases: phases.clone(),
            metrics: Some(metrics),
            pulse: Pulse::of(runtimes),
        };
        let probes = port::start_health(&settings.health, health.clone(), stop_admin.clone())?;
        let parts = Parts::connect(role, &settings, clients, (around, &phases)).await?;
        let desk = parts.whole().map(|environment| {
            let desk = Arc::new(Desk::new(
                &environment.backends,
                &environment.connector,
                settings.station.bounds(),
                operators.clone(),
            ));
            desk.employ(process_name(role, &settings), stop_admin.clone());
            (desk, environment.backends.entropy.next())
        });
        let certificates = settings.admin.tls.load()?;
        let doctor = Doctor::new(doctor::Parts {
            settings: settings.for_doctor(),
            role: Some(role),
            stores: Stores::Real,
            access: parts.access(),
            phases: phases.clone(),
            operators,
            desk: desk.as_ref().map(|(desk, _)| desk.clone()),
            certificates: certificates.clone(),
        });
        let client_addresses = doctor.client_addresses();
        let admin_parts = port::Parts {
            health,
            desk: desk.as_ref().map(|(desk, _)| desk.clone()),
            doctor: Some(doctor.probing(stop_admin.clone())),
            certificates,
        };
        let admin = port::start(&settings.admin, admin_parts, stop_admin.clone()).await?;
        let member = process::ServiceProcess::start(&settings, parts).await?;
        if let Some(usage) = member.address_usage() {
            client_addresses.set(busiest_addresses(usage));
        }
        if let Some((desk, worker)) = desk {
            desk.close_minutes(worker, &settings.audit, stop_admin.clone());
        }
        phases.follow(member.conditions());
        // Whoever sees that it is ready may end it in order.
        let signals = StopSignals::listen()?;
        phases.enter(Phase::Ready);
        let clients = (member.clients()).map(|(ws, tcp)| client_urls(&settings.boat.tls, ws, tcp));
        let edges = edges_url(&settings.station.http, member.edges());
        announce(&self.addresses(
            role,
            (clients, member.address(), edges),
            settings.admin.url(admin),
            probes,
        ));
        let code = serve_to_the_end(member, signals, &phases).await?;
        stop_admin.cancel();
        Ok(code)
    }

    /// Addresses for people, or as one line of JSON.
    fn addresses(
        &self,
        role: Role,
        (clients, grpc, edges): (Option<(String, String)>, Option<String>, Option<String>),
        admin: String,
        probes: SocketAddr,
    ) -> String {
        let (websocket, tcp) = clients.unzip();
        let health = format!("http://{probes}");
        if self.output == Output::Json {
            let addresses = json!({
                "websocket": websocket, "tcp": tcp, "grpc": grpc, "edges": edges, "admin": admin, "health": health,
            });
            return addresses.to_string();
        }
        let mut lines = format!("packetboat {} is ready", role.name());
        for (label, address) in [
            ("clients", websocket),
            ("", tcp),
            ("services", grpc),
            ("edges", edges),
            ("operators", Some(admin)),
            ("probes", Some(health)),
        ] {
            if let Some(address) = address {
                lines += &format!("\n  {label:<10} {address}");
            }
        }
        lines
    }
}

/// Name under which a process signs the operations it carries out.
fn process_name(role: Role, settings: &Settings) -> &str {
    match role {
        Role::Station => &settings.station.name,
        Role::Carrier => &settings.carrier.name,
        Role::Boat | Role::Horn => role.name(),
    }
}
