//! The phases of a process's life, named so that they can be watched.

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
pub struct Phases(watch::Sender<Phase>);

impl Default for Phases {
    fn default() -> Self {
        Phases(watch::Sender::new(Phase::Starting))
    }
}

impl Phases {
    pub fn enter(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                tracing::info!(phase = phase.name(), "phase");
                *now = phase;
            }
            forward
        });
    }

    pub fn now(&self) -> Phase {
        *self.0.borrow()
    }

    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
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
}
