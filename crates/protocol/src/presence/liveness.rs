//! Death of a boat's life: its lease is gone *and* it is unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{BoatLife, DeniedBoats};
use crate::Timestamp;
use crate::pause::doubled;

/// Time without a lease before a life is asked.
pub const LEASE_GRACE: Duration = Duration::from_secs(2);
/// Consecutive unanswered queries after which a life is denied. A single one may have other causes:
/// a late answer, a full queue.
const MAX_SILENCES: u32 = 3;
/// Pause between a silence and the next inquiry.
const SILENCE_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a denied life is asked again, doubled with each silence up to `DENIED_PAUSE_MAX`.
const DENIED_PAUSE: Duration = Duration::from_secs(30);
const DENIED_PAUSE_MAX: Duration = Duration::from_secs(300);

/// Failure detector of one carrier or station for the boat lives it knows. A lost lease proves
/// little: its boat may live on. So a life is queried once its lease has been missing for a while,
/// and denied (taken for dead) only if it does not answer; a denied life is queried again, and
/// taken for alive as soon as it answers.
#[derive(Clone, Debug)]
pub struct BoatLiveness {
    /// Time without a lease before a life is asked.
    lease_grace: Duration,
    /// Interval of inquiries to a life that answers without a lease.
    recheck_interval: Duration,
    lives: BTreeMap<BoatLife, Belief>,
    denied_boats: DeniedBoats,
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
    pub fn new(
        lease_grace: Duration,
        recheck_interval: Duration,
        remembered_max: usize,
    ) -> BoatLiveness {
        BoatLiveness {
            lease_grace,
            recheck_interval,
            lives: BTreeMap::new(),
            denied_boats: DeniedBoats::default(),
            remembered_max,
        }
    }

    /// Denied lives, for the mailbox to consider in every request.
    pub fn denied(&self) -> DeniedBoats {
        Arc::clone(&self.denied_boats)
    }

    /// Whether the life's address is still needed: it is leased, or will be asked.
    pub fn remembers(&self, life: &BoatLife) -> bool {
        self.lives.contains_key(life)
    }

