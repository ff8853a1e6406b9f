//! `packetboat dlq`: the dead letters.

mod edit;
mod selection;
mod tables;
mod task;
mod transfer;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use carrier::dead_letters::{Count, LogPage, Page, Plan, Request, Selection, Shown, Stats, Told};
use clap::{Args, Subcommand};
use protocol::desk::{Pace, Task, TaskId, Work};
use serde::Serialize;
use serde_json::json;

use self::selection::{Chosen, Filters, letters};
use super::Output;
use super::desk::Desk;
use crate::admin::letters::{LETTERS_MAX, ListQuestion, LogQuestion, LookQuestion, PauseQuestion};

/// All of the desk's answers about dead letters.
const LETTERS: &str = "/api/v1/dead-letters";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat dlq stats
  packetboat dlq plan --reason max-retries
  packetboat dlq redrive --reason max-retries --rate 20
  packetboat dlq edit message-3-1042 --why \"a client of last week names no platform\"
  packetboat dlq discard message-3-1042 --why \"a test of last week\"")]
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
        #[command(flatten)]
        filters: Filters,
        /// Only those that nobody has dealt with.
        #[arg(long)]
        open: bool,
        /// Also those that were discarded so long ago that they cannot be restored.
        #[arg(long)]
        with_gone: bool,
        #[arg(long, default_value_t = 100, value_parser = letters)]
        limit: usize,
        /// Go on where a page ended.
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// All that is known of one letter.
    Show {
        id: String,
        /// Also what it holds: this may be what people wrote to each other. It is written down who looked.
        #[arg(long)]
        body: bool,
        /// Why, where operators sign in.
        #[arg(long, requires = "body")]
        why: Option<String>,
    },
    /// How many died of what, and when.
    Stats,
    /// Mend what a letter holds before it is redriven: this may be what people wrote to each other.
    Edit(edit::Edit),
    /// What a redrive would do now, without doing it.
    Plan {
        #[command(flatten)]
        chosen: Chosen,
    },
    /// Send letters on their way again.
    Redrive {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        how: How,
        /// Letters a second.
        #[arg(long, default_value_t = Pace::default().per_second, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rate: u32,
        /// Pause when more than so many of a hundred died again.
        #[arg(long, default_value_t = Pace::default().pause_above, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        pause_above: u8,
    },
    /// Put letters away; they can be restored for seven days.
    Discard {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        how: How,
        /// How many letters that will be: needed where they are not named.
        #[arg(long, value_name = "COUNT")]
        confirm: Option<u64>,
    },
    /// Take back a discard.
    Restore {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        how: How,
    },
    /// Letters with all that is in them to standard output, a line of JSON each: this may be what people wrote.
    Export(transfer::Export),
    /// Letters that were exported come back among the others.
    Import(transfer::Import),
    /// What was asked for, and how far it is.
    Task {
        #[command(subcommand)]
        what: TaskWhat,
    },
    /// What operators did, the newest first.
    Log {
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Only what operators asked for, not the work itself.
        #[arg(long)]
        decisions: bool,
        /// Go on where a page ended.
        #[arg(long, value_name = "ENTRY")]
        before: Option<u64>,
    },
}

#[derive(Debug, Args)]
struct How {
    /// Written down with it.
    #[arg(long, default_value = "")]
    why: String,
    /// A name for the task: asking twice under one name does it once.
    #[arg(long)]
    task: Option<TaskId>,
    /// Do not wait for its end.
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Subcommand)]
enum TaskWhat {
    /// All, the newest first.
    List,
    Show {
        id: TaskId,
    },
    /// Wait for its end.
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
    /// What is not done yet is left alone.
    Cancel {
        id: TaskId,
    },
}

