use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A boat's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The whole URL.
    WebSocket(String),
    /// Host and port.
    Tcp(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no address of a boat: use ws://host:port or tcp://host:port")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let refuse = || AddressError(text.chars().take(100).collect());
        if let Some(rest) = text.strip_prefix("ws://") {
            let host = rest.split('/').next().unwrap_or_default();
            (!host.is_empty()).then(|| Address::WebSocket(text.to_owned()))
        } else if let Some(rest) = text.strip_prefix("tcp://") {
            let rest = rest.trim_end_matches('/');
            let (host, port) = rest.rsplit_once(':').ok_or_else(refuse)?;
            let is_port = port.parse::<u16>().is_ok();
            (!host.is_empty() && is_port).then(|| Address::Tcp(rest.to_owned()))
        } else {
            None
        }
        .ok_or_else(refuse)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::WebSocket(url) => f.write_str(url),
            Address::Tcp(host) => write!(f, "tcp://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_websocket_or_tcp() {
        for good in ["ws://127.0.0.1:9000", "ws://boat/path", "tcp://[::1]:9001"] {
            let address: Address = good.parse().expect(good);
            assert_eq!(address.to_string(), good);
        }
        for bad in [
            "",
            "ws://",
            "tcp://boat",
            "tcp://:1",
            "tcp://a:99999",
            "http://a:1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
