//! Values of the desk as wire messages, and back.

use api::v1;
use protocol::{MessageId, Timestamp, UserId};
use tonic::Status;

use super::task_id;
use crate::admin::dead_letters::ListQuestion;
use crate::admin::trace;
use crate::dead_letters::{
    CauseSummary, Envelope, Filter, Forecast, Kind, LetterChange, LetterChanged, LetterDetail,
    LetterPage, Listed, Plan, Request, Selection, Share, Stats, Summary,
};
use crate::desk::{OperatorTask, OperatorWork, Pace, Progress, TaskOutcome};

/// # Errors
/// `InvalidArgument` names the value that is not valid.
pub(super) fn filter(wire: v1::LetterFilter) -> Result<ListQuestion, Status> {
    let kind = |name: String| {
        let unknown =
            || Status::invalid_argument(format!("{name:?} is neither message nor notification"));
        Kind::from_name(&name).ok_or_else(unknown)
    };
    let user =
        |user| UserId::new(user).map_err(|error| Status::invalid_argument(error.to_string()));
    Ok(ListQuestion {
        topic: wire.topic.map(kind).transpose()?,
        reason: wire.reason,
        cause: wire.cause,
        text: wire.text,
        conversation: wire.conversation,
        user: wire.user.map(user).transpose()?,
        since: wire.since,
        until: wire.until,
        redriven: wire.redriven,
        discarded: wire.discarded,
        ..ListQuestion::default()
    })
}

/// # Errors
/// `InvalidArgument` if it names nothing, or both letters and a filter.
pub(super) fn selection(wire: Option<v1::LetterSelection>) -> Result<Selection, Status> {
    let refuse = |text| Err(Status::invalid_argument(text));
    let wire = wire.unwrap_or_default();
    match (wire.ids.is_empty(), wire.filter) {
        (false, None) => Ok(Selection::Ids(wire.ids)),
        (true, Some(_)) if wire.limit == 0 => refuse("a filter needs a limit: at most how many?"),
        (true, Some(wanted)) => {
            let filter: Filter = filter(wanted)?.filter().map_err(super::status)?;
            let limit = usize::try_from(wire.limit).unwrap_or(usize::MAX);
            Ok(Selection::Filter { filter, limit })
        }
        (false, Some(_)) => refuse("either ids or a filter"),
        (true, None) => refuse("which letters? ids, or a filter"),
    }
}

/// # Errors
/// `InvalidArgument` names the value that is not valid.
pub(super) fn request(wire: v1::BeginTaskRequest) -> Result<Request, Status> {
    let work = match wire.work() {
        v1::DeskWork::Redrive => OperatorWork::Redrive,
        v1::DeskWork::Discard => OperatorWork::Discard,
        v1::DeskWork::Restore => OperatorWork::Restore,
        v1::DeskWork::Unspecified => {
            return Err(Status::invalid_argument(
                "work: redrive, discard or restore?",
            ));
        }
    };
    let pace = Pace::default();
    let above = wire.pause_above.map(u8::try_from).transpose();
    let above = above.map_err(|_| Status::invalid_argument("pause_above: 0 to 100"))?;
    let task = Some(wire.task).filter(|task| !task.is_empty());
    Ok(Request {
        task: task.as_deref().map(task_id).transpose()?,
        work,
        selection: selection(wire.selection)?,
        pace: Pace {
            per_second: if wire.per_second == 0 {
                pace.per_second
            } else {
                wire.per_second
            },
            pause_above: above.unwrap_or(pace.pause_above),
        },
        why: wire.why,
    })
}

pub(super) fn page(page: LetterPage) -> v1::ListLettersResponse {
    v1::ListLettersResponse {
        letters: page.letters.into_iter().map(letter).collect(),
        next: page.next.map(|next| next.to_string()).unwrap_or_default(),
    }
}

fn letter(listed: Listed) -> v1::Letter {
    v1::Letter {
        id: listed.id,
        topic: listed.cursor.kind.name().to_owned(),
        reason: listed.reason.name().to_owned(),
        error: listed.error,
        origin_topic: listed.origin_topic,
        origin_partition: listed.origin_partition,
        origin_offset: listed.origin_offset,
        msg_id: listed.message.map(MessageId::get).unwrap_or_default(),
        conversation: listed.conversation.unwrap_or_default(),
        targets: listed.targets,
        retry_count: listed.retry_count,
        first_failed_at: listed.first_failed_at.millis(),
        last_failed_at: listed.last_failed_at.millis(),
        carrier: listed.carrier,
        bytes: listed.bytes as u64,
        cause: listed.cause.to_string(),
        redriven: listed.redriven,
        discarded: listed.discarded,
        discarded_at: listed
            .discarded_at
            .map(Timestamp::millis)
            .unwrap_or_default(),
        gone: listed.gone,
        edited: listed.edited,
        parent: listed.parent.unwrap_or_default(),
    }
}

pub(super) fn shown(shown: LetterDetail) -> v1::ShowLetterResponse {
    let headers = shown.headers.into_iter();
    v1::ShowLetterResponse {
        letter: Some(letter(shown.letter)),
        headers: headers
            .map(|(name, value)| v1::LetterHeader { name, value })
            .collect(),
        body: shown.body,
    }
}

pub(super) fn stats(stats: Stats) -> v1::CountLettersResponse {
    let reasons = [
        (Kind::Message, stats.messages),
        (Kind::Notification, stats.notifications),
    ];
    let reasons = reasons.into_iter().flat_map(|(kind, reasons)| {
        reasons
            .into_iter()
            .map(move |(reason, summary)| v1::ReasonCount {
                topic: kind.name().to_owned(),
                reason,
                count: Some(count(summary)),
            })
    });
    v1::CountLettersResponse {
        reasons: reasons.collect(),
        causes: stats.causes.into_iter().map(cause).collect(),
        left_off: stats.left_off,
    }
}

