//! Death of a boat's life: its lease is gone *and* it is unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{BoatLife, DeniedBoats};
use crate::Timestamp;

/// Time without a lease before a life is asked.
pub const LEASE_PATIENCE: Duration = Duration::from_secs(2);
/// Consecutive silences that deny a life. A single one is chance: a late answer, a full queue.
const SILENCES: u32 = 3;
/// Pause between a silence and the next inquiry.
const SILENCE_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a denied life is asked again, doubled with each silence up to `DENIED_PAUSE_MAX`.
const DENIED_PAUSE: Duration = Duration::from_secs(30);
const DENIED_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Beliefs of one carrier or station about the lives it knows. A lost lease proves little: its boat
/// may live on. So a life is asked once its lease has been away for a while, and denied only if it
/// stays silent; a denied life is asked again, and believed as soon as it is heard.
#[derive(Clone, Debug)]
pub struct BoatLiveness {
    /// Time without a lease before a life is asked.
    patience: Duration,
    /// Interval of inquiries to a life that answers without a lease.
    again: Duration,
    lives: BTreeMap<BoatLife, Belief>,
    denied: DeniedBoats,
    /// Number of denied lives remembered.
    remembered_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Leased,
    Missing(Inquiry),
    Denied(Inquiry),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inquiry {
    next: Next,
    /// Consecutive silences since the lease went away or the life was denied.
    silences: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Due at this time.
    At(Timestamp),
    /// Asked, no answer yet.
    Answer,
}

impl Inquiry {
    fn at(time: Timestamp) -> Inquiry {
        Inquiry {
            next: Next::At(time),
            silences: 0,
        }
    }
}

impl BoatLiveness {
    pub fn new(patience: Duration, again: Duration, remembered_max: usize) -> BoatLiveness {
        BoatLiveness {
            patience,
            again,
            lives: BTreeMap::new(),
            denied: DeniedBoats::default(),
            remembered_max,
        }
    }

    /// Denied lives, for the mailbox to consider in every request.
    pub fn denied(&self) -> DeniedBoats {
        Arc::clone(&self.denied)
    }

    /// True if the life's address is still needed: it is leased, or will be asked.
    pub fn remembers(&self, life: &BoatLife) -> bool {
        self.lives.contains_key(life)
    }

    /// Takes over the current leases. A boat that came back under a new life leaves its old one
    /// missing.
    pub fn handle_roster<'a>(
        &mut self,
        now: Timestamp,
        leased: impl IntoIterator<Item = &'a BoatLife>,
    ) {
        let leased: BTreeSet<&BoatLife> = leased.into_iter().collect();
        for (life, belief) in &mut self.lives {
            if *belief == Belief::Leased && !leased.contains(life) {
                *belief = Belief::Missing(Inquiry::at(now + self.patience));
            }
        }
        for life in leased {
            self.lives.insert(life.clone(), Belief::Leased);
        }
        self.publish();
    }

    /// A push met a life without a known lease: it is to be asked, too.
    pub fn handle_unknown(&mut self, now: Timestamp, life: &BoatLife) {
        if !self.lives.contains_key(life) {
            let asked = Inquiry::at(now + self.patience);
            self.lives.insert(life.clone(), Belief::Missing(asked));
        }
    }

    /// Returns lives due for an inquiry, at most `most`. Each is returned once until its answer or
    /// silence is handled.
    pub fn due(&mut self, now: Timestamp, most: usize) -> Vec<BoatLife> {
        let mut due = Vec::new();
        for (life, belief) in &mut self.lives {
            let (Belief::Missing(inquiry) | Belief::Denied(inquiry)) = belief else {
                continue;
            };
            if due.len() < most && matches!(inquiry.next, Next::At(at) if at <= now) {
                inquiry.next = Next::Answer;
                due.push(life.clone());
            }
        }
        due
    }

    /// The life answered, or called: it is alive, with or without a lease.
    pub fn handle_heard(&mut self, now: Timestamp, life: &BoatLife) {
        let Some(belief) = self.lives.get_mut(life) else {
            return;
        };
        let was_denied = match belief {
            Belief::Leased => return,
            Belief::Missing(_) => false,
            Belief::Denied(_) => true,
        };
        *belief = Belief::Missing(Inquiry::at(now + self.again));
        if was_denied {
            self.publish();
        }
    }

