//! The balance: each accepted message is settled, in flight, or listed as missing.

use std::collections::{BTreeMap, BTreeSet};

use super::minute::minute_start;
use super::trace::{MessageLife, OpenObligation};
use crate::message::Target;
use crate::{ConversationId, MessageId, Seq, Timestamp};

/// Messages in uncommitted records of the topic `message` and of the retry topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight(BTreeMap<MessageId, Load>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Load {
    whole: bool,
    targets: BTreeSet<Target>,
}

impl InFlight {
    /// A record of the topic `message` carries the whole message.
    pub fn add_message(&mut self, message: MessageId) {
        self.0.entry(message).or_default().whole = true;
    }

    /// A record of a retry topic carries the message for the targets still owed it.
    pub fn add_targets(&mut self, message: MessageId, targets: impl IntoIterator<Item = Target>) {
        self.0.entry(message).or_default().targets.extend(targets);
    }

    pub fn carries(&self, message: MessageId, open: OpenObligation) -> bool {
        self.0.get(&message).is_some_and(|load| {
            load.whole
                || match open {
                    OpenObligation::Message => false,
                    OpenObligation::Target(target) => load.targets.contains(&target),
                }
        })
    }
}

/// Totals of one minute: each accepted message is settled, in flight or missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    pub accepted_count: u64,
    /// Messages without an open obligation.
    pub settled_count: u64,
    /// Messages whose open obligations are all carried by a record to be consumed again.
    pub in_flight_count: u64,
    /// Messages with an open obligation that no record carries: lost, unless the ledger lost
    /// entries.
    pub missing_ids: Vec<MessageId>,
}

impl Balance {
    pub fn is_even(&self) -> bool {
        self.missing_ids.is_empty()
    }
}

/// Fate of one accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageFate {
    /// Every obligation has ended.
    Settled,
    /// Each open obligation is carried by a record to be consumed again.
    InFlight,
    /// An open obligation is carried by no record.
    Missing,
}

impl MessageFate {
    pub fn of(life: &MessageLife, in_flight: &InFlight) -> MessageFate {
        let open = life.open();
        if open.is_empty() {
            MessageFate::Settled
        } else if open
            .iter()
            .all(|&open| in_flight.carries(life.message, open))
        {
            MessageFate::InFlight
        } else {
            MessageFate::Missing
        }
    }
}

/// Two ledger entries that exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contradiction {
    /// One message has two positions.
    PlacedTwice { message: MessageId },
    /// Two messages share one position.
    SeqReused {
        conversation: ConversationId,
        seq: Seq,
        first: MessageId,
        second: MessageId,
    },
}

/// Totals of message lives, minute by minute. Holds a few words per message seen, so audit a window
/// of the log, not its whole past.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    minutes: BTreeMap<Timestamp, Balance>,
    seen_ids: BTreeSet<MessageId>,
    positions: BTreeMap<(ConversationId, Seq), MessageId>,
    contradictions: BTreeSet<Contradiction>,
}

impl Audit {
    /// Counts an accepted message in the minute of its id. A message that the log has twice counts
    /// once.
    pub fn add(&mut self, life: &MessageLife, in_flight: &InFlight) {
        if !self.seen_ids.insert(life.message) {
            return;
        }
        self.look_at_place(life);
        let minute = minute_start(life.message.timestamp());
        let balance = self.minutes.entry(minute).or_default();
        balance.accepted_count += 1;
        match MessageFate::of(life, in_flight) {
            MessageFate::Settled => balance.settled_count += 1,
            MessageFate::InFlight => balance.in_flight_count += 1,
            MessageFate::Missing => balance.missing_ids.push(life.message),
        }
    }

    /// Merges a second look at exactly the messages that were missing: a message that moved during
    /// the first look is settled or in flight after all.
    pub fn look_again(&mut self, second: Audit) {
        for balance in self.minutes.values_mut() {
            balance.missing_ids.clear();
        }
        for (minute, second_balance) in second.minutes {
            let balance = self.minutes.entry(minute).or_default();
            balance.settled_count += second_balance.settled_count;
            balance.in_flight_count += second_balance.in_flight_count;
            balance.missing_ids = second_balance.missing_ids;
        }
        self.contradictions.extend(second.contradictions);
    }

    fn look_at_place(&mut self, life: &MessageLife) {
        let message = life.message;
        if !life.further_places.is_empty() {
            self.contradictions
                .insert(Contradiction::PlacedTwice { message });
        }
        for place in life.place.iter().chain(&life.further_places) {
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

    /// Minutes with accepted messages, each by its start.
    pub fn minutes(&self) -> impl Iterator<Item = (Timestamp, &Balance)> {
        self.minutes
            .iter()
            .map(|(&minute, balance)| (minute, balance))
    }

    pub fn contradictions(&self) -> impl Iterator<Item = &Contradiction> {
        self.contradictions.iter()
    }

    /// Sum of all minutes.
    pub fn total(&self) -> Balance {
        let mut total = Balance::default();
        for balance in self.minutes.values() {
            total.accepted_count += balance.accepted_count;
            total.settled_count += balance.settled_count;
            total.in_flight_count += balance.in_flight_count;
            total.missing_ids.extend(&balance.missing_ids);
        }
        total
    }

    /// Whether no message is missing and no entries contradict each other.
    pub fn is_even(&self) -> bool {
        self.contradictions.is_empty() && self.minutes.values().all(Balance::is_even)
    }
}

#[cfg(test)]
mod tests;
