//! Credentials for a part, and roots trusted there: certificates and passwords, from files that are
//! reread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge};
use secrecy::SecretString;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::{Clock, SystemClock};
use crate::files::{Reload, digest, reread};
use crate::tls::{CertificateError, ClientTls, ClientTlsConfig};
use crate::{Error, Result};

/// Unusable file, with the setting that names it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialError {
    #[error("{part}.tls: {source}")]
    Certificate {
        part: &'static str,
        source: CertificateError,
    },
    #[error("{key} names {path}, which {reason}")]
    Secret {
        key: String,
        path: PathBuf,
        reason: String,
    },
}

/// Credentials for a part, as their files are now. Subscribers learn of changes.
pub(crate) struct Credentials {
    /// Section of the settings.
    part: &'static str,
    tls: ClientTlsConfig,
    /// Files of secrets, by the key of their setting.
    secrets: BTreeMap<String, PathBuf>,
    current: watch::Sender<Arc<CredentialSnapshot>>,
}

/// Content of all files at one moment.
pub(crate) struct CredentialSnapshot {
    digest: [u8; 32],
    pub(crate) tls: Option<ClientTls>,
    secrets: BTreeMap<String, SecretString>,
}

impl CredentialSnapshot {
    /// Secret of the setting `key`, relative to the section.
    pub(crate) fn secret(&self, key: &str) -> Option<&SecretString> {
        self.secrets.get(key)
    }
}

impl std::fmt::Debug for CredentialSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialSnapshot")
            .field("tls", &self.tls)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads the files of section `part`. Blocks, but files are few and small.
    ///
    /// # Errors
    /// `Conflict`: an unusable file.
    pub(crate) fn load<'a>(
        seam: &'static str,
        part: &'static str,
        tls: &ClientTlsConfig,
        secrets: impl IntoIterator<Item = (&'a str, &'a Path)>,
    ) -> Result<Arc<Credentials>> {
        let secrets = secrets.into_iter();
        let secrets = secrets
            .map(|(key, path)| (key.to_owned(), path.to_owned()))
            .collect();
        let snapshot = read(part, tls, &secrets).map_err(|error| Error::conflict(seam, error))?;
        Ok(Arc::new(Credentials {
            part,
            tls: tls.clone(),
            secrets,
            current: watch::Sender::new(Arc::new(snapshot)),
        }))
    }

    pub(crate) fn current(&self) -> Arc<CredentialSnapshot> {
        Arc::clone(&self.current.borrow())
    }

    /// Subscribes to changes after the present content.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<CredentialSnapshot>> {
        self.current.subscribe()
    }

    /// Looks at the files again. Unusable content changes nothing.
    pub(crate) fn reload(&self) -> std::result::Result<Reload, CredentialError> {
        let snapshot = read(self.part, &self.tls, &self.secrets)?;
        if snapshot.digest == self.current.borrow().digest {
            return Ok(Reload::Unchanged);
        }
        self.current.send_replace(Arc::new(snapshot));
        Ok(Reload::Reloaded)
    }

    /// Looks at the files every ten seconds until the handle is dropped; `None` without files.
    pub(crate) fn spawn_reloader(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        if self.secrets.is_empty() && !self.tls.is_on() {
            return None;
        }
        let credentials = Arc::clone(self);
        let part = self.part;
        credentials.record_expiry();
        let reload_loop = async move {
            let reload = move || {
                let result = credentials.reload();
                credentials.record_expiry();
                result
            };
            let reloads = |result| counter!("tls_reloads_total", "result" => result);
            reread(part, reloads, reload).await;
        };
        Some(AbortOnDropHandle::new(tokio::spawn(reload_loop)))
    }

    fn record_expiry(&self) {
        let expiry = self.current().tls.as_ref().and_then(ClientTls::end);
        if let Some(expiry) = expiry {
            let remaining: Duration = expiry.since(SystemClock.now());
            gauge!("cert_expiry_seconds", "listener" => self.part).set(remaining.as_secs_f64());
        }
    }
}

fn read(
    part: &'static str,
    tls: &ClientTlsConfig,
    files: &BTreeMap<String, PathBuf>,
) -> std::result::Result<CredentialSnapshot, CredentialError> {
    let certificate_error = |source| CredentialError::Certificate { part, source };
    let mut contents = tls.read().map_err(certificate_error)?;
    let client_tls =
        ClientTls::parse(tls, &contents, SystemClock.now()).map_err(certificate_error)?;
    let mut secrets = BTreeMap::new();
    for (key, path) in files {
        let secret = |reason: String| CredentialError::Secret {
            key: format!("{part}.{key}"),
            path: path.clone(),
            reason,
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| secret(format!("cannot be read: {error}")))?;
        let line = text.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            return Err(secret("is empty".into()));
        }
        contents.push(line.as_bytes().to_vec());
        secrets.insert(key.clone(), SecretString::from(line));
    }
    Ok(CredentialSnapshot {
        digest: digest(&contents),
        tls: client_tls,
        secrets,
    })
}

#[cfg(feature = "scylla")]
mod handshake {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::client::{
        ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor,
        verify_server_name,
    };
    use rustls::crypto::{
        WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    };
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::server::ParsedCertificate;
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, DigitallySignedStruct, Error as RustlsError, SignatureScheme};

    use super::{CredentialSnapshot, Credentials};
    use crate::tls::{CertificateError, ServerNames, provider};

    impl Credentials {
        /// Configuration for connections that each use the files' content at that moment. Nothing
        /// is resumed: a resumed session would not look at the chain again.
        pub(crate) fn rustls(
            self: &Arc<Self>,
            names: ServerNames,
        ) -> std::result::Result<Arc<ClientConfig>, CertificateError> {
            let provider = provider();
            let handshake = Arc::new(Handshake {
                credentials: Arc::clone(self),
                names,
                algorithms: provider.signature_verification_algorithms,
            });
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13, &TLS12])?
                .dangerous()
                .with_custom_certificate_verifier(handshake.clone())
                .with_client_cert_resolver(handshake);
            config.resumption = Resumption::disabled();
            config.cert_decompressors = Vec::new();
            Ok(Arc::new(config))
        }
    }

    #[derive(Debug)]
    struct Handshake {
        credentials: Arc<Credentials>,
        names: ServerNames,
        algorithms: WebPkiSupportedAlgorithms,
    }

    impl Handshake {
        fn certified(snapshot: &CredentialSnapshot) -> Option<Arc<CertifiedKey>> {
            snapshot.tls.as_ref()?.certified().cloned()
        }
    }

    impl ResolvesClientCert for Handshake {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Handshake::certified(&self.credentials.current())
        }

        fn has_certs(&self) -> bool {
            Handshake::certified(&self.credentials.current()).is_some()
        }
    }

    impl ServerCertVerifier for Handshake {
        fn verify_server_cert(
            &self,
            leaf: &CertificateDer<'_>,
            intermediates: &[CertificateDer<'_>],
            name: &ServerName<'_>,
            _: &[u8],
            now: UnixTime,
        ) -> std::result::Result<ServerCertVerified, RustlsError> {
            let snapshot = self.credentials.current();
            let Some(tls) = &snapshot.tls else {
                return Err(RustlsError::General("no root certificates".into()));
            };
            let certificate = ParsedCertificate::try_from(leaf)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                tls.roots(),
                intermediates,
                now,
                algorithms,
            )?;
            if self.names == ServerNames::Address {
                verify_server_name(&certificate, name)?;
            }
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, RustlsError> {
            verify_tls12_signature(message, certificate, signature, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, RustlsError> {
            verify_tls13_signature(message, certificate, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    }
}
