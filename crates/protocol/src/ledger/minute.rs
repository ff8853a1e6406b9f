//! A closed minute: what the log accepted in it, for good, and what has become of it since.
//!
//! Two values, because two things are known at different times. **What was accepted** is known when the
//! minute is closed, and never changes: it is a link of the chain (`chain`), and each link covers the one
//! before. **What became of it** goes on for as long as retries do, ten minutes and more: an amendment
//! replaces the one before, until everything is settled. Were amendments links, a minute that is late would
//! change those after it; were they not sealed to their link, they could be exchanged. So each bears a seal
//! over itself and its link.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{MessageId, Timestamp};

pub const MINUTE: Duration = Duration::from_secs(60);

/// Ids of one kind that an amendment names.
pub const NAMES_MAX: usize = 1000;

/// Open messages are looked at again after a quarter of their age, within these.
const AGAIN: (Duration, Duration) = (MINUTE, Duration::from_secs(3600));

/// The beginning of the minute of a time.
pub fn minute_of(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.millis() - at.millis().rem_euclid(MINUTE.as_millis() as i64))
}

/// SHA-256.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// What the first link of a chain has before it.
    pub const NONE: Digest = Digest([0; 32]);

    /// Of ids: the same for the same set, whatever order they come in and however often each.
    pub fn of_ids(ids: impl IntoIterator<Item = MessageId>) -> Digest {
        let mut ids: Vec<MessageId> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let mut text = Text::new("ids");
        for id in ids {
            text.number(id.get() as u64);
        }
        text.digest()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a digest covers: a name of its kind, then numbers and digests, each of fixed length, so that no two
/// values make the same bytes.
struct Text(Sha256);

impl Text {
    fn new(kind: &str) -> Text {
        let mut text = Text(Sha256::new());
        text.0.update(b"packetboat audit 1 ");
        text.0.update(kind.as_bytes());
        text.0.update([0]);
        text
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    fn time(&mut self, at: Timestamp) {
        self.number(at.millis() as u64);
    }

    fn other(&mut self, digest: Digest) {
        self.0.update(digest.0);
    }

    fn names(&mut self, names: &Names) {
        self.number(names.count);
        self.number(names.first.len() as u64);
        for id in &names.first {
            self.number(id.get() as u64);
        }
    }

    fn digest(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// How many of the accepted messages are where. `accepted = settled + in_flight + missing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    pub settled: u64,
    pub in_flight: u64,
    pub missing: u64,
    /// Pairs of ledger entries, among these messages, that cannot both be.
    pub contradictions: u64,
}

/// The records of one partition that a minute was read from: offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// The first that may be of this minute.
    pub from: u64,
    /// Before it, records of earlier minutes were counted there.
    pub counted: u64,
    /// After the last that was read.
    pub to: u64,
}

impl Stretch {
    /// Whether the record at `offset`, of a message with this accept time, belongs to `minute`: it is of that
    /// minute, or of an earlier one and came when that was closed.
    pub fn counts(&self, minute: Timestamp, offset: u64, accepted_at: Timestamp) -> bool {
        let of = minute_of(accepted_at);
        let read = (self.from..self.to).contains(&offset);
        read && (of == minute || of < minute && offset >= self.counted)
    }
}

/// What a minute was read from and what it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its beginning.
    pub minute: Timestamp,
    pub accepted: u64,
    pub ids: Digest,
    /// Records that the log had removed before they were read: what they held is unknown.
    pub unread: u64,
    /// Of the log that the offsets belong to.
    pub epoch: u32,
    /// One a partition.
    pub stretches: Vec<Stretch>,
}

/// A link of the chain: a minute in which something was accepted. Never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// 1 for the first of the chain, and one more for each after it.
    pub number: u64,
    /// Its beginning.
    pub minute: Timestamp,
    /// Messages whose records were read first in this minute: those whose ids are of it, and those of earlier
    /// minutes that came after theirs was closed (a dead letter that was sent on its way again, a repeat).
    pub accepted: u64,
    pub ids: Digest,
    pub unread: u64,
    pub epoch: u32,
    pub stretches: Vec<Stretch>,
    /// When it was closed; later figures are in the amendment.
    pub then: Figures,
    /// The digest of the link before.
    pub before: Digest,
    /// Covers everything above.
    pub digest: Digest,
}

impl Closed {
    /// The link after `before`.
    pub fn after(before: Link, reading: Reading, then: Figures) -> Closed {
        let mut closed = Closed {
            number: before.number + 1,
            minute: reading.minute,
            accepted: reading.accepted,
            ids: reading.ids,
            unread: reading.unread,
            epoch: reading.epoch,
            stretches: reading.stretches,
            then,
            before: before.digest,
            digest: Digest::NONE,
        };
        closed.digest = closed.recomputed();
        closed
    }

