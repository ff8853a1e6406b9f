//! Index of letters: their places, and the open ones, which nobody has dealt with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::dead_letter::ID;
use backend::queue::{Partition, Record};
use protocol::Timestamp;
use protocol::ledger::DeadReason;

use crate::dead_letters::rules::{LetterStatus, Operations};
use crate::dead_letters::types::{Kind, LetterCursor};
use crate::dead_letters::{DeadLetters, LocatedLetter, Result, locate, read_on};

/// Records read at a time.
const PAGE: usize = 200;
/// Letters with a remembered place; others are searched for on demand.
const LETTERS: usize = 1_000_000;

/// A letter that died again after its parent was redriven.
#[derive(Clone)]
pub(super) struct Again {
    pub(super) parent: String,
    pub(super) letter: String,
}

/// All letters by name, as far as the topics were read.
#[derive(Default)]
pub(super) struct Index {
    letters: BTreeMap<Arc<str>, IndexedLetter>,
    /// Names of records written by another version, with the place of the last one: such letters
    /// exist all the same.
    unread: BTreeMap<Arc<str>, LetterCursor>,
    spans: BTreeMap<Partition, OffsetSpan>,
    /// Open letters, oldest first.
    open: BTreeSet<(Timestamp, Arc<str>)>,
    counts: BTreeMap<(Kind, &'static str), u64>,
    /// Whether there are more letters than are remembered.
    is_cut_off: bool,
    /// Whether the log has dropped letters that the desk may remember.
    has_dropped: bool,
}

struct IndexedLetter {
    cursor: LetterCursor,
    /// Last record of its name, which may have come twice.
    last: LetterCursor,
    reason: DeadReason,
    died_at: Timestamp,
}

/// Range that was read of a partition.
#[derive(Clone, Copy)]
struct OffsetSpan {
    first: u64,
    next: u64,
}

impl Index {
    pub(super) fn new() -> Index {
        Index {
            has_dropped: true,
            ..Index::default()
        }
    }

    /// Reads new records, and adds letters that died again, even if it is broken off.
    pub(super) async fn refresh(
        &mut self,
        letters: &DeadLetters,
        operations: &Operations,
        repeat_deaths: &mut Vec<Again>,
    ) -> Result<()> {
        for (kind, partition) in letters.partitions(None) {
            let (first, end) = letters.backends.queue.bounds(partition).await?;
            let unread = OffsetSpan { first, next: first };
            let span = *self.spans.entry(partition).or_insert(unread);
            if span.first < first {
                self.drop_before(kind, partition, first);
            }
            let mut next = span.next.max(first);
            self.spans.insert(partition, OffsetSpan { first, next });
            while next < end {
                let queue = &*letters.backends.queue;
                let (records, next_offset) = read_on(queue, partition, next, PAGE).await?;
                next = next_offset;
                repeat_deaths.extend(self.learn(kind, records, operations));
                self.spans.insert(partition, OffsetSpan { first, next });
            }
        }
        Ok(())
    }

    fn learn(&mut self, kind: Kind, records: Vec<Record>, operations: &Operations) -> Vec<Again> {
        let mut repeat_deaths = Vec::new();
        for record in records {
            let name = record.header(ID).cloned();
            let cursor = LetterCursor {
                kind,
                partition: record.partition.number,
                offset: record.offset,
            };
            match (locate(kind, record), name) {
                (Some(located_letter), _) => {
                    repeat_deaths.extend(self.learn_letter(located_letter, operations))
                }
                (None, Some(name)) => self.learn_name(&String::from_utf8_lossy(&name), cursor),
                (None, None) => {}
            }
        }
        repeat_deaths
    }

    fn learn_letter(
        &mut self,
        located_letter: LocatedLetter,
        operations: &Operations,
    ) -> Option<Again> {
        let LocatedLetter { cursor, letter, .. } = located_letter;
        let name: Arc<str> = letter.id().into();
        if let Some(entry) = self.letters.get_mut(&name) {
            entry.come_again(cursor);
            return None;
        }
        if self.is_full() {
            return None;
        }
        let entry = IndexedLetter {
            cursor,
            last: cursor,
            reason: letter.reason,
            died_at: letter.last_failed_at,
        };
        self.letters.insert(name.clone(), entry);
        self.settle(&name, operations);
        letter.parent.map(|parent| Again {
            parent,
            letter: name.to_string(),
        })
    }

