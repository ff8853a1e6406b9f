//! Resume tickets: a boat that leaves gives one to each client, which signs in elsewhere with it,
//! without the token provider or a signature check. So a rolling restart costs the checkers of
//! tokens nothing.

use super::{
    Claim, KeyId, MAC_BYTES, Renewal, SignIn, TicketError, Tickets, in_seconds, millis_from_bytes,
    seconds,
};
use crate::{Code, DeviceId, Hidden, Platform, Refusal, SessionId, Timestamp, UserId};

use hmac::Mac as _;
use std::fmt;
use std::time::Duration;

/// Life of a resume ticket, or of its token, if shorter.
pub const RESUME_LIFE: Duration = Duration::from_secs(120);

/// Bytes of a resume ticket: key, platform, end of the ticket and of the token in seconds (4 each),
/// issue of the token in milliseconds (6), user and session (8 each), MAC (16). All numbers are big
/// endian.
pub const RESUME_TICKET_BYTES: usize = 48;

const SIGNED_BYTES: usize = RESUME_TICKET_BYTES - MAC_BYTES;
/// Sets these MACs apart from others under the same keys.
const LABEL: &[u8] = b"packetboat resume ticket 1";

/// A resume ticket in its wire form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ResumeTicket([u8; RESUME_TICKET_BYTES]);

impl fmt::Debug for ResumeTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redacted = Hidden::of(&self.0);
        f.debug_tuple("ResumeTicket").field(&redacted).finish()
    }
}

impl ResumeTicket {
    pub const fn from_bytes(bytes: [u8; RESUME_TICKET_BYTES]) -> ResumeTicket {
        ResumeTicket(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; RESUME_TICKET_BYTES] {
        &self.0
    }

    fn key(&self) -> KeyId {
        self.0[0]
    }

    fn expires_at(&self) -> Timestamp {
        seconds(&self.0[2..6])
    }

    fn sign_in(&self) -> Option<SignIn> {
        Some(SignIn {
            user: UserId::new(number(&self.0[16..24])).ok()?,
            session: SessionId::new(number(&self.0[24..32])).ok()?,
            platform: Platform::from_number(self.0[1])?,
            issued_at: millis_from_bytes(&self.0[10..16]),
            ends_at: seconds(&self.0[6..10]),
        })
    }
}

fn number(bytes: &[u8]) -> i64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | i64::from(*byte))
}

impl Tickets {
    /// Issues a resume ticket for a session of this device, whose own ticket is good.
    ///
    /// # Errors
    /// The session's ticket is forged.
    pub fn offer_resume(
        &self,
        claim: &Claim<'_>,
        device: &DeviceId,
        now: Timestamp,
    ) -> Result<Option<ResumeTicket>, TicketError> {
        match self.renew(claim, now) {
            Ok(Renewal::Proved(sign_in)) if !claim.is_over(now) => {
                Ok(self.sign_resume(&sign_in, device, now))
            }
            // Nothing proves when the token ends, or that the session still lives.
            Ok(_) => Ok(None),
            Err(TicketError::Forged) => Err(TicketError::Forged),
            Err(_) => Ok(None),
        }
    }

    fn sign_resume(
        &self,
        sign_in: &SignIn,
        device: &DeviceId,
        now: Timestamp,
    ) -> Option<ResumeTicket> {
        let key = self.keys.first()?;
        let mut bytes = [0; RESUME_TICKET_BYTES];
        bytes[0] = key.id;
        bytes[1] = sign_in.platform.number();
        bytes[2..6].copy_from_slice(&in_seconds(sign_in.ends_at.min(now + RESUME_LIFE)));
        bytes[6..10].copy_from_slice(&in_seconds(sign_in.ends_at));
        let issued_at = sign_in.issued_at.millis().max(0).to_be_bytes();
        bytes[10..16].copy_from_slice(&issued_at[2..]);
        bytes[16..24].copy_from_slice(&sign_in.user.get().to_be_bytes());
        bytes[24..32].copy_from_slice(&sign_in.session.get().to_be_bytes());
        let mac = mac(key, &bytes, device).finalize().into_bytes();
        bytes[SIGNED_BYTES..].copy_from_slice(&mac[..MAC_BYTES]);
        Some(ResumeTicket(bytes))
    }

    /// Sign-in that a client resumes. A ticket may be used twice: the later sign-in replaces the
    /// session of its own device.
    ///
    /// # Errors
    /// The ticket has ended, its key is gone, or it belongs to another device or platform.
    pub fn resume(
        &self,
        ticket: &ResumeTicket,
        platform: Platform,
        device: &DeviceId,
        now: Timestamp,
    ) -> Result<SignIn, TicketError> {
        let key = self.key(ticket.key())?;
        let mac = mac(key, &ticket.0, device);
        let is_good = mac.verify_truncated_left(&ticket.0[SIGNED_BYTES..]).is_ok();
        let sign_in = ticket.sign_in().filter(|of| of.platform == platform);
        match sign_in.filter(|_| is_good) {
            None => Err(TicketError::Forged),
            Some(_) if ticket.expires_at() <= now => Err(TicketError::Expired),
            Some(sign_in) => Ok(sign_in),
        }
    }
}

impl TicketError {
    /// Answer to a client that wants to resume, which still has its token.
    pub fn resume_refusal(self) -> Refusal {
        match self {
            TicketError::Forged => Refusal::new(
                Code::Unauthenticated,
                "this ticket is not one of this device; sign in with your token",
            ),
            TicketError::Missing | TicketError::UnknownKey(_) | TicketError::Expired => {
                Refusal::new(
                    Code::TokenExpired,
                    "the ticket to resume with has ended; sign in with your token",
                )
            }
        }
    }
}

/// True for a refusal after which a resuming client signs in with its token.
pub const fn falls_back(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::TokenExpired)
}

/// MAC over the ticket and the device, which comes last as the only part without a fixed length.
fn mac(key: &super::Key, ticket: &[u8; RESUME_TICKET_BYTES], device: &DeviceId) -> super::MacState {
    let mut mac = key.mac.clone();
    mac.update(LABEL);
    mac.update(&ticket[..SIGNED_BYTES]);
    mac.update(device.as_str().as_bytes());
    mac
}
