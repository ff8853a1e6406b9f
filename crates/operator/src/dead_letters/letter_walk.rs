//! Iterates over letters.

use super::types::LetterCursor;
use super::{DeadLetters, LocatedLetter, Result, STEP};

/// Messages before notifications, oldest first. Two records may bear the name of one letter (it
/// came back twice at once): the first one is the letter.
pub(super) struct Walk<'a> {
    letters: &'a DeadLetters,
    ahead: std::vec::IntoIter<LocatedLetter>,
    /// Place up to which letters were handed out.
    place: Option<LetterCursor>,
    /// Place up to which the topics were read.
    read: Option<LetterCursor>,
    /// Pages that may still be read.
    pages: usize,
    is_cut: bool,
}

impl DeadLetters {
    /// Starts behind a place, or at the beginning.
    pub(super) fn walk(&self, after: Option<LetterCursor>) -> Walk<'_> {
        Walk {
            letters: self,
            ahead: Vec::new().into_iter(),
            place: after,
            read: after,
            pages: usize::MAX,
            is_cut: false,
        }
    }
}

impl Walk<'_> {
    /// Limits the pages that are read.
    pub(super) fn at_most(self, pages: usize) -> Self {
        Walk { pages, ..self }
    }

    /// Next letter; `None` at the current end, or behind the last page.
    pub(super) async fn next(&mut self) -> Result<Option<LocatedLetter>> {
        loop {
            if let Some(found) = self.ahead.next() {
                self.place = Some(found.cursor);
                return Ok(Some(found));
            }
            self.place = self.read;
            if self.pages == 0 {
                self.is_cut = true;
                return Ok(None);
            }
            self.pages -= 1;
            let (found, last) = self.letters.read(self.read, STEP).await?;
            if last.is_none() {
                return Ok(None);
            }
            self.read = last;
            self.ahead = found.into_iter();
        }
    }

    /// Place to go on from, behind the letters handed out.
    pub(super) fn place(&self) -> Option<LetterCursor> {
        self.place
    }

    /// Place to go on from if there was no next letter; `None` at the end.
    pub(super) fn rest(&self) -> Option<LetterCursor> {
        self.place.filter(|_| self.is_cut)
    }
}
