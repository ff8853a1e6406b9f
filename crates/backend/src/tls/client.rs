//! TLS of this process as a client of a part: settings, and the content of their files.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::Timestamp;
use protocol::settings::Problems;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, Error as RustlsError, RootCertStore};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretSlice};
use serde::{Deserialize, Serialize};

use super::certificates::{Certificate, parse_certificates, read_file};
use super::{CertificateError, CertificateFiles, protocols, provider, rustls_error};
use crate::files::digest;

/// Section `tls` of a connection to a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientTlsConfig {
    /// PEM file with the roots that sign the servers' certificates; while roots change, the old and
    /// the new one. Those of the operating system are in `/etc/ssl/certs/ca-certificates.crt`.
    /// Unset: no TLS.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/ca.crt"]))]
    pub ca_file: Option<PathBuf>,
    /// PEM file with this process's certificate, followed by its intermediates. Unset: none, which
    /// servers may refuse.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/parts/tls.key"]))]
    pub key_file: Option<PathBuf>,
}

/// Names that a server's certificate must carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerNames {
    /// The address that was dialed.
    #[default]
    Address,
    /// Any name: the signature of a root of `ca_file` is enough. For roots that sign these servers
    /// alone.
    Ca,
}

impl ClientTlsConfig {
    pub fn is_on(&self) -> bool {
        self.ca_file.is_some()
    }

