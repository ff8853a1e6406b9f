//! The closed list of refusals, and what each asks of the caller.
//!
//! Adding a code is a change of the protocol: docs/protocol.md lists them all.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Reason for a refusal or for the end of a connection. Numbers are those of the wire and of
/// WebSocket close codes.
/// 40xx: go on, now or after reconnecting. 45xx: terminal, the same request will fail again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u16)]
pub enum Code {
    /// The boat is leaving; reconnect elsewhere.
    Draining = 4000,
    /// Reconnect: a delivery was not acknowledged in time, or the session must begin anew.
    Reconnect = 4001,
    /// The client read too slowly; unread messages come again after reconnecting.
    Slow = 4002,
    /// No frame for longer than the heartbeat allows.
    HeartbeatMissed = 4003,
    /// A part of the service is unreachable.
    Unavailable = 4004,
    /// Too much of something in a short time.
    RateLimited = 4005,
    /// More sends in flight than the window allows.
    WindowFull = 4006,
    /// An earlier send to this conversation failed; resend that one first, or give it up.
    EarlierSendFailed = 4007,
    /// The boat holds as many connections as it may.
    Full = 4008,
    /// The service did not answer within the deadline; the outcome is unknown.
    DeadlineExceeded = 4009,
    /// The first frame did not come in time.
    HandshakeTimeout = 4010,
    /// Another connection of the same device signed in after this one. If sign-ins overtook each
    /// other, the device may have given up that other one: this one connects again.
    Replaced = 4011,
    /// The user has as many sessions on this platform as are allowed.
    TooManySessions = 4012,

    /// Bytes that are no frame of this protocol, or a frame that breaks its rules.
    Malformed = 4500,
    /// A frame or body larger than the limit.
    TooLarge = 4501,
    /// A protocol version that this server does not speak.
    UnsupportedVersion = 4502,
    /// The token is missing, forged, not yet valid, or for somebody else.
    Unauthenticated = 4503,
    /// The token has expired; get a new one.
    TokenExpired = 4504,
    /// Another device signed in on the same platform.
    Displaced = 4505,
    /// Closed by an operator or by the business back end.
    KickedOut = 4506,
    /// A field has an impossible value.
    InvalidArgument = 4507,
    /// A message to oneself.
    ToSelf = 4508,
    /// No such message, conversation or session for this user.
    NotFound = 4509,
    /// Not allowed for this user.
    Forbidden = 4510,
    /// Not supported by this server.
    Unsupported = 4511,
    /// The client knows more than the server: its store belongs to another history.
    Reset = 4512,
    /// An administrator muted the user, or the whole group.
    Muted = 4513,
}

impl Code {
    pub const ALL: [Code; 27] = [
        Code::Draining,
        Code::Reconnect,
        Code::Slow,
        Code::HeartbeatMissed,
        Code::Unavailable,
        Code::RateLimited,
        Code::WindowFull,
        Code::EarlierSendFailed,
        Code::Full,
        Code::DeadlineExceeded,
        Code::HandshakeTimeout,
        Code::Replaced,
        Code::TooManySessions,
        Code::Malformed,
        Code::TooLarge,
        Code::UnsupportedVersion,
        Code::Unauthenticated,
        Code::TokenExpired,
        Code::Displaced,
        Code::KickedOut,
        Code::InvalidArgument,
        Code::ToSelf,
        Code::NotFound,
        Code::Forbidden,
        Code::Unsupported,
        Code::Reset,
        Code::Muted,
    ];

    pub const fn number(self) -> u16 {
        self as u16
    }

    pub fn from_number(number: u16) -> Option<Code> {
        Code::ALL.into_iter().find(|code| code.number() == number)
    }

    /// Whether the same request may succeed later.
    pub const fn retryable(self) -> bool {
        self.number() < 4500
    }

    /// `snake_case`, for people, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Draining => "draining",
            Code::Reconnect => "reconnect",
            Code::Slow => "slow",
            Code::HeartbeatMissed => "heartbeat_missed",
            Code::Unavailable => "unavailable",
            Code::RateLimited => "rate_limited",
            Code::WindowFull => "window_full",
            Code::EarlierSendFailed => "earlier_send_failed",
            Code::Full => "full",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::HandshakeTimeout => "handshake_timeout",
            Code::Replaced => "replaced",
            Code::TooManySessions => "too_many_sessions",
            Code::Malformed => "malformed",
            Code::TooLarge => "too_large",
            Code::UnsupportedVersion => "unsupported_version",
            Code::Unauthenticated => "unauthenticated",
            Code::TokenExpired => "token_expired",
            Code::Displaced => "displaced",
            Code::KickedOut => "kicked_out",
            Code::InvalidArgument => "invalid_argument",
            Code::ToSelf => "to_self",
            Code::NotFound => "not_found",
            Code::Forbidden => "forbidden",
            Code::Unsupported => "unsupported",
            Code::Reset => "reset",
            Code::Muted => "muted",
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A refusal as sent to the caller: a code, a sentence, and when to retry.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{code}: {text}")]
pub struct Refusal {
    pub code: Code,
    pub text: String,
    /// Minimum delay before a retry; `None` if the caller's own schedule will do.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub fn new(code: Code, text: impl Into<String>) -> Refusal {
        Refusal {
            code,
            text: text.into(),
            retry_after: None,
        }
    }

    pub fn retry_after(mut self, delay: Duration) -> Refusal {
        self.retry_after = Some(delay);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number_and_says_whether_to_retry() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(code));
            assert_eq!(code.retryable(), (4000..4100).contains(&code.number()));
        }
        assert_eq!(Code::from_number(1000), None);
    }
}
