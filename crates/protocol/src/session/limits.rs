use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one session, shared by all sessions of a boat.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionLimits {
    /// Time from the open connection to its hello; then the session is closed with
    /// `handshake_timeout`.
    #[serde(skip)]
    pub handshake: Duration,
    /// Interval between pings of a silent client. After 2.5 times as long without a frame the
    /// session is closed with `heartbeat_missed`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "1s", "spanMaximum" = "1h"))]
    pub heartbeat: Duration,
    /// Time for a device to acknowledge a message; then the message is retried, or stored. The
    /// session is closed with `reconnect` if the acknowledgement is still missing after this time,
    /// plus a second for each 8 KiB in transit before the message, plus twice the measured round
    /// trip; not in the session's first minute. Less than one and a half times `carrier.ack_wait`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "10ms", "spanMaximum" = "5m"))]
    pub ack_wait: Duration,
    /// Time for which the socket may take none of the waiting bytes; then the session is closed
    /// with `slow`. Also time for which a frame that has begun may not come on; then it is closed
    /// with `heartbeat_missed`.
    #[serde(skip)]
    pub write_wait: Duration,
    /// Speed of the slowest supported link, in bytes per second.
    #[serde(skip)]
    pub link_bytes_min: u32,
    /// Maximum number of frames from a client in one second; beyond it the session is closed with
    /// `rate_limited`.
    #[serde(skip)]
    pub frames_per_second: u32,
    /// Maximum size of a client's frame in bytes. The welcome announces it, and the transports
    /// enforce it. At least 4 KiB more than `station.body_bytes_max`.
    #[schemars(range(min = 8192, max = 4_194_304))]
    pub frame_bytes_max: u32,
    /// Maximum size of a message's `data` in bytes; a larger one is refused as `too_large`.
    #[serde(skip)]
    pub body_bytes_max: u32,
    /// Maximum number of sends that wait for their answers; a further one is refused as
    /// `window_full`.
    #[serde(skip)]
    pub send_window: u32,
    /// Maximum size of one batch of sends to the station, in bytes (a single larger send passes).
    /// The rest goes with the next batch.
    #[serde(skip)]
    pub submit_bytes_max: u32,
    /// Maximum number of refused sends that are remembered until they are resent or given up;
    /// beyond it the session is closed with `rate_limited`.
    #[serde(skip)]
    pub held_max: u32,
    /// Maximum number of unacknowledged messages; a further push is answered with *full*, and its
    /// message is stored.
    #[serde(skip)]
    pub push_window: u32,
    /// Maximum size of the unacknowledged messages in bytes (a single larger one passes); beyond it
    /// a push is answered with *full*.
    #[serde(skip)]
    pub push_window_bytes: u32,
    /// Number of waiting messages in one page. At most two pages are unacknowledged.
    #[serde(skip)]
    pub mail_page: u32,
    /// Pause before another attempt to fetch waiting messages; up to a minute longer while stores
    /// cannot read them.
    #[serde(skip)]
    pub mail_retry: Duration,
    /// Maximum number of refused acknowledgements in one minute; beyond it the session is closed
    /// with `rate_limited`.
    #[serde(skip)]
    pub refused_acks_per_minute: u32,
    /// Maximum number of questions that wait for their answers; a further one gets an error
    /// `rate_limited`.
    #[serde(skip)]
    pub questions_max: u8,
    /// Maximum number of bytes that wait to be written, apart from answers and stored messages,
    /// which wait for room. Beyond it a push is answered with *full*, and for anything else the
    /// session is closed with `slow`. At least 4 KiB more than `station.body_bytes_max`.
    #[serde(skip)]
    pub outgoing_bytes_max: u32,
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits {
            handshake: Duration::from_secs(20),
            heartbeat: Duration::from_secs(30),
            ack_wait: Duration::from_secs(2),
            write_wait: Duration::from_secs(20),
            link_bytes_min: 8 * 1024,
            frames_per_second: 2000,
            frame_bytes_max: 64 * 1024,
            body_bytes_max: 60 * 1024,
            send_window: 64,
            submit_bytes_max: 512 * 1024,
            held_max: 256,
            push_window: 256,
            push_window_bytes: 192 * 1024,
            mail_page: 64,
            mail_retry: Duration::from_secs(1),
            refused_acks_per_minute: 256,
            questions_max: 8,
            outgoing_bytes_max: 256 * 1024,
        }
    }
}

impl SessionLimits {
    /// Maximum silence: two and a half heartbeats.
    pub fn silence_max(&self) -> Duration {
        self.heartbeat * 5 / 2
    }

    /// Travel time of this many bytes on the slowest link.
    pub(super) fn travel(&self, bytes: usize) -> Duration {
        Duration::from_secs(bytes as u64) / self.link_bytes_min.max(1)
    }
}
