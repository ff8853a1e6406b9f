//! Certificates of a listener, for any number of names, reread when their files change.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{counter, gauge};
use protocol::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error as RustlsError, InconsistentKeys, SignatureScheme};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::CertificateFiles;
use crate::clock::Clock;
use crate::files::{Reload, digest, reread};

/// Unusable files, and the reason.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path} cannot be read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{0} holds no certificate in PEM")]
    NoCertificate(PathBuf),
    #[error("{0} holds no private key in PEM")]
    NoKey(PathBuf),
    #[error("{path} cannot be used: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error("{key_file} is not the key of the first certificate in {cert_file}")]
    Mismatch {
        cert_file: PathBuf,
        key_file: PathBuf,
    },
    #[error("the first certificate in {path} expired on {end}")]
    Expired { path: PathBuf, end: String },
    #[error("the first certificate in {path} is not valid before {begin}")]
    Early { path: PathBuf, begin: String },
    #[error("no certificate given")]
    Empty,
    #[error(transparent)]
    Rustls(#[from] RustlsError),
}

impl CertificateError {
    /// Whether one file of a pair may be renewed, and the other not yet.
    pub(super) fn is_half(&self) -> bool {
        matches!(self, CertificateError::Mismatch { .. })
    }

    pub(super) fn malformed(path: &Path, reason: &impl Display) -> CertificateError {
        CertificateError::Malformed {
            path: path.into(),
            reason: reason.to_string(),
        }
    }
}

/// Pause between two looks at a half-renewed pair: the other file follows within it.
pub(super) const RENEWAL_PAUSE: Duration = Duration::from_millis(500);

/// Looks again after a pause if a renewal seems to be under way. Blocks.
pub(super) fn look_twice<T, E>(
    look: impl Fn() -> Result<T, E>,
    is_half: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match look() {
        Err(error) if is_half(&error) => {
            std::thread::sleep(RENEWAL_PAUSE);
            look()
        }
        result => result,
    }
}

/// A certificate with its chain, its key and the names it is for.
#[derive(Debug)]
pub(super) struct Certificate {
    /// Digest of its files.
    digest: [u8; 32],
    pub(super) key: Arc<CertifiedKey>,
    names: Vec<String>,
    pub(super) end: Timestamp,
}

/// Certificates in the order of the settings.
#[derive(Debug)]
struct CertificateSet(Vec<Arc<Certificate>>);

/// Certificates of a listener: the one for the name that a client asks for, else one for a wildcard
/// over it, else the first.
pub struct Certificates {
    files: Vec<CertificateFiles>,
    clock: Arc<dyn Clock>,
    set: ArcSwap<CertificateSet>,
}

impl Certificates {
    /// Reads all files, and requires all of them to be right.
    pub fn load(
        files: &[CertificateFiles],
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Certificates>, CertificateError> {
        let set = CertificateSet::read(files, clock.now(), &[])?;
        Ok(Arc::new(Certificates {
            files: files.to_vec(),
            clock,
            set: ArcSwap::from_pointee(set),
        }))
    }

    /// Looks at the files again. A changed file that is wrong leaves everything as it was: half a
    /// renewal is none. A certificate that has ended without renewal does not block renewals of
    /// others. Blocks for some small files, and for half a second if a key does not match its
    /// certificate: a renewal changes one file after the other.
    pub fn reload(&self) -> Result<Reload, CertificateError> {
        look_twice(|| self.look(), CertificateError::is_half)
    }

    fn look(&self) -> Result<Reload, CertificateError> {
        let previous = self.set.load();
        let set = CertificateSet::read(&self.files, self.clock.now(), &previous.0)?;
        if set
            .0
            .iter()
            .zip(&previous.0)
            .all(|(new, old)| Arc::ptr_eq(new, old))
        {
            return Ok(Reload::Unchanged);
        }
        self.set.store(Arc::new(set));
        Ok(Reload::Reloaded)
    }

    /// Earliest end of any certificate.
    pub fn expires_at(&self) -> Timestamp {
        let set = self.set.load();
        let ends = set.0.iter().map(|certificate| certificate.end);
        ends.min().unwrap_or(Timestamp::ZERO)
    }

    /// Time until the earliest end; zero once it is over.
    pub fn expires_in(&self) -> Duration {
        self.expires_at().since(self.clock.now())
    }

    /// Looks at the files of `section` until dropped. Unusable files change nothing. The earliest
    /// end is exported as that of `listener`.
    pub async fn keep(self: Arc<Self>, listener: &'static str, section: &str) {
        let expiry = gauge!("cert_expiry_seconds", "listener" => listener);
        expiry.set(self.expires_in().as_secs_f64());
        let look = move || {
            let result = self.reload();
            expiry.set(self.expires_in().as_secs_f64());
            result
        };
        let reloads = |result: &'static str| counter!("tls_reloads_total", "result" => result);
        reread(section, reloads, look).await;
    }
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Certificates { files, .. } = self;
        f.debug_struct("Certificates")
            .field("files", files)
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let set = self.set.load();
        let certificate = set.find(hello.server_name().unwrap_or_default())?;
        Some(certificate.key.clone())
    }
}

