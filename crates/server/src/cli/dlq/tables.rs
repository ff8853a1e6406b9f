//! Tables of the desk's answers.

use comfy_table::{Table, presets};
use operator::admin::utc;
use operator::dead_letters::{
    Forecast, ImportResult, Kind, LetterChanged, LetterDetail, LetterPage, Listed, LogPage, Plan,
    Stats, TaskAnswer,
};
use operator::desk::{OperatorAction, OperatorTask, Progress};

use crate::cli::audit::more;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

pub(super) fn list(page: &LetterPage) {
    if page.letters.is_empty() {
        println!("Nothing is dead.");
        return;
    }
    let mut table = table(&[
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
        utc(letter.last_failed_at),
        letter.message.map(|id| id.to_string()).unwrap_or_default(),
        letter.conversation.clone().unwrap_or_default(),
        letter.targets.join(" "),
        letter.retry_count.to_string(),
        state(letter).into(),
        letter.error.clone(),
    ]
}

fn state(letter: &Listed) -> &'static str {
    match (letter.redriven, letter.discarded) {
        (true, _) => "redriven",
        (false, true) if letter.gone => "gone",
        (false, true) => "discarded",
        (false, false) if letter.edited => "open, edited",
        (false, false) => "open",
    }
}

pub(super) fn one(shown: &LetterDetail) {
    for (name, value) in &shown.headers {
        println!("{name:18} {value}");
    }
    println!("{:18} {}", "state", state(&shown.letter));
    if let Some(at) = shown.letter.discarded_at.filter(|_| shown.letter.gone) {
        let at = utc(at);
        println!(
            "{:18} discarded on {at}: its time is over, and what it holds is not shown",
            ""
        );
    }
    if let Some(edit) = &shown.edit {
        let (by, at, fields) = (&edit.by, utc(edit.at), edit.edited.fields.join(", "));
        println!(
            "{:18} by {by} at {at}: {fields}. {}",
            "edited", edit.edited.why
        );
    }
    println!("{:18} {} bytes", "body", shown.letter.bytes);
    if let Some(body) = &shown.body {
        println!("\n{body}");
    }
}