fn cause(cause: CauseSummary) -> v1::CauseCount {
    v1::CauseCount {
        topic: cause.kind.name().to_owned(),
        cause: cause.cause.to_string(),
        count: Some(count(cause.summary)),
        example: cause.example,
    }
}

fn count(summary: Summary) -> v1::LetterCount {
    v1::LetterCount {
        letters: summary.letters,
        redriven: summary.redriven,
        discarded: summary.discarded,
        oldest: summary.oldest.map(Timestamp::millis).unwrap_or_default(),
        newest: summary.newest.map(Timestamp::millis).unwrap_or_default(),
    }
}

pub(super) fn envelope(held: Envelope) -> v1::GetEnvelopeResponse {
    v1::GetEnvelopeResponse {
        schema: held.schema,
        version: held.version.to_string(),
        text: held.text,
        unknown: held.unknown,
        raw: held.raw.unwrap_or_default(),
        dies_of: held.dies_of.unwrap_or_default(),
        locked: held.locked.unwrap_or_default(),
    }
}

/// # Errors
/// `InvalidArgument` if its base is no version.
pub(super) fn change(wire: v1::EditLetterRequest) -> Result<LetterChange, Status> {
    Ok(LetterChange {
        base: wire.base.parse().map_err(Status::invalid_argument)?,
        envelope: wire.envelope,
        why: wire.why,
        dry_run: wire.dry_run,
        drop_unknown: wire.drop_unknown,
    })
}

pub(super) fn changed(changed: LetterChanged) -> v1::EditLetterResponse {
    v1::EditLetterResponse {
        version: changed.version.to_string(),
        diff: changed.diff,
        fields: changed.fields,
        dies_of: changed.dies_of.unwrap_or_default(),
        done: changed.done,
    }
}

pub(super) fn plan(plan: Plan) -> v1::PlanRedriveResponse {
    v1::PlanRedriveResponse {
        letters: plan.letters,
        forecasts: plan.forecasts.into_iter().map(forecast).collect(),
    }
}

fn forecast(share: Share) -> v1::Forecast {
    let (forecast, why) = match share.forecast {
        Forecast::Deliver => ("deliver", String::new()),
        Forecast::Store => ("store", String::new()),
        Forecast::Place => ("place", String::new()),
        Forecast::Notify => ("notify", String::new()),
        Forecast::AlreadyThere => ("already_there", String::new()),
        Forecast::FailAgain(cause) => ("fail_again", cause.to_string()),
        Forecast::LeftAlone(outcome) => ("left_alone", outcome.text().to_owned()),
    };
    v1::Forecast {
        forecast: forecast.to_owned(),
        why,
        letters: share.letters,
        sample: share.sample,
    }
}

pub(super) fn task(task: OperatorTask) -> v1::DeskTask {
    let (state, stopped_by, stopped_why) = match task.progress {
        Progress::Choosing => (v1::DeskTaskState::Choosing, String::new(), String::new()),
        Progress::Running => (v1::DeskTaskState::Running, String::new(), String::new()),
        Progress::Paused { by, why } => (v1::DeskTaskState::Paused, by, why),
        Progress::Cancelled { by } => (v1::DeskTaskState::Cancelled, by, String::new()),
        Progress::Over => (v1::DeskTaskState::Over, String::new(), String::new()),
    };
    let work = match task.begun.work {
        OperatorWork::Redrive => v1::DeskWork::Redrive,
        OperatorWork::Discard => v1::DeskWork::Discard,
        OperatorWork::Restore => v1::DeskWork::Restore,
    };
    let outcomes = task.outcomes.into_iter();
    let told = task.told.into_iter();
    v1::DeskTask {
        id: task.begun.task.to_string(),
        work: work.into(),
        letters: task.begun.letters,
        about: task.begun.about,
        per_second: task.begun.pace.per_second,
        pause_above: task.begun.pace.pause_above.into(),
        by: task.by,
        why: task.begun.why,
        at: task.at.millis(),
        state: state.into(),
        stopped_by,
        stopped_why,
        outcomes: outcomes
            .map(|(outcome, letters)| v1::OutcomeCount {
                outcome: name_of(outcome),
                text: outcome.text().to_owned(),
                letters,
            })
            .collect(),
        told: told
            .map(|(id, outcome)| v1::LetterOutcome {
                id,
                outcome: name_of(outcome),
            })
            .collect(),
        ended_at: task.ended_at.map(Timestamp::millis).unwrap_or_default(),
        died_again: task.died_again,
        died_again_as: task.died_again_as,
    }
}

pub(super) fn life(report: trace::Report) -> Result<v1::MessageTrace, Status> {
    let event = |event: trace::Event| {
        let told = serde_json::to_string(&event.event);
        Ok(v1::TraceEvent {
            at: event.at,
            target: event.target.unwrap_or_default(),
            event: told.map_err(|error| Status::internal(format!("an event: {error}")))?,
        })
    };
    let events: Result<Vec<_>, Status> = report.events.first.into_iter().map(event).collect();
    let id = report.msg_id.parse::<MessageId>();
    Ok(v1::MessageTrace {
        msg_id: id
            .map_err(|error| Status::internal(error.to_string()))?
            .get(),
        accepted_at: report.accepted_at,
        settled: report.settled,
        verdict: report.verdict.first,
        events: events?,
    })
}

/// Name of an outcome, as the HTTP API writes it.
fn name_of(outcome: TaskOutcome) -> String {
    let name = serde_json::to_value(outcome);
    let name = name.ok().and_then(|name| name.as_str().map(str::to_owned));
    name.unwrap_or_default()
}
