//! `packetboat dlq`: the dead letters.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use carrier::dead_letters::{
    Filter, Kind, Listed, Page, Redrive, Redriven, Selection, Shown, Stats,
};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use protocol::Timestamp;
use protocol::ledger::DeadReason;
use serde::Serialize;
use serde_json::json;

use super::Output;
use super::audit::more;
use super::desk::Desk;
use crate::admin::desk::{LETTERS_MAX, ListQuestion, ShowQuestion};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat dlq list --reason max-retries
  packetboat dlq stats
  packetboat dlq redrive message-3-1042
  packetboat dlq redrive --topic notification --reason refused")]
pub struct Dlq {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The letters: messages, then notifications, the oldest first.
    List {
        /// Only messages, or only notifications.
        #[arg(long, value_name = "message|notification", value_parser = topic)]
        topic: Option<Kind>,
        /// Only those that died of this.
        #[arg(long, value_parser = reason)]
        reason: Option<DeadReason>,
        /// Only those of this conversation, as p:1:2.
        #[arg(long)]
        conversation: Option<String>,
        /// Only those that nobody sent on their way again.
        #[arg(long)]
        open: bool,
        #[arg(long, default_value_t = 100, value_parser = letters)]
        limit: usize,
        /// Go on where a page ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// All that is known of one letter.
    Show {
        id: String,
        /// Also what it holds: this may be what people wrote to each other.
        #[arg(long)]
        body: bool,
    },
    /// How many died of what, and when.
    Stats,
    /// Send letters on their way again.
    Redrive {
        /// The letters, by id.
        #[arg(required_unless_present_any = ["reason", "all"])]
        ids: Vec<String>,
        /// All that died of this and were not redriven.
        #[arg(long, value_parser = reason, conflicts_with = "ids")]
        reason: Option<DeadReason>,
        /// All that were not redriven.
        #[arg(long, conflicts_with_all = ["ids", "reason"])]
        all: bool,
        /// Of --reason or --all only messages, or only notifications.
        #[arg(long, value_name = "message|notification", value_parser = topic, conflicts_with = "ids")]
        topic: Option<Kind>,
        /// At most so many of --reason or --all, oldest first.
        #[arg(long, default_value_t = LETTERS_MAX, value_parser = letters)]
        limit: usize,
    },
}

fn reason(name: &str) -> Result<DeadReason, String> {
    let known = || DeadReason::ALL.map(DeadReason::name).join(", ");
    DeadReason::from_name(name).ok_or_else(|| format!("no such reason; there are {}", known()))
}

fn topic(name: &str) -> Result<Kind, String> {
    let known = || Kind::ALL.map(Kind::name).join(" and ");
    Kind::from_name(name).ok_or_else(|| format!("there are {}", known()))
}

fn letters(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=LETTERS_MAX) => Ok(count),
        _ => Err(format!("1 to {LETTERS_MAX} at a time")),
    }
}

impl Dlq {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let (desk, output) = (self.desk, self.output);
        match self.what {
            What::List {
                topic,
                reason,
                conversation,
                open,
                limit,
                after,
            } => {
                let question = ListQuestion {
                    topic,
                    reason: reason.map(|reason| reason.name().into()),
                    conversation,
                    redriven: open.then_some(false),
                    limit: Some(limit),
                    after,
                };
                let page: Page = desk.get("/api/v1/dead-letters", &question).await?;
                show(output, &page, list)
            }
            What::Show { id, body } => {
                let path = format!("/api/v1/dead-letters/{id}");
                let letter: Shown = desk.get(&path, &ShowQuestion { body }).await?;
                show(output, &letter, one)
            }
            What::Stats => {
                let found: Stats = desk.get("/api/v1/dead-letters/stats", &json!({})).await?;
                show(output, &found, stats)
            }
            What::Redrive {
                ids,
                reason,
                topic,
                limit,
                all: _,
            } => {
                let by_id = !ids.is_empty();
                let selection = if by_id {
                    Selection::Ids(ids)
                } else {
                    let filter = Filter {
                        kind: topic,
                        reason,
                        redriven: Some(false),
                        ..Filter::default()
                    };
                    Selection::Filter { filter, limit }
                };
                let done: Vec<Redrive> = desk
                    .post("/api/v1/dead-letters/redrive", &selection)
                    .await?;
                show(output, &done, redriven)?;
                if !by_id && done.len() == limit {
                    eprintln!("packetboat: that is as many as go at a time; there may be more");
                }
                let went = |r: &Redrive| {
                    matches!(
                        r.redriven,
                        Redriven::ToRetry
                            | Redriven::ToMessage { .. }
                            | Redriven::ToNotification { .. }
                    )
                };
                Ok(if done.iter().all(went) {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                })
            }
        }
    }
}

