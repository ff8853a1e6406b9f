//! Entries for the ledger: one call at a time, oldest first, in portions that it can handle.

use std::collections::VecDeque;
use std::time::Duration;

use backend::clock::Entropy;
use protocol::ledger::LedgerEntry;
use tokio::time::Instant;

use super::schedule::{EffectsId, ScheduleLimits};
use super::size::CallSize;
use crate::backoff::Backoff;

/// Entries of one record, or a part of them.
#[derive(Debug)]
pub(super) struct Portion {
    pub(super) effects: EffectsId,
    pub(super) entries: Vec<LedgerEntry>,
    /// No further portion of this record follows.
    pub(super) last: bool,
}

pub(super) struct UnwrittenEntries {
    waiting: VecDeque<Portion>,
    /// Entries not written yet, including those of a call under way.
    open: usize,
    /// Latest time of the next call; `None` if nothing waits.
    due: Option<Instant>,
    again_at: Option<Instant>,
    calling: bool,
    size: CallSize,
    backoff: Backoff,
}

impl UnwrittenEntries {
    pub(super) fn new(limits: &ScheduleLimits) -> UnwrittenEntries {
        UnwrittenEntries {
            waiting: VecDeque::new(),
            open: 0,
            due: None,
            again_at: None,
            calling: false,
            size: CallSize::new(limits.call_entries, limits.deadline),
            backoff: limits.backoff,
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Number of portions that wait for the next call.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, effects: EffectsId, entries: Vec<LedgerEntry>, due: Instant) {
        self.open += entries.len();
        self.waiting.push_back(Portion {
            effects,
            entries,
            last: true,
        });
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.calling {
            return None;
        }
        let due = self.due?;
        Some(self.again_at.map_or(due, |at| at.max(due)))
    }

    pub(super) fn take(&mut self, now: Instant) -> Vec<Portion> {
        let mut batch = Vec::new();
        if self.wakes_at().is_none_or(|at| at > now) {
            return batch;
        }
        let mut room = self.size.get();
        while room > 0
            && let Some(mut portion) = self.waiting.pop_front()
        {
            if portion.entries.len() > room {
                let rest = portion.entries.split_off(room);
                self.waiting.push_front(Portion {
                    effects: portion.effects,
                    entries: rest,
                    last: portion.last,
                });
                portion.last = false;
            }
            room -= portion.entries.len();
            batch.push(portion);
        }
        self.due = (!self.waiting.is_empty()).then_some(now);
        self.again_at = None;
        self.calling = true;
        batch
    }

    pub(super) fn succeeded(&mut self, took: Duration, written: &[Portion]) {
        self.calling = false;
        self.open -= written.iter().map(|p| p.entries.len()).sum::<usize>();
        self.backoff.succeeded();
        self.size.succeeded(took);
    }

    pub(super) fn failed(
        &mut self,
        now: Instant,
        took: Duration,
        portions: Vec<Portion>,
        entropy: &dyn Entropy,
    ) -> Duration {
        self.calling = false;
        for portion in portions.into_iter().rev() {
            self.waiting.push_front(portion);
        }
        self.size.failed(took);
        let pause = self.backoff.failed(entropy);
        self.due = Some(now);
        self.again_at = Some(now + pause);
        pause
    }
}
