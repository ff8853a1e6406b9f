//! Over the letters, one after the other.

use super::types::Cursor;
use super::{DeadLetters, Found, Result, STEP};

/// Messages before notifications, the oldest first. Two records may bear the name of one letter (it came back
/// twice at once): the first is the letter.
pub(super) struct Walk<'a> {
    letters: &'a DeadLetters,
    ahead: std::vec::IntoIter<Found>,
    /// What was handed out last.
    place: Option<Cursor>,
    /// What was read last.
    read: Option<Cursor>,
}

impl DeadLetters {
    /// From behind a place, or the beginning.
    pub(super) fn walk(&self, after: Option<Cursor>) -> Walk<'_> {
        Walk {
            letters: self,
            ahead: Vec::new().into_iter(),
            place: after,
            read: after,
        }
    }
}

impl Walk<'_> {
    /// `None` at the end of now.
    pub(super) async fn next(&mut self) -> Result<Option<Found>> {
        loop {
            if let Some(found) = self.ahead.next() {
                self.place = Some(found.cursor);
                return Ok(Some(found));
            }
            self.place = self.read;
            let (found, last) = self.letters.read(self.read, STEP).await?;
            if last.is_none() {
                return Ok(None);
            }
            self.read = last;
            self.ahead = found.into_iter();
        }
    }

    /// Where to go on behind what was handed out.
    pub(super) fn place(&self) -> Option<Cursor> {
        self.place
    }
}
