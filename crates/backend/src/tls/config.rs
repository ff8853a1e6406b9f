//! Settings of a listener's TLS.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CertificateError, Certificates};
use crate::clock::{Clock, SystemClock};

/// Section `tls` of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates and their keys. A client gets the one for the name it asks for, else the one
    /// for a wildcard that covers the name, else the first. Changed files are read again; unusable
    /// ones change nothing. Empty: no TLS.
    pub certificates: Vec<CertificateFiles>,
    /// Oldest TLS version that clients may speak.
    pub min: TlsVersion,
    /// Declares that a proxy in front of this listener ends TLS. Without it, and without
    /// certificates, only addresses of this machine are allowed.
    pub offloaded: bool,
}

/// See [`TlsConfig::certificates`].
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// PEM file with the certificate, followed by its intermediates.
    pub cert_file: PathBuf,
    /// PEM file with the private key, without a passphrase.
    pub key_file: PathBuf,
}

/// See [`TlsConfig::min`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub enum TlsVersion {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

impl CertificateFiles {
    /// Returns `stem.crt` and `stem.key` in this folder.
    pub fn within(folder: &Path, stem: &str) -> CertificateFiles {
        CertificateFiles {
            cert_file: folder.join(format!("{stem}.crt")),
            key_file: folder.join(format!("{stem}.key")),
        }
    }

    /// Writes both files, in PEM.
    pub fn write(&self, certificate: &str, key: &str) -> io::Result<()> {
        std::fs::write(&self.cert_file, certificate)?;
        std::fs::write(&self.key_file, key)
    }

    /// Renders these files as the whole value of [`TlsConfig::certificates`], in TOML.
    pub fn setting(&self) -> String {
        let CertificateFiles {
            cert_file,
            key_file,
        } = self;
        format!("[{{ cert_file = {cert_file:?}, key_file = {key_file:?} }}]")
    }
}

impl TlsConfig {
    pub fn is_on(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// All problems of a listener on `address`, unusable files included.
    #[must_use]
    pub fn check(&self, address: SocketAddr, clock: &Arc<dyn Clock>) -> Problems {
        let mut problems = Problems::default();
        if self.is_on() && self.offloaded {
            let reason = "certificates are set as well: TLS ends either here or at a proxy";
            let remedy = "Remove the certificates, or set it to false";
            problems.refuse("offloaded", true, reason, remedy);
        }
        if !self.is_on() && !self.offloaded && !address.ip().is_loopback() {
            let reason = format!("traffic to {address} would not be encrypted");
            let remedy = "Set certificates, or set offloaded = true if a proxy terminates TLS";
            problems.refuse("certificates", "empty", &reason, remedy);
        }
        for (index, files) in self.certificates.iter().enumerate() {
            let read = Certificates::load(std::slice::from_ref(files), clock.clone());
            if let Err(error) = read {
                let key = format!("certificates[{index}]");
                problems.refuse(&key, "", &error.to_string(), "");
            }
        }
        problems
    }
}

/// Section `tls` of an HTTP port.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpTlsConfig {
    /// PEM file with the certificate of this port, followed by its intermediates. Read again when
    /// it changes, as is the key; unusable files change nothing. Unset: no TLS.
    #[schemars(extend("examples" = ["/etc/packetboat/http/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/http/tls.key"]))]
    pub key_file: Option<PathBuf>,
    /// Declares that a proxy in front of this port ends TLS, or that the network between is
    /// private.
    pub offloaded: bool,
}

impl HttpTlsConfig {
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether other machines can reach this address, TLS is off, and no proxy is said to end it.
    pub fn is_missing_at(&self, address: SocketAddr) -> bool {
        !address.ip().is_loopback() && !self.is_on() && !self.offloaded
    }

    fn files(&self) -> Option<CertificateFiles> {
        Some(CertificateFiles {
            cert_file: self.cert_file.clone()?,
            key_file: self.key_file.clone()?,
        })
    }

    /// Settings that cannot work, by names of this section, unusable files included.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.cert_file.is_some() != self.key_file.is_some() {
            let reason = "a certificate and its key must be set together";
            problems.refuse("cert_file", "", reason, "Set both files or none");
        }
        if self.is_on() && self.offloaded {
            let reason = "a certificate is set as well: TLS ends either here or at a proxy";
            let remedy = "Remove cert_file and key_file, or set it to false";
            problems.refuse("offloaded", true, reason, remedy);
        }
        if let Err(error) = self.load() {
            problems.refuse("cert_file", "", &error.to_string(), "");
        }
        problems
    }

    /// Reads the files; none if the port speaks no TLS.
    ///
    /// # Errors
    /// An unreadable file, a key of another certificate, an expired certificate.
    pub fn load(&self) -> Result<Option<Arc<Certificates>>, CertificateError> {
        let files = self.files();
        let load = |files| Certificates::load(&[files], Arc::new(SystemClock));
        files.map(load).transpose()
    }
}
