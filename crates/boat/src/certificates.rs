//! Certificates of the listeners, which are read again while connections live on.

use std::sync::Arc;

use backend::clock::Clock;
use backend::tls::{CertificateError, Certificates, server_config};

use crate::Config;
use crate::boat::ListenerTls;

/// Protocols that clients may name. One that names others only is refused.
const WEBSOCKET: &[u8] = b"http/1.1";
const TCP: &[u8] = b"packetboat.v1";

/// Reads the certificates; none where TLS is not spoken here.
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
