//! Where letters lie.

use std::collections::BTreeMap;

use api::dead_letter::Origin;
use backend::queue::Partition;
use protocol::MessageId;

use crate::dead_letters::types::Cursor;
use crate::dead_letters::{DeadLetters, Found, Result, found};

/// Records read at a time.
const PAGE: usize = 200;

/// A letter that is new.
pub(super) struct Died {
    pub(super) origin: Origin,
    pub(super) message: Option<MessageId>,
}

/// The places of all letters by their names, as far as the topics were read.
#[derive(Default)]
pub(super) struct Index {
    places: BTreeMap<String, Cursor>,
    next: BTreeMap<Partition, u64>,
}

impl Index {
    /// Reads what is new, and answers it.
    pub(super) async fn refresh(&mut self, letters: &DeadLetters) -> Result<Vec<Died>> {
        let mut died = Vec::new();
        for (kind, partition) in letters.partitions(None) {
            let (first, end) = letters.parts.queue.bounds(partition).await?;
            let mut next = *self.next.entry(partition).or_insert(first);
            next = next.max(first);
            while next < end {
                let records = letters.parts.queue.read(partition, next, PAGE).await?;
                let Some(last) = records.last() else { break };
                next = last.offset + 1;
                for found in records.into_iter().filter_map(|record| found(kind, record)) {
                    died.push(Died {
                        origin: found.letter.origin,
                        message: found.letter.message,
                    });
                    let place = self.places.entry(found.letter.id());
                    place.or_insert(found.cursor);
                }
                self.next.insert(partition, next);
            }
        }
        Ok(died)
    }

    pub(super) fn has(&self, letter: &str) -> bool {
        self.places.contains_key(letter)
    }

    pub(super) async fn find(&self, letters: &DeadLetters, letter: &str) -> Result<Option<Found>> {
        match self.places.get(letter) {
            Some(cursor) => letters.at(*cursor).await,
            None => Ok(None),
        }
    }
}
