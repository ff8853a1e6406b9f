//! Frame of every serving process: threads, signals, phases, an orderly end.

use std::net::SocketAddr;
use std::num::NonZero;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use backend::tls::TlsConfig;
use operator::doctor::rules::ClientAddresses;
use operator::lifecycle::{Phase, Phases};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::terminal::out;
use crate::compose::System;
#[cfg(feature = "cluster")]
use crate::compose::process::ServiceProcess;

/// Service that runs until it is asked to end.
pub(super) trait Daemon {
    /// Waits until a part ends without being asked to, and names it.
    async fn failed(&mut self) -> &'static str;

    async fn drain(self);
}

impl Daemon for System {
    async fn failed(&mut self) -> &'static str {
        System::failed(self).await
    }

    async fn drain(self) {
        System::drain(self).await;
    }
}

#[cfg(feature = "cluster")]
impl Daemon for ServiceProcess {
    async fn failed(&mut self) -> &'static str {
        ServiceProcess::failed(self).await
    }

    async fn drain(self) {
        ServiceProcess::drain(self).await;
    }
}

/// Serves until a signal, then leaves in order; a second signal ends the process at once.
///
/// # Errors
/// A part that ended by itself: accepted messages are no longer carried here, so the process should
/// end and be restarted.
pub(super) async fn serve_to_the_end(
    mut daemon: impl Daemon,
    mut signals: StopSignals,
    phases: &Phases,
) -> Result<ExitCode> {
    tokio::select! {
        biased;
        () = signals.next() => {}
        part = daemon.failed() => bail!("{part} stopped unexpectedly; see the log lines above. \
                                          Restart the process: no accepted message is lost"),
    }
    phases.enter(Phase::Draining);
    tokio::select! {
        biased;
        () = signals.next() => {
            tracing::warn!("second signal: exiting at once");
            return Ok(ExitCode::FAILURE);
        }
        () = daemon.drain() => {}
    }
    phases.enter(Phase::Stopped);
    Ok(ExitCode::SUCCESS)
}

/// Prints where a service is reached. A courtesy: a service whose output is full, or read by nobody,
/// serves all the same.
pub(super) fn announce(lines: &str) {
    if let Err(error) = out!("{lines}\n") {
        let error = format!("{:#}", anyhow::Error::from(error));
        tracing::warn!(error, "cannot print the addresses");
    }
}

/// Clients and services have threads of their own, as in separate processes: one for each core of
/// the host, so that services never wait for clients.
pub(super) fn runtime(name: &str) -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let runtime = Builder::new_multi_thread()
        .thread_name(name)
        .worker_threads(cores)
        .enable_all()
        .build()?;
    Ok(runtime)
}

/// Raises the limit of open files as far as possible, and lowers the connection limits of boats and
/// public ports to fit.
pub(super) fn fit_files(boat: Option<&mut boat::Config>, http: Option<&mut station::http::Config>) {
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(0);
    tracing::info!(files, "open file limit");
    if let Some(http) = http {
        http.fit_files(files);
    }
    let Some(boat) = boat else {
        return;
    };
    let requested_max = boat.connections_max;
    let granted_max = boat.fit_files(files);
    if granted_max < requested_max {
        tracing::warn!(
            "the open file limit is {files}: this boat holds {granted_max} connections, not \
             boat.connections_max = {requested_max}; further clients are refused with `full`. Raise the \
             limit before the start (ulimit -n, LimitNOFILE of systemd), or lower \
             boat.connections_max"
        );
    }
}

/// The busiest client addresses of a boat, as the doctor judges them.
pub(super) fn busiest_addresses(usage: boat::AddressUsage) -> impl Fn() -> ClientAddresses {
    move || {
        let busiest = usage.busiest(3).into_iter();
        ClientAddresses {
            busiest: busiest
                .map(|(address, count)| (address.to_string(), count))
                .collect(),
            connections_max: usage.connections_max(),
        }
    }
}

/// SIGTERM and Ctrl-C. One that comes before it is waited for is not lost.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn listen() -> Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listening for SIGINT")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// URL at which clients fetch the addresses of boats.
pub(super) fn edges_url(
    http: &station::http::Config,
    address: Option<SocketAddr>,
) -> Option<String> {
    let scheme = if http.tls.is_on() { "https" } else { "http" };
    address.map(|address| format!("{scheme}://{address}/v1/edges"))
}

/// Client URLs of a boat: WebSocket, and TCP.
pub(super) fn client_urls(
    tls: &TlsConfig,
    websocket: SocketAddr,
    tcp: SocketAddr,
) -> (String, String) {
    if tls.is_on() {
        (format!("wss://{websocket}"), format!("tls://{tcp}"))
    } else {
        (format!("ws://{websocket}"), format!("tcp://{tcp}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves S1-17 in part: as many workers as the host has cores.
    #[test]
    fn there_is_a_worker_for_each_core() {
        let cores = std::thread::available_parallelism().expect("known").get();
        let runtime = runtime("services").expect("threads");
        assert_eq!(runtime.metrics().num_workers(), cores);
    }
}
