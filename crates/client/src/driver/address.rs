use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use tokio_tungstenite::tungstenite::http::Uri;

/// A boat's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    text: String,
    carrier: Carrier,
    is_secure: bool,
    /// Host, without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

/// Transport that delimits the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    WebSocket,
    Tcp,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a boat address: use wss://host or tls://host:port, or ws://host:port or \
     tcp://host:port without TLS"
)]
pub struct AddressError(String);

impl Address {
    /// Address as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the address asks for TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        read(text).ok_or_else(|| AddressError(text.chars().take(100).collect()))
    }
}

fn read(text: &str) -> Option<Address> {
    let uri: Uri = text.parse().ok()?;
    let (carrier, is_secure) = match uri.scheme_str()? {
        "ws" => (Carrier::WebSocket, false),
        "wss" => (Carrier::WebSocket, true),
        "tcp" => (Carrier::Tcp, false),
        "tls" => (Carrier::Tcp, true),
        _ => return None,
    };
    let (authority, host) = (uri.authority()?.as_str(), uri.host()?);
    let usual = match (carrier, is_secure) {
        (Carrier::Tcp, _) => None,
        (Carrier::WebSocket, true) => Some(443),
        (Carrier::WebSocket, false) => Some(80),
    };
    // Rejects a name and password before the host, and a port that is no number.
    let port = match authority.strip_prefix(host)? {
        "" => usual,
        port => port.strip_prefix(':')?.parse().ok(),
    }?;
    let is_path_known = carrier == Carrier::WebSocket || matches!(uri.path(), "" | "/");
    (!host.is_empty() && is_path_known).then(|| Address {
        text: text.to_owned(),
        carrier,
        is_secure,
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
    })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_websocket_or_tcp_with_tls_or_without() {
        use Carrier::{Tcp, WebSocket};
        for (good, carrier, is_secure, host, port) in [
            ("ws://127.0.0.1:9000", WebSocket, false, "127.0.0.1", 9000),
            ("ws://boat/path", WebSocket, false, "boat", 80),
            (
                "wss://chat.example/ws",
                WebSocket,
                true,
                "chat.example",
                443,
            ),
            (
                "wss://chat.example:9000",
                WebSocket,
                true,
                "chat.example",
                9000,
            ),
            ("wss://[::1]:9000/ws?a=b", WebSocket, true, "::1", 9000),
            ("tcp://[::1]:9001", Tcp, false, "::1", 9001),
            ("tcp://boat:9001/", Tcp, false, "boat", 9001),
            ("tls://chat.example:9001", Tcp, true, "chat.example", 9001),
        ] {
            let address: Address = good.parse().expect(good);
            assert_eq!(address.to_string(), good);
            assert_eq!(
                (address.carrier(), address.is_secure()),
                (carrier, is_secure)
            );
            assert_eq!((address.host(), address.port()), (host, port));
        }
        for bad in [
            "",
            "boat:9000",
            "ws://",
            "ws://:80",
            "wss://a:99999",
            "wss://a:",
            "wss://me:secret@a",
            "tcp://boat",
            "tls://boat",
            "tls://boat:9001/ws",
            "tcp://:1",
            "tcp://a:99999",
            "http://a:1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
