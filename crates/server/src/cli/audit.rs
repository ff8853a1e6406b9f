//! `packetboat audit`: checks that accepted = settled + in flight, and names missing messages.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use operator::admin::Shortlist;
use operator::admin::audit::{AuditQuestion, MESSAGES, MESSAGES_MAX, Report};
use operator::admin::verify;
use protocol::Timestamp;

use super::Output;
use super::desk::Desk;

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
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    last: Option<Duration>,
    /// Only messages accepted at this time or later.
    #[arg(long, value_name = "WHEN", value_parser = moment, conflicts_with = "last")]
    since: Option<Timestamp>,
    /// Only messages accepted before this time.
    #[arg(long, value_name = "WHEN", value_parser = moment, conflicts_with = "last")]
    until: Option<Timestamp>,
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
    since: Option<Timestamp>,
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
        let last = self.last.map(|last| SystemClock.now() - last);
        let question = AuditQuestion {
            since: self.since.or(last).map(Timestamp::millis),
            until: self.until.map(Timestamp::millis),
            all: self.all,
            limit: Some(self.limit as usize),
            deep: self.deep,
        };
        let report: Report = self.desk.get("/api/v1/audit", &question).await?;
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&report)?),
            Output::Table => print(&report, self.minutes),
        }
        Ok(if report.even && report.left_off == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Verify {
    async fn run(self) -> Result<ExitCode> {
        let question = verify::VerifyQuestion {
            since: self.since.map(Timestamp::millis),
            deep: self.deep,
        };
        let report: verify::Report = self.desk.get("/api/v1/audit/verify", &question).await?;
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&report)?),
            Output::Table => print_verified(&report, self.deep),
        }
        Ok(if report.holds {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn print_verified(report: &verify::Report, deep: bool) {
    let verdict = if report.holds {
        "the chain holds"
    } else {
        "THE CHAIN DOES NOT HOLD"
    };
    let (since, until) = (told(report.since), told(report.until));
    println!(
        "{verdict}: {} closed minutes from {since} to {until}",
        report.minutes
    );
    if deep {
        println!("of these {} were read from the log again", report.reread);
    }
    println!("link {} has digest {}", report.last, report.digest);
    for named in &report.flaws.first {
        println!("{}: {}", told(named.minute), named.flaw);
    }
    more(report.flaws.left_off);
}

/// Parses a time such as `2026-03-01T09:00:00Z`.
fn moment(text: &str) -> Result<Timestamp, String> {
    let at = humantime::parse_rfc3339_weak(text).map_err(|e| e.to_string())?;
    let since_1970 = at.duration_since(UNIX_EPOCH).map_err(|e| e.to_string())?;
    Ok(Timestamp::ZERO + since_1970)
}

fn told(millis: i64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(millis.max(0) as u64);
    humantime::format_rfc3339_millis(at).to_string()
}

fn print(report: &Report, minutes: bool) {
    let verdict = if report.even {
        "the books balance"
    } else {
        "THE BOOKS DO NOT BALANCE"
    };
    println!(
        "{verdict}: {} accepted = {} settled + {} in flight + {} missing",
        report.accepted,
        report.settled,
        report.in_flight,
        report.missing.total(),
    );
    match (report.since, report.until) {
        (..=0, None) => println!("of all that the log keeps"),
        (..=0, Some(until)) => println!("accepted before {}", told(until)),
        (since, None) => println!("accepted since {}", told(since)),
        (since, Some(until)) => println!("accepted from {} to {}", told(since), told(until)),
    }
    if report.left_off > 0 {
        let next = report.next.map(told).unwrap_or_default();
        println!(
            "NOT LOOKED AT: {} more. Go on with --since {next}, or set a larger --limit",
            report.left_off
        );
    }
    names("missing", &report.missing);
    names("contradiction", &report.contradictions);
    if report.unreadable > 0 {
        println!(
            "{} records are none of ours: see packetboat dlq list",
            report.unreadable
        );
    }
    if minutes {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["minute", "accepted", "settled", "in flight", "missing"]);
        for minute in &report.minutes.first {
            table.add_row([
                told(minute.at),
                minute.accepted.to_string(),
                minute.settled.to_string(),
                minute.in_flight.to_string(),
                minute.missing.to_string(),
            ]);
        }
        println!("{table}");
        more(report.minutes.left_off);
    }
}

fn names(what: &str, names: &Shortlist<String>) {
    names
        .first
        .iter()
        .for_each(|name| println!("{what}: {name}"));
    more(names.left_off);
}

/// Prints how many entries a list leaves off, if any.
pub(super) fn more(left_off: u64) {
    if left_off > 0 {
        println!("… and {left_off} more");
    }
}
