//! Follows a task to its end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use operator::dead_letters::rules::Progress;
use operator::dead_letters::task_view::Task;
use serde_json::json;

use super::{LETTERS, show, tables};
use crate::cli::Output;
use crate::cli::desk::Desk;
use crate::cli::terminal::errln;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Watches a task until it is over or paused, with a progress bar on a terminal.
pub(super) async fn watch(desk: &Desk, mut task: Task) -> Result<Task> {
    let path = format!("{LETTERS}/tasks/{}", task.id);
    let bar = ProgressBar::new(task.letters);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} letters, {eta}") {
        bar.set_style(style);
    }
    while matches!(task.state, Progress::Choosing | Progress::Running) {
        tokio::time::sleep(POLL_INTERVAL).await;
        task = desk.get(&path, &json!({})).await?;
        bar.set_position(task.done_letters());
    }
    bar.finish_and_clear();
    Ok(task)
}

/// Prints the outcome of each letter; fails unless all succeeded.
pub(super) fn outcomes(output: Output, task: &Task) -> Result<ExitCode> {
    show(output, &task.results, tables::outcomes)?;
    if let Progress::Paused { by, why: reason } = &task.state {
        errln!("packetboat: {} was paused by {by}: {reason}", task.id);
    }
    let all_went = task.outcomes.keys().all(|outcome| outcome.is_success());
    Ok(if task.state == Progress::Over && all_went {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
