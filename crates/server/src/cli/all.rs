//! `packetboat all`: the four services in one process.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Output;
use crate::admin::{self, Desk};
use crate::compose::embedded::{Seams, System};
use crate::phase::{Phase, Phases};
use crate::settings::Settings;
use crate::telemetry;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat all
  packetboat all --data /var/lib/packetboat --output json")]
pub struct All {
    /// Where everything is kept; made when it is not there (settings: embedded.data).
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep nothing beyond this process.
    #[arg(long, conflicts_with = "data")]
    memory: bool,
    /// How the addresses are printed once everything is ready.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl All {
    pub(super) fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let mut settings = Settings::load(config)?;
        if let Some(data) = &self.data {
            settings.embedded.data.clone_from(data);
        }
        telemetry::start_logs(&settings.log)?;
        let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(0);
        tracing::info!(files, data = %settings.embedded.data.display(), "limits");
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let connections = runtime("connections", cores)?;
        let services = runtime("services", cores)?;
        services.block_on(self.serve(settings, connections.handle().clone()))
    }

    async fn serve(self, settings: Settings, connections: Handle) -> Result<ExitCode> {
        let phases = Phases::default();
        let metrics = telemetry::start_metrics()?;
        let seams = if self.memory {
            Seams::in_memory(&settings.embedded)?
        } else {
            let data = &settings.embedded.data;
            std::fs::create_dir_all(data).with_context(|| format!("making {}", data.display()))?;
            Seams::on_disk(data, &settings.embedded)?
        };
        let stop_admin = CancellationToken::new();
        let parts = admin::Parts {
            phases: phases.clone(),
            metrics: Some(metrics),
            desk: Arc::new(Desk::new(&seams)),
        };
        let admin = admin::start(&settings.admin, parts, stop_admin.clone()).await?;
        let mut system = System::start(&settings, seams, connections).await?;
        phases.enter(Phase::Ready);
        self.announce(&system, admin)?;

        tokio::select! {
            requested = stop_requested() => requested?,
            part = system.failed() => bail!("{part} ended by itself; its log lines above say why. Start again: nothing accepted is lost"),
        }
        phases.enter(Phase::Draining);
        tokio::select! {
            () = system.drain() => {}
            result = stop_requested() => {
                result?;
                eprintln!("packetboat: a second signal: ending without waiting");
                return Ok(ExitCode::FAILURE);
            }
        }
        phases.enter(Phase::Stopped);
        stop_admin.cancel();
        Ok(ExitCode::SUCCESS)
    }

    fn announce(&self, system: &System, admin: std::net::SocketAddr) -> Result<()> {
        use std::io::Write;
        let websocket = format!("ws://{}", system.websocket());
        let tcp = format!("tcp://{}", system.tcp());
        let admin = format!("http://{admin}");
        let mut output = std::io::stdout().lock();
        match self.output {
            Output::Json => {
                let bound = json!({ "websocket": websocket, "tcp": tcp, "admin": admin });
                writeln!(output, "{bound}")?;
            }
            Output::Table => {
                writeln!(output, "packetboat is ready")?;
                writeln!(output, "  clients    {websocket}")?;
                writeln!(output, "             {tcp}")?;
                writeln!(output, "  operators  {admin}  (/readyz, /metrics)")?;
                writeln!(output, "Try: packetboat send --user 1 --to 2 \"hello\"")?;
            }
        }
        Ok(output.flush()?)
    }
}

/// Clients and services have threads of their own, as they have in processes of their own.
fn runtime(name: &str, threads: usize) -> Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .thread_name(name)
        .worker_threads(threads)
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// SIGTERM or Ctrl-C.
async fn stop_requested() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
