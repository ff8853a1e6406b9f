//! Problems with settings, as values, collected before anything starts.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An impossible setting: its key, its value, the reason, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub key: String,
    /// Empty if it tells nothing, or too much.
    pub value: String,
    pub reason: String,
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if !self.value.is_empty() {
            write!(f, " is {}", self.value)?;
        }
        write!(f, ": {}", self.reason)?;
        match self.remedy.as_str() {
            "" => Ok(()),
            remedy => write!(f, ". {remedy}"),
        }
    }
}

/// All problems of a section, in the order of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Refuses `value` at `key`, which counts from the section.
    pub fn refuse(&mut self, key: &str, value: impl fmt::Display, reason: &str, remedy: &str) {
        self.0.push(Problem {
            key: key.into(),
            value: value.to_string(),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    /// Takes over the problems of section `name`.
    pub fn section(&mut self, name: &str, problems: Problems) {
        self.0.extend(problems.0.into_iter().map(|problem| Problem {
            key: format!("{name}.{}", problem.key),
            ..problem
        }));
    }

    /// Takes over problems whose keys count from the same section.
    pub fn extend(&mut self, problems: Problems) {
        self.0.extend(problems.0);
    }

    /// Refuses each of `addresses` that is not `host:port`.
    pub fn addresses(&mut self, key: &str, addresses: &[String]) {
        if addresses.is_empty() {
            let remedy = "Set at least one as host:port";
            self.refuse(key, "empty", "no address given", remedy);
        }
        for address in addresses.iter().filter(|address| !is_address(address)) {
            // An address with a user usually has a password, too.
            let value = if address.contains('@') {
                String::new()
            } else {
                format!("{address:?}")
            };
            self.refuse(key, value, "not an address", "Use host:port");
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

/// `host:port`, `10.0.0.7:9100`, `[::1]:9100`.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let (open, close) = (host.starts_with('['), host.ends_with(']'));
    let plain = !host.contains([':', '/', '@', '?', '#', ' ', '[', ']']);
    !host.is_empty() && (plain || (open && close)) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// `http://host:port` or `https://host:port`, for calls between services.
#[must_use]
pub fn is_http_address(text: &str) -> bool {
    let rest = text.strip_prefix("http://");
    let rest = rest.or_else(|| text.strip_prefix("https://"));
    let rest = rest.unwrap_or_default();
    is_address(rest.strip_suffix('/').unwrap_or(rest))
}

/// `wss://host/path`, `ws://host:port`, `tls://host:port` or `tcp://host:port`, for clients of a
/// boat.
#[must_use]
pub fn is_client_address(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    if text.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return false;
    }
    let host = rest.split('/').next().unwrap_or_default();
    match scheme {
        "ws" | "wss" => is_address(host) || is_address(&format!("{host}:80")),
        "tcp" | "tls" => is_address(rest),
        _ => false,
    }
}

/// Whether an address, with or without a scheme, may belong to another machine, as names other than
/// `localhost` may.
#[must_use]
pub fn is_far(address: &str) -> bool {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(ip) => !ip.is_loopback(),
        Err(_) => host != "localhost",
    }
}

/// Placeholder for a secret.
pub const STRUCK: &str = "(redacted)";

/// Whether a setting or property of this name holds a secret itself, rather than the path of a file
/// with one: `sasl.password`, `ssl.key.pem`, `token`; not `key_file`, `token_bytes_max`.
#[must_use]
pub fn names_secret(name: &str) -> bool {
    const WORDS: [&str; 6] = [
        "password",
        "passphrase",
        "secret",
        "key.pem",
        "jaas",
        "token",
    ];
    // Paths, numbers and URLs.
    const PUBLIC: [&str; 3] = ["_file", "_max", ".endpoint.url"];
    let name = name.to_ascii_lowercase();
    let is_public = PUBLIC.iter().any(|end| name.ends_with(end));
    !is_public && (name == "key" || WORDS.iter().any(|word| name.contains(word)))
}

/// Strips user info and query off a URL; leaves any other text as it is.
#[must_use]
pub fn strike(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.into();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{STRUCK}@{host}"),
        None => authority.into(),
    };
    let path = match path.find(['?', '#']) {
        Some(at) => format!("{}?{STRUCK}", &path[..at]),
        None => path.into(),
    };
    format!("{scheme}://{authority}{path}")
}

/// An address that may hold a user or a token: displayed without them, everywhere.
#[derive(Clone)]
pub struct Link(SecretString);

impl Link {
    /// The whole address, for dialling it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<&str> for Link {
    fn from(text: &str) -> Link {
        Link(text.into())
    }
}

impl PartialEq for Link {
    fn eq(&self, other: &Link) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Link {}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&strike(self.expose()))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", strike(self.expose()))
    }
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Link, D::Error> {
        String::deserialize(from).map(|text| Link(text.into()))
    }
}

