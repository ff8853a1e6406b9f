//! Index of letters: their places, and the open ones, which nobody has dealt with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::dead_letter::ID;
use backend::queue::{Partition, Record};
use protocol::Timestamp;
use protocol::ledger::DeadReason;

use crate::dead_letters::types::{Kind, LetterCursor};
use crate::dead_letters::{DeadLetters, LocatedLetter, Result, found, read_on};
use crate::desk::{LetterStatus, Operations};

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
    /// True if there are more letters than are remembered.
    is_cut_off: bool,
    /// True if the log has dropped letters that the desk may remember.
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
        desk: &Operations,
        again: &mut Vec<Again>,
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
                let (records, behind) = read_on(queue, partition, next, PAGE).await?;
                next = behind;
                again.extend(self.learn(kind, records, desk));
                self.spans.insert(partition, OffsetSpan { first, next });
            }
        }
        Ok(())
    }

    fn learn(&mut self, kind: Kind, records: Vec<Record>, desk: &Operations) -> Vec<Again> {
        let mut again = Vec::new();
        for record in records {
            let name = record.header(ID).cloned();
            let cursor = LetterCursor {
                kind,
                partition: record.partition.number,
                offset: record.offset,
            };
            match (found(kind, record), name) {
                (Some(found), _) => again.extend(self.learn_letter(found, desk)),
                (None, Some(name)) => self.learn_name(&String::from_utf8_lossy(&name), cursor),
                (None, None) => {}
            }
        }
        again
    }

    fn learn_letter(&mut self, found: LocatedLetter, desk: &Operations) -> Option<Again> {
        let LocatedLetter { cursor, letter, .. } = found;
        let name: Arc<str> = letter.id().into();
        if let Some(lying) = self.letters.get_mut(&name) {
            lying.come_again(cursor);
            return None;
        }
        if self.is_full() {
            return None;
        }
        let lying = IndexedLetter {
            cursor,
            last: cursor,
            reason: letter.reason,
            died_at: letter.last_failed_at,
        };
        self.letters.insert(name.clone(), lying);
        self.settle(&name, desk);
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
        let mut gone: Vec<Arc<str>> = Vec::new();
        for (name, lying) in &mut self.letters {
            match (is_gone(&lying.cursor), is_gone(&lying.last)) {
                (true, true) => gone.push(name.clone()),
                (true, false) => lying.cursor = lying.last,
                (false, true) => lying.last = lying.cursor,
                (false, false) => {}
            }
        }
        for name in &gone {
            self.close(name);
            self.letters.remove(name);
        }
        let unread = self.unread.len();
        self.unread.retain(|_, last| !is_gone(last));
        self.has_dropped |= !gone.is_empty() || self.unread.len() < unread;
    }

    /// Updates a letter that something may have been done with.
    pub(super) fn settle(&mut self, letter: &str, desk: &Operations) {
        if *desk.status(letter) != LetterStatus::Open {
            return self.close(letter);
        }
        let Some((name, lying)) = self.letters.get_key_value(letter) else {
            return;
        };
        if self.open.insert((lying.died_at, name.clone())) {
            *self.counts.entry(place_of(lying)).or_default() += 1;
        }
    }

    fn close(&mut self, letter: &str) {
        let Some((name, lying)) = self.letters.get_key_value(letter) else {
            return;
        };
        if self.open.remove(&(lying.died_at, name.clone())) {
            *self.counts.entry(place_of(lying)).or_default() -= 1;
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

    /// Letters that the desk remembers and the log has dropped, at most `most` of them, until the
    /// desk has forgotten them all. To be called after a refresh: every letter that the desk knows
    /// then was in the log before.
    pub(super) fn forgotten(&mut self, desk: &Operations, most: usize) -> Vec<String> {
        if self.is_cut_off || !self.has_dropped {
            return Vec::new();
        }
        let lies = |name: &str| self.letters.contains_key(name) || self.unread.contains_key(name);
        let gone = desk.remembered().filter(|name| !lies(name));
        let gone: Vec<String> = gone.take(most).map(str::to_owned).collect();
        self.has_dropped = !gone.is_empty();
        gone
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
            Some(lying) => letters.at(lying.cursor).await,
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

fn place_of(lying: &IndexedLetter) -> (Kind, &'static str) {
    (lying.cursor.kind, lying.reason.name())
}
