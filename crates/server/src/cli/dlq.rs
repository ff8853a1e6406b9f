//! `packetboat dlq`: the dead letters.

mod edit;
mod follow;
mod selection;
mod tables;
mod transfer;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use operator::answer::{List, Page};
use operator::dead_letters::operation::Operation;
use operator::dead_letters::routes::{
    LETTERS_MAX, ListQuestion, LogQuestion, LookQuestion, PauseQuestion,
};
use operator::dead_letters::rules::{OperatorWork, Pace, TaskId};
use operator::dead_letters::task_view::Task;
use operator::dead_letters::{
    Letter, LetterDetail, LetterOutcome, Plan, Request, Selection, SelectionCount, Stats,
};
use serde::Serialize;
use serde_json::json;

use self::selection::{Filters, SelectionArgs, letters};
use super::Output;
use super::desk::Desk;
use super::numbers::whole;
use super::terminal::{errln, outln};

/// Path of the desk's answers about dead letters.
const LETTERS: &str = "/api/v1/dead-letters";
/// Entries of the log of operations that are printed at a time.
const ENTRIES_MAX: u64 = 10_000;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat dlq stats
  packetboat dlq plan --reason max-retries
  packetboat dlq redrive --reason max-retries --rate 20
  packetboat dlq edit message-3-1042 --why \"a client of last week names no platform\"
  packetboat dlq discard message-3-1042 --why \"a test of last week\"")]
pub struct Dlq {
    #[command(subcommand)]
    what: DlqCommand,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, global = true, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// List letters: messages, then notifications, the oldest first.
    List {
        #[command(flatten)]
        filters: Filters,
        /// Only letters that nobody has dealt with.
        #[arg(long)]
        open: bool,
        /// Also letters discarded so long ago that they cannot be restored.
        #[arg(long)]
        with_gone: bool,
        #[arg(long, default_value_t = 100, value_parser = letters)]
        limit: usize,
        /// Continue where a page ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Show all that is known of one letter.
    Show {
        id: String,
        /// Also show the content, possibly private messages. The look is recorded.
        #[arg(long)]
        body: bool,
        /// Reason, if operators sign in.
        #[arg(long, requires = "body")]
        why: Option<String>,
    },
    /// Count letters by cause and time of death.
    Stats,
    /// Repair the content of a letter before a redrive, possibly a private message.
    Edit(edit::Edit),
    /// Show what a redrive would do now, without doing it.
    Plan {
        #[command(flatten)]
        chosen: SelectionArgs,
    },
    /// Redrive letters: process them again.
    Redrive {
        #[command(flatten)]
        chosen: SelectionArgs,
        #[command(flatten)]
        how: How,
        /// Letters per second.
        #[arg(long, default_value_t = Pace::default().per_second, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rate: u32,
        /// Pause if more than this percentage died again.
        #[arg(long, default_value_t = Pace::default().pause_above, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        pause_above: u8,
    },
    /// Discard letters; they can be restored for seven days.
    Discard {
        #[command(flatten)]
        chosen: SelectionArgs,
        #[command(flatten)]
        how: How,
        /// Expected number of letters: required unless they are named.
        #[arg(long, value_name = "COUNT")]
        confirm: Option<u64>,
    },
    /// Take back a discard.
    Restore {
        #[command(flatten)]
        chosen: SelectionArgs,
        #[command(flatten)]
        how: How,
    },
    /// Print letters with all their content, a line of JSON each: possibly private messages.
    Export(transfer::Export),
    /// Import exported letters among the others.
    Import(transfer::Import),
    /// Show or control tasks and their progress.
    Task {
        #[command(subcommand)]
        what: TaskWhat,
    },
    /// Print what operators did, the newest first.
    Log {
        #[arg(long, default_value_t = 50, value_parser = whole::<usize>(1..=ENTRIES_MAX))]
        limit: usize,
        /// Only requests of operators, not the work itself.
        #[arg(long)]
        decisions: bool,
        /// Continue where a page ended.
        #[arg(long, value_name = "ENTRY")]
        before: Option<u64>,
    },
}

#[derive(Debug, Args)]
struct How {
    /// Reason, recorded with the task.
    #[arg(long, default_value = "")]
    why: String,
    /// Name of the task: two requests under one name run once.
    #[arg(long)]
    task: Option<TaskId>,
    /// Do not wait for the end of the task.
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Subcommand)]
enum TaskWhat {
    /// All tasks, the newest first.
    List,
    Show {
        id: TaskId,
    },
    /// Wait for the end of a task.
    Watch {
        id: TaskId,
    },
    Pause {
        id: TaskId,
        #[arg(long, default_value = "")]
        why: String,
    },
    Resume {
        id: TaskId,
    },
    /// Cancel a task; remaining letters are not touched.
    Cancel {
        id: TaskId,
    },
}

