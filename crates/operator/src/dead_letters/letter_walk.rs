//! Iterates over letters.

use super::types::LetterCursor;
use super::{DeadLetters, LocatedLetter, Result, STEP};

/// Messages before notifications, oldest first. Two records may bear the name of one letter (it
/// came back twice at once): the first one is the letter.
pub(super) struct Walk<'a> {
    letters: &'a DeadLetters,
    buffer: std::vec::IntoIter<LocatedLetter>,
    /// Place up to which letters were handed out.
    place: Option<LetterCursor>,
    /// Place up to which the topics were read.
    read_until: Option<LetterCursor>,
    /// Pages that may still be read.
    pages: usize,
    is_cut: bool,
}

impl DeadLetters {
    /// Starts behind a place, or at the beginning.
    pub(super) fn walk(&self, cursor: Option<LetterCursor>) -> Walk<'_> {
        Walk {
            letters: self,
            buffer: Vec::new().into_iter(),
            place: cursor,
            read_until: cursor,
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
            if let Some(located_letter) = self.buffer.next() {
                self.place = Some(located_letter.cursor);
                return Ok(Some(located_letter));
            }
            self.place = self.read_until;
            if self.pages == 0 {
                self.is_cut = true;
                return Ok(None);
            }
            self.pages -= 1;
            let (letters, last) = self.letters.read(self.read_until, STEP).await?;
            if last.is_none() {
                return Ok(None);
            }
            self.read_until = last;
            self.buffer = letters.into_iter();
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