    /// The life was asked and did not answer. Returns true, once, when the life becomes denied.
    pub fn handle_silent(&mut self, now: Timestamp, life: &BoatLife) -> bool {
        match self.lives.get_mut(life) {
            Some(Belief::Missing(inquiry)) if inquiry.next == Next::Answer => {
                inquiry.silences += 1;
                if inquiry.silences >= SILENCES {
                    return self.deny(now, life);
                }
                inquiry.next = Next::At(now + SILENCE_PAUSE);
            }
            Some(Belief::Denied(inquiry)) if inquiry.next == Next::Answer => {
                inquiry.silences = inquiry.silences.saturating_add(1);
                let doubled = DENIED_PAUSE.saturating_mul(1 << inquiry.silences.min(8));
                inquiry.next = Next::At(now + doubled.min(DENIED_PAUSE_MAX));
            }
            _ => {}
        }
        false
    }

    /// Another life answered in its place. Returns true, once, when the life becomes denied.
    pub fn handle_replaced(&mut self, now: Timestamp, life: &BoatLife) -> bool {
        match self.lives.get(life) {
            Some(Belief::Missing(inquiry)) if inquiry.next == Next::Answer => self.deny(now, life),
            _ => self.handle_silent(now, life),
        }
    }

    fn deny(&mut self, now: Timestamp, life: &BoatLife) -> bool {
        let asked = Inquiry::at(now + DENIED_PAUSE);
        self.lives.insert(life.clone(), Belief::Denied(asked));
        self.publish();
        true
    }

    fn publish(&mut self) {
        let denied: BTreeSet<BoatLife> = self.denied_lives().cloned().collect();
        // Surplus lives are forgotten in order of boat and incarnation: a boat's earliest lives go
        // first. An entry under a forgotten life costs one more push.
        let surplus = denied.len().saturating_sub(self.remembered_max);
        for life in denied.iter().take(surplus) {
            self.lives.remove(life);
        }
        let denied: BTreeSet<BoatLife> = self.denied_lives().cloned().collect();
        if *self.denied != denied {
            self.denied = Arc::new(denied);
        }
    }

