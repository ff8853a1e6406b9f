//! A closed minute: the messages that the log accepted in it, and their fate since.
//!
//! Two values, known at different times. **Accepted messages** are known when the minute closes,
//! and never change: they form a link of the chain (`chain`), and each link covers the one before.
//! **Their fate** keeps changing as long as retries go on, ten minutes and more: each amendment
//! replaces the one before, until everything is settled. If amendments were links, a late minute
//! would change those after it; if they were not sealed to their link, they could be exchanged. So
//! each carries a seal over itself and its link.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{MessageId, Timestamp};

pub const MINUTE: Duration = Duration::from_secs(60);

/// Ids of one kind that an amendment lists.
pub const NAMES_MAX: usize = 1000;

/// Bounds of the pause before the next check of open messages: the pause is a quarter of their age.
const RECHECK_PAUSE: (Duration, Duration) = (MINUTE, Duration::from_secs(3600));

/// Start of the minute that contains `at`, or the first time of all.
pub fn minute_start(at: Timestamp) -> Timestamp {
    let offset = at.millis().rem_euclid(MINUTE.as_millis() as i64);
    Timestamp::from_millis(at.millis().saturating_sub(offset))
}

/// SHA-256.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Predecessor of the first link of a chain.
    pub const NONE: Digest = Digest([0; 32]);

    /// Digest of a set of ids, independent of order and duplicates.
    pub fn from_ids(ids: impl IntoIterator<Item = MessageId>) -> Digest {
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

/// Input of a digest: the name of its kind, then numbers and digests of fixed length, so that no
/// two values yield the same bytes.
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

    fn names(&mut self, names: &UnsettledNames) {
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

/// Counts of accepted messages by fate. `accepted = settled + in_flight + missing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinuteFigures {
    pub settled: u64,
    pub in_flight: u64,
    pub missing: u64,
    /// Pairs of ledger entries about these messages that exclude each other.
    pub contradictions: u64,
}

/// Offsets in one partition that a minute was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetRange {
    /// First record that may belong to this minute.
    pub from: u64,
    /// Offset before which records of earlier minutes were counted in those minutes.
    pub counted: u64,
    /// Offset after the last record read.
    pub to: u64,
}

impl OffsetRange {
    /// Whether the record at `offset`, of a message with this accept time, counts in `minute`: it
    /// is of that minute, or of an earlier one that was closed when the record arrived.
    pub fn counts(&self, minute: Timestamp, offset: u64, accepted_at: Timestamp) -> bool {
        let own_minute = minute_start(accepted_at);
        let is_read = (self.from..self.to).contains(&offset);
        is_read && (own_minute == minute || own_minute < minute && offset >= self.counted)
    }
}

/// Source and result of reading one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinuteReading {
    /// Start of the minute.
    pub minute: Timestamp,
    pub accepted_count: u64,
    pub ids: Digest,
    /// Records that the log removed before they were read; their contents are unknown.
    pub unread: u64,
    /// Epoch of the log that the offsets belong to.
    pub epoch: u32,
    /// One per partition.
    pub stretches: Vec<OffsetRange>,
}

/// A link of the chain: a minute with accepted messages or unread records. Never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedMinute {
    /// 1 for the first link of the chain, increasing by one.
    pub number: u64,
    /// Start of the minute.
    pub minute: Timestamp,
    /// Messages first read in this minute: those whose ids belong to it, and those of earlier
    /// minutes whose records arrived after their own minute was closed (a redriven dead letter, a
    /// repeat).
    pub accepted: u64,
    pub ids: Digest,
    pub unread: u64,
    pub epoch: u32,
    pub stretches: Vec<OffsetRange>,
    /// Figures at closing time; later ones are in the amendment.
    pub then: MinuteFigures,
    /// Digest of the previous link.
    pub before: Digest,
    /// Covers all fields above.
    pub digest: Digest,
}

impl ClosedMinute {
    /// Builds the link after `previous`.
    pub fn after(
        previous: ChainLink,
        reading: MinuteReading,
        figures: MinuteFigures,
    ) -> ClosedMinute {
        let mut closed_minute = ClosedMinute {
            number: previous.number + 1,
            minute: reading.minute,
            accepted: reading.accepted_count,
            ids: reading.ids,
            unread: reading.unread,
            epoch: reading.epoch,
            stretches: reading.stretches,
            then: figures,
            before: previous.digest,
            digest: Digest::NONE,
        };
        closed_minute.digest = closed_minute.recomputed();
        closed_minute
    }

    /// Recomputes the digest from the other fields.
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

    pub fn link(&self) -> ChainLink {
        ChainLink {
            number: self.number,
            minute: self.minute,
            digest: self.digest,
        }
    }
}

/// Identity of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLink {
    pub number: u64,
    pub minute: Timestamp,
    pub digest: Digest,
}