    /// Takes over the current leases. A boat that came back under a new life leaves its old one
    /// missing.
    pub fn handle_roster<'a>(
        &mut self,
        now: Timestamp,
        leases: impl IntoIterator<Item = &'a BoatLife>,
    ) {
        let leases: BTreeSet<&BoatLife> = leases.into_iter().collect();
        for (life, belief) in &mut self.lives {
            if *belief == Belief::Leased && !leases.contains(life) {
                *belief = Belief::Missing(Inquiry::at(now + self.lease_grace));
            }
        }
        for life in leases {
            self.lives.insert(life.clone(), Belief::Leased);
        }
        self.publish();
    }

    /// A push met a life without a known lease: it is to be asked, too.
    pub fn handle_unknown(&mut self, now: Timestamp, life: &BoatLife) {
        if !self.lives.contains_key(life) {
            let inquiry = Inquiry::at(now + self.lease_grace);
            self.lives.insert(life.clone(), Belief::Missing(inquiry));
        }
    }

    /// Returns lives due for an inquiry, at most `max`. Each is returned once until its answer or
    /// silence is handled.
    pub fn due(&mut self, now: Timestamp, max: usize) -> Vec<BoatLife> {
        let mut due_lives = Vec::new();
        for (life, belief) in &mut self.lives {
            let (Belief::Missing(inquiry) | Belief::Denied(inquiry)) = belief else {
                continue;
            };
            if due_lives.len() < max && matches!(inquiry.next, Next::At(at) if at <= now) {
                inquiry.next = Next::Answer;
                due_lives.push(life.clone());
            }
        }
        due_lives
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
        *belief = Belief::Missing(Inquiry::at(now + self.recheck_interval));
        if was_denied {
            self.publish();
        }
    }

    /// The life was asked and did not answer. Returns true, once, when the life becomes denied.
    pub fn handle_silent(&mut self, now: Timestamp, life: &BoatLife) -> bool {
        match self.lives.get_mut(life) {
            Some(Belief::Missing(inquiry)) if inquiry.next == Next::Answer => {
                inquiry.silences += 1;
                if inquiry.silences >= MAX_SILENCES {
                    return self.deny(now, life);
                }
                inquiry.next = Next::At(now + SILENCE_PAUSE);
            }
            Some(Belief::Denied(inquiry)) if inquiry.next == Next::Answer => {
                inquiry.silences = inquiry.silences.saturating_add(1);
                let pause = doubled(DENIED_PAUSE, inquiry.silences, DENIED_PAUSE_MAX);
                inquiry.next = Next::At(now + pause);
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
        let inquiry = Inquiry::at(now + DENIED_PAUSE);
        self.lives.insert(life.clone(), Belief::Denied(inquiry));
        self.publish();
        true
    }

    fn publish(&mut self) {
        let denied_lives: BTreeSet<BoatLife> = self.denied_lives().cloned().collect();
        // Surplus lives are forgotten in order of boat and incarnation: a boat's earliest lives go
        // first. An entry under a forgotten life costs one more push.
        let surplus = denied_lives.len().saturating_sub(self.remembered_max);
        for life in denied_lives.iter().take(surplus) {
            self.lives.remove(life);
        }
        let denied_lives: BTreeSet<BoatLife> = self.denied_lives().cloned().collect();
        if *self.denied_boats != denied_lives {
            self.denied_boats = Arc::new(denied_lives);
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

    fn new_liveness() -> BoatLiveness {
        BoatLiveness::new(LEASE_GRACE, Duration::from_secs(10), 3)
    }

    /// Asks whenever due, without an answer, over a range of seconds. Returns the seconds of the
    /// inquiries.
    fn silence(liveness: &mut BoatLiveness, life: &BoatLife, from: i64, to: i64) -> Vec<i64> {
        let mut asked_at = Vec::new();
        for second in from..to {
            for due_life in liveness.due(at(second), 100) {
                assert_eq!(due_life, *life);
                liveness.handle_silent(at(second), life);
                asked_at.push(second);
            }
        }
        asked_at
    }

    #[test]
    fn a_lease_that_is_gone_is_not_enough() {
        let mut liveness = new_liveness();
        liveness.handle_roster(at(0), [&life(1)]);
        liveness.handle_roster(at(1), []);
        assert_eq!(liveness.due(at(2), 9), [], "a lease may flicker");
        assert_eq!(liveness.due(at(3), 9), [life(1)]);
        assert_eq!(liveness.due(at(4), 9), [], "asked once");
        assert!(liveness.denied().is_empty());
        liveness.handle_heard(at(4), &life(1));
        assert!(!liveness.handle_silent(at(4), &life(1)), "it was heard");
        assert_eq!(liveness.due(at(13), 9), [], "not yet");
        assert_eq!(liveness.due(at(14), 9), [life(1)], "asked again, later");
    }

    #[test]
    fn three_silences_in_a_row_deny_a_life() {
        let mut liveness = new_liveness();
        liveness.handle_roster(at(0), [&life(1)]);
        liveness.handle_roster(at(1), [&life(2)]);
        assert_eq!(silence(&mut liveness, &life(1), 0, 7), [3, 5]);
        assert!(liveness.denied().is_empty(), "two are chance");
        assert_eq!(liveness.due(at(7), 9), [life(1)]);
        assert!(liveness.handle_silent(at(7), &life(1)));
        assert!(!liveness.handle_silent(at(7), &life(1)), "said once");
        assert_eq!(*liveness.denied(), BTreeSet::from([life(1)]));
    }

    #[test]
    fn an_answer_between_silences_begins_the_count_anew() {
        let mut liveness = new_liveness();
        liveness.handle_unknown(at(0), &life(1));
        assert_eq!(silence(&mut liveness, &life(1), 0, 5), [2, 4]);
        assert_eq!(liveness.due(at(6), 9), [life(1)]);
        liveness.handle_heard(at(6), &life(1));
        assert_eq!(silence(&mut liveness, &life(1), 6, 20), [16, 18]);
        assert!(liveness.denied().is_empty());
    }

    #[test]
    fn a_denied_life_is_asked_again_and_ever_more_seldom() {
        let mut liveness = new_liveness();
        liveness.handle_unknown(at(0), &life(1));
        let asked_at = silence(&mut liveness, &life(1), 0, 1500);
        assert_eq!(asked_at, [2, 4, 6, 36, 96, 216, 456, 756, 1056, 1356]);
        liveness.due(at(1656), 9);
        liveness.handle_heard(at(1656), &life(1));
        assert!(liveness.denied().is_empty(), "an answer lifts it");
    }

    // A call by the life lifts the denial, as an answer would: nobody has to ask.
    #[test]
    fn a_denied_life_that_calls_is_believed() {
        let mut liveness = new_liveness();
        liveness.handle_unknown(at(0), &life(1));
        silence(&mut liveness, &life(1), 0, 10);
        liveness.handle_heard(at(11), &life(1));
        assert!(liveness.denied().is_empty());
        assert_eq!(silence(&mut liveness, &life(1), 11, 26), [21, 23, 25]);
        assert_eq!(*liveness.denied(), BTreeSet::from([life(1)]));
    }

    #[test]
    fn a_life_whose_place_another_took_is_denied_at_once() {
        let mut liveness = new_liveness();
        liveness.handle_roster(at(0), [&life(1)]);
        liveness.handle_roster(at(1), [&life(2)]);
        assert!(!liveness.handle_replaced(at(2), &life(1)), "nobody asked");
        assert_eq!(liveness.due(at(3), 9), [life(1)]);
        assert!(liveness.handle_replaced(at(3), &life(1)));
        assert_eq!(silence(&mut liveness, &life(1), 3, 60), [33]);
    }

    #[test]
    fn a_lease_that_comes_back_lifts_the_denial() {
        let mut liveness = new_liveness();
        liveness.handle_unknown(at(0), &life(1));
        silence(&mut liveness, &life(1), 0, 10);
        assert_eq!(liveness.denied().len(), 1);
        liveness.handle_roster(at(10), [&life(1)]);
        assert!(liveness.denied().is_empty());
    }

    #[test]
    fn so_many_are_asked_at_once_and_the_others_later() {
        let mut liveness = new_liveness();
        for incarnation in 1..=5 {
            liveness.handle_unknown(at(0), &life(incarnation));
        }
        assert_eq!(liveness.due(at(2), 3).len(), 3);
        assert_eq!(liveness.due(at(2), 3), [life(4), life(5)]);
    }

    #[test]
    fn only_so_many_dead_lives_are_remembered() {
        let mut liveness = new_liveness();
        for incarnation in 1..=5 {
            liveness.handle_unknown(at(0), &life(incarnation));
            liveness.due(at(2), 9);
            liveness.handle_replaced(at(2), &life(incarnation));
        }
        assert_eq!(
            *liveness.denied(),
            BTreeSet::from([life(3), life(4), life(5)])
        );
        assert!(!liveness.remembers(&life(2)) && liveness.remembers(&life(3)));
    }
}
