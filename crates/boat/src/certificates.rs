//! Certificates of the listeners, which are read again while connections live on.

use std::sync::Arc;
use std::time::Duration;

use backend::clock::Clock;
use backend::tls::{CertificateError, Certificates, Reload, server_config};
use metrics::{counter, gauge};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::Config;
use crate::boat::ListenerTls;

/// Between two looks at the files: by content, as a renewal may be a link that points elsewhere.
const LOOK: Duration = Duration::from_secs(10);
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

/// Looks at the files until dropped. Those that cannot be used change nothing.
pub(crate) async fn keep(certificates: Arc<Certificates>) {
    let expiry = gauge!("cert_expiry_seconds", "listener" => "boat");
    let reloads = |result: &'static str| counter!("tls_reloads_total", "result" => result);
    let mut trouble = None;
    loop {
        expiry.set(certificates.expires_in().as_secs_f64());
        sleep(LOOK).await;
        let looked = Arc::clone(&certificates);
        // Files may be on a disk that hangs.
        let result = tokio::task::spawn_blocking(move || looked.reload()).await;
        trouble = match result {
            Ok(Ok(Reload::Unchanged)) => None,
            Ok(Ok(Reload::Reloaded)) => {
                info!("new certificates are in use");
                reloads("reloaded").increment(1);
                None
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    warn!(%error, "the certificates cannot be read again: those of before stay");
                    reloads("refused").increment(1);
                }
                Some(text)
            }
            Err(_) => return,
        };
    }
}
