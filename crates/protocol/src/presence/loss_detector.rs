//! Distinguishes a store that lost data from a single forgotten session.
//!
//! A boat asserts its sessions one after the other. A session unknown to the store may be a single
//! entry removed by mistake. Or the store has lost all or part of its data; then the other sessions
//! must not wait for their turn, for nobody delivers to them meanwhile. So after the first
//! forgotten session the boat asserts a sample of the next ones at once, and that sample decides.

use std::collections::VecDeque;

/// Sessions asserted without a pause after a forgotten one.
const SAMPLE_SIZE: usize = 32;
/// A sample shows a loss if it has at least this many forgotten sessions …
const MIN_SAMPLE_LOSSES: usize = 3;
/// … and if at least one session in this many is forgotten.
const MAX_ASSERTED_PER_LOSS: usize = 8;
/// Forgotten sessions among the last `RECENT_ASSERTIONS` asserted that mean a loss, however they are spread.
const MIN_RECENT_LOSSES: usize = 8;
const RECENT_ASSERTIONS: usize = 512;

/// State derived from the answers to assertions.
#[derive(Clone, Debug, Default)]
pub struct LossDetector {
    /// Batches, each with the number of sessions asserted and of those forgotten.
    recent: VecDeque<(usize, usize)>,
    sample: Option<Sample>,
}

/// Sessions asserted since one was forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    asserted_count: usize,
    forgotten_count: usize,
    /// Sessions still to be asserted without a pause.
    remaining: usize,
}

impl LossDetector {
    /// Takes the store's answer to a batch: it did not know `forgotten_count` of the
    /// `asserted_count` sessions. The boat holds `session_count` sessions in all.
    pub fn handle_answers(
        &mut self,
        asserted_count: usize,
        forgotten_count: usize,
        session_count: usize,
    ) {
        if asserted_count == 0 {
            return;
        }
        self.remember(asserted_count, forgotten_count);
        let mut sample = self.sample.unwrap_or_default();
        sample.asserted_count += asserted_count;
        sample.forgotten_count += forgotten_count;
        sample.remaining = match forgotten_count {
            // A boat with few sessions has asserted each of them once by then.
            1.. => SAMPLE_SIZE.min(session_count.saturating_sub(asserted_count)),
            0 => sample.remaining.saturating_sub(asserted_count),
        };
        self.sample = (sample.remaining > 0 || sample.is_telling()).then_some(sample);
    }

    /// Whether the next sessions are to be asserted at once.
    pub fn hurries(&self) -> bool {
        self.sample.is_some()
    }

    /// Whether the store has lost sessions, so that all are to be asserted.
    pub fn is_loss(&self) -> bool {
        let recent: usize = self
            .recent
            .iter()
            .map(|(_, forgotten_count)| forgotten_count)
            .sum();
        self.sample.is_some_and(|sample| sample.is_telling()) || recent >= MIN_RECENT_LOSSES
    }

    fn remember(&mut self, asserted_count: usize, forgotten_count: usize) {
        self.recent.push_back((asserted_count, forgotten_count));
        let mut total: usize = self
            .recent
            .iter()
            .map(|(asserted_count, _)| asserted_count)
            .sum();
        while let Some((oldest, _)) = self.recent.front()
            && total - oldest >= RECENT_ASSERTIONS
        {
            total -= oldest;
            self.recent.pop_front();
        }
    }
}

impl Sample {
    fn is_telling(self) -> bool {
        self.forgotten_count >= MIN_SAMPLE_LOSSES
            && self.forgotten_count * MAX_ASSERTED_PER_LOSS >= self.asserted_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts sessions in rounds, `batch_size` at a time, forgotten as given. Returns the number
    /// asserted until a loss was detected, and how many of these were asserted without a pause.
    fn assert_all(
        losses: &mut LossDetector,
        session_count: usize,
        batch_size: usize,
        rounds: usize,
        mut is_forgotten: impl FnMut(usize) -> bool,
    ) -> (Option<usize>, usize) {
        let (mut done_count, mut hurried_count) = (0, 0);
        for _ in 0..rounds {
            for first in (0..session_count).step_by(batch_size) {
                let batch = first..(first + batch_size).min(session_count);
                let asserted_count = batch.len();
                if losses.hurries() {
                    hurried_count += asserted_count;
                }
                let forgotten_count = batch
                    .filter(|n| is_forgotten(done_count + n - first))
                    .count();
                losses.handle_answers(asserted_count, forgotten_count, session_count);
                done_count += asserted_count;
                if losses.is_loss() {
                    return (Some(done_count), hurried_count);
                }
            }
        }
        (None, hurried_count)
    }

    /// FLUSHALL: every session is forgotten until asserted. However many there are, they are
    /// asserted at once, or a loss is soon detected.
    #[test]
    fn after_a_flush_nobody_waits() {
        for (session_count, batch_size, is_loss_after) in [
            (1, 1, None),
            (2, 1, None),
            (5, 1, Some(3)),
            (5, 5, Some(5)),
            (10_000, 156, Some(156)),
            (10_000, 1, Some(3)),
        ] {
            let mut losses = LossDetector::default();
            let unchanged = assert_all(&mut losses, session_count, batch_size, 3, |_| false);
            assert_eq!(unchanged, (None, 0));
            let (loss, hurried_count) =
                assert_all(&mut losses, session_count, batch_size, 1, |_| true);
            assert_eq!(
                loss, is_loss_after,
                "{session_count} in portions of {batch_size}"
            );
            // All but the first batch.
            let all = loss.unwrap_or(session_count);
            assert_eq!(hurried_count, all - batch_size.min(all), "{session_count}");
        }
    }

    #[test]
    fn one_that_was_forgotten_among_many_is_asserted_alone() {
        for batch_size in [1, 10, 156] {
            let mut losses = LossDetector::default();
            // One in each round of ten thousand.
            let is_one = |n: usize| n % 10_000 == 5_000;
            let (loss, hurried_count) = assert_all(&mut losses, 10_000, batch_size, 5, is_one);
            assert_eq!(loss, None);
            assert!(
                hurried_count <= 5 * (SAMPLE_SIZE + batch_size),
                "{hurried_count}"
            );
            assert!(!losses.hurries());
        }
    }

    /// One master of three, or of many, was lost: a share of the sessions is forgotten.
    #[test]
    fn a_share_of_them_is_a_loss() {
        for (one_of, at_most) in [(3, 20), (16, 200), (50, 512)] {
            let mut losses = LossDetector::default();
            let (loss, _) = assert_all(&mut losses, 10_000, 1, 1, |n| n % one_of == 0);
            assert!(
                loss.is_some_and(|asserted_count| asserted_count <= at_most),
                "{one_of}: {loss:?}"
            );
        }
    }

    #[test]
    fn two_on_a_small_boat_are_no_loss_and_end_the_haste() {
        let mut losses = LossDetector::default();
        let (loss, hurried_count) = assert_all(&mut losses, 10, 1, 1, |n| n < 2);
        assert_eq!(loss, None);
        assert_eq!(hurried_count, 9, "each once");
        let (loss, hurried_count) = assert_all(&mut losses, 10, 1, 3, |_| false);
        assert_eq!(loss, None);
        assert!(hurried_count <= 9, "{hurried_count}");
        assert!(!losses.hurries());
    }

    /// An empty batch tells nothing.
    #[test]
    fn empty_batch_changes_nothing() {
        let mut losses = LossDetector::default();
        losses.handle_answers(0, 0, 0);
        assert!(!losses.hurries() && !losses.is_loss());
    }
}