impl Dlq {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let (desk, output) = (self.desk, self.output);
        match self.what {
            DlqCommand::List {
                filters,
                open,
                with_gone,
                limit,
                after,
            } => {
                let question = ListQuestion {
                    limit: Some(limit),
                    after,
                    redriven: open.then_some(false),
                    discarded: open.then_some(false),
                    with_gone,
                    ..filters.question()
                };
                let page: Page<Letter> = desk.get(LETTERS, &question).await?;
                show(output, &page, tables::list)
            }
            DlqCommand::Show {
                id,
                body,
                why: reason,
            } => show_letter(&desk, output, &id, body, reason).await,
            DlqCommand::Stats => {
                let path = format!("{LETTERS}/stats");
                let stats: Stats = desk.get(&path, &json!({})).await?;
                show(output, &stats, tables::stats)
            }
            DlqCommand::Edit(edit) => edit.run(&desk, output).await,
            DlqCommand::Plan { chosen } => {
                let plan = plan(&desk, &chosen.selection(OperatorWork::Redrive)?).await?;
                show(output, &plan, tables::plan)
            }
            DlqCommand::Redrive {
                chosen,
                how,
                rate,
                pause_above,
            } => {
                let pace = Pace {
                    per_second: rate,
                    pause_above,
                };
                have_done(&desk, output, OperatorWork::Redrive, &chosen, how, pace).await
            }
            DlqCommand::Discard {
                chosen,
                how,
                confirm,
            } => {
                if !chosen.is_by_name() {
                    check_confirmation(&desk, &chosen, confirm).await?;
                }
                have_done(
                    &desk,
                    output,
                    OperatorWork::Discard,
                    &chosen,
                    how,
                    Pace::default(),
                )
                .await
            }
            DlqCommand::Restore { chosen, how } => {
                have_done(
                    &desk,
                    output,
                    OperatorWork::Restore,
                    &chosen,
                    how,
                    Pace::default(),
                )
                .await
            }
            DlqCommand::Export(export) => export.run(&desk).await,
            DlqCommand::Import(import) => import.run(&desk, output).await,
            DlqCommand::Task { what } => run_task(&desk, output, what).await,
            DlqCommand::Log {
                limit,
                decisions,
                before,
            } => {
                let path = format!("{LETTERS}/log");
                let question = LogQuestion {
                    limit: Some(limit),
                    decisions,
                    after: before,
                };
                let log: Page<Operation> = desk.get(&path, &question).await?;
                show(output, &log, tables::log)
            }
        }
    }
}

async fn show_letter(
    desk: &Desk,
    output: Output,
    id: &str,
    body: bool,
    reason: Option<String>,
) -> Result<ExitCode> {
    let path = format!("{LETTERS}/{id}");
    let letter: LetterDetail = if body {
        let reason = reason.unwrap_or_default();
        let question = LookQuestion { why: reason };
        desk.post(&format!("{path}/read"), &question).await?
    } else {
        desk.get(&path, &json!({})).await?
    };
    show(output, &letter, tables::one)
}

