//! Phases in the life of a process, named so that they can be watched.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

/// Pause between two looks at the conditions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Starting,
    Ready,
    Draining,
    Stopped,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Ready => "ready",
            Phase::Draining => "draining",
            Phase::Stopped => "stopped",
        }
    }
}

/// Moves a process through its phases, never back.
#[derive(Clone, Debug)]
pub struct Phases {
    now: watch::Sender<Phase>,
    /// Conditions that must hold for the process to take new work.
    conditions: Arc<Mutex<Vec<Condition>>>,
}

/// Condition of a service for new work, which it may lose while it runs.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The service: `boat`, `station`, `carrier` or `horn`.
    pub part: &'static str,
    pub holds: watch::Receiver<bool>,
    /// Trouble to report while the condition does not hold.
    pub trouble: &'static str,
}

impl Condition {
    /// Also false if the task that checks the condition has ended by a panic.
    fn is_met(&self) -> bool {
        *self.holds.borrow() && self.holds.has_changed().is_ok()
    }
}

/// A service, and its troubles if it takes no new work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReadiness {
    pub part: &'static str,
    pub troubles: Vec<&'static str>,
}

impl Default for Phases {
    fn default() -> Self {
        Phases {
            now: watch::Sender::new(Phase::Starting),
            conditions: Arc::default(),
        }
    }
}

impl Phases {
    pub fn enter(&self, phase: Phase) {
        self.now.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                tracing::info!(phase = phase.name(), "phase changed");
                *now = phase;
            }
            forward
        });
    }

    pub fn now(&self) -> Phase {
        *self.now.borrow()
    }

    /// Adds conditions: the process is ready only while they hold, too. A boat that lost its lease
    /// serves its clients and takes no new ones.
    pub fn follow(&self, conditions: Vec<Condition>) {
        self.conditions.lock().extend(conditions);
    }

    /// Standing of each service of this process, in the order of its first condition.
    pub fn standings(&self) -> Vec<ServiceReadiness> {
        let mut standings: Vec<ServiceReadiness> = Vec::new();
        for condition in self.conditions.lock().iter() {
            let part = condition.part;
            let trouble = (!condition.is_met()).then_some(condition.trouble);
            match standings
                .iter_mut()
                .find(|candidate| candidate.part == part)
            {
                Some(candidate) => candidate.troubles.extend(trouble),
                None => standings.push(ServiceReadiness {
                    part,
                    troubles: trouble.into_iter().collect(),
                }),
            }
        }
        standings
    }

    /// Whether new work should be sent here.
    pub fn is_ready(&self) -> bool {
        let conditions = self.conditions.lock();
        self.now() == Phase::Ready && conditions.iter().all(Condition::is_met)
    }

    /// Follows `is_ready` until the receiver is dropped. Needs a runtime.
    pub fn readiness(&self) -> watch::Receiver<bool> {
        let (answers, answer) = watch::channel(self.is_ready());
        let phases = self.clone();
        tokio::spawn(async move {
            let mut phase = phases.watch();
            while !answers.is_closed() {
                let is_ready = phases.is_ready();
                answers
                    .send_if_modified(|current| std::mem::replace(current, is_ready) != is_ready);
                tokio::select! {
                    biased;
                    () = answers.closed() => {}
                    () = sleep(POLL_INTERVAL) => {}
                    _ = phase.changed() => {}
                }
            }
        });
        answer
    }

    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.now.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_never_returns_to_an_earlier_phase() {
        let phases = Phases::default();
        phases.enter(Phase::Draining);
        phases.enter(Phase::Ready);
        assert_eq!(phases.now(), Phase::Draining);
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_is_followed_through_phases_and_conditions() {
        let phases = Phases::default();
        let mut ready = phases.readiness();
        assert!(!*ready.borrow(), "it starts");
        let (registration, holds) = watch::channel(true);
        phases.follow(vec![Condition {
            part: "boat",
            holds,
            trouble: "not registered",
        }]);
        phases.enter(Phase::Ready);
        ready.wait_for(|ready| *ready).await.expect("followed");
        registration.send_replace(false);
        ready.wait_for(|ready| !*ready).await.expect("followed");
        registration.send_replace(true);
        ready.wait_for(|ready| *ready).await.expect("followed");
        phases.enter(Phase::Draining);
        ready.wait_for(|ready| !*ready).await.expect("followed");
    }

    #[test]
    fn a_condition_that_nobody_looks_at_does_not_hold() {
        let phases = Phases::default();
        let (looks, holds) = watch::channel(true);
        phases.follow(vec![Condition {
            part: "station",
            holds,
            trouble: "the log does not answer",
        }]);
        phases.enter(Phase::Ready);
        assert!(phases.is_ready());
        drop(looks);
        assert!(!phases.is_ready());
        assert_eq!(phases.standings()[0].troubles.len(), 1);
    }

    #[test]
    fn a_process_is_ready_while_each_of_its_services_is() {
        let phases = Phases::default();
        let condition = |part, otherwise| {
            let (sender, holds) = watch::channel(true);
            let condition = Condition {
                part,
                holds,
                trouble: otherwise,
            };
            (sender, condition)
        };
        let (registration, first) = condition("station", "not registered");
        let (log, second) = condition("station", "no log");
        let (_horn, third) = condition("horn", "no log");
        phases.follow(vec![first, second, third]);
        assert!(!phases.is_ready(), "it starts");
        phases.enter(Phase::Ready);
        assert!(phases.is_ready());
        registration.send_replace(false);
        log.send_replace(false);
        assert!(!phases.is_ready());
        let readiness = |part, troubles: &[&'static str]| ServiceReadiness {
            part,
            troubles: troubles.to_vec(),
        };
        let station = readiness("station", &["not registered", "no log"]);
        assert_eq!(phases.standings(), [station, readiness("horn", &[])]);
        registration.send_replace(true);
        log.send_replace(true);
        assert!(phases.is_ready());
        phases.enter(Phase::Draining);
        assert!(!phases.is_ready());
    }
}
