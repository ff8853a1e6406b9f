//! Gathers what the log accepted, minute by minute, from records in the order of each partition.
//!
//! ```text
//! wants(p) ─▶ read there ─▶ handle_record … handle_end ─▶ poll_move: a minute that is closed, or a quiet time
//! ```
//!
//! A minute is closed when every partition was read to a record that was appended a settle time after the
//! minute's end, or to the end that it had at such a time: what comes later counts in a later minute. Not
//! more is read than the next minute needs, so that what is held is the traffic of a settle time and a
//! minute.

use std::collections::BTreeMap;
use std::time::Duration;

use super::chain::Place;
use super::minute::{Digest, MINUTE, Reading, Stretch, minute_of};
use crate::{MessageId, Timestamp};

/// What was read and is not in a closed minute yet.
#[derive(Clone, Debug)]
pub struct Gather {
    settle: Duration,
    until: Timestamp,
    place: Place,
    next: Vec<u64>,
    /// To where in time each partition was read.
    reached: Vec<Timestamp>,
    minutes: BTreeMap<Timestamp, Bucket>,
    unread: u64,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// Each message, and the partition that it was read from.
    ids: BTreeMap<MessageId, usize>,
    /// Where a partition's first record of this minute lies.
    first: BTreeMap<usize, u64>,
}

/// How the chain goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Everything accepted before is in a closed minute.
    pub until: Timestamp,
    /// Where reading goes on after a restart.
    pub place: Place,
    /// The minute to be closed, its ids in order and the partition that each was read from; `None` where
    /// nothing was accepted.
    pub closes: Option<(Reading, Vec<(MessageId, usize)>)>,
}

impl Gather {
    /// Goes on at `place`, where everything accepted before the minute `until` is in a closed minute.
    pub fn new(place: Place, until: Timestamp, settle: Duration) -> Gather {
        Gather {
            settle,
            until,
            next: place.from.clone(),
            reached: vec![Timestamp::ZERO; place.from.len()],
            place,
            minutes: BTreeMap::new(),
            unread: 0,
        }
    }

    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Messages that are held.
    pub fn held(&self) -> usize {
        self.minutes.values().map(|bucket| bucket.ids.len()).sum()
    }

    /// Where to read on in a partition; `None` where the next minute needs no more of it.
    pub fn wants(&self, partition: usize) -> Option<u64> {
        (self.reached[partition] < self.due_at()).then(|| self.next[partition])
    }

    /// When the next minute can be closed.
    pub fn due_at(&self) -> Timestamp {
        self.until + MINUTE + self.settle
    }

    /// The log has nothing of a partition before this offset any more.
    pub fn handle_start(&mut self, partition: usize, first: u64) {
        let next = &mut self.next[partition];
        self.unread += first.saturating_sub(*next);
        *next = first.max(*next);
    }

    /// The next record of a partition; `message` where it holds one.
    pub fn handle_record(
        &mut self,
        partition: usize,
        offset: u64,
        appended_at: Timestamp,
        message: Option<MessageId>,
    ) {
        self.next[partition] = offset + 1;
        let reached = &mut self.reached[partition];
        *reached = appended_at.max(*reached);
        let Some(id) = message else { return };
        let minute = minute_of(id.timestamp());
        if minute < self.until && offset < self.place.counted[partition] {
            return;
        }
        let bucket = self.minutes.entry(minute.max(self.until)).or_default();
        bucket.ids.entry(id).or_insert(partition);
        bucket.first.entry(partition).or_insert(offset);
    }

    /// A partition was read to the end that it had at `at`.
    pub fn handle_end(&mut self, partition: usize, at: Timestamp) {
        let reached = &mut self.reached[partition];
        *reached = at.max(*reached);
    }

    /// The next minute, once it can be closed. Nothing in it: goes on to the last quiet minute at once.
    pub fn poll_move(&mut self) -> Option<Move> {
        let reached = self.reached.iter().min().copied()?;
        let closable = minute_of(reached - self.settle);
        if closable <= self.until {
            return None;
        }
        let first = self.minutes.keys().next().copied();
        let stretches = self.place.from.iter().zip(&self.place.counted);
        let stretches: Vec<Stretch> = stretches
            .zip(&self.next)
            .map(|((&from, &counted), &to)| Stretch { from, counted, to })
            .collect();
        let minute = self.until;
        let busy = first == Some(minute) || self.unread > 0;
        let ids = match busy {
            true => self.minutes.remove(&minute).unwrap_or_default().ids,
            false => BTreeMap::new(),
        };
        self.until = match (busy, first) {
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
            let reading = Reading {
                minute,
                accepted: ids.len() as u64,
                ids: Digest::of_ids(ids.keys().copied()),
                unread: std::mem::take(&mut self.unread),
                epoch: self.place.epoch,
                stretches,
            };
            (reading, ids.into_iter().collect())
        });
        Some(Move {
            until: self.until,
            place: self.place.clone(),
            closes,
        })
    }
}

#[cfg(test)]
mod tests;
