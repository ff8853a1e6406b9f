//! `packetboat doctor`: checks the health of an installation, or of one user, with problems and
//! remedies.

mod answer;
mod tables;
mod user;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::{Args, Subcommand};
use operator::doctor::rules::{
    CheckVerdict, Clocks, Finding, Inspection, ProcessProbe, Reading, Unreachable, worst,
};
use operator::doctor::{ProcessClock, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use self::answer::Answer;
use super::Output;
use super::desk::{Desk, DeskCredentials, DeskError};
use super::terminal::outln;

/// Time limits of a port: to say its version and time, and to check everything.
const CLOCK: Duration = Duration::from_secs(10);
const CHECKUP: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Exit 0: nothing failed; look at warnings within the week.

Examples:
  packetboat doctor
  packetboat doctor --admin http://10.0.0.7:9190 --admin http://10.0.0.8:9190 --output json
  packetboat doctor user 7 --repair --why \"restored from a backup\""
)]
pub struct Doctor {
    #[command(subcommand)]
    whom: Option<DoctorSubject>,
    /// Admin port of a running Packetboat; for a cluster, one of each process.
    #[arg(
        long = "admin",
        env = "PACKETBOAT_ADMIN",
        default_value = "http://127.0.0.1:9190",
        value_delimiter = ',',
        value_name = "URL"
    )]
    ports: Vec<String>,
    #[command(flatten)]
    credentials: DeskCredentials,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum DoctorSubject {
    /// Compare everything the stores keep for a user, and repair inconsistencies.
    User(user::User),
}

/// Findings at one port.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Process {
    admin: String,
    /// `boat`, `station`, `carrier`, `horn` or `all`; `None` without an answer.
    role: Option<String>,
    findings: Vec<Finding>,
}

/// Findings at all ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    verdict: CheckVerdict,
    processes: Vec<Process>,
    /// Findings about all processes together.
    findings: Vec<Finding>,
}

impl Doctor {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        if let Some(DoctorSubject::User(user)) = self.whom {
            return user.run().await;
        }
        let (mut processes, mut readings) = (Vec::new(), Vec::new());
        for port in &self.ports {
            let (process, reading) = visit(Desk::at(port, self.credentials.clone()), port).await;
            processes.push(process);
            readings.extend(reading);
        }
        let findings = if readings.is_empty() {
            Vec::new()
        } else {
            vec![Clocks(readings).finding()]
        };
        let all = processes.iter().flat_map(|process| &process.findings);
        let report = Report {
            verdict: worst(all.chain(&findings)),
            processes,
            findings,
        };
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&report)?)?,
            Output::Table => tables::print(&report)?,
        }
        Ok(exit(report.verdict))
    }
}

/// Asks a process for its identity and its findings.
async fn visit(desk: Desk, admin: &str) -> (Process, Option<Reading>) {
    let asked_at = SystemClock.now();
    let nothing = json!({});
    let clock = desk.get("/api/v1/doctor/clock", &nothing);
    let clock: Inspection<ProcessClock> = in_time(CLOCK, clock).await;
    let answered_at = SystemClock.now();
    let reading = match &clock {
        Inspection::Saw(clock) => Some(Reading {
            address: admin.to_owned(),
            asked_at,
            answered_at,
            remote_at: clock.now.at(),
        }),
        Inspection::Failed(_) | Inspection::Late(_) => None,
    };
    let remote_version = clock.map(|clock| clock.version);
    let process = match reading {
        None => unseen_process(admin, remote_version, None),
        Some(_) => checkup(&desk, admin, remote_version).await,
    };
    (process, reading)
}

async fn checkup(desk: &Desk, admin: &str, remote_version: Inspection<String>) -> Process {
    let checkup_answer = timeout(CHECKUP, desk.get("/api/v1/doctor", &json!({}))).await;
    let error = match checkup_answer {
        Err(_) => return unseen_process(admin, Inspection::Late(CHECKUP), None),
        Ok(Err(error)) => error,
        Ok(Ok(answer)) => match Answer::read(answer) {
            Some(answer) => return process_from_answer(admin, answer, remote_version),
            None => return unseen_process(admin, remote_version, Some(Unreachable::Foreign)),
        },
    };
    match error.downcast_ref::<DeskError>() {
        Some(refused) if refused.is_busy() => {
            unseen_process(admin, remote_version, Some(Unreachable::Busy))
        }
        _ => unseen_process(admin, Inspection::Failed(format!("{error:#}")), None),
    }
}

fn process_from_answer(admin: &str, answer: Answer, remote_version: Inspection<String>) -> Process {
    let mut findings = seen_from_here(admin, remote_version);
    findings.extend(answer.findings);
    Process {
        admin: admin.to_owned(),
        role: Some(answer.role),
        findings,
    }
}

/// A process without findings of its own.
fn unseen_process(
    admin: &str,
    remote_version: Inspection<String>,
    reason: Option<Unreachable>,
) -> Process {
    let mut findings = seen_from_here(admin, remote_version);
    findings.extend(reason.map(Unreachable::finding));
    Process {
        admin: admin.to_owned(),
        role: None,
        findings,
    }
}

fn seen_from_here(admin: &str, remote_version: Inspection<String>) -> Vec<Finding> {
    let visit = ProcessProbe {
        address: admin.to_owned(),
        own_version: VERSION.to_owned(),
        remote_version,
    };
    visit.findings()
}

async fn in_time<A>(patience: Duration, asked: impl Future<Output = Result<A>>) -> Inspection<A> {
    match timeout(patience, asked).await {
        Ok(Ok(answer)) => Inspection::Saw(answer),
        Ok(Err(error)) => Inspection::Failed(format!("{error:#}")),
        Err(_) => Inspection::Late(patience),
    }
}

/// Exit code: 0 if nothing failed.
fn exit(verdict: CheckVerdict) -> ExitCode {
    match verdict {
        CheckVerdict::Ok | CheckVerdict::Warning => ExitCode::SUCCESS,
        CheckVerdict::Failure => ExitCode::FAILURE,
    }
}