    fn learn_name(&mut self, name: &str, cursor: LetterCursor) {
        if let Some(last) = self.unread.get_mut(name) {
            *last = cursor.max(*last);
        } else if !self.is_full() {
            self.unread.insert(name.into(), cursor);
        }
    }

    fn is_full(&mut self) -> bool {
        let is_full = self.letters.len() + self.unread.len() >= LETTERS;
        self.is_cut_off |= is_full;
        is_full
    }

    fn drop_before(&mut self, kind: Kind, partition: Partition, first: u64) {
        let is_gone = |at: &LetterCursor| {
            (at.kind, at.partition) == (kind, partition.number) && at.offset < first
        };
        let mut gone_names: Vec<Arc<str>> = Vec::new();
        for (name, entry) in &mut self.letters {
            match (is_gone(&entry.cursor), is_gone(&entry.last)) {
                (true, true) => gone_names.push(name.clone()),
                (true, false) => entry.cursor = entry.last,
                (false, true) => entry.last = entry.cursor,
                (false, false) => {}
            }
        }
        for name in &gone_names {
            self.close(name);
            self.letters.remove(name);
        }
        let unread = self.unread.len();
        self.unread.retain(|_, last| !is_gone(last));
        self.has_dropped |= !gone_names.is_empty() || self.unread.len() < unread;
    }

    /// Updates a letter that something may have been done with.
    pub(super) fn settle(&mut self, letter: &str, operations: &Operations) {
        if *operations.status(letter) != LetterStatus::Open {
            return self.close(letter);
        }
        let Some((name, entry)) = self.letters.get_key_value(letter) else {
            return;
        };
        if self.open.insert((entry.died_at, name.clone())) {
            *self.counts.entry(count_key(entry)).or_default() += 1;
        }
    }

    fn close(&mut self, letter: &str) {
        let Some((name, entry)) = self.letters.get_key_value(letter) else {
            return;
        };
        if self.open.remove(&(entry.died_at, name.clone())) {
            *self.counts.entry(count_key(entry)).or_default() -= 1;
        }
    }

    /// Number of open letters of a kind and a reason.
    pub(super) fn open(&self, kind: Kind, reason: DeadReason) -> u64 {
        let count = self.counts.get(&(kind, reason.name()));
        count.copied().unwrap_or_default()
    }

    /// Time at which the oldest open letter died.
    pub(super) fn oldest_open(&self) -> Option<Timestamp> {
        self.open.first().map(|(at, _)| *at)
    }

    /// Letters that the desk remembers and the log has dropped, at most `limit` of them, until the
    /// desk has forgotten them all. To be called after a refresh: every letter that the desk knows
    /// then was in the log before.
    pub(super) fn find_forgotten(&mut self, operations: &Operations, limit: usize) -> Vec<String> {
        if self.is_cut_off || !self.has_dropped {
            return Vec::new();
        }
        let lies = |name: &str| self.letters.contains_key(name) || self.unread.contains_key(name);
        let gone_names = operations.remembered_letters().filter(|name| !lies(name));
        let gone_names: Vec<String> = gone_names.take(limit).map(str::to_owned).collect();
        self.has_dropped = !gone_names.is_empty();
        gone_names
    }

    pub(super) async fn has(&self, letters: &DeadLetters, letter: &str) -> Result<bool> {
        Ok(self.letters.contains_key(letter) || self.find(letters, letter).await?.is_some())
    }

    pub(super) async fn find(
        &self,
        letters: &DeadLetters,
        letter: &str,
    ) -> Result<Option<LocatedLetter>> {
        match self.letters.get(letter) {
            Some(entry) => letters.at(entry.cursor).await,
            None if self.is_cut_off => letters.find(letter).await,
            None => Ok(None),
        }
    }
}

impl IndexedLetter {
    /// Notes another record of its name. The letter counts where its first record lies.
    fn come_again(&mut self, at: LetterCursor) {
        if at.kind == self.cursor.kind {
            self.last = at.max(self.last);
        }
    }
}

fn count_key(entry: &IndexedLetter) -> (Kind, &'static str) {
    (entry.cursor.kind, entry.reason.name())
}
