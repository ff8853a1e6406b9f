//! The admin port: health, metrics, the operators' desk and their console. Never exposed to clients.

pub mod answer;
pub mod audit;
pub mod auditor;
mod console;
pub mod desk;
pub mod doctor;
mod find;
mod grpc;
mod keep;
pub mod letters;
pub mod log;
pub mod operators;
mod rows;
mod shortlist;
#[cfg(test)]
mod tests;
pub mod trace;
mod utc;
pub mod verify;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{any, get};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::phase::{Phase, Phases};
pub use auditor::Auditor;
pub use desk::Desk;
pub use doctor::Doctor;
pub use operators::{OperatorConfig, Operators};
pub use shortlist::Shortlist;
pub(crate) use utc::utc;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where health, metrics and the operators' desk answer. Keep it on loopback or inside the cluster.
    pub listen: SocketAddr,
    /// Who may use the desk. None: whoever reaches the port may do everything there.
    pub operators: Vec<OperatorConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 9190)),
            operators: Vec::new(),
        }
    }
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Parts {
    pub phases: Phases,
    /// `None` in tests, where several systems share a process.
    pub metrics: Option<PrometheusHandle>,
    /// `None` where this process has no access to log and history.
    pub desk: Option<Arc<Desk>>,
    pub doctor: Option<Arc<Doctor>>,
}

/// Binds the port and serves until `stop`; answers while everything else drains.
pub async fn start(config: &Config, parts: Parts, stop: CancellationToken) -> Result<SocketAddr> {
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("admin.listen = {}", config.listen))?;
    let address = listener.local_addr()?;
    let grpc = parts.desk.clone().map_or_else(Router::new, grpc::routes);
    let router = Router::new()
        .route("/livez", get(|| async { "live\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(parts.clone())
        .nest(
            "/api/v1",
            desk_routes(parts.desk).merge(doctor_routes(parts.doctor)),
        )
        .merge(grpc)
        .merge(console::routes(console::built));
    tokio::spawn(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::error!(%error, "the admin port ended");
        }
    });
    Ok(address)
}

fn desk_routes(desk: Option<Arc<Desk>>) -> Router {
    let elsewhere = "this service has no desk: ask the admin port of a station or a carrier\n";
    match desk {
        Some(desk) => desk::routes(desk),
        None => {
            let refuse = move || async move { (StatusCode::NOT_FOUND, elsewhere) };
            Router::new().route("/{*path}", any(refuse))
        }
    }
}

fn doctor_routes(doctor: Option<Arc<Doctor>>) -> Router {
    doctor.map_or_else(Router::new, doctor::routes)
}

async fn ready(State(parts): State<Parts>) -> (StatusCode, String) {
    let phase = parts.phases.now();
    if parts.phases.is_ready() {
        return (StatusCode::OK, format!("{}\n", phase.name()));
    }
    let why = match phase {
        Phase::Ready => "not registered with discovery",
        other => other.name(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

async fn metrics(State(parts): State<Parts>) -> String {
    parts
        .metrics
        .map(|metrics| metrics.render())
        .unwrap_or_default()
}