async fn plan(desk: &Desk, selection: &Selection) -> Result<Plan> {
    desk.post(&format!("{LETTERS}/plan"), selection).await
}

async fn count(desk: &Desk, selection: &Selection) -> Result<SelectionCount> {
    desk.post(&format!("{LETTERS}/count"), selection).await
}

/// Refuses to discard more letters than the operator confirmed.
async fn check_confirmation(desk: &Desk, args: &SelectionArgs, confirm: Option<u64>) -> Result<()> {
    let selection = args.selection(OperatorWork::Discard)?;
    let matches = count(desk, &selection).await?;
    let match_all = if matches.more {
        format!("more than {} letters match", matches.letters)
    } else {
        format!("{} letters match", matches.letters)
    };
    // The oldest ones, if more match than one task may take.
    let letters = match selection {
        Selection::Ids { .. } => matches.letters,
        Selection::Filter { limit, .. } => matches.letters.min(limit as u64),
    };
    match confirm {
        Some(count) if count == letters => Ok(()),
        Some(count) if letters == matches.letters => {
            bail!("{match_all}, not {count}: check again (dlq list)")
        }
        Some(count) => {
            bail!("{match_all}, and one task takes {letters}, not {count}: check again (dlq list)")
        }
        None if letters == matches.letters => bail!("{match_all}: repeat with --confirm {letters}"),
        None => {
            bail!("{match_all}, and one task takes {letters}: repeat with --confirm {letters}")
        }
    }
}

async fn have_done(
    desk: &Desk,
    output: Output,
    work: OperatorWork,
    args: &SelectionArgs,
    how: How,
    pace: Pace,
) -> Result<ExitCode> {
    let selection = args.selection(work)?;
    let is_filter = matches!(&selection, Selection::Filter { .. });
    if is_filter && count(desk, &selection).await?.letters == 0 {
        return show(
            output,
            &List::<LetterOutcome>::from(Vec::new()),
            tables::outcomes,
        );
    }
    let request = Request {
        task: how.task,
        work,
        selection,
        pace,
        why: how.why,
    };
    let task: Task = desk.post(&format!("{LETTERS}/tasks"), &request).await?;
    if how.detach {
        return show(output, &task, tables::task);
    }
    let task = follow::watch(desk, task).await?;
    if !args.is_by_name() && task.letters == LETTERS_MAX as u64 {
        errln!("packetboat: this is the maximum for one task; there may be more");
    }
    follow::outcomes(output, &task)
}

async fn run_task(desk: &Desk, output: Output, command: TaskWhat) -> Result<ExitCode> {
    let path = |id: &TaskId, verb: &str| format!("{LETTERS}/tasks/{id}{verb}");
    let task: Task = match command {
        TaskWhat::List => {
            let tasks: List<Task> = desk.get(&format!("{LETTERS}/tasks"), &json!({})).await?;
            return show(output, &tasks, tables::tasks);
        }
        TaskWhat::Watch { id } => {
            let task = desk.get(&path(&id, ""), &json!({})).await?;
            return follow::outcomes(output, &follow::watch(desk, task).await?);
        }
        TaskWhat::Show { id } => desk.get(&path(&id, ""), &json!({})).await?,
        TaskWhat::Pause { id, why: reason } => {
            desk.post(&path(&id, "/pause"), &PauseQuestion { why: reason })
                .await?
        }
        TaskWhat::Resume { id } => desk.post(&path(&id, "/resume"), &json!({})).await?,
        TaskWhat::Cancel { id } => desk.post(&path(&id, "/cancel"), &json!({})).await?,
    };
    show(output, &task, tables::task)
}

/// Prints an answer; `table` prints it for people.
fn show<T: Serialize>(output: Output, answer: &T, table: fn(&T) -> Result<()>) -> Result<ExitCode> {
    match output {
        Output::Json => outln!("{}", serde_json::to_string(answer)?)?,
        Output::Table => table(answer)?,
    }
    Ok(ExitCode::SUCCESS)
}
