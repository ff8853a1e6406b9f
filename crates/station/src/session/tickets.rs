//! Tickets of sessions: made at sign-in, checked with every call of a boat, renewed with its
//! assertions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::station::{MailAck, MailPageRequest, ReceiptItem, RefreshToken, ResumeSession, SyncCall};
use arc_swap::ArcSwap;
use backend::Backends;
use backend::clock::{Clock, Entropy};
use backend::files::{Reload, digest, reread};
use metrics::counter;
use parking_lot::Mutex;
use protocol::access::Caller;
use protocol::session::Submit;
use protocol::settings::Problems;
use protocol::ticket::{
    Claim, KEY_BYTES, KeyFile, KeyFileError, Renewal, ResumeTicket, SignIn, Ticket, TicketError,
    Tickets,
};
use protocol::{DeviceId, Platform};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::Instant;
use tracing::warn;

/// Pause between two log lines about refused tickets for the same reason: a lying boat may cause
/// them all the time.
const WARN_PAUSE: Duration = Duration::from_secs(10);

/// Section `station.tickets`: proof that a boat acts for its own clients.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// File with the keys of session tickets, the same for all stations, read again when it
    /// changes. `packetboat keys new` creates it. Unset: boats are trusted without tickets, unless
    /// station and boat are one process, which makes a key at its start.
    #[schemars(extend("examples" = ["/etc/packetboat/tickets/keys"]))]
    pub keys_file: Option<PathBuf>,
    /// Refuses calls without a good ticket. Off: only forged tickets are refused, for the time that
    /// boats without tickets are about. Enable it once every boat is new and all earlier sessions
    /// have signed in again, which is after the life of a token.
    pub required: bool,
}

impl Config {
    /// Reads the file of keys, if there is one.
    pub fn check_file(&self) -> Result<(), TicketKeysError> {
        self.keys_file
            .as_ref()
            .map_or(Ok(()), |path| read(path).map(drop))
    }

    /// Settings that cannot work, by names of this section.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.required && self.keys_file.is_none() {
            let reason = "stations cannot verify each other's tickets";
            let remedy = "Set keys_file; create the file with packetboat keys new";
            problems.refuse("required", true, reason, remedy);
        }
        problems
    }
}

/// Errors of the file of keys.
#[derive(Debug, Error)]
pub enum TicketKeysError {
    #[error("cannot read the ticket keys in {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a ticket key file: {source}; create one with packetboat keys new")]
    Content { path: PathBuf, source: KeyFileError },
}

pub(crate) struct TicketDoor {
    tickets: ArcSwap<Tickets>,
    file: Option<(PathBuf, Mutex<[u8; 32]>)>,
    is_required: bool,
    clock: Arc<dyn Clock>,
    /// Time of the last warning by reason: a frequent one hides no other.
    warned_at: Mutex<BTreeMap<&'static str, Instant>>,
}

impl TicketDoor {
    /// Opens the file of keys.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no keys.
    pub(crate) fn open(
        config: &crate::Config,
        backends: &Backends,
    ) -> Result<TicketDoor, TicketKeysError> {
        let is_one_process = config.listen.is_none();
        let (entropy, config) = (&*backends.entropy, &config.tickets);
        let (tickets, file) = match &config.keys_file {
            Some(path) => {
                let (keys, digest) = read(path)?;
                let tickets = Tickets::new(&keys, config.required);
                (tickets, Some((path.clone(), Mutex::new(digest))))
            }
            None if is_one_process => {
                // The next start has another key: tickets of this one are then of an unknown key,
                // not forged.
                let keys = KeyFile::new(entropy.next() as u8, random_key(entropy));
                (Tickets::new(&keys, false), None)
            }
            None => (Tickets::off(), None),
        };
        Ok(TicketDoor {
            tickets: ArcSwap::from_pointee(tickets),
            file,
            is_required: config.required,
            clock: backends.clock.clone(),
            warned_at: Mutex::default(),
        })
    }

