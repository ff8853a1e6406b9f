//! The phases of a process's life, named so that they can be watched.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

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
    /// Whether new work is welcome, where that changes while the process is ready.
    welcome: Arc<OnceLock<watch::Receiver<bool>>>,
}

impl Default for Phases {
    fn default() -> Self {
        Phases {
            now: watch::Sender::new(Phase::Starting),
            welcome: Arc::default(),
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

    /// From here on the process is ready only while `welcome` says so: a boat that lost its lease serves
    /// its clients and takes no new ones. The first call counts.
    pub fn follow(&self, welcome: watch::Receiver<bool>) {
        let _ = self.welcome.set(welcome);
    }

    /// Whether new work should be sent here.
    pub fn is_ready(&self) -> bool {
        let welcome = self.welcome.get();
        self.now() == Phase::Ready && welcome.is_none_or(|welcome| *welcome.borrow())
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

    #[test]
    fn who_is_not_welcome_is_not_ready() {
        let phases = Phases::default();
        let (welcome, follows) = watch::channel(false);
        phases.follow(follows);
        phases.enter(Phase::Ready);
        assert!(!phases.is_ready());
        welcome.send_replace(true);
        assert!(phases.is_ready());
        phases.enter(Phase::Draining);
        assert!(!phases.is_ready());
    }
}
