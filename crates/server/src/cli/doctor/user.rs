//! `packetboat doctor user`: compares and repairs what the stores keep of one user.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use operator::doctor::{RepairReport, RepairStep, UserReport};
use protocol::UserId;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

use super::tables::word;
use super::{Output, exit};
use crate::cli::audit::more;
use crate::cli::desk::Desk;
use crate::cli::terminal::outln;

/// Time limit of an examination, which reads several times if something looks wrong.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat doctor user 7
  packetboat doctor user 7 --repair --why \"cannot read one conversation\"")]
pub(super) struct User {
    /// User who reports missing messages.
    user: UserId,
    /// Repair what can be repaired; recorded in the log of operations (packetboat dlq log).
    #[arg(long)]
    repair: bool,
    /// Reason; required if operators sign in.
    #[arg(
        long,
        value_name = "TEXT",
        requires = "repair",
        default_value = "",
        hide_default_value = true
    )]
    why: String,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl User {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let path = format!("/api/v1/doctor/user/{}", self.user);
        let report = if self.repair {
            let (path, reason) = (format!("{path}/repair"), json!({ "why": self.why }));
            let repair_report: RepairReport = in_time(self.desk.post(&path, &reason)).await?;
            self.print_repair(&repair_report)?;
            repair_report.after
        } else {
            let report: UserReport = in_time(self.desk.get(&path, &json!({}))).await?;
            match self.output {
                Output::Json => outln!("{}", serde_json::to_string(&report)?)?,
                Output::Table => print(&report)?,
            }
            report
        };
        Ok(exit(report.verdict))
    }

    fn print_repair(&self, report: &RepairReport) -> Result<()> {
        if self.output == Output::Json {
            outln!("{}", serde_json::to_string(report)?)?;
            return Ok(());
        }
        print(&report.before)?;
        if report.steps.is_empty() {
            outln!("nothing to repair")?;
            return Ok(());
        }
        for RepairStep { step, error } in &report.steps {
            match error {
                None => outln!("done: {step}")?,
                Some(error) => outln!("NOT DONE: {step}: {error}")?,
            }
        }
        outln!("and now:")?;
        print(&report.after)
    }
}

async fn in_time<A: DeserializeOwned>(answer: impl Future<Output = Result<A>>) -> Result<A> {
    let result = timeout(CHECK_TIMEOUT, answer).await;
    result.context("no answer in time: try again")?
}

fn print(report: &UserReport) -> Result<()> {
    let UserReport {
        user,
        sessions,
        mails,
        conversations,
        rows,
        ..
    } = report;
    outln!(
        "user {user}: {sessions} sessions, {mails} messages waiting, {conversations} conversations with {rows} \
         messages"
    )?;
    for finding in &report.differences.items {
        let (verdict, kind) = (word(finding.verdict), &finding.kind);
        outln!("{verdict} {kind}: {}", finding.observation)?;
        match (&finding.repair, &finding.advice) {
            (Some(repair), _) => outln!("  → --repair would {repair}")?,
            (None, Some(advice)) => outln!("  → cannot be repaired by --repair: {advice}")?,
            (None, None) => {}
        }
    }
    more(report.differences.truncated)?;
    for text in &report.omissions {
        outln!("NOT EXAMINED: {text}")?;
    }
    if report.differences.total() == 0 {
        outln!("ok: no inconsistencies")?;
    }
    Ok(())
}
