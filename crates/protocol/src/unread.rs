//! Number of unread messages, from positions alone: without a stored counter, none can be wrong.
//!
//! Each position of a conversation knows how many messages up to it were not the owner's own. So
//! the count between two positions is a difference, less the recalled messages.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Seq;

/// A position in one user's counting: `incoming` messages up to it, itself included, are from
/// others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Tally {
    pub seq: Seq,
    pub incoming: u64,
}

/// Position up to which a user is done with a conversation: read or cleared, whichever is further.
pub fn base(read: Tally, cleared: Tally) -> Tally {
    read.max(cleared)
}

/// Messages from others between the base and the end, without recalled ones. `recalled` are the
/// positions of others' recalled messages, at least those above the base.
pub fn unread(end: Tally, base: Tally, recalled: &BTreeSet<Seq>) -> u64 {
    if end.seq <= base.seq {
        return 0;
    }
    let recalled_count = recalled.range(base.seq.next()..=end.seq).count() as u64;
    end.incoming
        .saturating_sub(base.incoming)
        .saturating_sub(recalled_count)
}

/// Position up to which a member is done with a group: read, cleared, or joined, whichever is
/// further.
pub fn base_in_group(read: Seq, cleared: Seq, joined: Seq) -> Seq {
    read.max(cleared).max(joined)
}

