//! `packetboat doctor`: is the installation well, and one user? What is wrong, and what to do.

mod tables;
mod user;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::{Args, Subcommand};
use protocol::doctor::{Clocks, Finding, Looked, Reading, Verdict, Visit, worst};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::Output;
use super::desk::Desk;
use crate::admin::doctor::{Checkup, Greeting, VERSION};

/// How long a port may take to say who it is, and to look at everything.
const GREETING: Duration = Duration::from_secs(10);
const CHECKUP: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Exit 0: nothing failed; warnings are to be looked at within the week.

Examples:
  packetboat doctor
  packetboat doctor --admin http://10.0.0.7:9190 --admin http://10.0.0.8:9190 --output json
  packetboat doctor user 7 --repair --why \"restored from a backup\""
)]
pub struct Doctor {
    #[command(subcommand)]
    whom: Option<Whom>,
    /// The admin port of a running Packetboat; of a cluster one of each process.
    #[arg(
        long = "admin",
        env = "PACKETBOAT_ADMIN",
        default_value = "http://127.0.0.1:9190",
        value_delimiter = ',',
        value_name = "URL"
    )]
    ports: Vec<String>,
    /// A token of admin.operators, where operators sign in.
    #[arg(
        long = "operator-token",
        env = "PACKETBOAT_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Whom {
    /// Compare all that the stores keep of a user; mend what contradicts itself.
    User(user::User),
}

/// What was found at one port.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Process {
    admin: String,
    /// `boat`, `station`, `carrier`, `horn` or `all`; nothing where it did not answer.
    role: Option<String>,
    findings: Vec<Finding>,
}

/// What was found at all of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    verdict: Verdict,
    processes: Vec<Process>,
    /// About all of them together.
    findings: Vec<Finding>,
}

impl Doctor {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        if let Some(Whom::User(user)) = self.whom {
            return user.run().await;
        }
        let (mut processes, mut readings) = (Vec::new(), Vec::new());
        for port in &self.ports {
            let (process, reading) = visit(Desk::at(port, self.token.clone()), port).await;
            processes.push(process);
            readings.extend(reading);
        }
        let findings = match readings.is_empty() {
            true => Vec::new(),
            false => vec![Clocks(readings).finding()],
        };
        let all = processes.iter().flat_map(|process| &process.findings);
        let report = Report {
            verdict: worst(all.chain(&findings)),
            processes,
            findings,
        };
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&report)?),
            Output::Table => tables::print(&report),
        }
        Ok(exit(report.verdict))
    }
}

/// Asks a process who it is and what it sees.
async fn visit(desk: Desk, admin: &str) -> (Process, Option<Reading>) {
    let asked = SystemClock.now();
    let greeting: Looked<Greeting> = ask(&desk, "/api/v1/doctor/clock", GREETING).await;
    let heard = SystemClock.now();
    let reading = match &greeting {
        Looked::Saw(greeting) => Some(Reading {
            address: admin.to_owned(),
            asked,
            heard,
            there: protocol::Timestamp::from_millis(greeting.now),
        }),
        Looked::Failed(_) | Looked::Late(_) => None,
    };
    let theirs = match (&reading, greeting.map(|greeting| greeting.version)) {
        (Some(_), theirs) => match ask(&desk, "/api/v1/doctor", CHECKUP).await {
            Looked::Saw(checkup) => return (told(admin, checkup, theirs), reading),
            Looked::Failed(error) => Looked::Failed(error),
            Looked::Late(patience) => Looked::Late(patience),
        },
        (None, theirs) => theirs,
    };
    let process = Process {
        admin: admin.to_owned(),
        role: None,
        findings: seen_from_here(admin, theirs),
    };
    (process, reading)
}

fn told(admin: &str, checkup: Checkup, theirs: Looked<String>) -> Process {
    let mut findings = seen_from_here(admin, theirs);
    findings.extend(checkup.findings);
    Process {
        admin: admin.to_owned(),
        role: Some(checkup.role),
        findings,
    }
}

fn seen_from_here(admin: &str, theirs: Looked<String>) -> Vec<Finding> {
    let visit = Visit {
        address: admin.to_owned(),
        own: VERSION.to_owned(),
        theirs,
    };
    visit.findings()
}

async fn ask<A: DeserializeOwned>(desk: &Desk, path: &str, patience: Duration) -> Looked<A> {
    match timeout(patience, desk.get(path, &json!({}))).await {
        Ok(Ok(answer)) => Looked::Saw(answer),
        Ok(Err(error)) => Looked::Failed(format!("{error:#}")),
        Err(_) => Looked::Late(patience),
    }
}

/// 0 where nothing failed.
fn exit(verdict: Verdict) -> ExitCode {
    match verdict {
        Verdict::Ok | Verdict::Warning => ExitCode::SUCCESS,
        Verdict::Failure => ExitCode::FAILURE,
    }
}