fn show<T: Serialize>(output: Output, found: &T, table: fn(&T)) -> Result<ExitCode> {
    match output {
        Output::Json => println!("{}", serde_json::to_string(found)?),
        Output::Table => table(found),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(page: &Page) {
    if page.letters.is_empty() {
        println!("Nothing is dead.");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "id",
        "reason",
        "died",
        "message",
        "conversation",
        "for",
        "tries",
        "redriven",
        "error",
    ]);
    for letter in &page.letters {
        table.add_row(row(letter));
    }
    println!("{table}");
    if let Some(next) = page.next {
        println!("more: --after {next}");
    }
}

fn row(letter: &Listed) -> [String; 9] {
    [
        letter.id.clone(),
        letter.reason.name().into(),
        time(letter.last_failed_at),
        letter.message.map(|id| id.to_string()).unwrap_or_default(),
        letter.conversation.clone().unwrap_or_default(),
        letter.targets.join(" "),
        letter.retry_count.to_string(),
        if letter.redriven { "yes" } else { "no" }.into(),
        letter.error.clone(),
    ]
}

fn one(shown: &Shown) {
    for (name, value) in &shown.headers {
        println!("{name:18} {value}");
    }
    println!("{:18} {}", "redriven", shown.letter.redriven);
    println!("{:18} {} bytes", "body", shown.letter.bytes);
    if let Some(body) = &shown.body {
        println!("\n{body}");
    }
}

fn stats(stats: &Stats) {
    if stats.messages.is_empty() && stats.notifications.is_empty() {
        println!("Nothing is dead.");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["topic", "reason", "letters", "redriven", "oldest", "newest"]);
    let kinds = [
        (Kind::Message, &stats.messages),
        (Kind::Notification, &stats.notifications),
    ];
    for (kind, reasons) in kinds {
        for (reason, summary) in reasons {
            table.add_row([
                kind.name().to_owned(),
                reason.clone(),
                summary.letters.to_string(),
                summary.redriven.to_string(),
                summary.oldest.map(time).unwrap_or_default(),
                summary.newest.map(time).unwrap_or_default(),
            ]);
        }
    }
    println!("{table}");
    more(stats.left_off);
}

fn redriven(done: &Vec<Redrive>) {
    if done.is_empty() {
        println!("No letter matches.");
    }
    for redrive in done {
        let what = match redrive.redriven {
            Redriven::ToRetry => "on its way: its delivery is tried again",
            Redriven::ToMessage { marked: true } => "on its way: it will be placed and delivered",
            Redriven::ToMessage { marked: false } => {
                "on its way, but no message is known to note it under: do not redrive it again"
            }
            Redriven::ToNotification { marked: true } => "on its way: its user is told again",
            Redriven::ToNotification { marked: false } => {
                "on its way, but no message is known to note it under: do not redrive it again"
            }
            Redriven::Before => "left alone: it was redriven before",
            Redriven::NoSuchLetter => "no such letter",
            Redriven::BytesGone => "its bytes are gone: the log has dropped them",
            Redriven::BelongsNowhere => "it names nobody: there is no place for it",
        };
        println!("{}: {what}", redrive.id);
    }
}

fn time(at: Timestamp) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(at.millis().max(0) as u64);
    humantime::format_rfc3339_seconds(at).to_string()
}