/// Messages of a group from others between the base and its end, without recalled ones. `own` is
/// the number of the member's own among them; `recalled` as above.
pub fn in_group(end: Seq, base: Seq, own: u64, recalled: &BTreeSet<Seq>) -> u64 {
    let own_excluded = Tally {
        seq: end,
        incoming: end.0.saturating_sub(base.0).saturating_sub(own),
    };
    let base = Tally {
        seq: base,
        incoming: 0,
    };
    unread(own_excluded, base, recalled)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Action in a conversation of two users; `side` is the actor.
    #[derive(Clone, Debug)]
    enum CountedStep {
        Send {
            side: usize,
        },
        /// Reads up to this share of the conversation.
        Read {
            side: usize,
            share: u8,
        },
        /// Clears the conversation, up to its end.
        Clear {
            side: usize,
        },
        Recall {
            share: u8,
        },
    }

    fn step() -> impl Strategy<Value = CountedStep> {
        prop_oneof![
            6 => (0..2_usize).prop_map(|side| CountedStep::Send { side }),
            2 => (0..2_usize, any::<u8>()).prop_map(|(side, share)| CountedStep::Read { side, share }),
            1 => (0..2_usize).prop_map(|side| CountedStep::Clear { side }),
            2 => any::<u8>().prop_map(|share| CountedStep::Recall { share }),
        ]
    }

    /// Every message by itself: its writer, its state with each side, and its recall.
    #[derive(Default)]
    struct MessageStates {
        messages: Vec<(usize, [bool; 2], bool)>,
    }

    impl MessageStates {
        fn unread_count(&self, side: usize) -> u64 {
            let unread = |(writer, is_done, is_recalled): &&(usize, [bool; 2], bool)| {
                *writer != side && !is_done[side] && !is_recalled
            };
            self.messages.iter().filter(unread).count() as u64
        }
    }

    /// The server's state.
    #[derive(Default)]
    struct SideCounts {
        /// Incoming count at each position, for each side.
        incoming: Vec<[u64; 2]>,
        writers: Vec<usize>,
        read: [Tally; 2],
        cleared: [Tally; 2],
        recalled: BTreeSet<Seq>,
    }

    impl SideCounts {
        fn tally(&self, seq: u64, side: usize) -> Tally {
            let counts = seq
                .checked_sub(1)
                .and_then(|i| self.incoming.get(i as usize));
            Tally {
                seq: Seq(seq),
                incoming: counts.map_or(0, |per_side| per_side[side]),
            }
        }

        fn end(&self) -> u64 {
            self.incoming.len() as u64
        }

        fn unread_count(&self, side: usize) -> u64 {
            let recalled_of_others = self.recalled.iter().copied();
            let recalled_of_others =
                recalled_of_others.filter(|seq| self.writers[seq.0 as usize - 1] != side);
            let base = base(self.read[side], self.cleared[side]);
            unread(
                self.tally(self.end(), side),
                base,
                &recalled_of_others.collect(),
            )
        }
    }

    fn position_at(share: u8, end: u64) -> u64 {
        u64::from(share) * end / u64::from(u8::MAX)
    }

    // proves S4-35: whatever is sent, read, deleted and recalled, in whatever order, the count from positions
    // is the one that counts every message.
    proptest! {
        #[test]
        fn the_difference_is_what_counting_finds(steps in vec(step(), 0..120)) {
            let (mut states, mut counts) = (MessageStates::default(), SideCounts::default());
            for step in steps {
                let end = counts.end();
                match step {
                    CountedStep::Send { side } => {
                        states.messages.push((side, [false; 2], false));
                        let mut incoming_counts = counts.incoming.last().copied().unwrap_or_default();
                        incoming_counts[1 - side] += 1;
                        counts.incoming.push(incoming_counts);
                        counts.writers.push(side);
                    }
                    CountedStep::Read { side, share } => {
                        let end_seq = position_at(share, end);
                        states.messages[..end_seq as usize].iter_mut().for_each(|m| m.1[side] = true);
                        // The register only grows: a late device moves nothing back.
                        counts.read[side] = counts.read[side].max(counts.tally(end_seq, side));
                    }
                    CountedStep::Clear { side } => {
                        states.messages.iter_mut().for_each(|m| m.1[side] = true);
                        counts.cleared[side] = counts.cleared[side].max(counts.tally(end, side));
                    }
                    CountedStep::Recall { share } => {
                        let at = position_at(share, end);
                        if at > 0 {
                            states.messages[at as usize - 1].2 = true;
                            counts.recalled.insert(Seq(at));
                        }
                    }
                }
                for side in 0..2 {
                    prop_assert_eq!(counts.unread_count(side), states.unread_count(side));
                }
            }
        }
    }

    #[test]
    fn an_end_that_lags_behind_what_was_read_leaves_nothing() {
        let place = |seq, incoming| Tally {
            seq: Seq(seq),
            incoming,
        };
        assert_eq!(unread(place(3, 2), place(5, 4), &BTreeSet::new()), 0);
        assert_eq!(
            unread(place(5, 4), place(3, 2), &BTreeSet::from([Seq(2), Seq(4)])),
            1
        );
    }

    /// Action in a group of three members.
    #[derive(Clone, Debug)]
    enum GroupStep {
        Send {
            member: usize,
        },
        Read {
            member: usize,
            share: u8,
        },
        Clear {
            member: usize,
        },
        Recall {
            share: u8,
        },
        /// Leaves and joins again: earlier messages are not theirs to read.
        Rejoin {
            member: usize,
        },
    }

    fn group_step() -> impl Strategy<Value = GroupStep> {
        prop_oneof![
            6 => (0..3_usize).prop_map(|member| GroupStep::Send { member }),
            2 => (0..3_usize, any::<u8>()).prop_map(|(member, share)| GroupStep::Read { member, share }),
            1 => (0..3_usize).prop_map(|member| GroupStep::Clear { member }),
            2 => any::<u8>().prop_map(|share| GroupStep::Recall { share }),
            1 => (0..3_usize).prop_map(|member| GroupStep::Rejoin { member }),
        ]
    }

    // proves S4-35, S3-36, S3-37 in part, S3 Pitfall B in part: with one row a message and no counter, each member's number is the one that a
    // counter for each member, raised at each message of somebody else, would show.
    proptest! {
        #[test]
        fn the_difference_in_a_group_is_what_counters_would_show(
            steps in vec(group_step(), 0..120),
        ) {
            // Writer, members done with it, recalled.
            let mut messages: Vec<(usize, [bool; 3], bool)> = Vec::new();
            let (mut read_seqs, mut cleared_seqs) = ([Seq::ZERO; 3], [Seq::ZERO; 3]);
            let mut joined = [Seq::ZERO; 3];
            for step in steps {
                let end = messages.len() as u64;
                let mut mark_done = |end_seq: u64, member: usize| {
                    messages[..end_seq as usize].iter_mut().for_each(|m| m.1[member] = true);
                };
                match step {
                    GroupStep::Send { member } => messages.push((member, [false; 3], false)),
                    GroupStep::Read { member, share } => {
                        let end_seq = position_at(share, end);
                        mark_done(end_seq, member);
                        read_seqs[member] = read_seqs[member].max(Seq(end_seq));
                    }
                    GroupStep::Clear { member } => {
                        mark_done(end, member);
                        cleared_seqs[member] = Seq(end);
                    }
                    GroupStep::Rejoin { member } => {
                        mark_done(end, member);
                        joined[member] = Seq(end);
                    }
                    GroupStep::Recall { share } => {
                        if let Some(at) = position_at(share, end).checked_sub(1) {
                            messages[at as usize].2 = true;
                        }
                    }
                }
                let end = Seq(messages.len() as u64);
                for member in 0..3 {
                    let base = base_in_group(read_seqs[member], cleared_seqs[member], joined[member]);
                    let later_messages = &messages[base.0 as usize..];
                    let own = later_messages.iter().filter(|m| m.0 == member).count() as u64;
                    let recalled_messages = messages.iter().zip(1..).filter(|(m, _)| m.2 && m.0 != member);
                    let recalled_seqs = recalled_messages.map(|(_, seq)| Seq(seq)).collect();
                    let unread = messages.iter().filter(|m| m.0 != member && !m.1[member] && !m.2);
                    prop_assert_eq!(in_group(end, base, own, &recalled_seqs), unread.count() as u64);
                }
            }
        }
    }
}
