//! Session tickets: a station's proof that a user has signed in, which a boat presents with every
//! call for the session. A thief of a boat's certificate can act for that boat's clients only, and
//! not for long.
//!
//! A ticket holds the facts that a call lacks, and a MAC over these, the session, its user, and the
//! name in the certificate of the session's boat: HMAC-SHA256 (RFC 2104), cut to 16 bytes.

mod keys;
mod refresh;
mod resume;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use hmac::Mac as _;

pub use self::keys::{KEY_BYTES, KEYS_MAX, KeyFile, KeyFileError};
use self::keys::{Key, KeyId, MacState};
pub use self::refresh::{REFRESH_PAUSE, TokenOf, check_refresh, refresh_in};
pub use self::resume::{RESUME_LIFE, RESUME_TICKET_BYTES, ResumeTicket, falls_back};
use crate::{Code, Hidden, Platform, Refusal, SessionId, Timestamp, UserId};

/// Life of a ticket, or of its token, if shorter.
pub const LIFE: Duration = Duration::from_secs(15 * 60);

/// Time after its end in which a ticket may still be renewed, if the mailbox has its session.
pub const RENEWAL_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Time before a ticket's end from which a call with it makes the boat renew it at once: the slow
/// pass over all sessions was late.
pub const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// Longest time of a pass over all sessions of a boat, so that a failed one leaves time for the
/// next.
pub const PASS_MAX: Duration = Duration::from_secs(5 * 60);

/// Pause before the retry of a call whose ticket needs renewal first.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Bytes of a ticket: key, platform, end of the ticket and of the token in seconds (4 each), issue
/// of the token in milliseconds (6), MAC (16). All numbers are big endian.
pub const TICKET_BYTES: usize = 32;

const MAC_BYTES: usize = 16;
const SIGNED_BYTES: usize = TICKET_BYTES - MAC_BYTES;
/// Sets these MACs apart from others under the same keys.
const LABEL: &[u8] = b"packetboat session ticket 1";

/// A ticket in its wire form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket([u8; TICKET_BYTES]);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&Hidden::of(&self.0)).finish()
    }
}

impl Ticket {
    pub const fn from_bytes(bytes: [u8; TICKET_BYTES]) -> Ticket {
        Ticket(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; TICKET_BYTES] {
        &self.0
    }

    fn key(&self) -> KeyId {
        self.0[0]
    }

    fn expires_at(&self) -> Timestamp {
        seconds(&self.0[2..6])
    }

    fn token_ends_at(&self) -> Timestamp {
        seconds(&self.0[6..10])
    }

    fn token_issued_at(&self) -> Timestamp {
        millis_from_bytes(&self.0[10..16])
    }

    /// Whether calls with it will soon be refused, and a later ticket is available.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let expires_at = self.expires_at();
        expires_at < self.token_ends_at() && expires_at <= now + RENEW_BEFORE
    }

    /// The ticket to present from now on. A late renewal must not undo a token refresh that
    /// overtook it.
    #[must_use]
    pub fn replaced_by(self, next: Ticket) -> Ticket {
        if next.token_issued_at() < self.token_issued_at() {
            self
        } else {
            next
        }
    }

    fn sign_in(&self, user: UserId, session: SessionId) -> Option<SignIn> {
        Some(SignIn {
            user,
            session,
            platform: Platform::from_number(self.0[1])?,
            issued_at: self.token_issued_at(),
            ends_at: self.token_ends_at(),
        })
    }
}

fn seconds(bytes: &[u8]) -> Timestamp {
    let seconds = bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | i64::from(*byte));
    Timestamp::from_millis(seconds * 1000)
}

fn millis_from_bytes(bytes: &[u8]) -> Timestamp {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(bytes);
    Timestamp::from_millis(i64::from_be_bytes(millis))
}

fn in_seconds(time: Timestamp) -> [u8; 4] {
    let seconds = u32::try_from(time.millis() / 1000).unwrap_or(if time < Timestamp::ZERO {
        0
    } else {
        u32::MAX
    });
    seconds.to_be_bytes()
}

/// A session, with the facts of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignIn {
    pub user: UserId,
    pub session: SessionId,
    pub platform: Platform,
    /// Issue of the token.
    pub issued_at: Timestamp,
    /// End of the token, in whole seconds.
    pub ends_at: Timestamp,
}

/// A call for a session, with its caller.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub user: UserId,
    /// Unset in calls of older boats without it.
    pub session: Option<SessionId>,
    /// Unset if the call lacks it.
    pub platform: Option<Platform>,
    pub ticket: Option<Ticket>,
    /// Name in the boat's certificate. Unset if the boat has shown none, or all boats share one.
    pub boat: Option<&'a str>,
}

/// Reason to refuse a call for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketError {
    Missing,
    /// A ticket of another session, user, platform or boat, or a made-up one.
    Forged,
    UnknownKey(KeyId),
    Expired,
}

impl TicketError {
    /// Label of a counter.
    pub const fn name(self) -> &'static str {
        match self {
            TicketError::Missing => "missing",
            TicketError::Forged => "forged",
            TicketError::UnknownKey(_) => "unknown_key",
            TicketError::Expired => "expired",
        }
    }

    /// Answer to the session: its client retries, and meanwhile an assertion renews the ticket or
    /// makes it sign in.
    pub fn refusal(self) -> Refusal {
        let retry = |text: String| Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER);
        match self {
            TicketError::Missing | TicketError::Forged => retry(
                "the station cannot verify that you have signed in; try again, then sign in again"
                    .to_owned(),
            ),
            TicketError::UnknownKey(key) => retry(format!(
                "the station has no key {key} for the ticket of this session; try again, then sign in again"
            )),
            TicketError::Expired => retry(
                "the ticket of this session has expired, and its boat is renewing it; try again"
                    .to_owned(),
            ),
        }
    }
}

