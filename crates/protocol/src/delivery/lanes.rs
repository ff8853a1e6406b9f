//! A lane per (user, platform): keeps order, and holds, within bounds, the legs that a session does
//! not take yet.

use std::collections::{BTreeMap, VecDeque};

use super::arena::Key;
use crate::SessionId;
use crate::message::Target;
use crate::presence::BoatLife;

/// One leg of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LegKey {
    pub(super) record: Key,
    pub(super) leg: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// Pushes without an answer.
    pub(super) outstanding_pushes: usize,
    /// Legs being routed again: later ones wait, so as not to overtake them.
    pub(super) reroute_count: usize,
    pub(super) queue: VecDeque<LaneEntry>,
}

#[derive(Clone, Debug)]
pub(super) struct LaneEntry {
    pub(super) key: LegKey,
    pub(super) session: SessionId,
    pub(super) life: BoatLife,
}

impl Lane {
    pub(super) fn has_room(&self, window: usize) -> bool {
        self.outstanding_pushes < window && self.reroute_count == 0
    }

    fn is_idle(&self) -> bool {
        self.outstanding_pushes == 0 && self.reroute_count == 0 && self.queue.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Target, Lane>,
}

impl Lanes {
    pub(super) fn lane_mut(&mut self, target: Target) -> &mut Lane {
        self.lanes.entry(target).or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Next leg of the lane that may be pushed; drops an idle lane.
    pub(super) fn next(&mut self, target: Target, window: usize) -> Option<LegKey> {
        let lane = self.lanes.get_mut(&target)?;
        if lane.has_room(window) {
            if let Some(entry) = lane.queue.pop_front() {
                return Some(entry.key);
            }
            if lane.is_idle() {
                self.lanes.remove(&target);
            }
        }
        None
    }

    /// Removes, in order, the legs that wait for a session for which `is_gone` holds.
    pub(super) fn remove_waiting(
        &mut self,
        target: Target,
        is_gone: impl Fn(&LaneEntry) -> bool,
    ) -> Vec<LegKey> {
        let Some(lane) = self.lanes.get_mut(&target) else {
            return Vec::new();
        };
        if lane.queue.is_empty() {
            return Vec::new();
        }
        let (removed_entries, rest): (VecDeque<LaneEntry>, VecDeque<LaneEntry>) =
            std::mem::take(&mut lane.queue)
                .into_iter()
                .partition(is_gone);
        lane.queue = rest;
        removed_entries.into_iter().map(|entry| entry.key).collect()
    }

    /// Removes the waiting legs of abandoned records.
    pub(super) fn abandon(&mut self, is_abandoned: impl Fn(Key) -> bool) {
        for lane in self.lanes.values_mut() {
            lane.queue.retain(|entry| !is_abandoned(entry.key.record));
        }
    }

    pub(super) fn targets(&self) -> Vec<Target> {
        self.lanes.keys().copied().collect()
    }
}
