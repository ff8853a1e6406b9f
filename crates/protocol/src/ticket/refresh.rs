//! Refresh of a token within a session: a new token, presented before the old one ends, takes its
//! place.

use std::time::Duration;

use crate::pause::between;
use crate::{Code, Refusal, Timestamp, UserId};

/// Minimum time between two refreshes of a session.
pub const REFRESH_PAUSE: Duration = Duration::from_secs(60);

/// Share of a token's remaining life after which a client refreshes it, in percent, and the spread
/// of that share.
const REFRESH_AFTER: u64 = 80;
const REFRESH_JITTER: u64 = 10;

/// Time from now to the refresh of a token with this much life left. `jitter` is any random number.
pub fn refresh_in(life_left: Duration, jitter: u64) -> Duration {
    let millis = u64::try_from(life_left.as_millis()).unwrap_or(u64::MAX);
    let middle = millis / 100 * REFRESH_AFTER;
    let either_side = middle / 100 * REFRESH_JITTER;
    let [least, most] = [middle - either_side, middle + either_side].map(Duration::from_millis);
    between(least, most, jitter)
}

/// User of a token, and its issue time, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOf {
    pub user: UserId,
    pub issued_at: Option<Timestamp>,
}

/// Checks that the session may continue with the token `next`.
///
/// # Errors
/// The token is another user's, or older than the session's.
pub fn check_refresh(session: TokenOf, next_issued_at: TokenOf) -> Result<(), Refusal> {
    if session.user != next_issued_at.user {
        let text = "the new token belongs to another user; reconnect to sign in as another user";
        return Err(Refusal::new(Code::Unauthenticated, text));
    }
    let is_older = session.issued_at.is_some_and(|issued_at| {
        next_issued_at
            .issued_at
            .is_some_and(|next_issued_at| next_issued_at < issued_at)
    });
    if is_older {
        let text = "the new token is older than the one of this session; get a new one";
        return Err(Refusal::new(Code::InvalidArgument, text));
    }
    Ok(())
}