impl ChainLink {
    /// Predecessor of the first link of a chain that begins with `minute`.
    pub const fn beginning(minute: Timestamp) -> ChainLink {
        ChainLink {
            number: 0,
            minute,
            digest: Digest::NONE,
        }
    }
}

/// Ids of unsettled messages, some listed, all counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsettledNames {
    /// The oldest ids, at most [`NAMES_MAX`].
    pub first: Vec<MessageId>,
    pub count: u64,
}

impl UnsettledNames {
    pub fn of(ids: &[MessageId]) -> UnsettledNames {
        UnsettledNames {
            first: ids.iter().take(NAMES_MAX).copied().collect(),
            count: ids.len() as u64,
        }
    }

    pub fn is_complete(&self) -> bool {
        self.first.len() as u64 == self.count
    }
}

/// Fate of a closed minute's messages at the last look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amendment {
    pub looked_at: Timestamp,
    pub settled: u64,
    pub in_flight: UnsettledNames,
    pub missing: UnsettledNames,
    pub contradictions: u64,
    /// Covers all fields above, and the digest of the minute.
    pub seal: Digest,
}

impl Amendment {
    /// Amendment after a look at the whole minute.
    pub fn of(
        closed_minute: &ClosedMinute,
        looked_at: Timestamp,
        verdict: &MinuteVerdict,
    ) -> Amendment {
        let open = (verdict.in_flight_ids.len() + verdict.missing_ids.len()) as u64;
        let mut amendment = Amendment {
            looked_at,
            settled: closed_minute.accepted.saturating_sub(open),
            in_flight: UnsettledNames::of(&verdict.in_flight_ids),
            missing: UnsettledNames::of(&verdict.missing_ids),
            contradictions: verdict.contradictions,
            seal: Digest::NONE,
        };
        amendment.seal = amendment.recomputed(closed_minute);
        amendment
    }

    /// Amendment after a later look, at the open messages or at the whole minute again. Settled
    /// messages stay settled: a look that finds more open than before (a dead letter was redriven
    /// since) changes nothing but its time.
    pub fn amended(
        &self,
        closed_minute: &ClosedMinute,
        looked_at: Timestamp,
        verdict: &MinuteVerdict,
    ) -> Amendment {
        let mut next = Amendment::of(closed_minute, looked_at, verdict);
        if next.settled < self.settled {
            next = self.clone();
            next.looked_at = looked_at;
        }
        next.contradictions = next.contradictions.max(self.contradictions);
        next.seal = next.recomputed(closed_minute);
        next
    }

    /// Amendment after a later look that found no change.
    pub fn rechecked(&self, closed_minute: &ClosedMinute, looked_at: Timestamp) -> Amendment {
        let mut next = self.clone();
        next.looked_at = looked_at;
        next.seal = next.recomputed(closed_minute);
        next
    }

    /// Recomputes the seal from the other fields and the minute's digest.
    pub fn recomputed(&self, closed_minute: &ClosedMinute) -> Digest {
        let mut text = Text::new("amendment");
        text.other(closed_minute.digest);
        text.time(self.looked_at);
        text.number(self.settled);
        text.names(&self.in_flight);
        text.names(&self.missing);
        text.number(self.contradictions);
        text.digest()
    }

    pub fn figures(&self) -> MinuteFigures {
        MinuteFigures {
            settled: self.settled,
            in_flight: self.in_flight.count,
            missing: self.missing.count,
            contradictions: self.contradictions,
        }
    }

    /// Whether no message needs another look.
    pub fn is_settled(&self) -> bool {
        self.in_flight.count == 0 && self.missing.count == 0
    }

    /// Open messages; `None` if not all of them are listed here.
    pub fn open(&self) -> Option<Vec<MessageId>> {
        let is_complete = self.in_flight.is_complete() && self.missing.is_complete();
        is_complete.then(|| {
            let names = self.in_flight.first.iter().chain(&self.missing.first);
            let mut open: Vec<_> = names.copied().collect();
            open.sort_unstable();
            open
        })
    }

    /// Time of the next look at an unsettled minute.
    pub fn again_at(&self, minute: Timestamp) -> Timestamp {
        let age = self.looked_at.since(minute);
        self.looked_at + (age / 4).clamp(RECHECK_PAUSE.0, RECHECK_PAUSE.1)
    }
}

/// Open messages found by a look, ordered by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinuteVerdict {
    pub in_flight_ids: Vec<MessageId>,
    pub missing_ids: Vec<MessageId>,
    pub contradictions: u64,
}

/// A stored row. Unreadable parts are `None`, so a damaged row is reported and hides no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinuteRow {
    /// Key of the row.
    pub minute: Timestamp,
    pub closed_minute: Option<ClosedMinute>,
    /// Also `None` if nobody has looked at the minute since it was closed.
    pub amendment: Option<Amendment>,
}

#[cfg(test)]
mod tests;
