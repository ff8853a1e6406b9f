//! `packetboat all`: the four services in one process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use operator::Access;
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
use crate::compose::{Around, Environment, StationProvers, System};
use crate::settings::Settings;
use crate::telemetry;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat all
  packetboat all --data /var/lib/packetboat --output json")]
pub struct All {
    /// Folder of all data, created if missing (settings: embedded.data).
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep all data in memory; it is lost when the process stops.
    #[arg(long, conflicts_with = "data")]
    memory: bool,
    /// Format of the addresses printed once everything is ready.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl All {
    pub(super) fn run(self, config: Option<&Path>, around: &dyn Around) -> Result<ExitCode> {
        let mut settings = Settings::load(config)?;
        settings.check_all()?;
        let operators = Operators::open(&settings.admin, &StationProvers)?;
        let reload = Reload::new(config, settings.clone(), operators);
        if let Some(data) = &self.data {
            settings.embedded.data.clone_from(data);
        }
        telemetry::start_logs(&settings.log)?;
        fit_files(Some(&mut settings.boat), Some(&mut settings.station.http));
        tracing::info!(data = %settings.embedded.data.display(), "data");
        let connections = runtime("connections")?;
        let services = runtime("services")?;
        services.block_on(self.serve(reload, settings, connections.handle().clone(), around))
    }

    async fn serve(
        self,
        reload: Reload,
        settings: Settings,
        connections: Handle,
        around: &dyn Around,
    ) -> Result<ExitCode> {
        let phases = Phases::default();
        let metrics = telemetry::start_metrics("all")?;
        let operators = reload.operators();
        reload.start()?;
        let stop_admin = CancellationToken::new();
        operators.keep(stop_admin.clone());
        let health = port::Health {
            phases: phases.clone(),
            metrics: Some(metrics),
            pulse: Pulse::of(&[
                ("services", &Handle::current()),
                ("connections", &connections),
            ]),
        };
        let probes = port::start_health(&settings.health, health.clone(), stop_admin.clone())?;
        let environment = if self.memory {
            Environment::in_memory(&settings.embedded, settings.station.sessions.capacity())?
        } else {
            let data = &settings.embedded.data;
            std::fs::create_dir_all(data)
                .with_context(|| format!("creating {}", data.display()))?;
            Environment::on_disk(
                data,
                &settings.embedded,
                settings.station.sessions.capacity(),
            )?
        };
        let environment = environment.with(around);
        let desk = Arc::new(Desk::new(
            &environment.backends,
            &environment.connector,
            settings.station.bounds(),
            operators.clone(),
        ));
        desk.employ(&settings.carrier.name, stop_admin.clone());
        let certificates = settings.admin.tls.load()?;
        let doctor = Doctor::new(doctor::Parts {
            settings: settings.for_doctor(),
            role: None,
            stores: if self.memory {
                Stores::Memory
            } else {
                Stores::Directory(settings.embedded.data.clone())
            },
            access: Access::from(&environment.backends),
            phases: phases.clone(),
            operators,
            desk: Some(desk.clone()),
            certificates: certificates.clone(),
        });
        let client_addresses = doctor.client_addresses();
        let parts = port::Parts {
            health,
            desk: Some(desk.clone()),
            doctor: Some(doctor.probing(stop_admin.clone())),
            certificates,
        };
        let admin = port::start(&settings.admin, parts, stop_admin.clone()).await?;
        let worker = environment.backends.entropy.next();
        let system = System::start(&settings, environment, connections).await?;
        client_addresses.set(busiest_addresses(system.boat.address_usage()));
        desk.close_minutes(worker, &settings.audit, stop_admin.clone());
        phases.follow(system.conditions());
        // Whoever sees that it is ready may end it in order.
        let signals = StopSignals::listen()?;
        phases.enter(Phase::Ready);
        let clients = client_urls(&settings.boat.tls, system.websocket(), system.tcp());
        let edges = edges_url(&settings.station.http, system.edges());
        announce(&self.addresses((clients, edges), &settings.admin.url(admin), probes));
        let code = serve_to_the_end(system, signals, &phases).await?;
        stop_admin.cancel();
        Ok(code)
    }

    /// Addresses for people, or as one line of JSON.
    fn addresses(
        &self,
        ((websocket, tcp), edges): ((String, String), Option<String>),
        admin: &str,
        probes: SocketAddr,
    ) -> String {
        let health = format!("http://{probes}");
        if self.output == Output::Json {
            let bound = json!({
                "websocket": websocket, "tcp": tcp, "edges": edges, "admin": admin, "health": health,
            });
            return bound.to_string();
        }
        let edges = edges.map_or_else(String::new, |edges| format!("\n  edges      {edges}"));
        format!(
            "packetboat is ready
  clients    {websocket}
             {tcp}{edges}
  operators  {admin}  (console)
  probes     {health}  (/livez, /readyz, /metrics)
Try: packetboat send --user 1 --to 2 \"hello\""
        )
    }
}
