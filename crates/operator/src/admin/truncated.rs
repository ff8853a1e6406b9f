//! A list in an answer, with an upper limit.

use serde::{Deserialize, Serialize};

/// First items of a list, and the number of the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortlist<T> {
    pub first: Vec<T>,
    pub left_off: u64,
}

impl<T> Shortlist<T> {
    pub fn of(all: impl IntoIterator<Item = T>, most: usize) -> Shortlist<T> {
        let mut all = all.into_iter();
        Shortlist {
            first: all.by_ref().take(most).collect(),
            left_off: all.count() as u64,
        }
    }

    /// Number of items in all.
    pub fn total(&self) -> u64 {
        self.first.len() as u64 + self.left_off
    }
}