    fn denied_lives(&self) -> impl Iterator<Item = &BoatLife> {
        self.lives
            .iter()
            .filter(|(_, belief)| matches!(belief, Belief::Denied(_)))
            .map(|(life, _)| life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoatId, Incarnation};

    fn life(incarnation: u64) -> BoatLife {
        BoatLife {
            boat: BoatId::new("boat-1").expect("a name"),
            incarnation: Incarnation(incarnation),
        }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_millis(secs * 1000)
    }

    fn obituary() -> BoatLiveness {
        BoatLiveness::new(LEASE_PATIENCE, Duration::from_secs(10), 3)
    }

    /// Asks whenever due, without an answer, over a range of seconds. Returns the seconds of the
    /// inquiries.
    fn silence(obituary: &mut BoatLiveness, life: &BoatLife, from: i64, to: i64) -> Vec<i64> {
        let mut asked = Vec::new();
        for second in from..to {
            for due in obituary.due(at(second), 100) {
                assert_eq!(due, *life);
                obituary.handle_silent(at(second), life);
                asked.push(second);
            }
        }
        asked
    }

    #[test]
    fn a_lease_that_is_gone_is_not_enough() {
        let mut obituary = obituary();
        obituary.handle_roster(at(0), [&life(1)]);
        obituary.handle_roster(at(1), []);
        assert_eq!(obituary.due(at(2), 9), [], "a lease may flicker");
        assert_eq!(obituary.due(at(3), 9), [life(1)]);
        assert_eq!(obituary.due(at(4), 9), [], "asked once");
        assert!(obituary.denied().is_empty());
        obituary.handle_heard(at(4), &life(1));
        assert!(!obituary.handle_silent(at(4), &life(1)), "it was heard");
        assert_eq!(obituary.due(at(13), 9), [], "not yet");
        assert_eq!(obituary.due(at(14), 9), [life(1)], "asked again, later");
    }

    #[test]
    fn three_silences_in_a_row_deny_a_life() {
        let mut obituary = obituary();
        obituary.handle_roster(at(0), [&life(1)]);
        obituary.handle_roster(at(1), [&life(2)]);
        assert_eq!(silence(&mut obituary, &life(1), 0, 7), [3, 5]);
        assert!(obituary.denied().is_empty(), "two are chance");
        assert_eq!(obituary.due(at(7), 9), [life(1)]);
        assert!(obituary.handle_silent(at(7), &life(1)));
        assert!(!obituary.handle_silent(at(7), &life(1)), "said once");
        assert_eq!(*obituary.denied(), BTreeSet::from([life(1)]));
    }

    #[test]
    fn an_answer_between_silences_begins_the_count_anew() {
        let mut obituary = obituary();
        obituary.handle_unknown(at(0), &life(1));
        assert_eq!(silence(&mut obituary, &life(1), 0, 5), [2, 4]);
        assert_eq!(obituary.due(at(6), 9), [life(1)]);
        obituary.handle_heard(at(6), &life(1));
        assert_eq!(silence(&mut obituary, &life(1), 6, 20), [16, 18]);
        assert!(obituary.denied().is_empty());
    }

    #[test]
    fn a_denied_life_is_asked_again_and_ever_more_seldom() {
        let mut obituary = obituary();
        obituary.handle_unknown(at(0), &life(1));
        let asked = silence(&mut obituary, &life(1), 0, 1500);
        assert_eq!(asked, [2, 4, 6, 36, 96, 216, 456, 756, 1056, 1356]);
        obituary.due(at(1656), 9);
        obituary.handle_heard(at(1656), &life(1));
        assert!(obituary.denied().is_empty(), "an answer lifts it");
    }

    // A call by the life lifts the denial, as an answer would: nobody has to ask.
    #[test]
    fn a_denied_life_that_calls_is_believed() {
        let mut obituary = obituary();
        obituary.handle_unknown(at(0), &life(1));
        silence(&mut obituary, &life(1), 0, 10);
        obituary.handle_heard(at(11), &life(1));
        assert!(obituary.denied().is_empty());
        assert_eq!(silence(&mut obituary, &life(1), 11, 26), [21, 23, 25]);
        assert_eq!(*obituary.denied(), BTreeSet::from([life(1)]));
    }

    #[test]
    fn a_life_whose_place_another_took_is_denied_at_once() {
        let mut obituary = obituary();
        obituary.handle_roster(at(0), [&life(1)]);
        obituary.handle_roster(at(1), [&life(2)]);
        assert!(!obituary.handle_replaced(at(2), &life(1)), "nobody asked");
        assert_eq!(obituary.due(at(3), 9), [life(1)]);
        assert!(obituary.handle_replaced(at(3), &life(1)));
        assert_eq!(silence(&mut obituary, &life(1), 3, 60), [33]);
    }

    #[test]
    fn a_lease_that_comes_back_lifts_the_denial() {
        let mut obituary = obituary();
        obituary.handle_unknown(at(0), &life(1));
        silence(&mut obituary, &life(1), 0, 10);
        assert_eq!(obituary.denied().len(), 1);
        obituary.handle_roster(at(10), [&life(1)]);
        assert!(obituary.denied().is_empty());
    }

    #[test]
    fn so_many_are_asked_at_once_and_the_others_later() {
        let mut obituary = obituary();
        for incarnation in 1..=5 {
            obituary.handle_unknown(at(0), &life(incarnation));
        }
        assert_eq!(obituary.due(at(2), 3).len(), 3);
        assert_eq!(obituary.due(at(2), 3), [life(4), life(5)]);
    }

    #[test]
    fn only_so_many_dead_lives_are_remembered() {
        let mut obituary = obituary();
        for incarnation in 1..=5 {
            obituary.handle_unknown(at(0), &life(incarnation));
            obituary.due(at(2), 9);
            obituary.handle_replaced(at(2), &life(incarnation));
        }
        assert_eq!(
            *obituary.denied(),
            BTreeSet::from([life(3), life(4), life(5)])
        );
        assert!(!obituary.remembers(&life(2)) && obituary.remembers(&life(3)));
    }
}
