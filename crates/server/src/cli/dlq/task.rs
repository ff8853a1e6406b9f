//! Follows a task to its end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use carrier::dead_letters::Told;
use indicatif::{ProgressBar, ProgressStyle};
use protocol::desk::{Progress, Task};
use serde_json::json;

use super::{LETTERS, show, tables};
use crate::cli::Output;
use crate::cli::desk::Desk;

const LOOK: Duration = Duration::from_millis(200);

/// Until it is over or paused; shows how far it is where somebody watches.
pub(super) async fn watch(desk: &Desk, mut task: Task) -> Result<Task> {
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

/// What became of its letters; fails unless all of them went.
pub(super) fn told(output: Output, task: &Task) -> Result<ExitCode> {
    let told = task.told.iter().map(|(id, outcome)| Told {
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
