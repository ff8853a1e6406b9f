//! Distinguishes a store that lost data from a single forgotten session.
//!
//! A boat asserts its sessions one after the other. A session unknown to the store may be a single
//! entry removed by mistake. Or the store has lost all or part of its data; then the other sessions
//! must not wait for their turn, for nobody delivers to them meanwhile. So after the first
//! forgotten session the boat asserts a sample of the next ones at once, and that sample decides.

use std::collections::VecDeque;

/// Sessions asserted without a pause after a forgotten one.
const SAMPLE: usize = 32;
/// Forgotten sessions of a sample that are no longer chance …
const FEW: usize = 3;
/// … if at least one in this many is forgotten.
const SHARE: usize = 8;
/// Forgotten sessions among the last `RECENT` asserted that mean a loss, however they are spread.
const MANY: usize = 8;
const RECENT: usize = 512;

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
    asserted: usize,
    forgotten: usize,
    /// Sessions still to be asserted without a pause.
    left: usize,
}

impl LossDetector {
    /// `forgotten` of the `asserted` sessions of a batch were unknown to the store; the boat holds
    /// `held`.
    pub fn handle_answers(&mut self, asserted: usize, forgotten: usize, held: usize) {
        if asserted == 0 {
            return;
        }
        self.remember(asserted, forgotten);
        let mut sample = self.sample.unwrap_or_default();
        sample.asserted += asserted;
        sample.forgotten += forgotten;
        sample.left = match forgotten {
            // A boat with few sessions has asserted each of them once by then.
            1.. => SAMPLE.min(held.saturating_sub(asserted)),
            0 => sample.left.saturating_sub(asserted),
        };
        self.sample = (sample.left > 0 || sample.is_telling()).then_some(sample);
    }

    /// True if the next sessions are to be asserted at once.
    pub fn hurries(&self) -> bool {
        self.sample.is_some()
    }

    /// True if the store has lost sessions, so that all are to be asserted.
    pub fn is_loss(&self) -> bool {
        let recent: usize = self.recent.iter().map(|(_, forgotten)| forgotten).sum();
        self.sample.is_some_and(|sample| sample.is_telling()) || recent >= MANY
    }

    fn remember(&mut self, asserted: usize, forgotten: usize) {
        self.recent.push_back((asserted, forgotten));
        let mut all: usize = self.recent.iter().map(|(asserted, _)| asserted).sum();
        while let Some((oldest, _)) = self.recent.front()
            && all - oldest >= RECENT
        {
            all -= oldest;
            self.recent.pop_front();
        }
    }
}

impl Sample {
    fn is_telling(self) -> bool {
        self.forgotten >= FEW && self.forgotten * SHARE >= self.asserted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts sessions in rounds, `together` at a time, forgotten as given. Returns the number
    /// asserted until a loss was detected, and how many of these were asserted without a pause.
    fn assert_all(
        losses: &mut LossDetector,
        held: usize,
        together: usize,
        rounds: usize,
        mut is_forgotten: impl FnMut(usize) -> bool,
    ) -> (Option<usize>, usize) {
        let (mut done, mut hurried) = (0, 0);
        for _ in 0..rounds {
            for first in (0..held).step_by(together) {
                let batch = first..(first + together).min(held);
                let asserted = batch.len();
                if losses.hurries() {
                    hurried += asserted;
                }
                let forgotten = batch.filter(|n| is_forgotten(done + n - first)).count();
                losses.handle_answers(asserted, forgotten, held);
                done += asserted;
                if losses.is_loss() {
                    return (Some(done), hurried);
                }
            }
        }
        (None, hurried)
    }

    /// FLUSHALL: every session is forgotten until asserted. However many there are, they are
    /// asserted at once, or a loss is soon detected.
    #[test]
    fn after_a_flush_nobody_waits() {
        for (held, together, is_loss_after) in [
            (1, 1, None),
            (2, 1, None),
            (5, 1, Some(3)),
            (5, 5, Some(5)),
            (10_000, 156, Some(156)),
            (10_000, 1, Some(3)),
        ] {
            let mut losses = LossDetector::default();
            let quiet = assert_all(&mut losses, held, together, 3, |_| false);
            assert_eq!(quiet, (None, 0));
            let (loss, hurried) = assert_all(&mut losses, held, together, 1, |_| true);
            assert_eq!(loss, is_loss_after, "{held} in portions of {together}");
            // All but the first batch.
            let all = loss.unwrap_or(held);
            assert_eq!(hurried, all - together.min(all), "{held}");
        }
    }

    #[test]
    fn one_that_was_forgotten_among_many_is_asserted_alone() {
        for together in [1, 10, 156] {
            let mut losses = LossDetector::default();
            // One in each round of ten thousand.
            let one = |n: usize| n % 10_000 == 5_000;
            let (loss, hurried) = assert_all(&mut losses, 10_000, together, 5, one);
            assert_eq!(loss, None);
            assert!(hurried <= 5 * (SAMPLE + together), "{hurried}");
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
                loss.is_some_and(|after| after <= at_most),
                "{one_of}: {loss:?}"
            );
        }
    }

    #[test]
    fn two_on_a_small_boat_are_no_loss_and_end_the_haste() {
        let mut losses = LossDetector::default();
        let (loss, hurried) = assert_all(&mut losses, 10, 1, 1, |n| n < 2);
        assert_eq!(loss, None);
        assert_eq!(hurried, 9, "each once");
        let (loss, hurried) = assert_all(&mut losses, 10, 1, 3, |_| false);
        assert_eq!(loss, None);
        assert!(hurried <= 9, "{hurried}");
        assert!(!losses.hurries());
    }

    /// An empty batch tells nothing.
    #[test]
    fn nobody_asserted_changes_nothing() {
        let mut losses = LossDetector::default();
        losses.handle_answers(0, 0, 0);
        assert!(!losses.hurries() && !losses.is_loss());
    }
}
