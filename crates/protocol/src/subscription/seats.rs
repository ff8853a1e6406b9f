//! Seats of one group, in order of user, apart for each connection loop.

use std::sync::Arc;

use super::record::Broadcast;
use crate::group::Member;
use crate::{Seq, SessionId, UserId};

/// A user's session.
pub(super) type SeatKey = (UserId, SessionId);

/// Place of one session in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub user: UserId,
    pub session: SessionId,
    /// End of the group when the user joined.
    since: Seq,
    /// [Mark](crate::history::Version::mark) of the record that last changed the member; 0: no row
    /// is known.
    version_mark: u64,
    is_in: bool,
    state: SeatState,
    is_watching: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatState {
    /// Closed until the row has been read.
    Waiting,
    Open,
    /// Closed until the session subscribes anew, or the user joins.
    Out,
}

/// What a later row says of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    In,
    Out,
}

/// What a seat gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Frame,
    Signal,
}

impl Seat {
    pub fn is_open(&self) -> bool {
        self.state == SeatState::Open
    }

    /// What this seat gets of a message or a change; `None`: nothing.
    pub fn delivery(&self, broadcast: &Broadcast) -> Option<Delivery> {
        if !self.is_open() {
            return None;
        }
        if broadcast.seq <= self.since {
            // Not theirs to read; but changes are dense, so they must hear that there was one.
            return broadcast.is_change.then_some(Delivery::Signal);
        }
        if broadcast.origin == Some(self.session) {
            return Some(Delivery::Signal);
        }
        let wants_frame = !broadcast.is_signal || self.is_watching || self.user == broadcast.author;
        Some(if wants_frame {
            Delivery::Frame
        } else {
            Delivery::Signal
        })
    }

    const fn key(&self) -> SeatKey {
        (self.user, self.session)
    }
}

/// Seats by connection loop. The lists are shared with what is on its way to the loops.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats {
    loops: Vec<LoopSeats>,
    /// Number of seats that are not out.
    in_use_count: usize,
}

#[derive(Clone, Debug, Default)]
struct LoopSeats {
    seats: Arc<Vec<Seat>>,
    open_count: usize,
}

impl LoopSeats {
    fn index(&self, key: SeatKey) -> Result<usize, usize> {
        self.seats.binary_search_by_key(&key, Seat::key)
    }

    fn get(&self, key: SeatKey) -> Option<&Seat> {
        self.seats.get(self.index(key).ok()?)
    }

    fn get_mut(&mut self, key: SeatKey) -> Option<&mut Seat> {
        let index = self.index(key).ok()?;
        Arc::make_mut(&mut self.seats).get_mut(index)
    }
}

impl Seats {
    pub(super) fn is_empty(&self) -> bool {
        self.loops.iter().all(|it| it.seats.is_empty())
    }

    /// Whether any seat is open, or waits to be.
    pub(super) fn is_any_in_use(&self) -> bool {
        self.in_use_count > 0
    }

    fn get(&self, loop_index: usize, key: SeatKey) -> Option<&Seat> {
        self.loops.get(loop_index)?.get(key)
    }

    pub(super) fn state(&self, loop_index: usize, key: SeatKey) -> Option<SeatState> {
        Some(self.get(loop_index, key)?.state)
    }

    /// Whether the last known row says that the user is in the group.
    pub(super) fn is_in(&self, loop_index: usize, key: SeatKey) -> bool {
        self.get(loop_index, key).is_some_and(|seat| seat.is_in)
    }

    /// Adds a seat that is out.
    pub(super) fn add(&mut self, loop_index: usize, key: SeatKey, is_watching: bool) {
        if self.loops.len() <= loop_index {
            self.loops.resize_with(loop_index + 1, LoopSeats::default);
        }
        let (user, session) = key;
        let seat = Seat {
            user,
            session,
            since: Seq::ZERO,
            version_mark: 0,
            is_in: false,
            state: SeatState::Out,
            is_watching,
        };
        if let Some(loop_seats) = self.loops.get_mut(loop_index)
            && let Err(index) = loop_seats.index(key)
        {
            Arc::make_mut(&mut loop_seats.seats).insert(index, seat);
        }
    }