    /// Reads the file again and again, until dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        if self.file.is_none() {
            return;
        }
        let count = |result| counter!("station_ticket_keys_reloads_total", "result" => result);
        reread("keys of tickets", count, move || self.reload_keys()).await;
    }

    fn reload_keys(&self) -> Result<Reload, TicketKeysError> {
        let Some((path, last)) = &self.file else {
            return Ok(Reload::Unchanged);
        };
        let (keys, digest) = read(path)?;
        if std::mem::replace(&mut *last.lock(), digest) == digest {
            return Ok(Reload::Unchanged);
        }
        let tickets = Tickets::new(&keys, self.is_required);
        self.tickets.store(Arc::new(tickets));
        Ok(Reload::Reloaded)
    }

    pub(crate) fn sign(&self, sign_in: &SignIn, boat: Option<&str>) -> Option<Ticket> {
        self.tickets.load().sign(sign_in, boat, self.clock.now())
    }

    /// Checks that this boat may act for the session.
    pub(crate) fn check(
        &self,
        item: &impl Proof,
        boat: Option<&Caller>,
    ) -> Result<(), TicketError> {
        let outcome = self
            .tickets
            .load()
            .check(&item.claim(boat), self.clock.now());
        outcome.inspect_err(|error| self.log_refusal(*error, boat))
    }

    pub(crate) fn renew(
        &self,
        item: &impl Proof,
        boat: Option<&Caller>,
    ) -> Result<Renewal, TicketError> {
        let renewal = self
            .tickets
            .load()
            .renew(&item.claim(boat), self.clock.now());
        renewal.inspect_err(|error| self.log_refusal(*error, boat))
    }

    pub(crate) fn resume(
        &self,
        ticket: &ResumeTicket,
        platform: Platform,
        device: &DeviceId,
    ) -> Result<SignIn, TicketError> {
        let tickets = self.tickets.load();
        tickets.resume(ticket, platform, device, self.clock.now())
    }

    pub(crate) fn offer_resume(
        &self,
        item: &impl Proof,
        device: &DeviceId,
        boat: Option<&Caller>,
    ) -> Result<Option<ResumeTicket>, TicketError> {
        let tickets = self.tickets.load();
        let offer = tickets.offer_resume(&item.claim(boat), device, self.clock.now());
        offer.inspect_err(|error| self.log_refusal(*error, boat))
    }

    fn log_refusal(&self, error: TicketError, boat: Option<&Caller>) {
        counter!("station_tickets_refused_total", "reason" => error.name()).increment(1);
        let now = Instant::now();
        let mut warned_at = self.warned_at.lock();
        let last = warned_at.get(error.name());
        if last.is_none_or(|at| now.duration_since(*at) >= WARN_PAUSE) {
            warned_at.insert(error.name(), now);
            let boat = boat.map_or_else(|| "without a certificate".to_owned(), Caller::to_string);
            warn!(boat, reason = error.name(), "session tickets refused");
        }
    }
}

fn read(path: &PathBuf) -> Result<(KeyFile, [u8; 32]), TicketKeysError> {
    let text = std::fs::read_to_string(path).map_err(|source| TicketKeysError::Read {
        path: path.clone(),
        source,
    })?;
    let text = SecretString::from(text);
    let keys = KeyFile::parse(text.expose_secret()).map_err(|source| TicketKeysError::Content {
        path: path.clone(),
        source,
    })?;
    Ok((keys, digest([text.expose_secret()])))
}

/// A new key.
pub fn random_key(entropy: &dyn Entropy) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    for part in key.chunks_mut(8) {
        part.copy_from_slice(&entropy.next().to_ne_bytes());
    }
    key
}

/// A call for a session, or an item of one.
pub(crate) trait Proof {
    fn claim<'a>(&self, boat: Option<&'a Caller>) -> Claim<'a>;
}

pub(crate) fn boat_name(boat: Option<&Caller>) -> Option<&str> {
    boat.and_then(|boat| boat.name.as_deref())
}

macro_rules! proofs {
    ($($call:ty: $of:ident => $user:expr, $session:expr, $platform:expr;)+) => {
        $(impl Proof for $call {
            fn claim<'a>(&self, boat: Option<&'a Caller>) -> Claim<'a> {
                let $of = self;
                Claim {
                    user: $user,
                    session: $session,
                    platform: $platform,
                    ticket: $of.ticket,
                    boat: boat_name(boat),
                }
            }
        })+
    };
}

proofs! {
    Submit: of => of.user, Some(of.session), Some(of.platform);
    ReceiptItem: of => of.user, Some(of.session), None;
    MailPageRequest: of => of.user, of.session, Some(of.platform);
    MailAck: of => of.user, Some(of.session), Some(of.platform);
    SyncCall: of => of.user, Some(of.session), None;
    api::station::Disconnect: of => of.key.user, Some(of.key.session), None;
    RefreshToken: of => of.user, Some(of.session), Some(of.platform);
    ResumeSession: of => of.user, Some(of.session), Some(of.platform);
    api::station::Reassert: of => of.key.user, Some(of.key.session), Some(of.platform);
}
