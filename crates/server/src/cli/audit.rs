//! `packetboat audit`: checks that accepted = settled + in flight, and names missing messages.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::{Args, Subcommand};
use operator::answer::{List, Time};
use operator::audit::{AuditQuestion, MESSAGES, MESSAGES_MAX, Report, verify};

use super::Output;
use super::desk::Desk;
use super::numbers::span;
use super::table::TextTable;
use super::terminal::{out, outln};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  packetboat audit
  packetboat audit --last 1h --output json
  packetboat audit --since 2026-03-01T09:00:00Z --until 2026-03-01T10:00:00Z --minutes
  packetboat audit verify --deep"
)]
pub struct Audit {
    #[command(subcommand)]
    verb: Option<AuditCommand>,
    #[command(flatten)]
    desk: Desk,
    /// Only messages accepted within this time before now. Default: 24h.
    #[arg(long, value_name = "TIME", value_parser = span)]
    last: Option<Duration>,
    /// Only messages accepted at this time or later.
    #[arg(long, value_name = "WHEN", value_parser = moment, conflicts_with = "last")]
    since: Option<Time>,
    /// Only messages accepted before this time.
    #[arg(long, value_name = "WHEN", value_parser = moment, conflicts_with = "last")]
    until: Option<Time>,
    /// Everything in the log, from the beginning on.
    #[arg(long, conflicts_with_all = ["last", "since"])]
    all: bool,
    /// Maximum number of messages, oldest first: the server holds about a hundred bytes for each.
    #[arg(long, value_name = "MESSAGES", default_value_t = MESSAGES as u64,
          value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX as u64))]
    limit: u64,
    /// Print a line for each minute.
    #[arg(long)]
    minutes: bool,
    /// Audit to the millisecond, from log and ledger alone, without the records of closed minutes.
    #[arg(long)]
    deep: bool,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Recompute the chain of closed minutes: were any changed or removed?
    Verify(Verify),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat audit verify
  packetboat audit verify --since 2026-03-01T09:00:00Z --deep --output json")]
struct Verify {
    #[command(flatten)]
    desk: Desk,
    /// Begin with this minute. Default: all that are kept.
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Time>,
    /// Also read the ids of each minute from the log again, as far as it keeps them.
    #[arg(long)]
    deep: bool,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Audit {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        if let Some(AuditCommand::Verify(verify)) = self.verb {
            return verify.run().await;
        }
        let last = self.last.map(|last| Time::from(SystemClock.now() - last));
        let question = AuditQuestion {
            since: self.since.or(last),
            until: self.until,
            all: self.all,
            limit: Some(self.limit as usize),
            deep: self.deep,
        };
        let report: Report = self.desk.get("/api/v1/audit", &question).await?;
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&report)?)?,
            Output::Table => print(&report, self.minutes)?,
        }
        Ok(if report.balanced && report.truncated == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Verify {
    async fn run(self) -> Result<ExitCode> {
        let question = verify::VerifyQuestion {
            since: self.since,
            deep: self.deep,
        };
        let report: verify::Report = self.desk.get("/api/v1/audit/verify", &question).await?;
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&report)?)?,
            Output::Table => print_verified(&report, self.deep)?,
        }
        Ok(if report.intact {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn print_verified(report: &verify::Report, deep: bool) -> Result<()> {
    let verdict = if report.intact {
        "the chain holds"
    } else {
        "THE CHAIN DOES NOT HOLD"
    };
    outln!(
        "{verdict}: {} closed minutes from {} to {}",
        report.minutes,
        report.since,
        report.until
    )?;
    if deep {
        outln!(
            "{} of these were compared with the log",
            report.minutes_in_log
        )?;
    }
    outln!("link {} has digest {}", report.link, report.digest)?;
    for flaw in &report.flaws.items {
        outln!("{}: {}", flaw.minute, flaw.flaw)?;
    }
    more(report.flaws.truncated)?;
    Ok(())
}

/// Parses a time such as `2026-03-01T09:00:00Z`, or milliseconds since 1970.
fn moment(text: &str) -> Result<Time, String> {
    text.parse()
}

fn print(report: &Report, minutes: bool) -> Result<()> {
    let verdict = if report.balanced {
        "the books balance"
    } else {
        "THE BOOKS DO NOT BALANCE"
    };
    outln!(
        "{verdict}: {} accepted = {} settled + {} in flight + {} missing",
        report.accepted,
        report.settled,
        report.in_flight,
        report.missing.total(),
    )?;
    let start = Some(report.since).filter(|start| start.ms() > 0);
    match (start, report.until) {
        (None, None) => outln!("over everything the log retains")?,
        (None, Some(end)) => outln!("accepted before {end}")?,
        (Some(start), None) => outln!("accepted since {start}")?,
        (Some(start), Some(end)) => outln!("accepted from {start} to {end}")?,
    }
    if report.truncated > 0 {
        let next = report.next.map(|next| next.to_string()).unwrap_or_default();
        outln!(
            "NOT EXAMINED: {} more. Continue with --since {next}, or raise --limit",
            report.truncated
        )?;
    }
    names("missing", &report.missing)?;
    names("contradiction", &report.contradictions)?;
    if report.unreadable > 0 {
        outln!(
            "{} records are not Packetboat's: see packetboat dlq list",
            report.unreadable
        )?;
    }
    if minutes {
        let mut table = TextTable::new(&["minute", "accepted", "settled", "in flight", "missing"]);
        for minute in &report.minutes.items {
            table.row([
                minute.at.to_string(),
                minute.accepted.to_string(),
                minute.settled.to_string(),
                minute.in_flight.to_string(),
                minute.missing.to_string(),
            ]);
        }
        out!("{table}\n")?;
        more(report.minutes.truncated)?;
    }
    Ok(())
}

fn names(label: &str, names: &List<impl Display>) -> Result<()> {
    for name in &names.items {
        outln!("{label}: {name}")?;
    }
    more(names.truncated)
}

/// Prints how many items a list leaves out, if any.
pub(super) fn more(count: u64) -> Result<()> {
    if count > 0 {
        outln!("… and {count} more")?;
    }
    Ok(())
}
