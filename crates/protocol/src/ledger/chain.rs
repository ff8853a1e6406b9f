//! The chain over closed minutes, and its verification.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::minute::{ChainLink, ClosedMinute, MinuteRow};
use crate::Timestamp;

/// The end of the chain. There is only one: a worker that closes a minute replaces the head that it
/// read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// Number of moves so far: a head is replaced only by that of the next turn.
    pub turn: u64,
    /// Worker that moved the head last, and when. Other workers leave the head alone while this is
    /// recent.
    pub worker: u64,
    pub at: Timestamp,
    /// Last link removed by retention. Number 0: none.
    pub start: ChainLink,
    /// Everything accepted between `start.minute` and this time is in a closed minute.
    pub until: Timestamp,
    /// No minute before this one is open.
    pub open_from: Timestamp,
    pub place: ChainPlace,
    /// The last link, whole. A worker that takes over rewrites its row, in case its predecessor
    /// moved the head but did not write the row.
    pub last: Option<ClosedMinute>,
}

/// Read position in the log: offsets, one per partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainPlace {
    /// Epoch of the log that the offsets belong to.
    pub epoch: u32,
    /// Offset where reading resumes: everything before is in a closed minute.
    pub from: Vec<u64>,
    /// Offset before which records of closed minutes are counted.
    pub counted: Vec<u64>,
}

impl ChainHead {
    /// The last link.
    pub fn link(&self) -> ChainLink {
        self.last.as_ref().map_or(self.start, ClosedMinute::link)
    }
}

/// Flaws of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainFlaw {
    /// The row cannot be read.
    Unreadable { minute: Timestamp },
    /// The row's digest does not match its contents.
    Altered { minute: Timestamp },
    /// The row's key is not its own minute, or the row is out of order.
    Misplaced { minute: Timestamp },
    /// The row matches its own digest, but not the digest of the row before.
    Unlinked { minute: Timestamp },
    /// Links of these numbers are missing, between the minutes of their neighbours.
    Removed {
        first: u64,
        last: u64,
        previous_minute: Timestamp,
        next_minute: Timestamp,
    },
    /// The amendment does not match its seal, or its figures do not add up to `accepted`.
    AmendmentAltered { minute: Timestamp },
    /// The amendment is missing.
    AmendmentRemoved { minute: Timestamp },
    /// The ids in the log are not those counted. Only a read of the log finds this.
    IdsDiffer {
        minute: Timestamp,
        counted: u64,
        in_log: u64,
    },
}

impl ChainFlaw {
    /// Minute of the flaw; for removed links, that of the last link before them.
    pub fn minute(&self) -> Timestamp {
        match self {
            ChainFlaw::Unreadable { minute }
            | ChainFlaw::Altered { minute }
            | ChainFlaw::Misplaced { minute }
            | ChainFlaw::Unlinked { minute }
            | ChainFlaw::AmendmentAltered { minute }
            | ChainFlaw::AmendmentRemoved { minute }
            | ChainFlaw::IdsDiffer { minute, .. } => *minute,
            ChainFlaw::Removed {
                previous_minute: after,
                ..
            } => *after,
        }
    }
}

impl fmt::Display for ChainFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainFlaw::Unreadable { .. } => f.write_str("the row cannot be read"),
            ChainFlaw::Altered { .. } => {
                f.write_str("the row was altered: its digest does not match")
            }
            ChainFlaw::Misplaced { .. } => f.write_str("the row is out of place"),
            ChainFlaw::Unlinked { .. } => {
                f.write_str("the previous row is not the one it was linked to")
            }
            ChainFlaw::Removed { first, last, .. } if first == last => {
                write!(f, "link {first} was removed after it")
            }
            ChainFlaw::Removed { first, last, .. } => {
                write!(f, "links {first} to {last} were removed after it")
            }
            ChainFlaw::AmendmentAltered { .. } => f.write_str("its amendment was altered"),
            ChainFlaw::AmendmentRemoved { .. } => f.write_str("its amendment was removed"),
            ChainFlaw::IdsDiffer {
                counted, in_log, ..
            } => write!(
                f,
                "the log has {in_log} message(s) where {counted} were counted, or different ones"
            ),
        }
    }
}

