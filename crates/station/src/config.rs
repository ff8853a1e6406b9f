//! Settings of a station, each with what happens at its bound.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{auth, pages};

/// Section `station` of the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The name of this station, unique in the cluster.
    pub name: String,
    /// Where gRPC listens. Unset: the station answers inside this process only.
    pub listen: Option<SocketAddr>,
    /// The address that others are told, `http://host:port`. Unset: `listen` as it was bound.
    pub advertise: Option<String>,
    /// How tokens are checked.
    pub auth: auth::Config,
    /// The largest body of a message, in bytes; a larger one is refused as `too_large`.
    pub body_bytes_max: usize,
    /// Sends a second that one user may keep up; beyond it they are refused as `rate_limited`.
    pub user_sends_per_second: NonZeroU32,
    /// Sends that one user may make at once after a rest.
    pub user_sends_burst: NonZeroU32,
    /// Sends that may be on their way into the log at once; beyond it they are refused as `unavailable`.
    /// At least one batch goes in any case.
    pub sends_in_flight_max: usize,
    /// Items of one batched call; a larger call is refused whole.
    pub batch_items_max: usize,
    /// How long the log may take to acknowledge; then the sends are refused as `deadline_exceeded`, and
    /// whether the log has them is unknown. Below the time that boats give a station, so that they hear
    /// the answer.
    #[serde(with = "humantime_serde")]
    pub publish_deadline: Duration,
    /// How long the mailbox may take to say whether a send is a repeat; then it is taken for new, and a
    /// resend is marked unsure.
    #[serde(with = "humantime_serde")]
    pub dedupe_deadline: Duration,
    /// How long stores and discovery may take to answer anything else; then the call is refused as
    /// `unavailable`, and a reservation of ids is asked for again.
    #[serde(with = "humantime_serde")]
    pub store_deadline: Duration,
    /// How long the store of groups may take to say whether a sender is in one; then the send goes on to the writer, who
    /// judges it in any case.
    #[serde(with = "humantime_serde")]
    pub members_deadline: Duration,
    /// How long the newest messages of a group may take to be read from beside history; then history is asked.
    #[serde(with = "humantime_serde")]
    pub timeline_deadline: Duration,
    /// How long a boat may take to take notices; then they are dropped, and sync tells what they said.
    #[serde(with = "humantime_serde")]
    pub notice_deadline: Duration,
    /// How far ahead of the clock ids are reserved: so long a station accepts messages while discovery
    /// is away; then it refuses them as `unavailable`.
    #[serde(with = "humantime_serde")]
    pub reserve_ahead: Duration,
    /// Rows of one page of history, mail or a conversation list.
    pub page_max: usize,
    /// Pages that are kept in this process.
    pub pages: pages::Config,
    /// Bytes of message bodies in one page: it ends before the message that would not fit, and holds at
    /// least one.
    pub page_bytes_max: usize,
    /// How far the conversation list looks back before the version a client has: more than twice the
    /// bound on clock differences and the time a write may take.
    #[serde(with = "humantime_serde")]
    pub list_margin: Duration,
    /// How long after it was accepted its sender may recall or edit a message (the carrier's setting, too).
    #[serde(with = "humantime_serde")]
    pub change_within: Duration,
    /// Kickouts, receipts and other work after the answer that may wait, each in its own queue; beyond
    /// it the newest are dropped and counted, and sync or the boats' sweep makes up for them.
    pub background_max: usize,
    /// How often the kickout of a displaced session is tried; then the boats' sweep finds it.
    pub kickout_attempts: u32,
    /// Whether receipts are pushed to senders at once. If not, senders learn them by asking.
    pub push_receipts: bool,
    /// How long calls in flight may take to end when the station stops.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: "station-1".into(),
            listen: None,
            advertise: None,
            auth: auth::Config::default(),
            body_bytes_max: 60 * 1024,
            user_sends_per_second: NonZeroU32::new(200).unwrap_or(NonZeroU32::MIN),
            user_sends_burst: NonZeroU32::new(1000).unwrap_or(NonZeroU32::MIN),
            sends_in_flight_max: 65_536,
            batch_items_max: 4096,
            publish_deadline: Duration::from_secs(4),
            dedupe_deadline: Duration::from_millis(200),
            store_deadline: Duration::from_secs(3),
            members_deadline: Duration::from_millis(500),
            timeline_deadline: Duration::from_millis(200),
            notice_deadline: Duration::from_secs(1),
            reserve_ahead: Duration::from_secs(600),
            page_max: 100,
            pages: pages::Config::default(),
            page_bytes_max: 1024 * 1024,
            list_margin: Duration::from_secs(10),
            change_within: Duration::from_secs(24 * 3600),
            background_max: 65_536,
            kickout_attempts: 8,
            push_receipts: true,
            drain_deadline: Duration::from_secs(10),
        }
    }
}
