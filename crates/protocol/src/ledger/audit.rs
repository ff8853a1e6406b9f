//! The balance: of what was accepted, everything is settled or in flight, or its name stands here.

use std::collections::{BTreeMap, BTreeSet};

use super::minute::minute_of;
use super::trace::{Life, Open};
use crate::message::Target;
use crate::{ConversationId, MessageId, Seq, Timestamp};

/// What the records say that nobody has committed yet: the topic `message` and the retry topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried(BTreeMap<MessageId, Load>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Load {
    whole: bool,
    targets: BTreeSet<Target>,
}

impl Carried {
    /// A record of the topic `message` carries the message whole.
    pub fn add_message(&mut self, message: MessageId) {
        self.0.entry(message).or_default().whole = true;
    }

    /// A record of a retry topic carries what some targets miss.
    pub fn add_targets(&mut self, message: MessageId, targets: impl IntoIterator<Item = Target>) {
        self.0.entry(message).or_default().targets.extend(targets);
    }

    pub fn carries(&self, message: MessageId, open: Open) -> bool {
        self.0.get(&message).is_some_and(|load| {
            load.whole
                || match open {
                    Open::Message => false,
                    Open::Target(target) => load.targets.contains(&target),
                }
        })
    }
}

/// One minute's sum: `accepted = settled + in_flight + missing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    pub accepted: u64,
    /// Every obligation has an end.
    pub settled: u64,
    /// What is open is carried by a record that will come again.
    pub in_flight: u64,
    /// Something is open and no record carries it: lost, unless the ledger is.
    pub missing: Vec<MessageId>,
}

impl Balance {
    pub fn is_even(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Where one accepted message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Every obligation has an end.
    Settled,
    /// What is open is carried by a record that will come again.
    InFlight,
    /// Something is open and no record carries it.
    Missing,
}

impl Fate {
    pub fn of(life: &Life, carried: &Carried) -> Fate {
        let open = life.open();
        if open.is_empty() {
            Fate::Settled
        } else if open.iter().all(|&open| carried.carries(life.message, open)) {
            Fate::InFlight
        } else {
            Fate::Missing
        }
    }
}

/// Two entries that cannot both be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contradiction {
    /// One message stands at two positions.
    PlacedTwice { message: MessageId },
    /// Two messages stand at one position.
    SeqReused {
        conversation: ConversationId,
        seq: Seq,
        first: MessageId,
        second: MessageId,
    },
}

/// Sums up lives, minute by minute. Holds a few words for each message it has seen, so audit a window
/// of the log, not its whole past.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    minutes: BTreeMap<Timestamp, Balance>,
    seen: BTreeSet<MessageId>,
    positions: BTreeMap<(ConversationId, Seq), MessageId>,
    contradictions: BTreeSet<Contradiction>,
}

impl Audit {
    /// Counts an accepted message, in the minute that its id names. One that the log has twice counts
    /// once.
    pub fn add(&mut self, life: &Life, carried: &Carried) {
        if !self.seen.insert(life.message) {
            return;
        }
        self.look_at_place(life);
        let minute = minute_of(life.message.timestamp());
        let balance = self.minutes.entry(minute).or_default();
        balance.accepted += 1;
        match Fate::of(life, carried) {
            Fate::Settled => balance.settled += 1,
            Fate::InFlight => balance.in_flight += 1,
            Fate::Missing => balance.missing.push(life.message),
        }
    }

    /// Takes over what a second look found, at the messages that were missing and at no others: what
    /// moved while it was looked for is settled or in flight after all.
    pub fn look_again(&mut self, second: Audit) {
        for balance in self.minutes.values_mut() {
            balance.missing.clear();
        }
        for (minute, found) in second.minutes {
            let balance = self.minutes.entry(minute).or_default();
            balance.settled += found.settled;
            balance.in_flight += found.in_flight;
            balance.missing = found.missing;
        }
        self.contradictions.extend(second.contradictions);
    }

    fn look_at_place(&mut self, life: &Life) {
        let message = life.message;
        if !life.placed_again.is_empty() {
            self.contradictions
                .insert(Contradiction::PlacedTwice { message });
        }
        for place in life.placed.iter().chain(&life.placed_again) {
            let key = (place.conversation, place.seq);
            let first = *self.positions.entry(key).or_insert(message);
            if first != message {
                self.contradictions.insert(Contradiction::SeqReused {
                    conversation: place.conversation,
                    seq: place.seq,
                    first,
                    second: message,
                });
            }
        }
    }

    /// Each minute in which something was accepted, by its beginning.
    pub fn minutes(&self) -> impl Iterator<Item = (Timestamp, &Balance)> {
        self.minutes
            .iter()
            .map(|(&minute, balance)| (minute, balance))
    }

    pub fn contradictions(&self) -> impl Iterator<Item = &Contradiction> {
        self.contradictions.iter()
    }

    /// All minutes as one.
    pub fn total(&self) -> Balance {
        let mut total = Balance::default();
        for balance in self.minutes.values() {
            total.accepted += balance.accepted;
            total.settled += balance.settled;
            total.in_flight += balance.in_flight;
            total.missing.extend(&balance.missing);
        }
        total
    }

    /// Nothing is missing and nothing contradicts itself.
    pub fn is_even(&self) -> bool {
        self.contradictions.is_empty() && self.minutes.values().all(Balance::is_even)
    }
}

#[cfg(test)]
mod tests;
