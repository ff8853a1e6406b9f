//! The chain over closed minutes: what it must be, and what is wrong with one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::minute::{Closed, Link, Row};
use crate::Timestamp;

/// The end of the chain, of which there is one: whoever closes a minute replaces the head that he knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// How often the head moved: a head is replaced by that of the next turn only.
    pub turn: u64,
    /// Who moved it, and when: as long as that is not long ago, nobody else does.
    pub worker: u64,
    pub at: Timestamp,
    /// Links up to here were removed, as they were too old. Number 0: none.
    pub start: Link,
    /// Everything accepted from `start.minute` to here is in a closed minute.
    pub until: Timestamp,
    /// No minute before it is open.
    pub open_from: Timestamp,
    pub place: Place,
    /// The last link, whole: whoever takes over writes its row again, in case the one before him did not
    /// come to it.
    pub last: Option<Closed>,
}

/// How far the log was read: offsets, one a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Of the log that they belong to.
    pub epoch: u32,
    /// Everything before is in a closed minute: reading goes on here.
    pub from: Vec<u64>,
    /// Before it, records of closed minutes are counted.
    pub counted: Vec<u64>,
}

impl Head {
    /// The last link.
    pub fn link(&self) -> Link {
        self.last.as_ref().map_or(self.start, Closed::link)
    }
}

/// Where the chain does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The row cannot be read.
    Unreadable { minute: Timestamp },
    /// The row's digest does not match what it says.
    Altered { minute: Timestamp },
    /// The row stands under another minute than its own, or out of turn.
    Misplaced { minute: Timestamp },
    /// The row matches itself, but not the digest of the one before.
    Unlinked { minute: Timestamp },
    /// Links of these numbers are not there; between the minutes of their neighbours.
    Removed {
        first: u64,
        last: u64,
        after: Timestamp,
        before: Timestamp,
    },
    /// What became of the minute does not match its seal, or its sum is not what was accepted.
    AmendmentAltered { minute: Timestamp },
    /// What became of the minute is not there.
    AmendmentRemoved { minute: Timestamp },
    /// The ids that the log has are not those that were counted. Only a reading of the log finds it.
    IdsDiffer {
        minute: Timestamp,
        counted: u64,
        in_log: u64,
    },
}

impl Flaw {
    /// The minute that it is about; of removed ones, the last that is there before them.
    pub fn minute(&self) -> Timestamp {
        match self {
            Flaw::Unreadable { minute }
            | Flaw::Altered { minute }
            | Flaw::Misplaced { minute }
            | Flaw::Unlinked { minute }
            | Flaw::AmendmentAltered { minute }
            | Flaw::AmendmentRemoved { minute }
            | Flaw::IdsDiffer { minute, .. } => *minute,
            Flaw::Removed { after, .. } => *after,
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Unreadable { .. } => f.write_str("the row cannot be read"),
            Flaw::Altered { .. } => f.write_str("the row was altered: its digest does not match"),
            Flaw::Misplaced { .. } => f.write_str("the row is not in its place"),
            Flaw::Unlinked { .. } => {
                f.write_str("the row before it is not the one that it was linked to")
            }
            Flaw::Removed { first, last, .. } if first == last => {
                write!(f, "link {first} was removed after it")
            }
            Flaw::Removed { first, last, .. } => {
                write!(f, "links {first} to {last} were removed after it")
            }
            Flaw::AmendmentAltered { .. } => f.write_str("what became of it was altered"),
            Flaw::AmendmentRemoved { .. } => f.write_str("what became of it was removed"),
            Flaw::IdsDiffer {
                counted, in_log, ..
            } => write!(
                f,
                "the log has {in_log} message(s) where {counted} were counted, or others"
            ),
        }
    }
}

/// Walks along a chain, row by row, and names what does not match.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The last good place; `None` before the first row of a walk that begins inside the chain.
    at: Option<Link>,
    since: Timestamp,
    /// The link before the first that must be there.
    start: Link,
    end: Link,
    flaws: Vec<Flaw>,
    links: u64,
}

impl Walk {
    /// Along the whole chain.
    pub fn whole(head: &Head) -> Walk {
        Walk {
            at: Some(head.start),
            ..Walk::since(head, head.start.minute)
        }
    }

    /// From the first row of this minute or later on, whose link to the one before is taken on trust.
    pub fn since(head: &Head, since: Timestamp) -> Walk {
        Walk {
            at: None,
            since,
            start: head.start,
            end: head.link(),
            flaws: Vec::new(),
            links: 0,
        }
    }

    /// The next row, in order of the keys.
    pub fn step(&mut self, row: &Row) {
        let minute = row.minute;
        let Some(closed) = &row.closed else {
            return self.flaws.push(Flaw::Unreadable { minute });
        };
        if closed.number <= self.start.number && closed.minute == minute {
            // Left over from a removal that was broken off.
            return;
        }
        self.links += 1;
        if closed.recomputed() != closed.digest {
            self.flaws.push(Flaw::Altered { minute });
            // Its number may be part of what was altered: the next row shows where the walk is.
            if let Some(at) = &mut self.at {
                *at = Link {
                    number: at.number + 1,
                    minute,
                    digest: closed.digest,
                };
            }
            return;
        }
        if closed.minute != minute {
            return self.flaws.push(Flaw::Misplaced { minute });
        }
        match self.at {
            Some(at) if closed.number <= at.number => self.flaws.push(Flaw::Misplaced { minute }),
            Some(at) if closed.number > at.number + 1 => {
                self.removed(at, closed.number - 1, minute)
            }
            Some(at) if closed.before != at.digest => self.flaws.push(Flaw::Unlinked { minute }),
            _ => {}
        }
        self.at = Some(closed.link());
        match &row.amendment {
            // It is written after its link.
            None if closed.number == self.end.number => {}
            None => self.flaws.push(Flaw::AmendmentRemoved { minute }),
            Some(amendment) => {
                let figures = amendment.figures();
                let sum = figures.settled + figures.in_flight + figures.missing;
                if amendment.seal != amendment.recomputed(closed) || sum != closed.accepted {
                    self.flaws.push(Flaw::AmendmentAltered { minute });
                }
            }
        }
    }

    /// The ids of a row were looked up in the log, and are not those.
    pub fn differs(&mut self, closed: &Closed, in_log: u64) {
        self.flaws.push(Flaw::IdsDiffer {
            minute: closed.minute,
            counted: closed.accepted,
            in_log,
        });
    }

    fn removed(&mut self, at: Link, last: u64, before: Timestamp) {
        self.flaws.push(Flaw::Removed {
            first: at.number + 1,
            last,
            after: at.minute,
            before,
        });
    }

    /// After the last row: what is wrong, and how many links there were.
    pub fn end(mut self) -> (Vec<Flaw>, u64) {
        // No row, where the last link at least must be.
        let none = Link {
            number: self.end.number.saturating_sub(1),
            minute: self.since,
            ..self.end
        };
        let has_rows = self.end.number > self.start.number && self.end.minute >= self.since;
        let at = self.at.unwrap_or(if has_rows { none } else { self.end });
        if at.number < self.end.number {
            self.removed(at, self.end.number, self.end.minute);
        } else if at != self.end {
            self.flaws.push(Flaw::Unlinked {
                minute: self.end.minute,
            });
        }
        (self.flaws, self.links)
    }
}

#[cfg(test)]
mod tests;
