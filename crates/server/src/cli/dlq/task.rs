//! Follows a task to its end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use operator::dead_letters::TaskAnswer;
use operator::desk::{OperatorTask, Progress};
use serde_json::json;

use super::{LETTERS, show, tables};
use crate::cli::Output;
use crate::cli::desk::Desk;

const LOOK: Duration = Duration::from_millis(200);

/// Watches a task until it is over or paused, with a progress bar on a terminal.
pub(super) async fn watch(desk: &Desk, mut task: OperatorTask) -> Result<OperatorTask> {
    let path = format!("{LETTERS}/tasks/{}", task.id());
    let bar = ProgressBar::new(task.begun.letters);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} letters, {eta}") {
        bar.set_style(style);
    }
    while matches!(task.progress, Progress::Choosing | Progress::Running) {
        tokio::time::sleep(LOOK).await;
        task = desk.get(&path, &json!({})).await?;
        bar.set_position(task.done_letters());
    }
    bar.finish_and_clear();
    Ok(task)
}

/// Prints the outcome of each letter; fails unless all succeeded.
pub(super) fn told(output: Output, task: &OperatorTask) -> Result<ExitCode> {
    let told = task.told.iter().map(|(id, outcome)| TaskAnswer {
        id: id.clone(),
        outcome: *outcome,
    });
    show(output, &told.collect::<Vec<_>>(), tables::told)?;
    if let Progress::Paused { by, why } = &task.progress {
        eprintln!("packetboat: {} was paused by {by}: {why}", task.id());
    }
    let all_went = task.outcomes.keys().all(|outcome| outcome.went());
    Ok(match task.progress == Progress::Over && all_went {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