    /// What its digest must be.
    pub fn recomputed(&self) -> Digest {
        let mut text = Text::new("minute");
        text.number(self.number);
        text.time(self.minute);
        text.number(self.accepted);
        text.other(self.ids);
        text.number(self.unread);
        text.number(self.epoch.into());
        text.number(self.stretches.len() as u64);
        for stretch in &self.stretches {
            text.number(stretch.from);
            text.number(stretch.counted);
            text.number(stretch.to);
        }
        text.number(self.then.settled);
        text.number(self.then.in_flight);
        text.number(self.then.missing);
        text.number(self.then.contradictions);
        text.other(self.before);
        text.digest()
    }

    pub fn link(&self) -> Link {
        Link {
            number: self.number,
            minute: self.minute,
            digest: self.digest,
        }
    }
}

/// The name of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub number: u64,
    pub minute: Timestamp,
    pub digest: Digest,
}

impl Link {
    /// What stands before the first link of a chain that begins with `minute`.
    pub const fn beginning(minute: Timestamp) -> Link {
        Link {
            number: 0,
            minute,
            digest: Digest::NONE,
        }
    }
}

/// Some ids by name, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The oldest, at most [`NAMES_MAX`].
    pub first: Vec<MessageId>,
    pub count: u64,
}

impl Names {
    pub fn of(ids: &[MessageId]) -> Names {
        Names {
            first: ids.iter().take(NAMES_MAX).copied().collect(),
            count: ids.len() as u64,
        }
    }

    pub fn is_complete(&self) -> bool {
        self.first.len() as u64 == self.count
    }
}

/// What has become of a closed minute, when it was last looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amendment {
    pub looked_at: Timestamp,
    pub settled: u64,
    pub in_flight: Names,
    pub missing: Names,
    pub contradictions: u64,
    /// Covers everything above and the digest of the minute.
    pub seal: Digest,
}

impl Amendment {
    /// What a look at the whole minute found.
    pub fn of(closed: &Closed, looked_at: Timestamp, found: &Found) -> Amendment {
        let open = (found.in_flight.len() + found.missing.len()) as u64;
        let mut amendment = Amendment {
            looked_at,
            settled: closed.accepted.saturating_sub(open),
            in_flight: Names::of(&found.in_flight),
            missing: Names::of(&found.missing),
            contradictions: found.contradictions,
            seal: Digest::NONE,
        };
        amendment.seal = amendment.recomputed(closed);
        amendment
    }

    /// What a later look at what was open, or at the whole minute again, makes of it. What was settled stays
    /// so: a look that finds more open than there was (a dead letter was sent on its way again since) changes
    /// nothing.
    pub fn amended(&self, closed: &Closed, looked_at: Timestamp, found: &Found) -> Amendment {
        let mut next = Amendment::of(closed, looked_at, found);
        if next.settled < self.settled {
            next = self.clone();
            next.looked_at = looked_at;
        }
        next.contradictions = next.contradictions.max(self.contradictions);
        next.seal = next.recomputed(closed);
        next
    }

    /// A later look that found nothing changed.
    pub fn seen_again(&self, closed: &Closed, looked_at: Timestamp) -> Amendment {
        let mut next = self.clone();
        next.looked_at = looked_at;
        next.seal = next.recomputed(closed);
        next
    }

    /// What its seal must be.
    pub fn recomputed(&self, closed: &Closed) -> Digest {
        let mut text = Text::new("amendment");
        text.other(closed.digest);
        text.time(self.looked_at);
        text.number(self.settled);
        text.names(&self.in_flight);
        text.names(&self.missing);
        text.number(self.contradictions);
        text.digest()
    }

    pub fn figures(&self) -> Figures {
        Figures {
            settled: self.settled,
            in_flight: self.in_flight.count,
            missing: self.missing.count,
            contradictions: self.contradictions,
        }
    }

    /// Nothing needs another look.
    pub fn is_settled(&self) -> bool {
        self.in_flight.count == 0 && self.missing.count == 0
    }

    /// The messages that are open, where all of them have their names here.
    pub fn open(&self) -> Option<Vec<MessageId>> {
        let complete = self.in_flight.is_complete() && self.missing.is_complete();
        complete.then(|| {
            let names = self.in_flight.first.iter().chain(&self.missing.first);
            let mut open: Vec<_> = names.copied().collect();
            open.sort_unstable();
            open
        })
    }

    /// When a minute that is not settled is looked at again.
    pub fn again_at(&self, minute: Timestamp) -> Timestamp {
        let age = self.looked_at.since(minute);
        self.looked_at + (age / 4).clamp(AGAIN.0, AGAIN.1)
    }
}

/// What a look found open: ids in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub in_flight: Vec<MessageId>,
    pub missing: Vec<MessageId>,
    pub contradictions: u64,
}

/// A row as it is kept: what cannot be read is `None`, so that a damaged row is named and hides no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key that it is kept under.
    pub minute: Timestamp,
    pub closed: Option<Closed>,
    /// Also `None` where the minute was closed and not looked at since.
    pub amendment: Option<Amendment>,
}

#[cfg(test)]
mod tests;
