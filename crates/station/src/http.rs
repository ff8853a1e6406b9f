//! Settings of a station's public HTTP port, each with what happens at its bound.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use backend::rate_limit::{AddressDefaults, Rate};
use backend::tls::HttpTlsConfig;
use ipnet::IpNet;
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Usual rate of requests from one address, per second, and its burst.
const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(10).expect("positive");
const REQUESTS_BURST: NonZeroU32 = NonZeroU32::new(20).expect("positive");

/// Section `station.http`: `GET /v1/edges`, which lists the addresses of boats for clients.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the port, for clients. Unset: no port. Off loopback it requires `tls`.
    #[schemars(extend("examples" = ["0.0.0.0:9101"]))]
    pub listen: Option<SocketAddr>,
    /// Section `station.http.tls`: TLS of the port.
    pub tls: HttpTlsConfig,
    /// Networks of balancers that speak HTTP in front of this port, such as `10.0.0.0/8`. Requests
    /// from them must carry X-Forwarded-For, which names the client; from other networks it is
    /// never read.
    #[schemars(with = "Vec<String>")]
    pub proxy_networks: Vec<IpNet>,
    /// Maximum number of connections to the port, capped at a quarter of the files that the process
    /// may open. Further ones wait in the kernel.
    #[serde(skip)]
    pub connections_max: usize,
    /// Sustained rate of requests from one address, per second. Further ones are answered 429. The
    /// rate of new connections is limited to twice as many; those beyond are closed. Unset: 10, or
    /// ten times that off loopback without
    /// `proxy_networks`, where many clients may share an address.
    #[serde(skip)]
    pub requests_per_address: Option<NonZeroU32>,
}

/// Limits on one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBounds {
    pub connections_max: usize,
    pub requests: Rate,
    /// Twice the rate of requests, so that a client that is too fast mostly gets an answer that
    /// says so.
    pub arrivals: Rate,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: None,
            tls: HttpTlsConfig::default(),
            proxy_networks: Vec::new(),
            connections_max: 4096,
            requests_per_address: None,
        }
    }
}

impl Config {
    /// Leaves three quarters of the files that this process may open to calls and backends:
    /// strangers hold the others.
    pub fn fit_files(&mut self, files: u64) {
        let limit = usize::try_from(files / 4).unwrap_or(usize::MAX).max(1);
        self.connections_max = self.connections_max.min(limit);
    }

    /// Limits on one address, those that are unset by what an address stands for.
    pub fn address_bounds(&self) -> AddressBounds {
        let is_local = self.listen.is_none_or(|it| it.ip().is_loopback());
        let defaults = AddressDefaults::new(is_local, !self.proxy_networks.is_empty());
        let requests = defaults.count(self.requests_per_address, REQUESTS_PER_SECOND);
        let burst = defaults.count(None, REQUESTS_BURST);
        let double = |count: NonZeroU32| count.saturating_add(count.get());
        AddressBounds {
            connections_max: defaults.connections(None, 64),
            requests: Rate::per_second(requests, burst),
            arrivals: Rate::per_second(double(requests), double(burst)),
        }
    }

    /// Settings that cannot work, by names of this section, including unusable files of `tls`.
    #[must_use]
    pub(crate) fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Some(address) = self.listen.filter(|it| self.tls.is_missing_at(*it)) {
            let reason =
                "reachable from other machines without TLS: an attacker could redirect clients";
            let remedy = "Set station.http.tls.cert_file and key_file, or listen on 127.0.0.1, or \
                          put a proxy that terminates TLS in front and set \
                          station.http.tls.offloaded = true";
            problems.refuse("listen", address, reason, remedy);
        }
        problems.section("tls", self.tls.problems());
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_loopback_it_wants_tls() {
        let problems = |listen: &str, offloaded| {
            let mut config = Config {
                listen: Some(listen.parse().expect("an address")),
                ..Config::default()
            };
            config.tls.offloaded = offloaded;
            config.problems().to_string()
        };
        let text = problems("0.0.0.0:9101", false);
        assert!(text.starts_with("listen is 0.0.0.0:9101"), "{text}");
        assert_eq!(problems("0.0.0.0:9101", true), "");
        assert_eq!(problems("[::1]:9101", false), "");
        assert_eq!(Config::default().problems().to_string(), "");
    }

    #[test]
    fn an_address_that_may_stand_for_many_has_ten_times_the_limits() {
        let count = |number| NonZeroU32::new(number).expect("not zero");
        let rate = |per_second, burst| Rate::per_second(count(per_second), count(burst));
        let local = Config::default();
        let open = Config {
            listen: Some(([0, 0, 0, 0], 9101).into()),
            ..Config::default()
        };
        let behind_proxy = Config {
            proxy_networks: vec!["10.0.0.0/8".parse().expect("a network")],
            ..open.clone()
        };
        let usual = AddressBounds {
            connections_max: 64,
            requests: rate(10, 20),
            arrivals: rate(20, 40),
        };
        assert_eq!(local.address_bounds(), usual);
        assert_eq!(behind_proxy.address_bounds(), usual);
        let expected = AddressBounds {
            connections_max: 640,
            requests: rate(100, 200),
            arrivals: rate(200, 400),
        };
        assert_eq!(open.address_bounds(), expected);
    }

    #[test]
    fn strangers_take_a_quarter_of_the_files() {
        for (files, expected) in [(1024, 256), (1_000_000, 4096), (0, 1)] {
            let mut config = Config::default();
            config.fit_files(files);
            assert_eq!(config.connections_max, expected);
        }
    }
}
