//! Counts of letters by cause of death.

use std::collections::{BTreeMap, BTreeSet};

use crate::desk::Cause;

use super::types::{CauseSummary, Kind, Listed, Stats, Summary};
use super::{DeadLetters, Result, STEP};

/// Letters counted at most.
const COUNTED: u64 = 200_000;
/// Causes told apart at most.
const CAUSES: usize = 500;

type Causes = BTreeMap<(Kind, Cause), (Summary, String)>;

impl DeadLetters {
    /// Counts letters by kind and reason, and by cause; only the first ones if there are very many.
    pub async fn stats(&self) -> Result<Stats> {
        let (desk, now) = (self.view.now().await?, self.backends.clock.now());
        let mut stats = Stats::default();
        let mut causes = Causes::new();
        let mut seen = BTreeSet::new();
        let mut at = None;
        loop {
            let (found, next) = self.read(at, STEP).await?;
            for found in found {
                let listed = found.listed(&desk, now);
                if seen.insert(found.letter.id()) && !listed.gone {
                    count_reason(&mut stats, &listed);
                    count_cause(&mut causes, &listed);
                }
            }
            match next {
                Some(next) if (seen.len() as u64) < COUNTED => at = Some(next),
                Some(next) => {
                    stats.left_off = self.count_behind(next).await?;
                    break;
                }
                None => break,
            }
        }
        stats.causes = most_frequent(causes);
        Ok(stats)
    }
}

fn count_reason(stats: &mut Stats, listed: &Listed) {
    let reasons = match listed.cursor.kind {
        Kind::Message => &mut stats.messages,
        Kind::Notification => &mut stats.notifications,
    };
    let reason = reasons.entry(listed.reason.name().to_owned());
    reason.or_default().count(listed);
}

fn count_cause(causes: &mut Causes, listed: &Listed) {
    let key = (listed.cursor.kind, listed.cause.clone());
    if causes.len() < CAUSES || causes.contains_key(&key) {
        let first = || (Summary::default(), listed.id.clone());
        let (summary, _) = causes.entry(key).or_insert_with(first);
        summary.count(listed);
    }
}

fn most_frequent(causes: Causes) -> Vec<CauseSummary> {
    let causes = causes.into_iter();
    let mut causes: Vec<CauseSummary> = causes
        .map(|((kind, cause), (summary, example))| CauseSummary {
            kind,
            cause,
            summary,
            example,
        })
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.summary.letters));
    causes
}
