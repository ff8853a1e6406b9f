//! The phases of a process's life, named so that they can be watched.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

/// Between two looks at what must hold.
const LOOK: Duration = Duration::from_millis(500);

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
    /// What must hold for new work to be welcome.
    conditions: Arc<Mutex<Vec<Condition>>>,
}

/// What a service needs for new work, and may lose while it runs.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The service: `boat`, `station`, `carrier` or `horn`.
    pub part: &'static str,
    pub holds: watch::Receiver<bool>,
    /// What is so where it does not hold.
    pub otherwise: &'static str,
}

/// A service, and why it takes no new work, if so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
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
                tracing::info!(phase = phase.name(), "phase");
                *now = phase;
            }
            forward
        });
    }

    pub fn now(&self) -> Phase {
        *self.now.borrow()
    }

    /// From here on the process is ready only while this holds, too: a boat that lost its lease serves its clients
    /// and takes no new ones.
    pub fn follow(&self, conditions: Vec<Condition>) {
        self.conditions.lock().extend(conditions);
    }

    /// Each service of this process, in the order in which they are followed.
    pub fn standings(&self) -> Vec<Standing> {
        let mut standings: Vec<Standing> = Vec::new();
        for condition in self.conditions.lock().iter() {
            let part = condition.part;
            let trouble = (!*condition.holds.borrow()).then_some(condition.otherwise);
            match standings.iter_mut().find(|known| known.part == part) {
                Some(known) => known.troubles.extend(trouble),
                None => standings.push(Standing {
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
        self.now() == Phase::Ready && conditions.iter().all(|it| *it.holds.borrow())
    }

    /// Follows whether new work should be sent here, until nobody asks any more. Needs a runtime.
    pub fn readiness(&self) -> watch::Receiver<bool> {
        let (answers, answer) = watch::channel(self.is_ready());
        let phases = self.clone();
        tokio::spawn(async move {
            let mut phase = phases.watch();
            while !answers.is_closed() {
                let is_ready = phases.is_ready();
                answers.send_if_modified(|before| std::mem::replace(before, is_ready) != is_ready);
                tokio::select! {
                    () = answers.closed() => {}
                    _ = phase.changed() => {}
                    () = sleep(LOOK) => {}
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
        let (registered, holds) = watch::channel(true);
        phases.follow(vec![Condition {
            part: "boat",
            holds,
            otherwise: "not registered",
        }]);
        phases.enter(Phase::Ready);
        ready.wait_for(|ready| *ready).await.expect("followed");
        registered.send_replace(false);
        ready.wait_for(|ready| !*ready).await.expect("followed");
        registered.send_replace(true);
        ready.wait_for(|ready| *ready).await.expect("followed");
        phases.enter(Phase::Draining);
        ready.wait_for(|ready| !*ready).await.expect("followed");
    }

    #[test]
    fn a_process_is_ready_while_each_of_its_services_is() {
        let phases = Phases::default();
        let condition = |part, otherwise| {
            let (sender, holds) = watch::channel(true);
            let condition = Condition {
                part,
                holds,
                otherwise,
            };
            (sender, condition)
        };
        let (registered, first) = condition("station", "not registered");
        let (log, second) = condition("station", "no log");
        let (_horn, third) = condition("horn", "no log");
        phases.follow(vec![first, second, third]);
        assert!(!phases.is_ready(), "it starts");
        phases.enter(Phase::Ready);
        assert!(phases.is_ready());
        registered.send_replace(false);
        log.send_replace(false);
        assert!(!phases.is_ready());
        let standing = |part, troubles: &[&'static str]| Standing {
            part,
            troubles: troubles.to_vec(),
        };
        let station = standing("station", &["not registered", "no log"]);
        assert_eq!(phases.standings(), [station, standing("horn", &[])]);
        registered.send_replace(true);
        log.send_replace(true);
        assert!(phases.is_ready());
        phases.enter(Phase::Draining);
        assert!(!phases.is_ready());
    }
}