pub(super) fn stats(stats: &Stats) {
    if stats.causes.is_empty() {
        println!("Nothing is dead.");
        return;
    }
    let mut table = table(&[
        "topic",
        "letters",
        "redriven",
        "discarded",
        "oldest",
        "newest",
        "cause",
        "one of them",
    ]);
    for cause in &stats.causes {
        let summary = &cause.summary;
        table.add_row([
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
    println!("{table}");
    let kinds = [
        (Kind::Message, &stats.messages),
        (Kind::Notification, &stats.notifications),
    ];
    for (kind, reasons) in kinds {
        for (reason, summary) in reasons {
            println!("{} {reason}: {} letters", kind.name(), summary.letters);
        }
    }
    more(stats.left_off);
}

pub(super) fn plan(plan: &Plan) {
    if plan.forecasts.is_empty() {
        println!("No letter matches.");
    }
    for share in &plan.forecasts {
        let what = match &share.forecast {
            Forecast::Deliver => "would be pushed to somebody who is there".to_owned(),
            Forecast::Store => "would wait for who is absent, or be found by sync".to_owned(),
            Forecast::Place => "would get a place and be delivered".to_owned(),
            Forecast::Notify => "would be told to a provider again".to_owned(),
            Forecast::AlreadyThere => "would reach nobody new: all have it".to_owned(),
            Forecast::FailAgain(cause) => format!("would die again: {cause}"),
            Forecast::LeftAlone(outcome) => outcome.text().to_owned(),
        };
        let sample = share.sample.join(" ");
        println!("{:>6}  {what}  (as {sample})", share.letters);
    }
}

pub(super) fn told(done: &Vec<TaskAnswer>) {
    if done.is_empty() {
        println!("No letter matches.");
    }
    for told in done {
        println!("{}: {}", told.id, told.outcome.text());
    }
}

pub(super) fn tasks(tasks: &Vec<OperatorTask>) {
    if tasks.is_empty() {
        println!("Nothing was asked for.");
        return;
    }
    let mut table = table(&["task", "does", "by", "at", "done", "is", "about", "why"]);
    for task in tasks {
        let done = format!("{} of {}", task.done_letters(), task.begun.letters);
        table.add_row([
            task.id().to_string(),
            task.begun.work.name().to_owned(),
            task.by.clone(),
            utc(task.at),
            done,
            progress(&task.progress),
            task.begun.about.clone(),
            task.begun.why.clone(),
        ]);
    }
    println!("{table}");
}

pub(super) fn task(one: &OperatorTask) {
    tasks(&vec![one.clone()]);
    for (outcome, count) in &one.outcomes {
        println!("{count:>6}  {}", outcome.text());
    }
    if one.died_again > 0 {
        println!("{:>6}  died again, as", one.died_again);
        for letter in &one.died_again_as {
            println!("        {letter}");
        }
        more(one.died_again - one.died_again_as.len() as u64);
    }
}

fn progress(progress: &Progress) -> String {
    match progress {
        Progress::Choosing => "begun".to_owned(),
        Progress::Running => "running".to_owned(),
        Progress::Paused { by, why } => format!("paused by {by}: {why}"),
        Progress::Cancelled { by } => format!("cancelled by {by}"),
        Progress::Over => "over".to_owned(),
    }
}

pub(super) fn log(page: &LogPage) {
    let mut table = table(&["at", "by", "did"]);
    for entry in &page.entries {
        table.add_row([utc(entry.at), entry.by.clone(), act(&entry.act)]);
    }
    println!("{table}");
    if let Some(next) = page.next {
        println!("more: --before {next}");
    }
}

pub(super) fn changed(changed: &LetterChanged) {
    print!("{}", changed.diff);
    match &changed.dies_of {
        Some(why) => println!("A carrier would refuse it: {why}"),
        None => println!("A carrier would read it."),
    }
    if changed.done {
        println!("The letter holds this now; a redrive sends it.");
    }
}

fn act(act: &OperatorAction) -> String {
    match act {
        OperatorAction::Begun(begun) => {
            let (work, task, about) = (begun.work.name(), &begun.task, &begun.about);
            format!("began {task}: {work} {about}. {}", begun.why)
        }
        OperatorAction::Chosen { task, letters } => {
            format!("chose {} letters for {task}", letters.len())
        }
        OperatorAction::Claimed { task, claims } => {
            format!("takes {} letters of {task}", claims.len())
        }
        OperatorAction::Done { task, outcomes } => {
            format!("did {} letters of {task}", outcomes.len())
        }
        OperatorAction::Paused { task, why, .. } => format!("paused {task}: {why}"),
        OperatorAction::DiedAgain { task, letters, .. } => {
            format!("sees that {} letters of {task} died again", letters.len())
        }
        OperatorAction::Resumed { task } => format!("resumed {task}"),
        OperatorAction::Cancelled { task } => format!("cancelled {task}"),
        OperatorAction::Looked { letter, why } => format!("read what is in {letter}: {why}"),
        OperatorAction::Exported { from, letters, why } => {
            format!("takes {letters} letters with what is in them, from {from} on: {why}")
        }
        OperatorAction::Imported { letters, why } => {
            format!("puts {} letters back: {why}", letters.len())
        }
        OperatorAction::Edited(edited) => {
            let (letter, fields) = (&edited.letter, edited.fields.join(", "));
            format!("edits {letter}: {fields}. {}", edited.why)
        }
        OperatorAction::Forgotten { letters } => {
            format!("forgets {} letters that the log has dropped", letters.len())
        }
        OperatorAction::Repaired { user, what, why } => {
            format!("repairs user {user}: {}. {why}", what.join("; "))
        }
        OperatorAction::Drained { boat, cancel, pace } => {
            let pace = pace.map_or_else(String::new, |pace| format!(", {pace} clients a second"));
            match cancel {
                false => format!("empties {boat}{pace}"),
                true => format!("lets {boat} take clients again"),
            }
        }
        OperatorAction::SignedOut {
            user,
            platform,
            revoked_before,
            why,
            outcome,
        } => {
            let on = platform.map_or_else(String::new, |platform| format!(" on {platform}"));
            if let Some(outcome) = outcome {
                return format!("signed user {user} out{on}: {outcome}");
            }
            let tokens = revoked_before.map_or("", |_| " and revokes the tokens until now");
            format!("signs user {user} out{on}{tokens}: {why}")
        }
    }
}

pub(super) fn unpacked(found: &ImportResult) {
    println!(
        "{} letters are back, {} were there already",
        found.taken.len(),
        found.known.len()
    );
    for id in &found.refused {
        println!("{id} is not taken by the log: it is too large, most likely");
    }
}
