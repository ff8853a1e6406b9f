//! Tables of the desk's answers.

use anyhow::Result;
use operator::answer::{List, Page, utc};
use operator::dead_letters::operation::{Action, Operation};
use operator::dead_letters::rules::Progress;
use operator::dead_letters::task_view::Task;
use operator::dead_letters::{
    EditResult, Forecast, ImportResult, Letter, LetterDetail, LetterOutcome, Plan, Stats,
};

use crate::cli::audit::more;
use crate::cli::table::TextTable;
use crate::cli::terminal::{out, outln};

pub(super) fn list(page: &Page<Letter>) -> Result<()> {
    if page.items.is_empty() {
        match &page.next {
            None => outln!("Nothing is dead.")?,
            Some(next) => outln!("No match so far. more: --after {next}")?,
        }
        return Ok(());
    }
    let mut table = TextTable::new(&[
        "id",
        "reason",
        "died",
        "message",
        "conversation",
        "for",
        "tries",
        "state",
        "error",
    ]);
    for letter in &page.items {
        table.row(row(letter));
    }
    out!("{table}\n")?;
    if let Some(next) = &page.next {
        outln!("more: --after {next}")?;
    }
    Ok(())
}

fn row(letter: &Letter) -> [String; 9] {
    [
        letter.id.clone(),
        letter.reason.name().into(),
        utc(letter.last_failed_at),
        letter.message.map(|id| id.to_string()).unwrap_or_default(),
        letter.conversation.clone().unwrap_or_default(),
        letter.targets.join(" "),
        letter.retry_count.to_string(),
        state(letter).into(),
        letter.error.clone(),
    ]
}

fn state(letter: &Letter) -> &'static str {
    match (letter.redriven, letter.discarded) {
        (true, _) => "redriven",
        (false, true) if letter.gone => "gone",
        (false, true) => "discarded",
        (false, false) if letter.edited => "open, edited",
        (false, false) => "open",
    }
}

pub(super) fn one(detail: &LetterDetail) -> Result<()> {
    for header in &detail.headers {
        outln!("{:18} {}", header.name, header.value)?;
    }
    outln!("{:18} {}", "state", state(&detail.letter))?;
    if let Some(at) = detail.letter.discarded_at.filter(|_| detail.letter.gone) {
        let at = utc(at);
        outln!(
            "{:18} discarded on {at}: past its retention, so its content is not shown",
            ""
        )?;
    }
    if let Some(edit) = &detail.edit {
        let (by, at, fields) = (&edit.by, utc(edit.at), edit.fields.join(", "));
        outln!("{:18} by {by} at {at}: {fields}. {}", "edited", edit.why)?;
    }
    outln!("{:18} {} bytes", "body", detail.letter.bytes)?;
    if let Some(body) = &detail.body {
        out!("\n{body}\n")?;
    }
    Ok(())
}

pub(super) fn stats(stats: &Stats) -> Result<()> {
    if stats.causes.items.is_empty() {
        outln!("Nothing is dead.")?;
        return Ok(());
    }
    let mut table = TextTable::new(&[
        "topic",
        "letters",
        "redriven",
        "discarded",
        "oldest",
        "newest",
        "cause",
        "one of them",
    ]);
    for cause in &stats.causes.items {
        let summary = &cause.summary;
        table.row([
            cause.kind.name().to_owned(),
            summary.letters.to_string(),
            summary.redriven.to_string(),
            summary.discarded.to_string(),
            summary.oldest.map(utc).unwrap_or_default(),
            summary.newest.map(utc).unwrap_or_default(),
            cause.cause.to_string(),
            cause.example.clone(),
        ]);
    }
    out!("{table}\n")?;
    more(stats.causes.truncated)?;
    for reason in &stats.reasons {
        let (kind, name) = (reason.kind.name(), reason.reason.name());
        outln!("{kind} {name}: {} letters", reason.summary.letters)?;
    }
    if stats.uncounted > 0 {
        outln!("NOT COUNTED: {} newer letters", stats.uncounted)?;
    }
    Ok(())
}

pub(super) fn plan(plan: &Plan) -> Result<()> {
    if plan.forecasts.is_empty() {
        outln!("No letter matches.")?;
    }
    for share in &plan.forecasts {
        let text = match &share.forecast {
            Forecast::Deliver => "would be pushed to a connected device".to_owned(),
            Forecast::Store => "would wait for an absent device, or be found by sync".to_owned(),
            Forecast::Place => "would be placed and delivered".to_owned(),
            Forecast::Notify => "would be sent to the push provider again".to_owned(),
            Forecast::AlreadyThere => "would change nothing: all recipients have it".to_owned(),
            Forecast::FailAgain { cause } => format!("would die again: {cause}"),
            Forecast::LeftAlone { outcome } => outcome.text().to_owned(),
        };
        let sample = share.sample.join(" ");
        outln!("{:>6}  {text}  (as {sample})", share.letters)?;
    }
    Ok(())
}

pub(super) fn outcomes(outcomes: &List<LetterOutcome>) -> Result<()> {
    if outcomes.items.is_empty() {
        outln!("No letter matches.")?;
    }
    for letter in &outcomes.items {
        outln!("{}: {}", letter.id, letter.outcome.text())?;
    }
    more(outcomes.truncated)?;
    Ok(())
}

