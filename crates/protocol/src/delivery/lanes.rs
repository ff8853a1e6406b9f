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
    pub(super) outstanding: usize,
    /// Legs being routed again: later ones wait, so as not to overtake them.
    pub(super) rerouting: usize,
    pub(super) waiting: VecDeque<LaneEntry>,
}

#[derive(Clone, Debug)]
pub(super) struct LaneEntry {
    pub(super) key: LegKey,
    pub(super) session: SessionId,
    pub(super) life: BoatLife,
}

impl Lane {
    pub(super) fn takes(&self, window: usize) -> bool {
        self.outstanding < window && self.rerouting == 0
    }

    fn idle(&self) -> bool {
        self.outstanding == 0 && self.rerouting == 0 && self.waiting.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Target, Lane>,
}

impl Lanes {
    pub(super) fn of(&mut self, target: Target) -> &mut Lane {
        self.lanes.entry(target).or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Next leg of the lane that may be pushed; drops an idle lane.
    pub(super) fn next(&mut self, target: Target, window: usize) -> Option<LegKey> {
        let lane = self.lanes.get_mut(&target)?;
        if lane.takes(window) {
            if let Some(waiting) = lane.waiting.pop_front() {
                return Some(waiting.key);
            }
            if lane.idle() {
                self.lanes.remove(&target);
            }
        }
        None
    }

    /// Takes out, in order, the legs that wait for a session for which `gone` holds.
    pub(super) fn take_waiting(
        &mut self,
        target: Target,
        gone: impl Fn(&LaneEntry) -> bool,
    ) -> Vec<LegKey> {
        let Some(lane) = self.lanes.get_mut(&target) else {
            return Vec::new();
        };
        if lane.waiting.is_empty() {
            return Vec::new();
        }
        let (taken, kept): (VecDeque<LaneEntry>, VecDeque<LaneEntry>) =
            std::mem::take(&mut lane.waiting)
                .into_iter()
                .partition(gone);
        lane.waiting = kept;
        taken.into_iter().map(|waiting| waiting.key).collect()
    }

    /// Removes the waiting legs of abandoned records.
    pub(super) fn abandon(&mut self, abandoned: impl Fn(Key) -> bool) {
        for lane in self.lanes.values_mut() {
            lane.waiting
                .retain(|waiting| !abandoned(waiting.key.record));
        }
    }

    pub(super) fn targets(&self) -> Vec<Target> {
        self.lanes.keys().copied().collect()
    }
}