impl JsonSchema for Link {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Link".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "uri" })
    }
}

/// Schema of a duration as settings write it: `500ms`, `10s`, `60days`.
pub struct Span;

/// The `format` of a [`Span`].
pub const SPAN: &str = "span";

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": SPAN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_key_value_reason_and_remedy() {
        let mut inner = Problems::default();
        inner.refuse("leeway", "1h", "tokens would not end", "At most 60s");
        inner.addresses("listen", &[]);
        let mut all = Problems::default();
        all.section("auth", inner);
        assert_eq!(
            all.to_string(),
            "auth.leeway is 1h: tokens would not end. At most 60s\n\
             auth.listen is empty: no address given. Set at least one as host:port"
        );
    }

    #[test]
    fn a_url_is_shown_without_user_and_query() {
        for (url, shown) in [
            (
                "https://user:tok@push.example/call?token=s3cr3t#x",
                "https://(redacted)@push.example/call?(redacted)",
            ),
            ("http://host:4317", "http://host:4317"),
            ("http://host?token=1", "http://host?(redacted)"),
            ("info,boat=debug", "info,boat=debug"),
        ] {
            assert_eq!(strike(url), shown);
            let link = Link::from(url);
            let json = serde_json::to_value(&link).expect("JSON");
            let outputs = [
                link.to_string(),
                json.as_str().unwrap_or_default().to_owned(),
            ];
            assert_eq!(outputs, [shown, shown]);
            assert_eq!(format!("{link:?}"), format!("{shown:?}"));
            assert_eq!(link.expose(), url);
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (text, is_one) in [
            ("kafka:9092", true),
            ("10.0.0.7:1", true),
            ("[::1]:9092", true),
            ("kafka", false),
            ("kafka:0", false),
            ("kafka:70000", false),
            (":9092", false),
            ("http://kafka:9092", false),
            ("::1:9092", false),
            ("user@kafka:9092", false),
        ] {
            assert_eq!(is_address(text), is_one, "{text}");
        }
        for (text, far) in [
            ("localhost:9092", false),
            ("127.0.0.3:9042", false),
            ("http://[::1]:2379", false),
            ("https://localhost:2379/", false),
            ("kafka:9092", true),
            ("https://etcd:2379", true),
            ("10.0.0.7:6379", true),
            ("[2001:db8::1]:9042", true),
            ("localhost.example:1", true),
        ] {
            assert_eq!(is_far(text), far, "{text}");
        }
        assert!(is_http_address("http://10.0.0.7:9110"));
        assert!(is_http_address("https://boat:9110"));
        assert!(!is_http_address("10.0.0.7:9110"));
        assert!(!is_http_address("http://10.0.0.7"));
    }

    #[test]
    fn addresses_of_boats_for_clients() {
        for good in [
            "wss://chat.example.com",
            "wss://chat.example.com/ws",
            "ws://127.0.0.1:9000",
            "tls://[::1]:9001",
            "tcp://boat-1:9001",
        ] {
            assert!(is_client_address(good), "{good}");
        }
        for bad in [
            "chat.example.com",
            "https://chat.example.com",
            "wss://",
            "wss://:9000",
            "wss://host:99999",
            "tls://host",
            "tls://[::1]",
            "tcp://host:9001/ws",
            "wss://a b",
            "wss://user@host",
        ] {
            assert!(!is_client_address(bad), "{bad}");
        }
    }
}
