//! Certificates of the listeners, reloaded while connections live on.

use std::sync::Arc;

use backend::clock::Clock;
use backend::tls::{CertificateError, Certificates, server_config};
use rustls::ServerConfig;

use crate::Config;

/// Protocols that clients may offer. A client that offers only others is refused.
const WEBSOCKET: &[u8] = b"http/1.1";
const TCP: &[u8] = b"packetboat.v1";

/// TLS configuration per port: they differ in the negotiated protocol.
pub(crate) struct ListenerTls {
    pub(super) websocket: Arc<ServerConfig>,
    pub(super) tcp: Arc<ServerConfig>,
}

/// Loads the certificates; `None` if this boat speaks no TLS.
pub(crate) fn load(
    config: &Config,
    clock: Arc<dyn Clock>,
) -> Result<Option<(Arc<Certificates>, ListenerTls)>, CertificateError> {
    let tls = &config.tls;
    if !tls.is_on() {
        return Ok(None);
    }
    let certificates = Certificates::load(&tls.certificates, clock)?;
    let listener = |protocol| server_config(Arc::clone(&certificates), tls.min, &[protocol]);
    let listeners = ListenerTls {
        websocket: listener(WEBSOCKET)?,
        tcp: listener(TCP)?,
    };
    Ok(Some((certificates, listeners)))
}
