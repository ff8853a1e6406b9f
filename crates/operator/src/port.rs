//! The admin port: the operators' desk and their console, with health and metrics beside them.
//! Never exposed to clients. [`Port`] serves edges, too: connections under bounds and deadlines,
//! independent of the routes behind them.

#[cfg(test)]
mod answer_tests;
mod assertion;
#[cfg(test)]
mod assertion_tests;
mod console;
pub(crate) mod desk;
mod guard;
mod handshakes;
pub mod health;
mod openapi;
pub mod operators;
mod places;
pub(crate) mod refusal;
#[cfg(test)]
mod route_tests;
mod routes;
mod serve;
mod sign_ins;
mod spare_files;
mod supervisor;
#[cfg(test)]
mod tls_tests;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::any;
use backend::tls::{Certificates, HttpTlsConfig};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use assertion::{AssertionConfig, Prover, Provers};
pub use desk::Desk;
use guard::Guard;
pub use handshakes::Handshakes;
pub use health::{Health, HealthConfig, start_health};
pub use operators::{OperatorConfig, Operators};
pub use places::Places;
use refusal::{DeskRefusal, uniform};
pub use serve::Port;

use crate::doctor::Doctor;

/// Path of the operators' API, in its first version.
pub const PREFIX: &str = "/api/v1";
/// Concurrent TLS handshakes: those of strangers cost CPU, too.
const HANDSHAKES_MAX: usize = 32;

/// Section `admin`: the operators' desk and console.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of desk and console. Off loopback it requires TLS (`tls`), and sign-in (`operators` or
    /// `assertion`) unless `anybody` is set.
    pub listen: SocketAddr,
    /// Host names under which browsers reach the desk, besides its address and localhost.
    pub hosts: Vec<String>,
    /// Allows the desk to listen off loopback without sign-in. Anyone who reaches the port may
    /// then read, redrive, edit and discard.
    pub anybody: bool,
    /// TLS of the desk.
    pub tls: HttpTlsConfig,
    /// Operators of the desk. Empty, and without `assertion`: anyone who reaches the port may do
    /// everything there.
    pub operators: Vec<OperatorConfig>,
    /// Single sign-on: a proxy signs operators in with a signed assertion.
    pub assertion: AssertionConfig,
}

impl Config {
    /// Address of the desk, once it listens on `address`.
    pub fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls.is_on() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// Settings that cannot work, by names of this section; files of `tls` that cannot be used
    /// included.
    #[must_use]
    pub fn problems(&self, provers: &dyn Provers) -> Problems {
        let mut problems = Problems::default();
        let Config { listen, .. } = self;
        let is_open = !listen.ip().is_loopback();
        let is_anybody = self.operators.is_empty() && !self.assertion.is_on();
        if is_open && is_anybody && !self.anybody {
            let reason = "reachable from other machines, and admin.operators is empty: anyone \
                          could read, edit and discard";
            let remedy = "Configure operators, or sign in through a proxy (admin.assertion), or \
                          listen on 127.0.0.1; admin.anybody = true overrides this check";
            problems.refuse("listen", listen, reason, remedy);
        } else if self.tls.is_missing_at(*listen) {
            let reason = "reachable from other machines, and the admin port has no TLS: tokens and \
                          messages would be sent in cleartext";
            let remedy = "Set admin.tls.cert_file and key_file, or listen on 127.0.0.1, or put a \
                          proxy that terminates TLS in front and set admin.tls.offloaded = true";
            problems.refuse("listen", listen, reason, remedy);
        }
        problems.section("tls", self.tls.problems());
        problems.section("assertion", self.assertion.problems(provers));
        problems
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 9190)),
            hosts: Vec::new(),
            anybody: false,
            tls: HttpTlsConfig::default(),
            operators: Vec::new(),
            assertion: AssertionConfig::default(),
        }
    }
}

/// Dependencies of the admin port.
#[derive(Clone)]
pub struct Parts {
    pub health: Health,
    /// `None` if this process has no access to log and history.
    pub desk: Option<Arc<Desk>>,
    pub doctor: Option<Arc<Doctor>>,
    /// `None` if the desk speaks no TLS.
    pub certificates: Option<Arc<Certificates>>,
}

/// Binds the port and serves until `stop`; answers while everything else drains.
pub async fn start(config: &Config, parts: Parts, stop: CancellationToken) -> Result<SocketAddr> {
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("admin.listen = {}", config.listen))?;
    let address = listener.local_addr()?;
    let (certificates, names) = (parts.certificates.clone(), ("desk", "admin.tls"));
    let tls = Handshakes::keep(certificates, HANDSHAKES_MAX, names, &stop)?;
    let port = Port::new("admin", routes(config, address, parts));
    tokio::spawn(Port { tls, ..port }.serve(listener, stop));
    Ok(address)
}

fn routes(config: &Config, bound: SocketAddr, parts: Parts) -> Router {
    let guard = Arc::new(Guard {
        local_address: bound,
        hosts: config.hosts.clone(),
        is_tls: config.tls.is_on(),
    });
    let doctor_router = parts.doctor.map_or_else(Router::new, routes::doctor_routes);
    let in_form = |router: Router| {
        let router = router.layer(map_response(uniform));
        router.layer(map_response(unstored))
    };
    health::routes(parts.health)
        .merge(in_form(root_routes(parts.desk.as_deref())))
        .nest(
            PREFIX,
            in_form(desk_routes(parts.desk).merge(doctor_router)),
        )
        .merge(console::routes(console::built))
        .layer(from_fn_with_state(guard, guard::guard))
}

fn desk_routes(desk: Option<Arc<Desk>>) -> Router {
    match desk {
        Some(desk) => routes::desk_routes(desk),
        None => Router::new().route(routes::OTHERS, any(elsewhere)),
    }
}

/// Paths that `nest` leaves to the console.
fn root_routes(desk: Option<&Desk>) -> Router {
    match desk {
        Some(desk) => routes::root_routes(desk),
        None => (routes::roots().iter()).fold(Router::new(), |router, path| {
            router.route(path, any(elsewhere))
        }),
    }
}

async fn elsewhere() -> DeskRefusal {
    let text = "this process has no desk: use the admin port of a station or a carrier";
    DeskRefusal::new(StatusCode::NOT_FOUND, text)
}

/// Forbids caching: an answer of the desk is for its asker, now.
async fn unstored(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
