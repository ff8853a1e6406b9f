//! TLS of listeners and callers: settings, certificates that are reread, and their configurations
//! for rustls.
//!
//! All code names its provider, aws-lc-rs; none asks for the process's.

mod certificates;
#[cfg_attr(
    not(any(
        feature = "etcd",
        feature = "kafka",
        feature = "redis",
        feature = "scylla"
    )),
    allow(dead_code)
)]
mod client;
mod config;
mod identity;
#[cfg(test)]
mod tests;

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_platform_verifier::BuilderVerifierExt;

pub use certificates::{CertificateError, Certificates};
#[cfg(any(
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
pub(crate) use client::{ClientTls, advice, ended};
pub use client::{ClientTlsConfig, ServerNames};
pub use config::{CertificateFiles, HttpTlsConfig, TlsConfig, TlsVersion};
pub use identity::{Identity, IdentityConfig, IdentityError};

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Configuration of a listener for clients without certificates. Sessions resume by tickets, whose
/// keys belong to this configuration and change every six hours; nothing is stored, and no early
/// data is taken.
pub fn server_config(
    certificates: Arc<Certificates>,
    min: TlsVersion,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let versions = match min {
        TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
        TlsVersion::Tls13 => &[&TLS13][..],
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = protocols(alpn);
    // No client talks us into the weakest suite on offer.
    config.ignore_client_order = true;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    // Compression costs CPU and a cache for a kilobyte.
    config.cert_compressors = Vec::new();
    Ok(Arc::new(config))
}

/// Configuration of a caller that trusts the certificates of `ca_file`, or else those trusted by
/// the operating system.
pub fn client_config(
    ca_file: Option<&Path>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, CertificateError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])?;
    let builder = match ca_file {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates::read_certificates(path)? {
                let outcome = roots.add(certificate);
                outcome.map_err(|error| CertificateError::malformed(path, &error))?;
            }
            builder.with_root_certificates(roots)
        }
        None => builder.with_platform_verifier()?,
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = protocols(alpn);
    Ok(Arc::new(config))
}

/// As [`client_config`], for a caller that shows the first of these certificates, as it is at each
/// new connection.
pub fn client_config_with(
    ca_file: Option<&Path>,
    certificates: Arc<Certificates>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, CertificateError> {
    let mut config = Arc::unwrap_or_clone(client_config(ca_file, alpn)?);
    config.client_auth_cert_resolver = certificates;
    Ok(Arc::new(config))
}

fn protocols(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

/// Finds the TLS error: this error itself, or one nested in IO errors, but not among its sources.
pub fn rustls_error<'a>(mut error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    while let Some(inner) = error.downcast_ref().and_then(io::Error::get_ref) {
        error = inner;
    }
    error.downcast_ref()
}
