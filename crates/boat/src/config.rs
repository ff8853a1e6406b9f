//! Settings of a boat, each with what happens at its bound.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::session::Limits;
use serde::{Deserialize, Serialize};

/// Section `boat` of the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The name of this boat, unique in the cluster.
    pub name: String,
    /// Where WebSocket clients connect (`/` and `/ws`). Port 0 takes a free one.
    pub websocket: SocketAddr,
    /// Whose pages may open a WebSocket: `https://chat.example.com`, `https://*.example.com`, or `*`. Empty: pages
    /// of the host that they call, and on loopback those of this machine. Apps, which send no origin, always may.
    pub origins: Vec<String>,
    /// Where TCP clients connect. Port 0 takes a free one.
    pub tcp: SocketAddr,
    /// Where gRPC listens. Unset: the boat answers inside this process only.
    pub listen: Option<SocketAddr>,
    /// The address that others are told, `http://host:port`. Unset: `listen` as it was bound.
    pub advertise: Option<String>,
    /// Connections at a time; beyond it they are closed with `full`.
    pub connections_max: usize,
    /// Connections at a time from one address; beyond it they are closed with `rate_limited`.
    pub connections_per_address_max: usize,
    /// Connections that are told why they are refused, at a time; beyond it they are dropped in silence.
    pub refusals_max: usize,
    /// Connections taken in one second; beyond it they wait in the kernel's queue.
    pub accepts_per_second: u32,
    /// How long accepting pauses when the process has no file left for a connection.
    #[serde(with = "humantime_serde")]
    pub accept_pause: Duration,
    /// How long a WebSocket upgrade may take; then the connection is dropped.
    #[serde(with = "humantime_serde")]
    pub upgrade_timeout: Duration,
    /// How long a client may take to read its last frames; then the connection is dropped.
    #[serde(with = "humantime_serde")]
    pub close_grace: Duration,
    /// How long echoes and receipts may wait on their way to a client, to be written together with what
    /// comes next; messages and answers never wait. Zero: not at all.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// How long acknowledgements wait for others on their way to a station. A sender hears of a delivery
    /// about so much later, and `linger`.
    #[serde(with = "humantime_serde")]
    pub receipts_linger: Duration,
    /// Which share of the sends that name no trace of their own begins one, where spans are collected:
    /// 0 none, 1 all of them.
    pub trace_share: f64,
    /// Sends in one second that are recorded because their clients ask for it; beyond it their traces are
    /// passed on unrecorded.
    pub client_traces_per_second: u32,
    /// The bounds of one session.
    pub session: Limits,
    /// Calls to stations are gathered in this many lanes, so that a slow one does not hold up all.
    pub lanes: usize,
    /// Sends, acknowledgements or sign-offs that one lane gathers; beyond it sends and acknowledgements
    /// are refused as `unavailable`, and removals of waiting messages are dropped (they come again).
    pub lane_items_max: usize,
    /// Bytes that one lane gathers of each kind; beyond it as `lane_items_max`.
    pub lane_bytes_max: usize,
    /// Items of one call.
    pub batch_items_max: usize,
    /// Calls for single sessions (admissions, pages, questions) at a time; beyond it they wait, and
    /// count as unanswered after `station_timeout`.
    pub calls_max: usize,
    /// How long a station may take to answer; then the call counts as failed.
    #[serde(with = "humantime_serde")]
    pub station_timeout: Duration,
    /// How long the registry may take to answer; then the call counts as failed.
    #[serde(with = "humantime_serde")]
    pub registry_timeout: Duration,
    /// How long to wait before a removal or a sign-off that failed is tried again.
    #[serde(with = "humantime_serde")]
    pub retry_pause: Duration,
    /// In this time every session is asserted once to a station.
    #[serde(with = "humantime_serde")]
    pub sweep_interval: Duration,
    /// The longest pause between two of these assertions, however few sessions there are: so soon a loss in
    /// the store is seen.
    #[serde(with = "humantime_serde")]
    pub sweep_pause_max: Duration,
    /// Where the store is seen to have lost sessions, all are asserted within this time.
    #[serde(with = "humantime_serde")]
    pub restore_spread: Duration,
    /// Without lease and without an answer of any station for so long, all clients are sent away.
    #[serde(with = "humantime_serde")]
    pub fence: Duration,
    /// When the process stood still for longer, clients are treated as after a lost lease.
    #[serde(with = "humantime_serde")]
    pub pause_max: Duration,
    /// After a lost lease, this share of the clients (in percent) is sent away, to spread them again.
    pub reconnect_percent: u8,
    /// Clients that are told at once that the boat leaves.
    pub drain_batch: usize,
    /// The pause between two such batches.
    #[serde(with = "humantime_serde")]
    pub drain_pause: Duration,
    /// Clients that are sent away come back elsewhere at random within this time.
    #[serde(with = "humantime_serde")]
    pub drain_spread: Duration,
    /// How long leaving may take; then what is left is dropped.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
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
            connections_max: 100_000,
            connections_per_address_max: 20_000,
            refusals_max: 256,
            accepts_per_second: 5_000,
            accept_pause: Duration::from_millis(100),
            upgrade_timeout: Duration::from_secs(5),
            close_grace: Duration::from_secs(2),
            linger: Duration::from_millis(200),
            receipts_linger: Duration::from_millis(20),
            trace_share: 0.01,
            client_traces_per_second: 100,
            session: Limits::default(),
            lanes: 4,
            lane_items_max: 65_536,
            lane_bytes_max: 32 * 1024 * 1024,
            batch_items_max: 1024,
            calls_max: 1024,
            station_timeout: Duration::from_secs(5),
            registry_timeout: Duration::from_secs(5),
            retry_pause: Duration::from_secs(1),
            sweep_interval: Duration::from_secs(300),
            sweep_pause_max: Duration::from_secs(5),
            restore_spread: Duration::from_secs(5),
            fence: Duration::from_secs(60),
            pause_max: Duration::from_secs(10),
            reconnect_percent: 10,
            drain_batch: 256,
            drain_pause: Duration::from_millis(50),
            drain_spread: Duration::from_secs(10),
            drain_deadline: Duration::from_secs(20),
        }
    }
}