/// Outcome of a request for a new ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// No ticket is required.
    Unproved,
    Proved(SignIn),
    /// The ticket has ended: a new one only if the mailbox still has this very session.
    Late(SignIn),
}

/// Makes tickets and judges them.
#[derive(Clone, Debug)]
pub struct Tickets {
    /// The first key signs, all check. Empty if there are no tickets.
    keys: Vec<Key>,
    is_required: bool,
}

impl Tickets {
    /// Neither issues nor requires tickets: boats are trusted.
    pub const fn off() -> Tickets {
        Tickets {
            keys: Vec::new(),
            is_required: false,
        }
    }

    /// Tickets of these keys. Unless required, a call passes without a good one, but not with a
    /// forged one.
    pub fn new(keys: &KeyFile, is_required: bool) -> Tickets {
        Tickets {
            keys: keys.keys(),
            is_required,
        }
    }

    /// Issues a ticket for a session at this boat.
    pub fn sign(&self, sign_in: &SignIn, boat: Option<&str>, now: Timestamp) -> Option<Ticket> {
        let key = self.keys.first()?;
        let expires_at = sign_in.ends_at.min(now + LIFE);
        let mut bytes = [0; TICKET_BYTES];
        bytes[0] = key.id;
        bytes[1] = sign_in.platform.number();
        bytes[2..6].copy_from_slice(&in_seconds(expires_at));
        bytes[6..10].copy_from_slice(&in_seconds(sign_in.ends_at));
        let issued_at = sign_in.issued_at.millis().max(0).to_be_bytes();
        bytes[10..16].copy_from_slice(&issued_at[2..]);
        let mac = mac(key, &bytes, sign_in.user, sign_in.session, boat);
        let mac = mac.finalize().into_bytes();
        bytes[SIGNED_BYTES..].copy_from_slice(&mac[..MAC_BYTES]);
        Some(Ticket(bytes))
    }

    /// Checks that this boat may act for the session.
    ///
    /// # Errors
    /// No ticket proves it.
    pub fn check(&self, claim: &Claim<'_>, now: Timestamp) -> Result<(), TicketError> {
        let result = self.judge(claim).and_then(|proof| match proof {
            Some(_) if claim.is_over(now) => Err(TicketError::Expired),
            Some(_) | None => Ok(()),
        });
        self.unless_lenient(result, ())
    }

    /// Checks that the session may go on, with a new ticket.
    ///
    /// # Errors
    /// The session must sign in again.
    pub fn renew(&self, claim: &Claim<'_>, now: Timestamp) -> Result<Renewal, TicketError> {
        let result = self.judge(claim).and_then(|proof| {
            let Some(sign_in) = proof else {
                return Ok(Renewal::Unproved);
            };
            let expires_at = claim.expires_at();
            if now < expires_at {
                return Ok(Renewal::Proved(sign_in));
            }
            if now >= sign_in.ends_at || now >= expires_at + RENEWAL_WINDOW {
                Err(TicketError::Expired)
            } else if self.is_required {
                Ok(Renewal::Late(sign_in))
            } else {
                // A session without any ticket would go on, too.
                Ok(Renewal::Proved(sign_in))
            }
        });
        self.unless_lenient(result, Renewal::Unproved)
    }

    fn key(&self, id: KeyId) -> Result<&Key, TicketError> {
        let key = self.keys.iter().find(|key| key.id == id);
        key.ok_or(TicketError::UnknownKey(id))
    }

    fn unless_lenient<T>(
        &self,
        result: Result<T, TicketError>,
        otherwise: T,
    ) -> Result<T, TicketError> {
        match result {
            Err(error) if !self.is_required && error != TicketError::Forged => Ok(otherwise),
            result => result,
        }
    }

    /// Sign-in that a ticket proves, even after its end. `None` if no proof is required.
    fn judge(&self, claim: &Claim<'_>) -> Result<Option<SignIn>, TicketError> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let (Some(ticket), Some(session)) = (claim.ticket, claim.session) else {
            return Err(TicketError::Missing);
        };
        let key = self.key(ticket.key())?;
        let is_signed_for = |boat| {
            let mac = mac(key, &ticket.0, claim.user, session, boat);
            mac.verify_truncated_left(&ticket.0[SIGNED_BYTES..]).is_ok()
        };
        // Certificates may be new to the boat, or to this station.
        let is_good = is_signed_for(claim.boat)
            || (!self.is_required && claim.boat.is_some() && is_signed_for(None));
        if !is_good {
            return if claim.boat.is_none() && !self.is_required {
                Ok(None)
            } else {
                Err(TicketError::Forged)
            };
        }
        let sign_in = (ticket.sign_in(claim.user, session)).filter(|sign_in| {
            claim
                .platform
                .is_none_or(|platform| platform == sign_in.platform)
        });
        sign_in.map(Some).ok_or(TicketError::Forged)
    }
}

impl Claim<'_> {
    fn expires_at(&self) -> Timestamp {
        (self.ticket.as_ref()).map_or(Timestamp::ZERO, Ticket::expires_at)
    }

    fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at() <= now
    }
}

/// MAC over everything that a ticket covers. The name comes last, as the only part without a fixed
/// length.
fn mac(
    key: &Key,
    ticket: &[u8; TICKET_BYTES],
    user: UserId,
    session: SessionId,
    boat: Option<&str>,
) -> MacState {
    let mut mac = key.mac.clone();
    mac.update(LABEL);
    mac.update(&ticket[..SIGNED_BYTES]);
    mac.update(&user.get().to_be_bytes());
    mac.update(&session.get().to_be_bytes());
    mac.update(boat.unwrap_or_default().as_bytes());
    mac
}
