//! The admin port: the operators' desk and their console, with health and metrics beside them. Never exposed to clients.

pub mod answer;
pub mod audit;
pub mod auditor;
mod console;
pub mod desk;
pub mod doctor;
mod find;
mod grpc;
mod guard;
pub mod health;
mod keep;
pub mod kick;
pub mod letters;
pub mod log;
pub mod operators;
#[cfg(test)]
mod route_tests;
mod rows;
mod serve;
mod shortlist;
mod sign_ins;
mod spare_files;
#[cfg(test)]
mod tests;
pub mod trace;
mod utc;
pub mod verify;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::any;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use auditor::Auditor;
pub use desk::Desk;
pub use doctor::Doctor;
use guard::Guard;
pub use health::{Health, HealthConfig, start_health};
pub use operators::{OperatorConfig, Operators};
use serve::serve;
pub use shortlist::Shortlist;
pub(crate) use utc::utc;

/// Section `admin`: the operators' desk and console.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of desk and console. Off loopback it needs `operators`, and TLS in front.
    pub listen: SocketAddr,
    /// Names by which browsers reach the desk, besides its address and localhost.
    pub hosts: Vec<String>,
    /// Permission to listen off loopback without operators: whoever reaches the port may read,
    /// redrive, edit and discard.
    pub anybody: bool,
    /// TLS of the desk.
    pub tls: TlsConfig,
    /// Operators of the desk. None: whoever reaches the port may do everything there.
    pub operators: Vec<OperatorConfig>,
}

/// Section `admin.tls`.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Assurance that a proxy ends TLS in front of the desk, or that the network between is nobody
    /// else's.
    pub offloaded: bool,
}

impl Config {
    /// What cannot be, in words.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let Config { listen, .. } = self;
        if listen.ip().is_loopback() {
            return None;
        }
        if self.operators.is_empty() && !self.anybody {
            return Some(format!(
                "admin.listen is {listen}, which others can reach, and admin.operators names nobody: anybody could \
                 read, edit and discard. Name operators, or listen on 127.0.0.1; admin.anybody = true insists."
            ));
        }
        (!self.tls.offloaded).then(|| {
            format!(
                "admin.listen is {listen}, which others can reach, and the desk has no TLS: tokens and messages \
                 would pass in the clear. Listen on 127.0.0.1, or put a proxy that ends TLS before it and set \
                 admin.tls.offloaded = true."
            )
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 9190)),
            hosts: Vec::new(),
            anybody: false,
            tls: TlsConfig::default(),
            operators: Vec::new(),
        }
    }
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Parts {
    pub health: Health,
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
    let router = routes(config, address, parts);
    tokio::spawn(serve(listener, router, stop, "admin"));
    Ok(address)
}

fn routes(config: &Config, bound: SocketAddr, parts: Parts) -> Router {
    let guard = Arc::new(Guard {
        bound,
        hosts: config.hosts.clone(),
    });
    let grpc = parts.desk.clone().map_or_else(Router::new, grpc::routes);
    health::routes(parts.health)
        .nest(
            "/api/v1",
            desk_routes(parts.desk)
                .merge(doctor_routes(parts.doctor))
                .layer(map_response(unstored)),
        )
        .merge(grpc)
        .merge(console::routes(console::built))
        .layer(from_fn_with_state(guard, guard::guard))
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

/// What the desk says is for who asked, now.
async fn unstored(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
