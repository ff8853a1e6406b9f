//! Collects accepted messages minute by minute, from records in partition order.
//!
//! ```text
//! wants(p) ─▶ read there ─▶ handle_record … handle_end ─▶ poll_move: a closed minute or quiet time
//! ```
//!
//! A minute is closed once every partition was read up to a record appended a settle time after the
//! minute's end, or up to the end it had at such a time. Later records count in a later minute. No
//! more is read than the next minute needs, so the builder holds the traffic of a settle time and a
//! minute.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::ledger::chain::ChainPlace;
use protocol::ledger::minute::{Digest, MINUTE, MinuteReading, OffsetRange, minute_start};
use protocol::{MessageId, Timestamp};

/// Messages read that are not in a closed minute yet.
#[derive(Clone, Debug)]
pub struct MinuteBuilder {
    settle: Duration,
    closed_until: Timestamp,
    place: ChainPlace,
    next: Vec<u64>,
    /// Time up to which each partition was read.
    read_until: Vec<Timestamp>,
    minutes: BTreeMap<Timestamp, Bucket>,
    unread: u64,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// Messages, each with the partition it was read from.
    ids: BTreeMap<MessageId, usize>,
    /// Offset of each partition's first record in this minute.
    first: BTreeMap<usize, u64>,
}

/// Next step of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogMove {
    /// Everything accepted before is in a closed minute.
    pub closed_until: Timestamp,
    /// Read position after a restart.
    pub place: ChainPlace,
    /// The minute to close, with its ids in order and the partition of each; `None` if no message
    /// was accepted and no record went unread.
    pub closes: Option<(MinuteReading, Vec<(MessageId, usize)>)>,
}

impl MinuteBuilder {
    /// Resumes at `place`. Everything accepted before the minute `closed_until` must be in a
    /// closed minute.
    pub fn new(place: ChainPlace, closed_until: Timestamp, settle: Duration) -> MinuteBuilder {
        MinuteBuilder {
            settle,
            closed_until,
            next: place.from.clone(),
            read_until: vec![Timestamp::ZERO; place.from.len()],
            place,
            minutes: BTreeMap::new(),
            unread: 0,
        }
    }

    /// Number of messages held.
    pub fn held(&self) -> usize {
        self.minutes.values().map(|bucket| bucket.ids.len()).sum()
    }

    /// Offset of the next record to read in a partition; `None` if the next minute needs no more of
    /// it.
    pub fn wants(&self, partition: usize) -> Option<u64> {
        (self.read_until[partition] < self.due_at()).then(|| self.next[partition])
    }

    /// Time from which the next minute can be closed.
    pub fn due_at(&self) -> Timestamp {
        self.closed_until + MINUTE + self.settle
    }

    /// The log has removed all records of a partition before this offset.
    pub fn handle_start(&mut self, partition: usize, first: u64) {
        let next = &mut self.next[partition];
        self.unread += first.saturating_sub(*next);
        *next = first.max(*next);
    }

    /// Adds the next record of a partition, and its message, if any.
    pub fn handle_record(
        &mut self,
        partition: usize,
        offset: u64,
        appended_at: Timestamp,
        message: Option<MessageId>,
    ) {
        self.next[partition] = offset + 1;
        let read_until = &mut self.read_until[partition];
        *read_until = appended_at.max(*read_until);
        let Some(id) = message else { return };
        let minute = minute_start(id.timestamp());
        if minute < self.closed_until && offset < self.place.counted[partition] {
            return;
        }
        let bucket = self
            .minutes
            .entry(minute.max(self.closed_until))
            .or_default();
        bucket.ids.entry(id).or_insert(partition);
        bucket.first.entry(partition).or_insert(offset);
    }

    /// The partition was read up to the end that it had at `at`.
    pub fn handle_end(&mut self, partition: usize, at: Timestamp) {
        let read_until = &mut self.read_until[partition];
        *read_until = at.max(*read_until);
    }

    /// Returns the next minute once it can be closed. Skips a run of quiet minutes in one step.
    pub fn poll_move(&mut self) -> Option<LogMove> {
        let read_until = self.read_until.iter().min().copied()?;
        let closable = minute_start(read_until - self.settle);
        if closable <= self.closed_until {
            return None;
        }
        let first = self.minutes.keys().next().copied();
        let stretches = self.place.from.iter().zip(&self.place.counted);
        let stretches: Vec<OffsetRange> = stretches
            .zip(&self.next)
            .map(|((&from, &counted), &to)| OffsetRange { from, counted, to })
            .collect();
        let minute = self.closed_until;
        let busy = first == Some(minute) || self.unread > 0;
        let ids = if busy {
            self.minutes.remove(&minute).unwrap_or_default().ids
        } else {
            BTreeMap::new()
        };
        self.closed_until = match (busy, first) {
            (true, _) => minute + MINUTE,
            (false, Some(first)) => first.min(closable),
            (false, None) => closable,
        };
        self.place.counted.clone_from(&self.next);
        self.place.from = (0..self.next.len())
            .map(|partition| {
                let firsts = self.minutes.values();
                let first = firsts
                    .filter_map(|bucket| bucket.first.get(&partition))
                    .min();
                first.copied().unwrap_or(self.next[partition])
            })
            .collect();
        let closes = busy.then(|| {
            let reading = MinuteReading {
                minute,
                accepted_count: ids.len() as u64,
                ids: Digest::from_ids(ids.keys().copied()),
                unread: std::mem::take(&mut self.unread),
                epoch: self.place.epoch,
                stretches,
            };
            (reading, ids.into_iter().collect())
        });
        Some(LogMove {
            closed_until: self.closed_until,
            place: self.place.clone(),
            closes,
        })
    }
}

#[cfg(test)]
mod tests;
