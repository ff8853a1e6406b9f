//! Clocks of hosts: the time of day may step, the timer goes on.

use protocol::{Moment, Timestamp};

use crate::plan::Sabotage;
use crate::world::World;

/// Host with a clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    Carrier,
    Station(usize),
}

impl World {
    /// Sets the clock of a host `offset` milliseconds off the right time.
    pub(crate) fn step_clock(&mut self, host: Host, offset: i64) {
        self.clocks.insert(host, offset);
    }

    fn offset(&self, host: Host) -> i64 {
        self.clocks.get(&host).copied().unwrap_or_default()
    }

    /// Time of day at the carrier: dates what it writes.
    pub(crate) fn carrier_wall(&self) -> Timestamp {
        Timestamp::from_millis(self.now.millis() + self.offset(Host::Carrier))
    }

    /// Time of day at a station: dates ids, receipts and lists.
    pub(crate) fn station_wall(&self, station: usize) -> Timestamp {
        Timestamp::from_millis(self.now.millis() + self.offset(Host::Station(station)))
    }

    /// Both clocks of the carrier. The right time is its timer.
    pub(crate) fn carrier_moment(&self) -> Moment {
        let wall = self.carrier_wall();
        match self.sabotage {
            Some(Sabotage::DeadlinesByWall) => Moment::from(wall),
            _ => Moment {
                wall,
                timer: self.now,
            },
        }
    }

    /// Right time of a deadline of the carrier, as far as it is known now.
    pub(crate) fn right_time(&self, deadline: Timestamp) -> Timestamp {
        let offset = match self.sabotage {
            Some(Sabotage::DeadlinesByWall) => self.offset(Host::Carrier),
            _ => 0,
        };
        Timestamp::from_millis(deadline.millis() - offset)
    }
}