pub(super) fn tasks(tasks: &List<Task>) -> Result<()> {
    if tasks.items.is_empty() {
        outln!("No tasks.")?;
        return Ok(());
    }
    let mut table = TextTable::new(&["task", "does", "by", "at", "done", "is", "about", "why"]);
    for task in &tasks.items {
        let done_text = format!("{} of {}", task.done_letters(), task.letters);
        table.row([
            task.id.to_string(),
            task.work.name().to_owned(),
            task.by.clone(),
            utc(task.started_at),
            done_text,
            progress(&task.state),
            task.selection.clone(),
            task.why.clone(),
        ]);
    }
    out!("{table}\n")?;
    Ok(())
}

pub(super) fn task(one: &Task) -> Result<()> {
    tasks(&vec![one.clone()].into())?;
    for (outcome, count) in &one.outcomes {
        outln!("{count:>6}  {}", outcome.text())?;
    }
    let new_letters = &one.new_letters;
    if new_letters.total() > 0 {
        outln!("{:>6}  died again, as", new_letters.total())?;
        for letter in &new_letters.items {
            outln!("        {letter}")?;
        }
        more(new_letters.truncated)?;
    }
    Ok(())
}

fn progress(progress: &Progress) -> String {
    match progress {
        Progress::Choosing => "begun".to_owned(),
        Progress::Running => "running".to_owned(),
        Progress::Paused { by, why: reason } => format!("paused by {by}: {reason}"),
        Progress::Cancelled { by } => format!("cancelled by {by}"),
        Progress::Over => "over".to_owned(),
    }
}

pub(super) fn log(page: &Page<Operation>) -> Result<()> {
    let mut table = TextTable::new(&["at", "by", "did"]);
    for operation in &page.items {
        let (at, by) = (utc(operation.at), operation.by.clone());
        table.row([at, by, words(&operation.action)]);
    }
    out!("{table}\n")?;
    if let Some(next) = &page.next {
        outln!("more: --before {next}")?;
    }
    Ok(())
}

pub(super) fn changed(result: &EditResult) -> Result<()> {
    out!("{}", result.diff)?;
    match &result.flaw {
        Some(reason) => outln!("A carrier would refuse it: {reason}")?,
        None => outln!("A carrier would read it.")?,
    }
    if result.done {
        outln!("Saved; a redrive sends it.")?;
    }
    Ok(())
}

fn words(action: &Action) -> String {
    match action {
        Action::Begun {
            task,
            work,
            selection,
            why: reason,
            ..
        } => format!("started {task}: {} {selection}. {reason}", work.name()),
        Action::Chosen { task, letters } => {
            format!("selected {} letters for {task}", letters.len())
        }
        Action::Claimed { task, claims } => {
            format!("claimed {} letters of {task}", claims.len())
        }
        Action::Done { task, outcomes } => {
            format!("finished {} letters of {task}", outcomes.len())
        }
        Action::Paused {
            task, why: reason, ..
        } => format!("paused {task}: {reason}"),
        Action::DiedAgain { task, letters, .. } => {
            format!("found that {} letters of {task} died again", letters.len())
        }
        Action::Resumed { task } => format!("resumed {task}"),
        Action::Cancelled { task } => format!("cancelled {task}"),
        Action::Looked {
            letter,
            why: reason,
        } => format!("read the content of {letter}: {reason}"),
        Action::Exported {
            from,
            letters,
            why: reason,
        } => {
            format!("exported {letters} letters with their content, from {from} on: {reason}")
        }
        Action::Imported {
            letters,
            why: reason,
        } => {
            format!("requested import of {} letters: {reason}", letters.len())
        }
        Action::Edited {
            letter,
            fields,
            why: reason,
            ..
        } => format!("edited {letter}: {}. {reason}", fields.join(", ")),
        Action::Forgotten { letters } => {
            format!(
                "dropped the marks of {} letters that the log no longer has",
                letters.len()
            )
        }
        Action::Repaired {
            user,
            steps,
            why: reason,
        } => {
            format!(
                "requested repair of user {user}: {}. {reason}",
                steps.join("; ")
            )
        }
        Action::Drained { boat, cancel, pace } => {
            let pace = pace.map_or_else(String::new, |pace| format!(", {pace} clients a second"));
            if *cancel {
                format!("requested to cancel the drain of {boat}")
            } else {
                format!("requested a drain of {boat}{pace}")
            }
        }
        Action::SignedOut {
            user,
            platform,
            revoked_before,
            why: reason,
            outcome,
        } => {
            let on = platform.as_ref();
            let on = on.map_or_else(String::new, |platform| format!(" on {platform}"));
            if let Some(outcome) = outcome {
                return format!("signed user {user} out{on}: {outcome}");
            }
            let tokens =
                revoked_before.map_or("", |_| " and revocation of all tokens issued so far");
            format!("requested sign-out of user {user}{on}{tokens}: {reason}")
        }
    }
}

pub(super) fn unpacked(result: &ImportResult) -> Result<()> {
    outln!(
        "{} letters imported, {} already present",
        result.imported.len(),
        result.present.len()
    )?;
    for id in &result.refused {
        outln!("{id} was refused by the log, most likely because it is too large")?;
    }
    Ok(())
}
