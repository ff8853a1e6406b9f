//! Settings of a boat, each with what happens at its bound.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZero, NonZeroU32};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use backend::clock::{Clock, SystemClock};
use backend::rate_limit::{AddressDefaults, Rate};
use backend::tls::TlsConfig;
use ipnet::IpNet;
use protocol::bounds::ENVELOPE_BYTES_MAX;
use protocol::drain::DrainBounds;
use protocol::session::SessionLimits;
use protocol::settings::{Problems, is_client_address, is_http_address};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A core signs in about ten thousand clients a second: most of its time stays with admitted ones.
pub const ACCEPTS_PER_CORE: u32 = 2_000;

/// Lowest read rate: a read takes 64 KiB at once, whatever the rate.
const READ_BYTES_PER_SECOND_MIN: u32 = 16 * 1024;

/// Clients sent away per second by all boats that drain at the same time: the sign-ins that
/// stations can take.
const DRAIN_PACE_CLUSTER: NonZeroU32 = count(10_000);

/// Files of a boat that are not clients' sockets: those of parts, services and logs.
const OTHER_FILES: usize = 1024;

/// Section `boat`: connections of clients.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of this boat, unique in the cluster.
    pub name: String,
    /// Address for WebSocket clients (`/` and `/ws`). Port 0 picks a free one.
    pub websocket: SocketAddr,
    /// Origins whose pages may open a WebSocket: `https://chat.example.com`,
    /// `https://*.example.com`, or `*`. Empty: pages of the host that they call, and on loopback
    /// those of this machine. Apps, which send no origin, are always allowed.
    pub origins: Vec<String>,
    /// Address for TCP clients. Port 0 picks a free one.
    pub tcp: SocketAddr,
    /// Address of gRPC, for stations and carriers. Unset: inside this process only.
    #[schemars(extend("examples" = ["127.0.0.1:9110"]))]
    pub listen: Option<SocketAddr>,
    /// Address at which other services call this boat: `http://host:port`, or `https://` with an
    /// identity. Unset: the bound address of `listen`.
    #[schemars(extend("examples" = ["http://10.0.0.7:9110"]))]
    pub advertise: Option<String>,
    /// Address at which clients reach this boat, listed by stations at `/v1/edges`. Unset: not
    /// listed.
    #[schemars(extend("examples" = ["wss://boat-1.chat.example.com"]))]
    pub public_url: Option<String>,
    /// Zone of this boat, for clients that prefer their own.
    #[schemars(extend("examples" = ["eu-central-1a"]))]
    pub zone: Option<String>,
    /// Serves gRPC reflection on `listen`, so that backends and desks can list the calls.
    pub reflection: bool,
    /// Maximum number of connections; further ones are closed with `full`. Capped at the number of
    /// files that the process may open, less 1,024.
    pub connections_max: usize,
    /// Maximum number of connections from one address; further ones are closed with `rate_limited`.
    /// Unset: 1,024, and ten times that off loopback without `boat.proxy`, where many clients may
    /// share an address.
    #[schemars(range(min = 1), extend("examples" = [1024]))]
    pub connections_per_address_max: Option<usize>,
    /// Maximum number of refused connections that stay open to receive the reason; further ones are
    /// dropped silently.
    #[serde(skip)]
    pub refusals_max: usize,
    /// Maximum number of connections accepted per second on all listeners, capped at 2,000 for each
    /// core. Further ones wait in the kernel's queue.
    #[serde(skip)]
    pub accepts_per_second: u32,
    /// Maximum number of connections whose clients are not admitted yet, of which silent clients of
    /// one network hold a sixteenth. When all are taken, the client that has been silent for the
    /// longest gives way; further ones wait in the kernel's queue.
    pub arriving_max: usize,
    /// Time from the open connection to its hello, whatever comes before it. Then the connection is
    /// dropped, or closed with `handshake_timeout`. TLS and the WebSocket upgrade have half of it
    /// each, the hello two thirds.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub arrival_timeout: Duration,
    /// Section `boat.tls`: certificates of both ports. On addresses that others reach, clients must
    /// speak TLS unless `offloaded` declares that a balancer ends it.
    pub tls: TlsConfig,
    /// Timeout of a TLS handshake; then the connection is dropped. Half of `arrival_timeout`.
    #[serde(skip)]
    pub tls_timeout: Duration,
    /// Section `boat.proxy`: a balancer in front that names the addresses of clients.
    pub proxy: ProxyConfig,
    /// Maximum rate of new connections from one address, per second. Further ones are dropped
    /// before the boat sends anything. Unset: 20, or ten times that as for
    /// `connections_per_address_max`.
    #[schemars(extend("examples" = [20]))]
    pub arrivals_per_address: Option<NonZeroU32>,
    /// Burst of new connections from one address after a quiet period: ten seconds of its rate.
    #[serde(skip)]
    pub arrivals_per_address_burst: Option<NonZeroU32>,
    /// Maximum rate of failed sign-ins from one address, per minute. Further ones are closed with
    /// `rate_limited`, without a call to a station. Unset: 10, or ten times that.
    #[schemars(extend("examples" = [10]))]
    pub sign_in_failures_per_address: Option<NonZeroU32>,
    /// Burst of failed sign-ins from one address after a quiet period: three minutes of its rate.
    #[serde(skip)]
    pub sign_in_failures_per_address_burst: Option<NonZeroU32>,
    /// Maximum rate at which one session may send, in bytes per second on the wire. Beyond it
    /// reading pauses.
    pub read_bytes_per_second: NonZeroU32,
    /// Bytes that one session may send at once after a quiet period: four seconds of its rate.
    #[serde(skip)]
    pub read_bytes_burst: NonZeroU32,
    /// Memory limit of this process in bytes. From 80 % of it newcomers are sent elsewhere; from 95
    /// % the sessions with the most waiting bytes are closed. Unset: 85 % of the container's limit.
    #[schemars(range(max = 1_099_511_627_776_u64), extend("examples" = [1_073_741_824]))]
    pub memory_max: Option<u64>,
    /// Timeout of a WebSocket upgrade; then the connection is dropped. Half of `arrival_timeout`.
    #[serde(skip)]
    pub upgrade_timeout: Duration,
    /// Time for a client to read its last frames; then the connection is dropped.
    #[serde(skip)]
    pub close_grace: Duration,
    /// Time that echoes and receipts wait for the next frame to the same client, so that they share
    /// a write. Messages and answers never wait. Zero: no wait.
    #[serde(skip)]
    pub linger: Duration,
    /// Share of sends without a trace of their own for which a trace begins, if spans are
    /// collected: 0 none, 1 all.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub trace_share: f64,
    /// Maximum number of sends per second recorded at the request of their clients. Further traces
    /// pass on unrecorded.
    #[serde(skip)]
    pub client_traces_per_second: u32,
    /// Section `boat.session`: limits of one session.
    pub session: SessionLimits,
    /// Number of lanes for calls to stations. A slow call holds up its own lane only.
    #[serde(skip)]
    pub lanes: usize,
    /// Maximum number of sends, acknowledgements or sign-offs queued in one lane. Beyond it, sends
    /// and acknowledgements are refused as `unavailable`, and removals of waiting messages are
    /// dropped (they come again).
    #[serde(skip)]
    pub lane_items_max: usize,
    /// Maximum number of items in one call to a station.
    #[serde(skip)]
    pub batch_items_max: usize,
    /// Maximum number of sign-ins in flight to stations. Further ones wait, and count as unanswered
    /// after `station_timeout`.
    #[serde(skip)]
    pub sign_in_calls_max: usize,
    /// Maximum number of mailbox pages in flight from stations, and separately of questions.
    /// Further ones wait, and count as unanswered after `station_timeout`.
    #[serde(skip)]
    pub calls_max: usize,
    /// Timeout of a station's answer; then the call fails.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub station_timeout: Duration,
    /// Timeout of the registry's answer; then the call fails.
    #[serde(skip)]
    pub registry_timeout: Duration,
    /// Pause before a failed removal or sign-off is repeated.
    #[serde(skip)]
    pub retry_pause: Duration,
    /// Interval at which each session is asserted to a station, which renews its ticket.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("spanMaximum" = "5m"))]
    pub sweep_interval: Duration,
    /// Maximum pause between two of these assertions, however few the sessions. Bounds the time
    /// until a loss in the store is noticed.
    #[serde(skip)]
    pub sweep_pause_max: Duration,
    /// Maximum number of sign-offs per second, and separately of assertions. Bounds the load on the
    /// store when a wave of clients leaves, or after the store's own loss.
    #[serde(skip)]
    pub presence_writes_per_second: NonZeroU32,
    /// Time over which all sessions are asserted after the store lost some; longer if
    /// `presence_writes_per_second` requires it.
    #[serde(skip)]
    pub restore_spread: Duration,
    /// Time without a lease and without an answer from any station after which all clients are sent
    /// away.
    #[serde(skip)]
    pub fence: Duration,
    /// Standstill of the process after which clients are treated as after a lost lease.
    #[serde(skip)]
    pub pause_max: Duration,
    /// Percentage of the clients that is sent away after a lost lease, to spread them over the
    /// boats again.
    #[serde(skip)]
    pub reconnect_percent: u8,
    /// Number of clients in one batch when the boat leaves.
    #[serde(skip)]
    pub drain_batch: usize,
    /// Maximum number of clients sent away per second when the boat leaves: fewer while other boats
    /// have little room, more only near the deadline.
    pub drain_pace: NonZeroU32,
    /// Pause between the moment the boat turns not ready and its first client sent away. Gives time
    /// to balancers that poll `/readyz`, and to other boats that drain.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub drain_notice: Duration,
    /// Time for leaving, including `drain_notice`; then the rest is dropped.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub drain_deadline: Duration,
}