    /// Removes a seat. False: there was none.
    pub(super) fn remove(&mut self, loop_index: usize, key: SeatKey) -> bool {
        self.set(loop_index, key, SeatState::Out);
        let Some(loop_seats) = self.loops.get_mut(loop_index) else {
            return false;
        };
        let Ok(index) = loop_seats.index(key) else {
            return false;
        };
        Arc::make_mut(&mut loop_seats.seats).remove(index);
        true
    }

    pub(super) fn set(&mut self, loop_index: usize, key: SeatKey, state: SeatState) {
        let Some(loop_seats) = self.loops.get_mut(loop_index) else {
            return;
        };
        let Some(seat) = loop_seats.get_mut(key) else {
            return;
        };
        let former_state = std::mem::replace(&mut seat.state, state);
        loop_seats.open_count += usize::from(state == SeatState::Open);
        loop_seats.open_count -= usize::from(former_state == SeatState::Open);
        self.in_use_count += usize::from(state != SeatState::Out);
        self.in_use_count -= usize::from(former_state != SeatState::Out);
    }

    pub(super) fn watch(&mut self, loop_index: usize, key: SeatKey, is_watching: bool) {
        let is_changed = |seat: &Seat| seat.is_watching != is_watching;
        if self.get(loop_index, key).is_some_and(is_changed)
            && let Some(seat) = (self.loops.get_mut(loop_index)).and_then(|it| it.get_mut(key))
        {
            seat.is_watching = is_watching;
        }
    }

    /// Merges a row: the later one counts. `Some` if by it the user comes into the group, or goes.
    pub(super) fn merge(
        &mut self,
        loop_index: usize,
        key: SeatKey,
        member: &Member,
    ) -> Option<Move> {
        let version_mark = member.version.mark();
        if self.get(loop_index, key)?.version_mark >= version_mark {
            return None;
        }
        let seat = self.loops.get_mut(loop_index)?.get_mut(key)?;
        seat.version_mark = version_mark;
        seat.since = member.since;
        let is_in = member.role.is_some();
        let was_in = std::mem::replace(&mut seat.is_in, is_in);
        match (was_in, is_in) {
            (false, true) => Some(Move::In),
            (true, false) => Some(Move::Out),
            _ => None,
        }
    }

    /// Seats of one user, on any loop.
    pub(super) fn of_user(&self, user: UserId) -> Vec<(usize, SeatKey)> {
        let loops = self.loops.iter().enumerate();
        let seats = loops.flat_map(|(loop_index, loop_seats)| {
            let begin = loop_seats.seats.partition_point(|seat| seat.user < user);
            let seats = loop_seats.seats.iter().skip(begin);
            let seats = seats.take_while(move |seat| seat.user == user);
            seats.map(move |seat| (loop_index, seat.key()))
        });
        seats.collect()
    }

    /// Lists of the loops that have an open seat.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &Arc<Vec<Seat>>)> {
        let loops = self.loops.iter().enumerate();
        let loops = loops.filter(|(_, loop_seats)| loop_seats.open_count > 0);
        loops.map(|(loop_index, loop_seats)| (loop_index, &loop_seats.seats))
    }

    pub(super) fn all_open(&self) -> Vec<(usize, SeatKey)> {
        let lists = self.open();
        let seats = lists.flat_map(|(loop_index, seats)| {
            let seats = seats.iter().filter(|seat| seat.is_open());
            seats.map(move |seat| (loop_index, seat.key()))
        });
        seats.collect()
    }

    /// Closes all open seats for good.
    pub(super) fn close_open(&mut self) {
        for loop_seats in &mut self.loops {
            if loop_seats.open_count == 0 {
                continue;
            }
            for seat in Arc::make_mut(&mut loop_seats.seats) {
                if seat.is_open() {
                    seat.state = SeatState::Out;
                }
            }
            self.in_use_count -= loop_seats.open_count;
            loop_seats.open_count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_takes_forty_bytes() {
        assert_eq!(size_of::<Seat>(), 40);
    }
}