impl Dlq {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let (desk, output) = (self.desk, self.output);
        match self.what {
            What::List {
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
                let page: Page = desk.get(LETTERS, &question).await?;
                show(output, &page, tables::list)
            }
            What::Show { id, body, why } => {
                let path = format!("{LETTERS}/{id}");
                let letter: Shown = match body {
                    true => {
                        let why = why.unwrap_or_default();
                        let question = LookQuestion { why };
                        desk.post(&format!("{path}/read"), &question).await?
                    }
                    false => desk.get(&path, &json!({})).await?,
                };
                show(output, &letter, tables::one)
            }
            What::Stats => {
                let path = format!("{LETTERS}/stats");
                let found: Stats = desk.get(&path, &json!({})).await?;
                show(output, &found, tables::stats)
            }
            What::Edit(edit) => edit.run(&desk, output).await,
            What::Plan { chosen } => {
                let plan = plan(&desk, &chosen.selection(Work::Redrive)?).await?;
                show(output, &plan, tables::plan)
            }
            What::Redrive {
                chosen,
                how,
                rate,
                pause_above,
            } => {
                let pace = Pace {
                    per_second: rate,
                    pause_above,
                };
                have_done(&desk, output, Work::Redrive, &chosen, how, pace).await
            }
            What::Discard {
                chosen,
                how,
                confirm,
            } => {
                if !chosen.is_by_name() {
                    confirmed(&desk, &chosen, confirm).await?;
                }
                have_done(&desk, output, Work::Discard, &chosen, how, Pace::default()).await
            }
            What::Restore { chosen, how } => {
                have_done(&desk, output, Work::Restore, &chosen, how, Pace::default()).await
            }
            What::Export(export) => export.run(&desk).await,
            What::Import(import) => import.run(&desk, output).await,
            What::Task { what } => of_task(&desk, output, what).await,
            What::Log {
                limit,
                decisions,
                before,
            } => {
                let path = format!("{LETTERS}/log");
                let question = LogQuestion {
                    limit: Some(limit),
                    decisions,
                    before,
                };
                let log: LogPage = desk.get(&path, &question).await?;
                show(output, &log, tables::log)
            }
        }
    }
}

async fn plan(desk: &Desk, selection: &Selection) -> Result<Plan> {
    desk.post(&format!("{LETTERS}/plan"), selection).await
}

async fn count(desk: &Desk, selection: &Selection) -> Result<Count> {
    desk.post(&format!("{LETTERS}/count"), selection).await
}

/// Nobody puts away more than they know of.
async fn confirmed(desk: &Desk, chosen: &Chosen, confirm: Option<u64>) -> Result<()> {
    let selection = chosen.selection(Work::Discard)?;
    let found = count(desk, &selection).await?;
    let match_all = match found.more {
        true => format!("more than {} letters match", found.letters),
        false => format!("{} letters match", found.letters),
    };
    // The oldest of them, where there are more than go at a time.
    let letters = match selection {
        Selection::Ids(_) => found.letters,
        Selection::Filter { limit, .. } => found.letters.min(limit as u64),
    };
    match confirm {
        Some(count) if count == letters => Ok(()),
        Some(count) if letters == found.letters => {
            bail!("{match_all}, not {count}: look again (dlq list)")
        }
        Some(count) => {
            bail!("{match_all}, and {letters} go at a time, not {count}: look again (dlq list)")
        }
        None if letters == found.letters => bail!("{match_all}: repeat with --confirm {letters}"),
        None => {
            bail!("{match_all}, and {letters} go at a time: repeat with --confirm {letters}")
        }
    }
}

async fn have_done(
    desk: &Desk,
    output: Output,
    work: Work,
    chosen: &Chosen,
    how: How,
    pace: Pace,
) -> Result<ExitCode> {
    let selection = chosen.selection(work)?;
    let is_filter = matches!(&selection, Selection::Filter { .. });
    if is_filter && count(desk, &selection).await?.letters == 0 {
        return show(output, &Vec::<Told>::new(), tables::told);
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
    let task = task::watch(desk, task).await?;
    if !chosen.is_by_name() && task.begun.letters == LETTERS_MAX as u64 {
        eprintln!("packetboat: that is as many as go at a time; there may be more");
    }
    task::told(output, &task)
}

async fn of_task(desk: &Desk, output: Output, what: TaskWhat) -> Result<ExitCode> {
    let path = |id: &TaskId, verb: &str| format!("{LETTERS}/tasks/{id}{verb}");
    let task: Task = match what {
        TaskWhat::List => {
            let tasks: Vec<Task> = desk.get(&format!("{LETTERS}/tasks"), &json!({})).await?;
            return show(output, &tasks, tables::tasks);
        }
        TaskWhat::Watch { id } => {
            let task = desk.get(&path(&id, ""), &json!({})).await?;
            return task::told(output, &task::watch(desk, task).await?);
        }
        TaskWhat::Show { id } => desk.get(&path(&id, ""), &json!({})).await?,
        TaskWhat::Pause { id, why } => {
            desk.post(&path(&id, "/pause"), &PauseQuestion { why })
                .await?
        }
        TaskWhat::Resume { id } => desk.post(&path(&id, "/resume"), &json!({})).await?,
        TaskWhat::Cancel { id } => desk.post(&path(&id, "/cancel"), &json!({})).await?,
    };
    show(output, &task, tables::task)
}

fn show<T: Serialize>(output: Output, found: &T, table: fn(&T)) -> Result<ExitCode> {
    match output {
        Output::Json => println!("{}", serde_json::to_string(found)?),
        Output::Table => table(found),
    }
    Ok(ExitCode::SUCCESS)
}
