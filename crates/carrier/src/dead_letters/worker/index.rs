//! Where letters lie, and which of them nobody has dealt with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::dead_letter::ID;
use backend::queue::{Partition, Record};
use protocol::Timestamp;
use protocol::desk::{Desk, Status};
use protocol::ledger::DeadReason;

use crate::dead_letters::types::{Cursor, Kind};
use crate::dead_letters::{DeadLetters, Found, Result, found, read_on};

/// Records read at a time.
const PAGE: usize = 200;
/// Letters whose place is remembered; those beyond are looked for when they are asked for.
const LETTERS: usize = 1_000_000;

/// A letter that a letter which was redriven died again as.
#[derive(Clone)]
pub(super) struct Again {
    pub(super) parent: String,
    pub(super) letter: String,
}

/// All letters by their names, as far as the topics were read.
#[derive(Default)]
pub(super) struct Index {
    letters: BTreeMap<Arc<str>, Lying>,
    /// Names of records that another version wrote, and where the last one lies: they are there all the same.
    unread: BTreeMap<Arc<str>, Cursor>,
    spans: BTreeMap<Partition, Span>,
    /// Those that nobody has dealt with, the oldest first.
    open: BTreeSet<(Timestamp, Arc<str>)>,
    counts: BTreeMap<(Kind, &'static str), u64>,
    /// There are more letters than are remembered.
    is_cut_off: bool,
    /// The log has dropped letters that the desk may remember.
    has_dropped: bool,
}

struct Lying {
    cursor: Cursor,
    /// The last record of its name: it may have come twice.
    last: Cursor,
    reason: DeadReason,
    died_at: Timestamp,
}

/// What was read of a partition.
#[derive(Clone, Copy)]
struct Span {
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

    /// Reads what is new, and adds what died again of it: also where it is broken off.
    pub(super) async fn refresh(
        &mut self,
        letters: &DeadLetters,
        desk: &Desk,
        again: &mut Vec<Again>,
    ) -> Result<()> {
        for (kind, partition) in letters.partitions(None) {
            let (first, end) = letters.backends.queue.bounds(partition).await?;
            let unread = Span { first, next: first };
            let span = *self.spans.entry(partition).or_insert(unread);
            if span.first < first {
                self.drop_before(kind, partition, first);
            }
            let mut next = span.next.max(first);
            self.spans.insert(partition, Span { first, next });
            while next < end {
                let queue = &*letters.backends.queue;
                let (records, behind) = read_on(queue, partition, next, PAGE).await?;
                next = behind;
                again.extend(self.learn(kind, records, desk));
                self.spans.insert(partition, Span { first, next });
            }
        }
        Ok(())
    }

    fn learn(&mut self, kind: Kind, records: Vec<Record>, desk: &Desk) -> Vec<Again> {
        let mut again = Vec::new();
        for record in records {
            let name = record.header(ID).cloned();
            let cursor = Cursor {
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

    fn learn_letter(&mut self, found: Found, desk: &Desk) -> Option<Again> {
        let Found { cursor, letter, .. } = found;
        let name: Arc<str> = letter.id().into();
        if let Some(lying) = self.letters.get_mut(&name) {
            lying.come_again(cursor);
            return None;
        }
        if self.is_full() {
            return None;
        }
        let lying = Lying {
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

    fn learn_name(&mut self, name: &str, cursor: Cursor) {
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
        let is_gone =
            |at: &Cursor| (at.kind, at.partition) == (kind, partition.number) && at.offset < first;
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

    /// Something may have been done with a letter.
    pub(super) fn settle(&mut self, letter: &str, desk: &Desk) {
        if *desk.status(letter) != Status::Open {
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

    /// Letters of a kind and a reason that nobody has dealt with.
    pub(super) fn open(&self, kind: Kind, reason: DeadReason) -> u64 {
        let count = self.counts.get(&(kind, reason.name()));
        count.copied().unwrap_or_default()
    }

    /// When the oldest of them died.
    pub(super) fn oldest_open(&self) -> Option<Timestamp> {
        self.open.first().map(|(at, _)| *at)
    }

    /// Letters that the desk remembers and the log has dropped, at most so many, until it
    /// has forgotten them all. To be asked after a refresh: whatever the desk knows of then was in the log before.
    pub(super) fn forgotten(&mut self, desk: &Desk, most: usize) -> Vec<String> {
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

    pub(super) async fn find(&self, letters: &DeadLetters, letter: &str) -> Result<Option<Found>> {
        match self.letters.get(letter) {
            Some(lying) => letters.at(lying.cursor).await,
            None if self.is_cut_off => letters.find(letter).await,
            None => Ok(None),
        }
    }
}

impl Lying {
    /// Another record of its name; it is counted where the first one lies.
    fn come_again(&mut self, at: Cursor) {
        if at.kind == self.cursor.kind {
            self.last = at.max(self.last);
        }
    }
}

fn place_of(lying: &Lying) -> (Kind, &'static str) {
    (lying.cursor.kind, lying.reason.name())
}
