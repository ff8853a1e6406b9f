//! The identity of a process among services, for its connections.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::transport;
use backend::clock::SystemClock;
use backend::files::reread;
use backend::tls;
use metrics::{counter, gauge};
use protocol::access::{Caller, Role};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;

struct Proof(Arc<tls::Identity>);

impl transport::Identity for Proof {
    fn accepting(&self) -> Arc<ServerConfig> {
        self.0.accepting()
    }

    fn calling(&self, role: Role) -> Arc<ClientConfig> {
        self.0.calling(role)
    }

    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        self.0.peer(certificate)
    }

    fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.0.trusts(chain)
    }

    fn required(&self) -> bool {
        self.0.required()
    }
}

/// Identity of this process, read again until `stop`; `None` if services show no certificates.
///
/// # Errors
/// Files that cannot be used, or that are of another role.
pub fn prove(
    settings: &Settings,
    role: Role,
    stop: &CancellationToken,
) -> Result<Option<Arc<dyn transport::Identity>>> {
    if !settings.identity.required {
        tracing::warn!("identity.required is false: services without certificates are accepted");
    }
    if role == Role::Station && settings.station.tickets.required && !settings.identity.required {
        tracing::warn!(
            "station.tickets.required is true but identity.required is false: tickets are bound to \
             boat names, which anyone can claim"
        );
    }
    if !settings.identity.is_on() {
        return Ok(None);
    }
    let identity = tls::Identity::load(&settings.identity, Some(role), Arc::new(SystemClock));
    let identity = Arc::new(identity.context("loading section identity")?);
    tracing::info!(caller = %identity.own(), "service identity");
    let keep = keep(Arc::clone(&identity));
    tokio::spawn(stop.clone().run_until_cancelled_owned(keep));
    Ok(Some(Arc::new(Proof(identity))))
}

async fn keep(identity: Arc<tls::Identity>) {
    let expiry = gauge!("cert_expiry_seconds", "listener" => "services");
    expiry.set(identity.expires_in().as_secs_f64());
    let look = move || {
        let result = identity.reload();
        expiry.set(identity.expires_in().as_secs_f64());
        result
    };
    let reloads = |result: &'static str| counter!("tls_reloads_total", "result" => result);
    reread("identity", reloads, look).await;
}
