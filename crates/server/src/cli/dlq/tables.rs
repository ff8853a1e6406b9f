//! Tables of the desk's answers.

use comfy_table::{Table, presets};
use operator::admin::operation::{Action, Operation};
use operator::admin::task::Task;
use operator::answer::{List, Page, utc};
use operator::dead_letters::{
    EditResult, Forecast, ImportResult, Letter, LetterDetail, LetterOutcome, Plan, Stats,
};
use operator::desk::Progress;

use crate::cli::audit::more;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

pub(super) fn list(page: &Page<Letter>) {
    if page.items.is_empty() {
        match &page.next {
            None => println!("Nothing is dead."),
            Some(next) => println!("No match so far. more: --after {next}"),
        }
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
    for letter in &page.items {
        table.add_row(row(letter));
    }
    println!("{table}");
    if let Some(next) = &page.next {
        println!("more: --after {next}");
    }
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

pub(super) fn one(shown: &LetterDetail) {
    for header in &shown.headers {
        println!("{:18} {}", header.name, header.value);
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
        let (by, at, fields) = (&edit.by, utc(edit.at), edit.fields.join(", "));
        println!("{:18} by {by} at {at}: {fields}. {}", "edited", edit.why);
    }
    println!("{:18} {} bytes", "body", shown.letter.bytes);
    if let Some(body) = &shown.body {
        println!("\n{body}");
    }
}

pub(super) fn stats(stats: &Stats) {
    if stats.causes.items.is_empty() {
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
    for cause in &stats.causes.items {
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
    more(stats.causes.truncated);
    for reason in &stats.reasons {
        let (kind, name) = (reason.kind.name(), reason.reason.name());
        println!("{kind} {name}: {} letters", reason.summary.letters);
    }
    if stats.uncounted > 0 {
        println!("NOT COUNTED: {} newer letters", stats.uncounted);
    }
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
            Forecast::FailAgain { cause } => format!("would die again: {cause}"),
            Forecast::LeftAlone { outcome } => outcome.text().to_owned(),
        };
        let sample = share.sample.join(" ");
        println!("{:>6}  {what}  (as {sample})", share.letters);
    }
}

pub(super) fn outcomes(done: &List<LetterOutcome>) {
    if done.items.is_empty() {
        println!("No letter matches.");
    }
    for letter in &done.items {
        println!("{}: {}", letter.id, letter.outcome.text());
    }
    more(done.truncated);
}

pub(super) fn tasks(tasks: &List<Task>) {
    if tasks.items.is_empty() {
        println!("Nothing was asked for.");
        return;
    }
    let mut table = table(&["task", "does", "by", "at", "done", "is", "about", "why"]);
    for task in &tasks.items {
        let done = format!("{} of {}", task.done_letters(), task.letters);
        table.add_row([
            task.id.to_string(),
            task.work.name().to_owned(),
            task.by.clone(),
            utc(task.started_at),
            done,
            progress(&task.state),
            task.selection.clone(),
            task.why.clone(),
        ]);
    }
    println!("{table}");
}

pub(super) fn task(one: &Task) {
    tasks(&vec![one.clone()].into());
    for (outcome, count) in &one.outcomes {
        println!("{count:>6}  {}", outcome.text());
    }
    let new_letters = &one.new_letters;
    if new_letters.total() > 0 {
        println!("{:>6}  died again, as", new_letters.total());
        for letter in &new_letters.items {
            println!("        {letter}");
        }
        more(new_letters.truncated);
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

pub(super) fn log(page: &Page<Operation>) {
    let mut table = table(&["at", "by", "did"]);
    for operation in &page.items {
        let (at, by) = (utc(operation.at), operation.by.clone());
        table.add_row([at, by, words(&operation.action)]);
    }
    println!("{table}");
    if let Some(next) = &page.next {
        println!("more: --before {next}");
    }
}

pub(super) fn changed(changed: &EditResult) {
    print!("{}", changed.diff);
    match &changed.flaw {
        Some(why) => println!("A carrier would refuse it: {why}"),
        None => println!("A carrier would read it."),
    }
    if changed.done {
        println!("The letter holds this now; a redrive sends it.");
    }
}

fn words(action: &Action) -> String {
    match action {
        Action::Begun {
            task,
            work,
            selection,
            why,
            ..
        } => format!("began {task}: {} {selection}. {why}", work.name()),
        Action::Chosen { task, letters } => {
            format!("chose {} letters for {task}", letters.len())
        }
        Action::Claimed { task, claims } => {
            format!("takes {} letters of {task}", claims.len())
        }
        Action::Done { task, outcomes } => {
            format!("did {} letters of {task}", outcomes.len())
        }
        Action::Paused { task, why, .. } => format!("paused {task}: {why}"),
        Action::DiedAgain { task, letters, .. } => {
            format!("sees that {} letters of {task} died again", letters.len())
        }
        Action::Resumed { task } => format!("resumed {task}"),
        Action::Cancelled { task } => format!("cancelled {task}"),
        Action::Looked { letter, why } => format!("read what is in {letter}: {why}"),
        Action::Exported { from, letters, why } => {
            format!("takes {letters} letters with what is in them, from {from} on: {why}")
        }
        Action::Imported { letters, why } => {
            format!("puts {} letters back: {why}", letters.len())
        }
        Action::Edited {
            letter,
            fields,
            why,
            ..
        } => format!("edits {letter}: {}. {why}", fields.join(", ")),
        Action::Forgotten { letters } => {
            format!("forgets {} letters that the log has dropped", letters.len())
        }
        Action::Repaired { user, steps, why } => {
            format!("repairs user {user}: {}. {why}", steps.join("; "))
        }
        Action::Drained { boat, cancel, pace } => {
            let pace = pace.map_or_else(String::new, |pace| format!(", {pace} clients a second"));
            match cancel {
                false => format!("empties {boat}{pace}"),
                true => format!("lets {boat} take clients again"),
            }
        }
        Action::SignedOut {
            user,
            platform,
            revoked_before,
            why,
            outcome,
        } => {
            let on = platform.as_ref();
            let on = on.map_or_else(String::new, |platform| format!(" on {platform}"));
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
        found.imported.len(),
        found.present.len()
    );
    for id in &found.refused {
        println!("{id} is not taken by the log: it is too large, most likely");
    }
}
