//! Loads of boats, as they publish them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::presence::BoatLife;

/// Pause between two publications of a boat whose state stays the same.
pub const PUBLISH_INTERVAL: Duration = Duration::from_secs(10);

/// Room of one boat for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoatLoad {
    #[serde(default)]
    pub state: BoatState,
    /// Sockets of clients, signed in or not.
    pub connections: usize,
    /// Maximum number of sockets.
    pub seats: usize,
    /// Connections accepted per second.
    pub accepts_per_second: usize,
    /// Clients sent away that the loads of others may not show yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leaving: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Address for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// Readiness of a boat for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoatState {
    Open,
    /// Short of memory or files, or without a lease.
    Tight,
    /// Leaving, or being emptied.
    Draining,
    /// A state of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl BoatState {
    pub const fn name(self) -> &'static str {
        match self {
            BoatState::Open => "open",
            BoatState::Tight => "tight",
            BoatState::Draining => "draining",
            BoatState::Unknown => "unknown",
        }
    }
}

impl BoatLoad {
    /// Clients that the boat would take now.
    pub const fn free(&self) -> usize {
        match self.state {
            BoatState::Open => self.seats.saturating_sub(self.connections),
            BoatState::Tight | BoatState::Draining | BoatState::Unknown => 0,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A load with the life that published it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub life: BoatLife,
    pub load: BoatLoad,
}

/// Room of all boats but one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Boats that do not drain.
    pub boats: usize,
    /// Free seats.
    pub free: usize,
    pub accepts_per_second: usize,
    /// Draining boats that are not empty yet.
    pub draining_boats: usize,
    /// Clients sent away by these that `free` may not show yet.
    pub leaving_clients: usize,
}

impl Room {
    /// Room beside `life`. Earlier lives of the same boat count as itself.
    pub fn beside(life: &BoatLife, loads: &[Load]) -> Room {
        let mut room = Room::default();
        for Load { load, .. } in loads.iter().filter(|it| it.life.boat != life.boat) {
            if load.state == BoatState::Draining {
                room.draining_boats += usize::from(load.connections > 0);
                room.leaving_clients = room.leaving_clients.saturating_add(load.leaving);
                continue;
            }
            room.boats += 1;
            room.free = room.free.saturating_add(load.free());
            if load.free() > 0 {
                room.accepts_per_second += load.accepts_per_second;
            }
        }
        room
    }
}
