//! The doctor of a process: collects observations, which [`rules`] and [`user`] judge.
//!
//! All checks run concurrently, each under its own deadline: a check that hangs is a finding, and
//! holds up no other. One examination at a time.

mod probes;
mod process_settings;
mod report;
pub(crate) mod routes;
pub mod rules;
pub mod user;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use backend::discovery::Role;
use backend::tls::Certificates;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use self::rules::{ClientAddresses, Finding, Inspection, Readiness, worst};
use crate::Access;
use crate::lifecycle::{Phase, Phases, ServiceReadiness};
use crate::port::desk::Desk;
use crate::port::operators::Operators;
pub use process_settings::DoctorSettings;
pub use report::{Checkup, ProcessClock, UserFinding, UserReport};
pub use routes::RepairQuestion;
pub use user::{RepairReport, RepairStep};

/// The program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Deadline of one small question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Deadline of a look at many partitions, or of a new connection to a part.
const SCAN_TIMEOUT: Duration = Duration::from_secs(15);

/// Stores in which a process keeps accepted messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stores {
    Directory(PathBuf),
    Memory,
    /// Kafka, Redis, etcd and ScyllaDB.
    Real,
}

/// Dependencies of a doctor.
pub struct Parts {
    pub settings: DoctorSettings,
    /// `None`: all four in one.
    pub role: Option<Role>,
    pub stores: Stores,
    pub access: Access,
    pub phases: Phases,
    pub operators: Operators,
    /// The desk, if the process has one: it counts dead letters and logs repairs.
    pub desk: Option<Arc<Desk>>,
    /// Certificates of the admin port.
    pub certificates: Option<Arc<Certificates>>,
}

/// Asks the boat of this process for its busiest client addresses, once it has started.
#[derive(Clone, Default)]
pub struct ClientAddressSource(Arc<OnceLock<Box<dyn Fn() -> ClientAddresses + Send + Sync>>>);

impl ClientAddressSource {
    /// Names the boat to ask. A process has one: later calls change nothing.
    pub fn set(&self, ask: impl Fn() -> ClientAddresses + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(ask));
    }
}

pub struct Doctor {
    parts: Parts,
    client_addresses: ClientAddressSource,
    started_at: Instant,
    /// Held by the examination under way.
    examination_slot: Semaphore,
}

impl Doctor {
    pub fn new(parts: Parts) -> Doctor {
        Doctor {
            parts,
            client_addresses: ClientAddressSource::default(),
            started_at: Instant::now(),
            examination_slot: Semaphore::new(1),
        }
    }

    pub fn client_addresses(&self) -> ClientAddressSource {
        self.client_addresses.clone()
    }

    pub(super) fn operators(&self) -> &Operators {
        &self.parts.operators
    }

    /// Checks everything that this process can see of the installation.
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
        looks.extend(self.schema_checks());
        let mut findings: Vec<Finding> = join_all(looks).await.into_iter().flatten().collect();
        findings.sort_by_key(|finding| finding.check);
        Checkup {
            role: self.role().to_owned(),
            version: VERSION.to_owned(),
            verdict: worst(&findings),
            findings,
        }
    }

    /// Findings that need no look outside the process.
    fn own(&self) -> Vec<Finding> {
        let mut findings = vec![self.readiness().finding(), self.open_files().finding()];
        findings.extend(self.settings_findings());
        let addresses = self.client_addresses.0.get();
        findings.extend(addresses.map(|ask| ask().finding()));
        findings
    }

    fn readiness(&self) -> Readiness {
        let phases = &self.parts.phases;
        let troubles = phases.standings().into_iter().flat_map(|standing| {
            let ServiceReadiness { part, troubles } = standing;
            troubles
                .into_iter()
                .map(move |reason| format!("{part}: {reason}"))
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

/// Asks, and waits for `patience` at most.
async fn look<T>(
    patience: Duration,
    question: impl Future<Output = backend::Result<T>>,
) -> Inspection<T> {
    match timeout(patience, question).await {
        Ok(Ok(answer)) => Inspection::Saw(answer),
        Ok(Err(error)) => Inspection::Failed(format!("{error}: {}", error.source)),
        Err(_) => Inspection::Late(patience),
    }
}