/// Walks along a chain row by row, and collects its flaws.
#[derive(Clone, Debug)]
pub struct ChainWalk {
    /// Last good link; `None` before the first row of a walk that begins inside the chain.
    at: Option<ChainLink>,
    lower_bound: Timestamp,
    /// The link before the first required one.
    start: ChainLink,
    end: ChainLink,
    flaws: Vec<ChainFlaw>,
    links: u64,
}

impl ChainWalk {
    /// Walks the whole chain.
    pub fn whole(head: &ChainHead) -> ChainWalk {
        ChainWalk {
            at: Some(head.start),
            ..ChainWalk::since(head, head.start.minute)
        }
    }

    /// Walks from the first row at or after `lower_bound`; its link to the row before is trusted.
    pub fn since(head: &ChainHead, lower_bound: Timestamp) -> ChainWalk {
        ChainWalk {
            at: None,
            lower_bound,
            start: head.start,
            end: head.link(),
            flaws: Vec::new(),
            links: 0,
        }
    }

    /// Checks the next row, in key order.
    pub fn step(&mut self, row: &MinuteRow) {
        let minute = row.minute;
        let Some(closed_minute) = &row.closed_minute else {
            return self.flaws.push(ChainFlaw::Unreadable { minute });
        };
        if closed_minute.number <= self.start.number && closed_minute.minute == minute {
            // Left over from an interrupted removal.
            return;
        }
        self.links += 1;
        if closed_minute.recomputed() != closed_minute.digest {
            self.flaws.push(ChainFlaw::Altered { minute });
            // The number itself may have been altered, so count on: the next row shows the true
            // place.
            if let Some(at) = &mut self.at {
                *at = ChainLink {
                    number: at.number + 1,
                    minute,
                    digest: closed_minute.digest,
                };
            }
            return;
        }
        if closed_minute.minute != minute {
            return self.flaws.push(ChainFlaw::Misplaced { minute });
        }
        match self.at {
            Some(at) if closed_minute.number <= at.number => {
                self.flaws.push(ChainFlaw::Misplaced { minute })
            }
            Some(at) if closed_minute.number > at.number + 1 => {
                self.note_removed(at, closed_minute.number - 1, minute)
            }
            Some(at) if closed_minute.before != at.digest => {
                self.flaws.push(ChainFlaw::Unlinked { minute })
            }
            _ => {}
        }
        self.at = Some(closed_minute.link());
        match &row.amendment {
            // An amendment is written after its link, so the last one may still be missing.
            None if closed_minute.number == self.end.number => {}
            None => self.flaws.push(ChainFlaw::AmendmentRemoved { minute }),
            Some(amendment) => {
                let figures = amendment.figures();
                let sum = figures.settled + figures.in_flight + figures.missing;
                if amendment.seal != amendment.recomputed(closed_minute)
                    || sum != closed_minute.accepted
                {
                    self.flaws.push(ChainFlaw::AmendmentAltered { minute });
                }
            }
        }
    }

    /// Records that the ids of a row differ from those in the log.
    pub fn differs(&mut self, closed_minute: &ClosedMinute, in_log: u64) {
        self.flaws.push(ChainFlaw::IdsDiffer {
            minute: closed_minute.minute,
            counted: closed_minute.accepted,
            in_log,
        });
    }

    fn note_removed(&mut self, at: ChainLink, last: u64, next_minute: Timestamp) {
        self.flaws.push(ChainFlaw::Removed {
            first: at.number + 1,
            last,
            previous_minute: at.minute,
            next_minute,
        });
    }

    /// Ends the walk after the last row. Returns the flaws and the number of links.
    pub fn end(mut self) -> (Vec<ChainFlaw>, u64) {
        // The walk met no row, though at least the last link must be there.
        let none = ChainLink {
            number: self.end.number.saturating_sub(1),
            minute: self.lower_bound,
            ..self.end
        };
        let has_rows = self.end.number > self.start.number && self.end.minute >= self.lower_bound;
        let at = self.at.unwrap_or(if has_rows { none } else { self.end });
        if at.number < self.end.number {
            self.note_removed(at, self.end.number, self.end.minute);
        } else if at != self.end {
            self.flaws.push(ChainFlaw::Unlinked {
                minute: self.end.minute,
            });
        }
        (self.flaws, self.links)
    }
}

#[cfg(test)]
mod tests;