    /// Settings that cannot work, by names of this section. Reads no file.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.cert_file.is_some() != self.key_file.is_some() {
            let reason = "a certificate and its key must be set together";
            problems.refuse("cert_file", "", reason, "Set both files or none");
        }
        if self.cert_file.is_some() && !self.is_on() {
            let reason = "a client certificate needs TLS";
            let remedy = "Set ca_file to the root certificates of the servers, too";
            problems.refuse("cert_file", "", reason, remedy);
        }
        problems
    }

    /// Reads the files, and checks that they fit.
    ///
    /// # Errors
    /// A file that is unreadable or has no such content, a key of another certificate, an expired
    /// certificate.
    pub fn check(&self, now: Timestamp) -> Result<(), CertificateError> {
        ClientTls::parse(self, &self.read()?, now).map(drop)
    }

    /// Configuration of a caller that speaks `alpn`, from the files as they are now; none without
    /// TLS. Blocks, but files are few and small.
    ///
    /// # Errors
    /// As [`ClientTlsConfig::check`].
    pub fn client_config(
        &self,
        alpn: &[&[u8]],
        now: Timestamp,
    ) -> Result<Option<Arc<ClientConfig>>, CertificateError> {
        let Some(tls) = ClientTls::parse(self, &self.read()?, now)? else {
            return Ok(None);
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_root_certificates(Arc::clone(tls.roots()));
        let mut config = match tls.certified() {
            Some(own) => {
                let own = SingleCertAndKey::from(Arc::clone(own));
                builder.with_client_cert_resolver(Arc::new(own))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols(alpn);
        Ok(Some(Arc::new(config)))
    }

    /// Content of the files, for the detection of changes; empty without TLS.
    pub(crate) fn read(&self) -> Result<Vec<Vec<u8>>, CertificateError> {
        let Some(ca_file) = &self.ca_file else {
            return Ok(Vec::new());
        };
        let own = self.cert_file.iter().chain(&self.key_file);
        let files = std::iter::once(ca_file).chain(own);
        files.map(|file| read_file(file)).collect()
    }
}

/// Valid content of the files of a [`ClientTlsConfig`].
pub(crate) struct ClientTls {
    /// PEM.
    ca: Vec<u8>,
    roots: Arc<RootCertStore>,
    own: Option<OwnIdentity>,
}

struct OwnIdentity {
    /// PEM.
    cert: Vec<u8>,
    /// PEM.
    key: SecretSlice<u8>,
    certified_key: Arc<CertifiedKey>,
    end: Timestamp,
}

impl ClientTls {
    /// Parses content read by [`ClientTlsConfig::read`]; none without TLS.
    ///
    /// # Errors
    /// No certificates, a key of another certificate, an expired certificate.
    pub(crate) fn parse(
        config: &ClientTlsConfig,
        contents: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Option<ClientTls>, CertificateError> {
        let (Some(ca_file), Some(ca)) = (&config.ca_file, contents.first()) else {
            return Ok(None);
        };
        let roots = Arc::new(parse_roots(ca_file, ca)?);
        let own = match (&config.cert_file, &config.key_file, contents) {
            (Some(cert_file), Some(key_file), [_, cert, key]) => {
                let files = CertificateFiles {
                    cert_file: cert_file.clone(),
                    key_file: key_file.clone(),
                };
                let certificate = Certificate::parse(&files, cert, key, digest([cert, key]), now)?;
                Some(OwnIdentity {
                    cert: cert.clone(),
                    key: key.clone().into(),
                    certified_key: certificate.key,
                    end: certificate.end,
                })
            }
            _ => None,
        };
        let ca = ca.clone();
        Ok(Some(ClientTls { ca, roots, own }))
    }

    /// Roots of the servers' certificates, in PEM.
    pub(crate) fn ca_pem(&self) -> &[u8] {
        &self.ca
    }

    /// Certificate of this process, and its key, in PEM.
    pub(crate) fn own_pem(&self) -> Option<(&[u8], &[u8])> {
        let own = self.own.as_ref()?;
        Some((&own.cert, own.key.expose_secret()))
    }

    pub(crate) fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    pub(crate) fn certified(&self) -> Option<&Arc<CertifiedKey>> {
        self.own.as_ref().map(|own| &own.certified_key)
    }

    /// End of this process's certificate.
    pub(crate) fn end(&self) -> Option<Timestamp> {
        self.own.as_ref().map(|own| own.end)
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls")
            .field("roots", &self.roots.len())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

fn parse_roots(path: &Path, content: &[u8]) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates(path, content)? {
        let result = roots.add(certificate);
        result.map_err(|error| CertificateError::malformed(path, &error))?;
    }
    Ok(roots)
}

/// Remedy for a connection to `part` that failed because of TLS; `None` for other failures.
pub(crate) fn advice(part: &str, is_on: bool, error: &(dyn StdError + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let error = match error.downcast_ref::<SharedError>() {
            Some(shared) => &**shared as &(dyn StdError + 'static),
            None => error,
        };
        if let Some(error) = rustls_error(error) {
            return Some(advice_for(part, error));
        }
        let io = error.downcast_ref::<io::Error>();
        if let Some(io) = io.filter(|_| !is_on)
            && matches!(
                io.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::UnexpectedEof
            )
        {
            return Some(ended(part, is_on));
        }
        next = error.source();
    }
    None
}

/// Error as shared by several clients.
type SharedError = Arc<dyn StdError + Send + Sync>;

/// Remedies for a connection that a server ended without an error.
pub(crate) fn ended(part: &str, is_on: bool) -> String {
    if is_on {
        format!(
            "this is how a server that requires a client certificate refuses a connection: set \
             {part}.tls.cert_file to one that it trusts"
        )
    } else {
        format!(
            "this is how a server that requires TLS refuses a connection without it: turn TLS on \
             with {part}.tls.ca_file"
        )
    }
}

fn advice_for(part: &str, error: &RustlsError) -> String {
    match error {
        RustlsError::InvalidCertificate(reason) => format!(
            "the server's certificate was rejected ({reason:?}): {part}.tls.ca_file must contain \
             its root, and the certificate must cover the host name or address in use"
        ),
        RustlsError::InvalidMessage(_) => {
            format!("the server does not speak TLS: remove {part}.tls, or use its TLS port")
        }
        RustlsError::AlertReceived(alert) => format!(
            "the server rejected this process's certificate ({alert:?}): {part}.tls.cert_file must \
             be one that it trusts"
        ),
        other => format!("TLS failed ({other}): see {part}.tls"),
    }
}
