//! Rules for the web pages that may call a port, by `Host` and `Origin`, which only browsers cannot
//! forge.

use std::net::IpAddr;

/// A host and its port, as `Host` and `Origin` write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    pub name: &'a str,
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    pub fn parse(text: &'a str) -> Option<Authority<'a>> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, rest) = rest.split_once(']')?;
                (
                    name,
                    rest.strip_prefix(':')
                        .or_else(|| rest.is_empty().then_some("")),
                )
            }
            None => match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, Some("")),
            },
        };
        let port = match port? {
            "" => None,
            digits => Some(digits.parse().ok()?),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let is_valid = !name.is_empty() && name.chars().all(is_name);
        is_valid.then_some(Authority { name, port })
    }

    /// Authority of `scheme://host[:port]`; the scheme's default port counts as none.
    pub fn from_origin(origin: &'a str) -> Option<Authority<'a>> {
        let (scheme, rest) = origin.split_once("://")?;
        let mut authority = Authority::parse(rest)?;
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        authority.port = authority.port.filter(|port| *port != default_port);
        Some(authority)
    }

    pub fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    pub fn ip(&self) -> Option<IpAddr> {
        self.name.parse().ok()
    }

    pub fn is_loopback(&self) -> bool {
        self.is_named("localhost") || self.ip().is_some_and(|ip| ip.is_loopback())
    }
}

/// Whether a page of this origin may open a connection. `rules` are exact `scheme://host[:port]`,
/// with one label open as in `https://*.example.com`, or `*`. Without rules the page must come from
/// the host that it calls, and, on a port for this machine only (`on_loopback`), from this machine:
/// a foreign name that resolves to it belongs to another site's page. All loopback names are one
/// host: a page of `localhost` may call `127.0.0.1`.
pub fn is_welcome(origin: &str, host: Option<&str>, rules: &[String], on_loopback: bool) -> bool {
    if !rules.is_empty() {
        return rules.iter().any(|rule| matches(rule, origin));
    }
    let from = Authority::from_origin(origin);
    let (Some(from), Some(to)) = (from, host.and_then(Authority::parse)) else {
        return false;
    };
    let is_same_host = from.is_named(to.name) || (from.is_loopback() && to.is_loopback());
    is_same_host && (!on_loopback || from.is_loopback())
}

fn matches(rule: &str, origin: &str) -> bool {
    let Some((scheme, parent)) = rule.split_once("://*.") else {
        return rule == "*" || rule.eq_ignore_ascii_case(origin);
    };
    let Some((from, host)) = origin.split_once("://") else {
        return false;
    };
    let label = host.split_once('.');
    let under =
        label.is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(parent));
    from.eq_ignore_ascii_case(scheme) && under
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_same_host_is_welcome_and_no_other() {
        let welcome = |origin, host, loopback| is_welcome(origin, Some(host), &[], loopback);
        assert!(welcome("https://chat.example", "chat.example", false));
        assert!(welcome(
            "https://Chat.Example:8443",
            "chat.example:9000",
            false
        ));
        assert!(!welcome("https://evil.example", "chat.example", false));
        assert!(!welcome(
            "https://chat.example.evil.example",
            "chat.example",
            false
        ));
        assert!(!welcome("null", "chat.example", false));
        assert!(!is_welcome("https://chat.example", None, &[], false));
        assert!(welcome("http://localhost:5173", "localhost:9000", true));
        assert!(welcome("http://[::1]:5173", "[::1]:9000", true));
        // A foreign name that resolves to this machine.
        assert!(!welcome(
            "http://evil.example:9000",
            "evil.example:9000",
            true
        ));
    }

    #[test]
    fn a_page_of_this_machine_calls_any_loopback_name() {
        let welcome = |origin: &str, host: &str, loopback: bool| {
            is_welcome(origin, Some(host), &[], loopback)
        };
        let hosts = [
            "localhost:9000",
            "127.0.0.1:9000",
            "127.8.0.1:9000",
            "[::1]:9000",
        ];
        for from in [
            "localhost",
            "LocalHost:3000",
            "127.0.0.1:3000",
            "[::1]:3000",
        ] {
            let origin = format!("http://{from}");
            for host in hosts {
                assert!(welcome(&origin, host, true), "{origin} {host}");
                assert!(welcome(&origin, host, false), "{origin} {host}");
            }
            // Not a name of this machine alone.
            for host in ["chat.example:9000", "10.0.0.7:9000", "localhost.example"] {
                assert!(!welcome(&origin, host, true), "{origin} {host}");
                assert!(!welcome(&origin, host, false), "{origin} {host}");
            }
        }
        for origin in [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://10.0.0.7:3000",
            "null",
        ] {
            for host in hosts {
                assert!(!welcome(origin, host, true), "{origin} {host}");
            }
        }
    }

    #[test]
    fn rules_are_exact_or_leave_one_label_open() {
        let rules = [
            "https://chat.example".to_owned(),
            "https://*.apps.example".to_owned(),
        ];
        let welcome = |origin| is_welcome(origin, Some("boat"), &rules, false);
        assert!(welcome("https://chat.example"));
        assert!(welcome("https://one.apps.example"));
        for origin in [
            "http://chat.example",
            "https://chat.example:8443",
            "https://apps.example",
            "https://.apps.example",
            "https://a.b.apps.example",
            "https://apps.example.evil.example",
            "https://evilapps.example",
        ] {
            assert!(!welcome(origin), "{origin}");
        }
        assert!(is_welcome(
            "https://any.example",
            None,
            &["*".to_owned()],
            true
        ));
    }

    #[test]
    fn authorities_have_names_and_ports() {
        let parse = |text| Authority::parse(text).map(|a| (a.name, a.port));
        assert_eq!(parse("localhost:9190"), Some(("localhost", Some(9190))));
        assert_eq!(parse("[::1]:9190"), Some(("::1", Some(9190))));
        assert_eq!(parse("[::1]"), Some(("::1", None)));
        for text in [
            "",
            ":9190",
            "a:b",
            "a:99999",
            "[::1",
            "[::1]9190",
            "a/b",
            "a@b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
