//! The doctor of a process: it looks, and `protocol::doctor` says what that means.
//!
//! Everything is looked at side by side, each under a deadline of its own: what hangs is a finding, and holds
//! nobody else up. One examination at a time.

mod chart;
mod flow;
mod limits;
mod parts;
mod probe;
mod repair;
mod report;
mod routes;
mod scan;
mod settings;
mod user;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backend::discovery::Role;
use backend::tls::Certificates;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use protocol::doctor::{Finding, Looked, Readiness, worst};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::desk::Desk;
use super::operators::Operators;
use crate::compose::Access;
use crate::phase::{Phase, Phases, Standing};
use crate::settings::Settings;
pub use repair::{Mended, Repaired};
pub use report::{Checkup, Greeting, Told, UserReport};
pub(super) use routes::routes;

/// The program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How long one small question may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a look at many partitions, or a new connection to a part, may take.
const MORE_PATIENCE: Duration = Duration::from_secs(15);

/// Where a process keeps what was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stores {
    Directory(PathBuf),
    Memory,
    /// Kafka, Redis, etcd and ScyllaDB.
    Real,
}

/// What a doctor works with.
pub struct Parts {
    pub settings: Settings,
    /// `None`: all four in one.
    pub role: Option<Role>,
    pub stores: Stores,
    pub access: Access,
    pub phases: Phases,
    pub operators: Operators,
    /// Where there is one: it knows the dead letters, and writes down what is done.
    pub desk: Option<Arc<Desk>>,
    /// Certificates of the admin port.
    pub certificates: Option<Arc<Certificates>>,
}

pub struct Doctor {
    parts: Parts,
    began: Instant,
    /// Held by the examination that goes on.
    room: Semaphore,
}

impl Doctor {
    pub fn new(parts: Parts) -> Doctor {
        Doctor {
            parts,
            began: Instant::now(),
            room: Semaphore::new(1),
        }
    }

    /// Looks at everything that this process can see of the installation.
    pub async fn checkup(&self) -> Checkup {
        let mut looks: Vec<BoxFuture<'_, Vec<Finding>>> = vec![
            async { self.own() }.boxed(),
            self.space().boxed(),
            self.members().boxed(),
            self.progress().boxed(),
            self.log_clock().boxed(),
            self.letters().boxed(),
            self.closed_minutes().boxed(),
        ];
        looks.extend(self.answers());
        looks.extend(self.installed());
        let mut findings: Vec<Finding> = join_all(looks).await.into_iter().flatten().collect();
        findings.sort_by_key(|finding| finding.check);
        Checkup {
            role: self.role().to_owned(),
            version: VERSION.to_owned(),
            verdict: worst(&findings),
            findings,
        }
    }

    /// What needs no look outside.
    fn own(&self) -> Vec<Finding> {
        let mut findings = vec![self.readiness().finding(), self.open_files().finding()];
        findings.extend(self.said());
        findings
    }

    fn readiness(&self) -> Readiness {
        let phases = &self.parts.phases;
        let troubles = phases.standings().into_iter().flat_map(|standing| {
            let Standing { part, troubles } = standing;
            troubles
                .into_iter()
                .map(move |why| format!("{part}: {why}"))
        });
        let word = match phases.now() {
            Phase::Ready => troubles.collect::<Vec<_>>().join(", "),
            other => other.name().to_owned(),
        };
        Readiness {
            is_ready: phases.is_ready(),
            word,
        }
    }

    fn role(&self) -> &'static str {
        self.parts.role.map_or("all", Role::name)
    }

    fn is(&self, role: Role) -> bool {
        self.parts.role.is_none_or(|own| own == role)
    }
}

/// Asks, and waits no longer than that.
async fn look<T>(
    patience: Duration,
    question: impl Future<Output = backend::Result<T>>,
) -> Looked<T> {
    match timeout(patience, question).await {
        Ok(Ok(answer)) => Looked::Saw(answer),
        Ok(Err(error)) => Looked::Failed(format!("{error}: {}", error.source)),
        Err(_) => Looked::Late(patience),
    }
}
