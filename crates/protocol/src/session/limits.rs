use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds of one session, shared by all sessions of a boat.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Time from the open connection to its hello; then `handshake_timeout`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "100ms", "spanMaximum" = "5m"))]
    pub handshake: Duration,
    /// Interval of a silent client's pings. After 2.5 times as long without a frame:
    /// `heartbeat_missed`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "1s", "spanMaximum" = "1h"))]
    pub heartbeat: Duration,
    /// Time for a device to acknowledge a message, from when the socket has taken it; large ones
    /// get the time that the slowest link needs. After it: `reconnect`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "10ms", "spanMaximum" = "5m"))]
    pub ack_wait: Duration,
    /// Time for which the socket may take nothing of what waits for it, beside the time that the
    /// slowest link needs. After it: `slow`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span", extend("spanMinimum" = "10ms", "spanMaximum" = "10m"))]
    pub write_wait: Duration,
    /// Bytes per second of the slowest link that is waited for.
    pub link_bytes_min: u32,
    /// Frames of a client in one second; beyond: `rate_limited`.
    pub frames_per_second: u32,
    /// Bytes of a client's largest frame; the welcome names it, the links keep it.
    #[schemars(range(min = 1024, max = 16_777_216))]
    pub frame_bytes_max: u32,
    /// Bytes of the largest `data` of a message; beyond: `too_large`.
    #[schemars(range(max = 16_777_216))]
    pub body_bytes_max: u32,
    /// Sends that wait for their answer; beyond: `window_full`.
    pub send_window: u32,
    /// Bytes of sends in one batch to the station (a single larger one passes); the rest goes with
    /// the next.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub submit_bytes_max: u32,
    /// Sends remembered as refused until they are resent or given up; beyond: `rate_limited`.
    #[schemars(extend("zero" = true))]
    pub held_max: u32,
    /// Unacknowledged messages; beyond, a push is answered with *full* and the message is stored.
    pub push_window: u32,
    /// Bytes of unacknowledged messages (a single larger one passes); beyond: *full*.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub push_window_bytes: u32,
    /// Waiting messages of one page. At most two pages are unacknowledged.
    pub mail_page: u32,
    /// Pause before waiting messages that could not be had are asked for again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "crate::settings::Span")]
    pub mail_retry: Duration,
    /// Acknowledged messages that wait to be passed on; beyond: `rate_limited`.
    pub receipts_max: u32,
    /// Refused acknowledgements in one minute; beyond: `rate_limited`.
    #[schemars(extend("zero" = true))]
    pub refused_acks_per_minute: u32,
    /// Questions that wait for their answer; beyond, an error `rate_limited`.
    pub questions_max: u8,
    /// Bytes that wait to be written (the last frame may pass it); beyond: `slow`.
    #[schemars(range(min = 1024, max = 67_108_864))]
    pub outgoing_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            handshake: Duration::from_secs(5),
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
            receipts_max: 4096,
            refused_acks_per_minute: 256,
            questions_max: 8,
            outgoing_bytes_max: 256 * 1024,
        }
    }
}

impl Limits {
    /// The longest silence: two and a half heartbeats.
    pub fn silence_max(&self) -> Duration {
        self.heartbeat * 5 / 2
    }

    /// How long so many bytes are on their way on the slowest link.
    pub(super) fn travel(&self, bytes: usize) -> Duration {
        Duration::from_secs(bytes as u64) / self.link_bytes_min.max(1)
    }
}
