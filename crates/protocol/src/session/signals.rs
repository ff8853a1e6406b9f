//! Large groups: what the client subscribes to, and what it hears of them.
//!
//! A body is written at once, unless much waits to be written: then it becomes a signal. Of each
//! group only the newest signal waits; the first goes out at once, then one frame a second.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Action, Outgoing, Phase, Session};
use crate::frame::ServerFrame;
use crate::subscription::{GROUPS_MAX, GroupEnd, GroupSignal, WATCHED_MAX};
use crate::{Code, GroupId, Refusal, Timestamp};

/// Time between two frames of signals.
const INTERVAL: Duration = Duration::from_secs(1);

/// Waiting signals, at most one a group that the session subscribes to.
#[derive(Debug, Default)]
pub(super) struct Signals(BTreeMap<GroupId, GroupSignal>);

impl Signals {
    /// Adds a signal. Its state counts, and of both ends the later one.
    fn add(&mut self, signal: GroupSignal) {
        let entry = self.0.entry(signal.group).or_insert(signal);
        *entry = GroupSignal {
            end: entry.end.max(signal.end),
            at: entry.at.max(signal.at),
            ..signal
        };
    }
}

impl Session {
    /// Passes on a message or a change of a large group, or the signal in its place.
    pub fn broadcast(&mut self, frame: Bytes, signal: GroupSignal, now: Timestamp) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        if self.has_broadcast_room() {
            self.transmit_any(Outgoing::Encoded(frame), now);
        } else {
            self.signal(signal, now);
        }
    }

    /// Passes on how far a large group is.
    pub fn signal(&mut self, signal: GroupSignal, now: Timestamp) {
        if matches!(self.phase, Phase::Open) {
            self.signals.get_or_insert_default().add(signal);
            self.transmit_signals(now);
        }
    }

    pub(super) fn transmit_signals(&mut self, now: Timestamp) {
        if self.signals_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some(signals) = self.signals.take() {
            let millis = (now + INTERVAL).since(self.opened_at).as_millis();
            self.signals_from = u32::try_from(millis).unwrap_or(u32::MAX);
            let signals = signals.0.into_values().collect();
            self.transmit(ServerFrame::Signals(signals), now);
        }
    }

    /// Time at which the waiting signals go out; `None` while there are none, or no room.
    pub(super) fn signals_due(&self) -> Option<Timestamp> {
        let has_room = self.has_broadcast_room();
        let signals_from = self.opened_at + Duration::from_millis(u64::from(self.signals_from));
        (has_room && self.signals.is_some()).then_some(signals_from)
    }

    /// Whether so little waits to be written, 64 KiB by default, that bodies do not become signals
    /// and signals do not wait.
    fn has_broadcast_room(&self) -> bool {
        self.outgoing() < self.limits.outgoing_bytes_max as usize / 4
    }

    pub(super) fn handle_subscribe(&mut self, groups: Vec<(GroupId, GroupEnd)>, now: Timestamp) {
        if self.checks_group_count(groups.len(), GROUPS_MAX, "subscribed to", now) {
            self.actions.push_back(Action::Subscribe(groups));
        }
    }

    pub(super) fn handle_watch(&mut self, groups: Vec<GroupId>, now: Timestamp) {
        if self.checks_group_count(groups.len(), WATCHED_MAX, "watched", now) {
            self.actions.push_back(Action::Watch(groups));
        }
    }

    /// Refuses a set that is too large. False: the set has no effect.
    fn checks_group_count(
        &mut self,
        count: usize,
        count_max: usize,
        verb: &str,
        now: Timestamp,
    ) -> bool {
        if !matches!(self.phase, Phase::Open) {
            return false;
        }
        if count > count_max {
            let text = format!("{count} groups; {count_max} are {verb} at most");
            let refusal = Refusal::new(Code::InvalidArgument, text);
            let request = None;
            self.transmit(ServerFrame::Error { request, refusal }, now);
        }
        count <= count_max
    }
}
