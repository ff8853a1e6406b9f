//! Counts of letters by cause of death.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::ledger::DeadReason;

use super::rules::Cause;
use crate::answer::List;

use super::types::{CauseSummary, Kind, Letter, ReasonSummary, Stats, Summary};
use super::{DeadLetters, Result, STEP};

/// Letters counted at most.
const COUNTED: u64 = 200_000;
/// Causes told apart at most.
const CAUSES: usize = 500;

/// Counts so far.
#[derive(Default)]
struct Counts {
    reasons: BTreeMap<(Kind, DeadReason), Summary>,
    /// Summaries of causes, each with the id of one letter.
    causes: BTreeMap<(Kind, Cause), (Summary, String)>,
    /// Digests of further causes.
    other_causes: BTreeSet<u64>,
}

impl DeadLetters {
    /// Counts letters by kind and reason, and by cause; only the first ones if there are very many.
    pub async fn stats(&self) -> Result<Stats> {
        let (operations, now) = (self.view.now().await?, self.backends.clock.now());
        let mut counts = Counts::default();
        let mut seen_ids = BTreeSet::new();
        let mut at = None;
        let uncounted_count = loop {
            let (located_letters, next) = self.read(at, STEP).await?;
            for located_letter in located_letters {
                let letter = located_letter.to_letter(&operations, now);
                if seen_ids.insert(located_letter.letter.id()) && !letter.gone {
                    counts.add(&letter);
                }
            }
            match next {
                Some(next) if (seen_ids.len() as u64) < COUNTED => at = Some(next),
                Some(next) => break self.count_after(next).await?,
                None => break 0,
            }
        };
        Ok(counts.stats(uncounted_count))
    }
}

impl Counts {
    fn add(&mut self, letter: &Letter) {
        let reason = self.reasons.entry((letter.kind, letter.reason));
        reason.or_default().count(letter);
        let key = (letter.kind, letter.cause.clone());
        if self.causes.len() < CAUSES || self.causes.contains_key(&key) {
            let first = || (Summary::default(), letter.id.clone());
            let (summary, _) = self.causes.entry(key).or_insert_with(first);
            summary.count(letter);
        } else {
            let mut digest = DefaultHasher::new();
            key.hash(&mut digest);
            self.other_causes.insert(digest.finish());
        }
    }

    fn stats(self, uncounted_count: u64) -> Stats {
        let reasons = self.reasons.into_iter();
        let causes = self.causes.into_iter();
        let mut causes: Vec<CauseSummary> = causes
            .map(|((kind, cause), (summary, example))| CauseSummary {
                kind,
                cause,
                summary,
                example,
            })
            .collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.summary.letters));
        Stats {
            reasons: reasons
                .map(|((kind, reason), summary)| ReasonSummary {
                    kind,
                    reason,
                    summary,
                })
                .collect(),
            causes: List {
                items: causes,
                truncated: self.other_causes.len() as u64,
            },
            uncounted: uncounted_count,
        }
    }
}
