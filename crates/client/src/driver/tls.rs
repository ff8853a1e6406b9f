//! TLS below either carrier, and the texts of its errors.

use std::io;
use std::sync::Arc;

use protocol::Refusal;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Address;
use super::address::Carrier;
use super::connection::lost;

/// Names of a wrong certificate that an error lists.
const NAMES_TOLD: usize = 3;

/// TLS with one address.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// `None`: no certificate can be for the host of the address.
    pub(super) fn new(address: &Address, trust: &ClientConfig) -> Option<Tls> {
        let mut config = trust.clone();
        let protocol = match address.carrier() {
            Carrier::WebSocket => "http/1.1",
            Carrier::Tcp => "packetboat.v1",
        };
        config.alpn_protocols = vec![protocol.into()];
        Some(Tls {
            connector: Arc::new(config).into(),
            name: ServerName::try_from(address.host().to_owned()).ok()?,
        })
    }

    pub(super) async fn connect<S>(
        &self,
        address: &Address,
        stream: S,
    ) -> Result<TlsStream<S>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let result = self.connector.connect(self.name.clone(), stream).await;
        result.map_err(|error| lost(words(address, &error)))
    }
}

fn words(address: &Address, error: &io::Error) -> String {
    let host = address.host();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(Error::InvalidCertificate(problem)) => certificate(host, problem),
        Some(Error::InvalidMessage(_)) => {
            format!("{address} does not speak TLS: is it the right port?")
        }
        Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => format!(
            "{address} speaks another protocol: use wss:// for the WebSocket port, tls:// for the TCP port"
        ),
        Some(error) => format!("no TLS with {address}: {error}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("{address} closed the connection during the TLS handshake: does it speak TLS?")
        }
        None => format!("no TLS with {address}: {error}"),
    }
}

fn certificate(host: &str, problem: &CertificateError) -> String {
    match problem {
        // The latter if the signer bears a trusted name, but has another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {host} is not trusted: unknown issuer; set the file with its root \
             certificate (--ca-file)"
        ),
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            let names: Vec<_> = presented
                .iter()
                .take(NAMES_TOLD)
                .map(|name| bare(name))
                .collect();
            let names = names.join(", ");
            format!(
                "the certificate is for {names}, not for {host}: use a URL with one of its names"
            )
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the certificate is not for {host}: use a URL with one of its names")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate of {host} has expired, if the clock here is right: renew it")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {host} is not valid yet, if the clock here is right")
        }
        problem => format!("the certificate of {host} is not trusted: {problem}"),
    }
}

/// `DnsName("boat.example")` without its kind.
fn bare(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}
