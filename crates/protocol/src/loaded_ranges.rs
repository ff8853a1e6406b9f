//! Ranges of a conversation that a device has, and the gaps before them, marked *to be loaded*
//! (S0-67 to S0-71).
//!
//! A device that comes back after a long time gets the newest messages only. Below the oldest of
//! them is an *edge* (the requirements call it a marker; here a marker is the mailbox's). A user
//! who scrolls down to it can load more, which the device requests from the server from there. The
//! loaded messages either reach the next older stretch, and the edge goes, or do not, and the edge
//! moves down.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::Seq;

/// Stretches of positions on a device, each without holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedRanges {
    /// Last position by first; stretches neither touch nor overlap.
    stretches: BTreeMap<Seq, Seq>,
}

/// Place of the messages before a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OlderRange {
    /// On the device, the one before at least.
    Here,
    /// On the server: ask for messages before this position.
    ToBeLoaded(Seq),
    /// Nowhere: the conversation begins here.
    Nothing,
}

impl LoadedRanges {
    /// Stretches from first to last, upward.
    pub fn stretches(&self) -> impl Iterator<Item = RangeInclusive<Seq>> + '_ {
        self.stretches.iter().map(|(first, last)| *first..=*last)
    }

    /// Adds loaded positions, without holes. Returns the edges that went.
    pub fn add(&mut self, range: RangeInclusive<Seq>) -> Vec<Seq> {
        let (mut first, mut last) = (*range.start(), *range.end());
        if first > last || first == Seq::ZERO {
            return Vec::new();
        }
        let old_edges = self.edges();
        // Stretches that it touches or overlaps become one with it.
        let merged: Vec<Seq> = (self.stretches.range(..=last.next()))
            .filter(|(_, end)| end.next() >= first)
            .map(|(begin, _)| *begin)
            .collect();
        for begin in merged {
            if let Some(end) = self.stretches.remove(&begin) {
                first = first.min(begin);
                last = last.max(end);
            }
        }
        self.stretches.insert(first, last);
        let new_edges = self.edges();
        old_edges
            .into_iter()
            .filter(|edge| !new_edges.contains(edge))
            .collect()
    }

    /// Positions just before each stretch: messages there and before are still to load. S0-68: the
    /// smallest loaded position, less one.
    pub fn edges(&self) -> Vec<Seq> {
        let firsts = self.stretches.keys();
        let edges = firsts.filter_map(|first| first.0.checked_sub(1).map(Seq));
        edges.filter(|edge| *edge > Seq::ZERO).collect()
    }

    /// Place of the messages before `seq`.
    pub fn older(&self, seq: Seq) -> OlderRange {
        let Some(previous) = seq.0.checked_sub(1).filter(|seq| *seq > 0).map(Seq) else {
            return OlderRange::Nothing;
        };
        match self.stretches.range(..=previous).next_back() {
            Some((_, end)) if *end >= previous => OlderRange::Here,
            _ => OlderRange::ToBeLoaded(seq),
        }
    }

    pub fn has(&self, seq: Seq) -> bool {
        let stretch = self.stretches.range(..=seq).next_back();
        stretch.is_some_and(|(_, end)| *end >= seq)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn add(ranges: &mut LoadedRanges, first: u64, last: u64) -> Vec<Seq> {
        ranges.add(Seq(first)..=Seq(last))
    }

    // proves S0-68 in part, S0-70 in part, S0-71 in part:
    // the edge is the smallest that came, less one; it goes when what is loaded
    // passes it, and another one takes its place where that does not reach what was there.
    #[test]
    fn an_edge_moves_down_until_it_meets_what_was_there() {
        let mut ranges = LoadedRanges::default();
        add(&mut ranges, 1, 20);
        assert_eq!(ranges.edges(), []);
        add(&mut ranges, 101, 150);
        assert_eq!(ranges.edges(), [Seq(100)]);
        assert_eq!(ranges.older(Seq(120)), OlderRange::Here);
        assert_eq!(ranges.older(Seq(101)), OlderRange::ToBeLoaded(Seq(101)));
        assert_eq!(add(&mut ranges, 51, 100), [Seq(100)]);
        assert_eq!(ranges.edges(), [Seq(50)]);
        assert_eq!(add(&mut ranges, 15, 50), [Seq(50)]);
        assert_eq!(ranges.edges(), []);
        assert_eq!(ranges.older(Seq(101)), OlderRange::Here);
        assert_eq!(ranges.older(Seq(1)), OlderRange::Nothing);
    }

    #[test]
    fn empty_or_zero_ranges_change_nothing() {
        let mut ranges = LoadedRanges::default();
        add(&mut ranges, 5, 4);
        add(&mut ranges, 0, 4);
        assert_eq!(ranges, LoadedRanges::default());
    }

    proptest! {
        #[test]
        fn stretches_are_what_a_set_of_positions_says(
            additions in vec((1..60_u64, 0..12_u64), 0..30),
        ) {
            let (mut ranges, mut positions) = (LoadedRanges::default(), BTreeSet::new());
            for (first, more) in additions {
                add(&mut ranges, first, first + more);
                positions.extend(first..=first + more);
                let edges = (1..80).filter(|seq| positions.contains(&(seq + 1)) && !positions.contains(seq));
                let edges: Vec<Seq> = edges.map(Seq).collect();
                prop_assert_eq!(ranges.edges(), edges);
                for seq in 1..80 {
                    prop_assert_eq!(ranges.has(Seq(seq)), positions.contains(&seq));
                    let older = match seq {
                        1 => OlderRange::Nothing,
                        seq if positions.contains(&(seq - 1)) => OlderRange::Here,
                        seq => OlderRange::ToBeLoaded(Seq(seq)),
                    };
                    prop_assert_eq!(ranges.older(Seq(seq)), older);
                }
            }
        }
    }
}