impl ResolvesClientCert for Certificates {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let set = self.set.load();
        set.0.first().map(|certificate| certificate.key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl CertificateSet {
    /// Reads all files; certificates of unchanged files are taken from `previous`.
    fn read(
        files: &[CertificateFiles],
        now: Timestamp,
        previous: &[Arc<Certificate>],
    ) -> Result<CertificateSet, CertificateError> {
        if files.is_empty() {
            return Err(CertificateError::Empty);
        }
        let read = |(index, files): (usize, &CertificateFiles)| {
            let contents = [read_file(&files.cert_file)?, read_file(&files.key_file)?];
            let digest = digest(&contents);
            let [cert, key] = contents;
            match previous.get(index) {
                Some(previous) if previous.digest == digest => Ok(Arc::clone(previous)),
                _ => Certificate::parse(files, &cert, &key, digest, now).map(Arc::new),
            }
        };
        let certificates = files.iter().enumerate().map(read);
        Ok(CertificateSet(certificates.collect::<Result<_, _>>()?))
    }

    fn find(&self, name: &str) -> Option<&Arc<Certificate>> {
        let wildcard = name
            .split_once('.')
            .map(|(_, parent)| format!("*.{parent}"));
        let matching = |pattern: &str| {
            self.0.iter().find(|certificate| {
                let mut names = certificate.names.iter();
                names.any(|name| name.eq_ignore_ascii_case(pattern))
            })
        };
        matching(name)
            .or_else(|| wildcard.as_deref().and_then(matching))
            .or_else(|| self.0.first())
    }
}

impl Certificate {
    pub(super) fn parse(
        files: &CertificateFiles,
        cert: &[u8],
        key: &[u8],
        digest: [u8; 32],
        now: Timestamp,
    ) -> Result<Certificate, CertificateError> {
        let CertificateFiles {
            cert_file,
            key_file,
        } = files;
        let chain = parse_certificates(cert_file, cert)?;
        let first = chain
            .first()
            .ok_or_else(|| CertificateError::NoCertificate(cert_file.clone()))?;
        let (names, end) = names_and_end(cert_file, first, now)?;
        // Logs must show neither the file's content nor the position of the fault.
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| CertificateError::NoKey(key_file.clone()))?;
        let key =
            CertifiedKey::from_der(chain, key, &super::provider()).map_err(
                |error| match error {
                    RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                        CertificateError::Mismatch {
                            cert_file: cert_file.clone(),
                            key_file: key_file.clone(),
                        }
                    }
                    error => CertificateError::malformed(key_file, &error),
                },
            )?;
        Ok(Certificate {
            digest,
            key: Arc::new(key),
            names,
            end,
        })
    }
}

fn names_and_end(
    path: &Path,
    certificate: &CertificateDer<'_>,
    now: Timestamp,
) -> Result<(Vec<String>, Timestamp), CertificateError> {
    let (_, certificate) = X509Certificate::from_der(certificate)
        .map_err(|error| CertificateError::malformed(path, &error))?;
    let begin = certificate.validity().not_before;
    if Timestamp::from_millis(begin.timestamp().saturating_mul(1000)) > now {
        return Err(CertificateError::Early {
            path: path.into(),
            begin: begin.to_string(),
        });
    }
    let date = certificate.validity().not_after;
    let end = Timestamp::from_millis(date.timestamp().saturating_mul(1000));
    if end <= now {
        return Err(CertificateError::Expired {
            path: path.into(),
            end: date.to_string(),
        });
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| CertificateError::malformed(path, &error))?
        .into_iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect();
    Ok((names, end))
}

/// Reads the URIs and the end of a certificate.
pub(super) fn uris_and_end(
    certificate: &CertificateDer<'_>,
) -> Result<(Vec<String>, Timestamp), String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| error.to_string())?;
    let uris = names
        .into_iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
    let end = certificate.validity().not_after.timestamp();
    let end = Timestamp::from_millis(end.saturating_mul(1000));
    Ok((uris.collect(), end))
}

pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, CertificateError> {
    std::fs::read(path).map_err(|source| CertificateError::Read {
        path: path.into(),
        source,
    })
}

/// Reads all certificates of a file; at least one.
pub(super) fn read_certificates(
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    parse_certificates(path, &read_file(path)?)
}

pub(super) fn parse_certificates(
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(content)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::malformed(path, &error))?;
    if certificates.is_empty() {
        Err(CertificateError::NoCertificate(path.into()))
    } else {
        Ok(certificates)
    }
}
