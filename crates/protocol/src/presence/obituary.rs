//! When a boat's life counts as over: its lease is gone *and* nobody reaches it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{BoatLife, Denied};
use crate::Timestamp;

/// What one carrier believes of the lives it has heard of. A lease that is gone says little: a boat that
/// lost it may live on. So a life is asked once its lease has been away for a while, and denied only when
/// it does not answer; a denied life that is heard of again is believed.
#[derive(Clone, Debug)]
pub struct Obituary {
    /// How long a lease is away before its life is asked.
    patience: Duration,
    /// How often an answer is asked for again, where the life answered without a lease.
    again: Duration,
    lives: BTreeMap<BoatLife, Belief>,
    denied: Denied,
    /// Lives that are over and were not heard of for long are forgotten beyond this many.
    remembered_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    Leased,
    /// To be asked at this time.
    Missing(Timestamp),
    Asked,
    Denied,
}

impl Obituary {
    pub fn new(patience: Duration, again: Duration, remembered_max: usize) -> Obituary {
        Obituary {
            patience,
            again,
            lives: BTreeMap::new(),
            denied: Denied::default(),
            remembered_max,
        }
    }

    /// To be given to the mailbox with every question.
    pub fn denied(&self) -> Denied {
        Arc::clone(&self.denied)
    }

    /// The leases of now. A boat that came back under a new life leaves its old one missing.
    pub fn handle_roster<'a>(
        &mut self,
        now: Timestamp,
        leased: impl IntoIterator<Item = &'a BoatLife>,
    ) {
        let leased: BTreeSet<&BoatLife> = leased.into_iter().collect();
        for (life, belief) in &mut self.lives {
            if *belief == Belief::Leased && !leased.contains(life) {
                *belief = Belief::Missing(now + self.patience);
            }
        }
        for life in leased {
            self.lives.insert(life.clone(), Belief::Leased);
        }
        self.publish();
    }

    /// A push met a life that no roster named: it is to be asked, too.
    pub fn handle_unknown(&mut self, now: Timestamp, life: &BoatLife) {
        if !self.lives.contains_key(life) {
            self.lives
                .insert(life.clone(), Belief::Missing(now + self.patience));
        }
    }

    /// Lives that are to be asked now; each is handed out once until it answers or does not.
    pub fn due(&mut self, now: Timestamp) -> Vec<BoatLife> {
        let mut due = Vec::new();
        for (life, belief) in &mut self.lives {
            if matches!(*belief, Belief::Missing(at) if at <= now) {
                *belief = Belief::Asked;
                due.push(life.clone());
            }
        }
        due
    }

    /// The life answered: it lives, lease or none.
    pub fn handle_heard(&mut self, now: Timestamp, life: &BoatLife) {
        if let Some(belief) = self.lives.get_mut(life)
            && *belief != Belief::Leased
        {
            *belief = Belief::Missing(now + self.again);
            self.publish();
        }
    }

    /// It was asked and did not answer, or another life answered in its place. True: it is denied from
    /// now on, which is said once.
    pub fn handle_silent(&mut self, life: &BoatLife) -> bool {
        match self.lives.get_mut(life) {
            Some(belief @ Belief::Asked) => *belief = Belief::Denied,
            _ => return false,
        }
        self.publish();
        true
    }

    fn publish(&mut self) {
        let denied: BTreeSet<BoatLife> = self.denied_lives().cloned().collect();
        // The oldest lives are forgotten: their entries were met long ago, or cost one more push each.
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
            .filter(|(_, belief)| **belief == Belief::Denied)
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

    fn obituary() -> Obituary {
        Obituary::new(Duration::from_secs(2), Duration::from_secs(10), 3)
    }

    #[test]
    fn a_lease_that_is_gone_is_not_enough() {
        let mut obituary = obituary();
        obituary.handle_roster(at(0), [&life(1)]);
        obituary.handle_roster(at(1), []);
        assert_eq!(obituary.due(at(2)), [], "a lease may flicker");
        assert_eq!(obituary.due(at(3)), [life(1)]);
        assert_eq!(obituary.due(at(4)), [], "asked once");
        assert!(obituary.denied().is_empty());
        obituary.handle_heard(at(4), &life(1));
        assert!(!obituary.handle_silent(&life(1)), "it was heard");
        assert_eq!(obituary.due(at(14)), [life(1)], "asked again, later");
    }

    #[test]
    fn no_lease_and_no_answer_is_denied_until_heard_again() {
        let mut obituary = obituary();
        obituary.handle_roster(at(0), [&life(1)]);
        obituary.handle_roster(at(1), [&life(2)]);
        obituary.due(at(3));
        assert!(obituary.handle_silent(&life(1)));
        assert!(!obituary.handle_silent(&life(1)), "said once");
        assert_eq!(*obituary.denied(), BTreeSet::from([life(1)]));
        obituary.handle_heard(at(5), &life(1));
        assert!(obituary.denied().is_empty());
    }

    #[test]
    fn a_lease_that_comes_back_lifts_the_denial() {
        let mut obituary = obituary();
        obituary.handle_unknown(at(0), &life(1));
        obituary.due(at(2));
        obituary.handle_silent(&life(1));
        obituary.handle_roster(at(3), [&life(1)]);
        assert!(obituary.denied().is_empty());
    }

    #[test]
    fn only_so_many_dead_lives_are_remembered() {
        let mut obituary = obituary();
        for incarnation in 1..=5 {
            obituary.handle_unknown(at(0), &life(incarnation));
            obituary.due(at(2));
            obituary.handle_silent(&life(incarnation));
        }
        assert_eq!(
            *obituary.denied(),
            BTreeSet::from([life(3), life(4), life(5)])
        );
    }
}
