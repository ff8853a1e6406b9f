//! Positions of a page. A message keeps its position, so the positions identify the page.

use crate::Seq;
use crate::frame::HistoryRange;

/// Positions from `first` to `last`, inclusive, in the order of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    pub first: Seq,
    pub last: Seq,
    pub is_forward: bool,
}

impl PageKey {
    /// First `limit` positions of a range in a conversation that ends at `end`; `None` if it has
    /// none.
    pub fn of(range: HistoryRange, end: Seq, limit: usize) -> Option<PageKey> {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let (first, last, is_forward) = match range {
            HistoryRange::Forward { after } => {
                let last = after.0.saturating_add(limit).min(end.0);
                (after.0.saturating_add(1), last, true)
            }
            HistoryRange::Backward { before: cursor } => {
                let last = cursor.map_or(end.0, |cursor| end.0.min(cursor.0.saturating_sub(1)));
                (last.saturating_sub(limit).saturating_add(1), last, false)
            }
        };
        (limit > 0 && first <= last && last > 0).then_some(PageKey {
            first: Seq(first),
            last: Seq(last),
            is_forward,
        })
    }

    /// Range that begins with these positions.
    pub fn range(&self) -> HistoryRange {
        if self.is_forward {
            HistoryRange::Forward {
                after: Seq(self.first.0.saturating_sub(1)),
            }
        } else {
            HistoryRange::Backward {
                before: Some(self.last.next()),
            }
        }
    }

    /// Position of its first message.
    pub fn begin(&self) -> Seq {
        if self.is_forward {
            self.first
        } else {
            self.last
        }
    }

    /// Number of positions.
    pub fn count(&self) -> usize {
        let count = self.last.0.saturating_sub(self.first.0).saturating_add(1);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Number of positions after these in a conversation that ends at `end`.
    pub fn newer(&self, end: Seq) -> u64 {
        end.0.saturating_sub(self.last.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(range: HistoryRange, end: u64, limit: usize) -> Option<(u64, u64)> {
        let part = PageKey::of(range, Seq(end), limit)?;
        Some((part.first.0, part.last.0))
    }

    #[test]
    fn a_page_is_counted_from_where_its_range_begins() {
        let backward = |before: Option<u64>| HistoryRange::Backward {
            before: before.map(Seq),
        };
        let forward = |cursor| HistoryRange::Forward { after: Seq(cursor) };
        assert_eq!(part(backward(None), 50, 10), Some((41, 50)));
        assert_eq!(part(backward(Some(99)), 50, 10), Some((41, 50)));
        assert_eq!(part(backward(Some(41)), 50, 10), Some((31, 40)));
        assert_eq!(part(backward(Some(4)), 50, 10), Some((1, 3)));
        assert_eq!(part(backward(Some(0)), 50, 10), None);
        assert_eq!(part(backward(None), 0, 10), None);
        assert_eq!(part(forward(45), 50, 10), Some((46, 50)));
        assert_eq!(part(forward(20), 50, 10), Some((21, 30)));
        assert_eq!(part(forward(50), 50, 10), None);
        assert_eq!(part(forward(0), 50, 0), None);
    }

    proptest! {
        /// A page keeps its key, whatever comes after it.
        #[test]
        fn a_part_has_one_name(
            place in 0u64..200,
            is_forward: bool,
            end in 0u64..200,
            later in 0u64..50,
            limit in 0usize..50,
        ) {
            let range = if is_forward { HistoryRange::Forward { after: Seq(place) } } else { HistoryRange::Backward { before: Some(Seq(place)) } };
            if let Some(part) = PageKey::of(range, Seq(end), limit) {
                prop_assert!(part.count() <= limit && part.last <= Seq(end));
                prop_assert!(part.first > Seq::ZERO);
                prop_assert_eq!(PageKey::of(part.range(), Seq(end), part.count()), Some(part));
                prop_assert_eq!(PageKey::of(part.range(), Seq(end + later), part.count()), Some(part));
                prop_assert_eq!(part.newer(Seq(end)), end - part.last.0);
            }
        }
    }
}