/// Limits on one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressBounds {
    pub connections_max: usize,
    pub arrivals: Rate,
    pub sign_in_failures: Rate,
}

/// A balancer in front of the boats.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyConfig {
    /// Header in which a balancer names the client's address: `none`, `proxy-v2` (PROXY protocol,
    /// on both ports), or `x-forwarded-for` (WebSocket only).
    pub header: ProxyHeader,
    /// Networks of the balancers, such as `10.0.0.0/8`. Connections from them must carry the
    /// header; from other networks it is never read.
    #[schemars(with = "Vec<String>")]
    pub networks: Vec<IpNet>,
}

/// Header of a balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyHeader {
    /// Clients connect directly.
    #[default]
    None,
    /// PROXY protocol, version 2.
    ProxyV2,
    /// HTTP header.
    XForwardedFor,
}

const fn count(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(count) => count,
        None => NonZeroU32::MIN,
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: "boat-1".into(),
            websocket: SocketAddr::from((Ipv4Addr::LOCALHOST, 9000)),
            origins: Vec::new(),
            tcp: SocketAddr::from((Ipv4Addr::LOCALHOST, 9001)),
            listen: None,
            advertise: None,
            public_url: None,
            zone: None,
            reflection: false,
            connections_max: 100_000,
            connections_per_address_max: None,
            refusals_max: 256,
            accepts_per_second: 5_000,
            arriving_max: 4096,
            arrival_timeout: Duration::from_secs(30),
            tls: TlsConfig::default(),
            tls_timeout: Duration::from_secs(15),
            read_bytes_per_second: count(256 * 1024),
            read_bytes_burst: count(1024 * 1024),
            memory_max: None,
            arrivals_per_address: None,
            arrivals_per_address_burst: None,
            sign_in_failures_per_address: None,
            sign_in_failures_per_address_burst: None,
            proxy: ProxyConfig::default(),
            upgrade_timeout: Duration::from_secs(15),
            close_grace: Duration::from_secs(2),
            linger: Duration::from_millis(200),
            trace_share: 0.01,
            client_traces_per_second: 100,
            session: SessionLimits::default(),
            lanes: 4,
            lane_items_max: 65_536,
            batch_items_max: 1024,
            sign_in_calls_max: 256,
            calls_max: 1024,
            station_timeout: Duration::from_secs(5),
            registry_timeout: Duration::from_secs(5),
            retry_pause: Duration::from_secs(1),
            sweep_interval: Duration::from_secs(300),
            sweep_pause_max: Duration::from_secs(5),
            presence_writes_per_second: count(5000),
            restore_spread: Duration::from_secs(5),
            fence: Duration::from_secs(60),
            pause_max: Duration::from_secs(10),
            reconnect_percent: 10,
            drain_batch: 256,
            drain_pace: count(2000),
            drain_notice: Duration::ZERO,
            drain_deadline: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// Sets what follows from settings: bursts from their rates, the times of an arrival's steps
    /// from the whole, the sizes of a session from its frames.
    pub fn derive(&mut self) {
        let times = |rate: NonZeroU32, factor| rate.saturating_mul(count(factor));
        self.arrivals_per_address_burst = self.arrivals_per_address.map(|rate| times(rate, 10));
        let failures = self.sign_in_failures_per_address;
        self.sign_in_failures_per_address_burst = failures.map(|rate| times(rate, 3));
        self.read_bytes_burst = times(self.read_bytes_per_second, 4);
        self.tls_timeout = self.arrival_timeout / 2;
        self.upgrade_timeout = self.arrival_timeout / 2;
        let session = &mut self.session;
        session.handshake = self.arrival_timeout / 3 * 2;
        session.body_bytes_max = session
            .frame_bytes_max
            .saturating_sub(ENVELOPE_BYTES_MAX as u32);
        session.push_window_bytes = session.frame_bytes_max.saturating_mul(3);
        session.outgoing_bytes_max = session.frame_bytes_max.saturating_mul(4);
    }

    /// Lifts the limits of an address and of a session for a load test, which comes from one
    /// address.
    pub fn lift_limits(&mut self, to: NonZeroU32) {
        self.connections_per_address_max = Some(to.get() as usize);
        self.arrivals_per_address = Some(to);
        self.sign_in_failures_per_address = Some(to);
        self.read_bytes_per_second = to;
        self.derive();
    }

    /// Limits on one address, those that are unset by what an address stands for.
    pub(crate) fn address_bounds(&self) -> AddressBounds {
        let is_local = self.websocket.ip().is_loopback() && self.tcp.ip().is_loopback();
        let defaults = AddressDefaults::new(is_local, self.proxy.header != ProxyHeader::None);
        let rate_or_default = |set, usual| defaults.count(set, count(usual));
        AddressBounds {
            connections_max: defaults.connections(self.connections_per_address_max, 1024),
            arrivals: Rate::per_second(
                rate_or_default(self.arrivals_per_address, 20),
                rate_or_default(self.arrivals_per_address_burst, 200),
            ),
            sign_in_failures: Rate::per_minute(
                rate_or_default(self.sign_in_failures_per_address, 10),
                rate_or_default(self.sign_in_failures_per_address_burst, 30),
            ),
        }
    }

    /// Bounds the connections by the files that this process may open, and returns the bound: a
    /// client beyond it gets a refusal instead of a failing accept.
    pub fn fit_files(&mut self, files: u64) -> usize {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        if files > 0 {
            let max = files.saturating_sub(OTHER_FILES).max(files / 2);
            self.connections_max = self.connections_max.min(max);
        }
        self.connections_max
    }

    /// Connections that this machine accepts in a second.
    pub(crate) fn accepts_here(&self) -> u32 {
        self.accepts_on(available_parallelism().map_or(1, NonZero::get))
    }

    fn accepts_on(&self, cores: usize) -> u32 {
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        (self.accepts_per_second).min(ACCEPTS_PER_CORE.saturating_mul(cores))
    }

    pub(crate) fn drain_bounds(&self) -> DrainBounds {
        DrainBounds {
            pace: self.drain_pace,
            pace_cluster: DRAIN_PACE_CLUSTER,
            batch: (self.drain_batch).clamp(1, self.batch_items_max),
        }
    }

    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Some(advertise) = self.advertise.as_deref().filter(|it| !is_http_address(it)) {
            let reason = "stations and carriers cannot call this address";
            problems.refuse(
                "advertise",
                advertise,
                reason,
                "Use http://host:port, or https://host:port if services have certificates",
            );
        }
        if self.origins.iter().any(|origin| origin.trim().is_empty()) {
            let reason = "one entry is empty";
            problems.refuse("origins", "", reason, "Such as https://chat.example.com");
        }
        if let Some(url) = self
            .public_url
            .as_deref()
            .filter(|url| !is_client_address(url))
        {
            let reason = "clients cannot connect to this URL";
            let remedy = "Use wss://host, ws://host:port, tls://host:port or tcp://host:port";
            problems.refuse("public_url", url, reason, remedy);
        }
        if self.drain_notice > self.drain_deadline / 2 {
            let reason = "too little time is left for the clients to leave";
            let remedy = "No more than half of boat.drain_deadline";
            let value = format!("{:?}", self.drain_notice);
            problems.refuse("drain_notice", value, reason, remedy);
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let open = |address: &&SocketAddr| !address.ip().is_loopback();
        let listens = [self.websocket, self.tcp];
        let reached = listens.iter().find(open).unwrap_or(&self.websocket);
        problems.section("tls", self.tls.check(*reached, &clock));
        if self.read_bytes_per_second.get() < READ_BYTES_PER_SECOND_MIN {
            let reason = "a read would pause for longer than a client may be silent";
            let remedy = format!("At least {READ_BYTES_PER_SECOND_MIN}");
            let value = self.read_bytes_per_second;
            problems.refuse("read_bytes_per_second", value, reason, &remedy);
        }
        let proxy = &self.proxy;
        if proxy.header != ProxyHeader::None && proxy.networks.is_empty() {
            let reason = "no network is trusted, so the header is never read";
            let remedy = "List the networks of the load balancers in boat.proxy.networks";
            problems.refuse("proxy.networks", "[]", reason, remedy);
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn two_thousand_are_accepted_a_core_and_five_thousand_at_most() {
        let config = Config::default();
        for (cores, rate) in [(1, 2_000), (2, 4_000), (3, 5_000), (64, 5_000)] {
            assert_eq!(config.accepts_on(cores), rate);
        }
    }

    #[test]
    fn an_address_that_may_stand_for_many_has_ten_times_the_limits() {
        let local = Config::default();
        let open = Config {
            websocket: ([0, 0, 0, 0], 9000).into(),
            ..Config::default()
        };
        let mut named_by_proxy = open.clone();
        named_by_proxy.proxy.header = ProxyHeader::ProxyV2;
        let usual = AddressBounds {
            connections_max: 1024,
            arrivals: Rate::per_second(count(20), count(200)),
            sign_in_failures: Rate::per_minute(count(10), count(30)),
        };
        assert_eq!(local.address_bounds(), usual);
        assert_eq!(named_by_proxy.address_bounds(), usual);
        let shared = AddressBounds {
            connections_max: 10_240,
            arrivals: Rate::per_second(count(200), count(2_000)),
            sign_in_failures: Rate::per_minute(count(100), count(300)),
        };
        assert_eq!(open.address_bounds(), shared);
        let explicit = Config {
            connections_per_address_max: Some(7),
            arrivals_per_address: Some(count(3)),
            arrivals_per_address_burst: Some(count(4)),
            ..open
        };
        let bounds = AddressBounds {
            connections_max: 7,
            arrivals: Rate::per_second(count(3), count(4)),
            ..shared
        };
        assert_eq!(explicit.address_bounds(), bounds);
    }

    // proves S3-03 in part: neither port is open to others without encryption.
    #[test]
    fn off_loopback_clients_speak_tls_on_both_ports() {
        const PUBLIC_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9000);
        let problems = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.problems().to_string()
        };
        assert_eq!(problems(|_| ()), "");
        for open in [
            |config: &mut Config| config.websocket = PUBLIC_ADDRESS,
            |config: &mut Config| config.tcp = PUBLIC_ADDRESS,
        ] {
            let problems = problems(open);
            let reason = "tls.certificates is empty";
            assert!(problems.starts_with(reason), "refused: {problems:?}");
        }
    }

    // proves S1-05: the smaller of 100,000 and the files less 1,024. (Beyond it: `a_full_boat_says_so`, and of a whole process
    // `started_with_few_files_it_serves_few_and_says_so`.)
    #[test]
    fn connections_leave_files_for_others() {
        let fitted = |files| {
            let mut config = Config::default();
            let bound = config.fit_files(files);
            assert_eq!(bound, config.connections_max);
            bound
        };
        assert_eq!(fitted(1_048_576), 100_000);
        assert_eq!(fitted(20_000), 18_976);
        assert_eq!(fitted(600), 300);
        assert_eq!(fitted(0), 100_000, "not known");
    }
}
