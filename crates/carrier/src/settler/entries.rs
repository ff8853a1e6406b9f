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
    pub(super) is_last: bool,
}

pub(super) struct UnwrittenEntries {
    portions: VecDeque<Portion>,
    /// Entries not written yet, including those of a call under way.
    open: usize,
    /// Latest time of the next call; `None` if nothing waits.
    due_at: Option<Instant>,
    retry_at: Option<Instant>,
    is_calling: bool,
    size: CallSize,
    backoff: Backoff,
}

impl UnwrittenEntries {
    pub(super) fn new(limits: &ScheduleLimits) -> UnwrittenEntries {
        UnwrittenEntries {
            portions: VecDeque::new(),
            open: 0,
            due_at: None,
            retry_at: None,
            is_calling: false,
            size: CallSize::new(limits.call_entries, limits.deadline),
            backoff: limits.backoff,
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Number of portions that wait for the next call.
    pub(super) fn portion_count(&self) -> usize {
        self.portions.len()
    }

    pub(super) fn add(&mut self, effects: EffectsId, entries: Vec<LedgerEntry>, due_at: Instant) {
        self.open += entries.len();
        self.portions.push_back(Portion {
            effects,
            entries,
            is_last: true,
        });
        self.due_at = Some(self.due_at.map_or(due_at, |current| current.min(due_at)));
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.is_calling {
            return None;
        }
        let due_at = self.due_at?;
        Some(self.retry_at.map_or(due_at, |at| at.max(due_at)))
    }

    pub(super) fn take(&mut self, now: Instant) -> Vec<Portion> {
        let mut batch = Vec::new();
        if self.wakes_at().is_none_or(|at| at > now) {
            return batch;
        }
        let mut room = self.size.get();
        while room > 0
            && let Some(mut portion) = self.portions.pop_front()
        {
            if portion.entries.len() > room {
                let rest = portion.entries.split_off(room);
                self.portions.push_front(Portion {
                    effects: portion.effects,
                    entries: rest,
                    is_last: portion.is_last,
                });
                portion.is_last = false;
            }
            room -= portion.entries.len();
            batch.push(portion);
        }
        self.due_at = (!self.portions.is_empty()).then_some(now);
        self.retry_at = None;
        self.is_calling = true;
        batch
    }

    pub(super) fn succeeded(&mut self, took: Duration, portions: &[Portion]) {
        self.is_calling = false;
        self.open -= portions.iter().map(|p| p.entries.len()).sum::<usize>();
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
        self.is_calling = false;
        for portion in portions.into_iter().rev() {
            self.portions.push_front(portion);
        }
        self.size.failed(took);
        let pause = self.backoff.failed(entropy);
        self.due_at = Some(now);
        self.retry_at = Some(now + pause);
        pause
    }
}
