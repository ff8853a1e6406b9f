//! Dead letters over HTTP: views, plans, and operations on them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use protocol::ledger::DeadReason;
use protocol::{Code, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::operation::Operation;
use super::rules::{EditRefusal, OperatorWork, TaskId};
use super::task_view::{RedriveAnswer, Task};
use super::{
    EditResult, Envelope, Filter, ImportResult, Kind, Letter, LetterChange, LetterCursor,
    LetterDetail, LetterPackage, Plan, Request, Selection, SelectionCount, Stats,
};
use crate::answer::{List, Page, Time, id, reason};
use crate::dead_letters;
use crate::port::desk::{Answer, Desk, busy, failed};
use crate::port::operators::{Operator, Role};
use crate::port::refusal::DeskRefusal;
use crate::users::ask_discovery;

/// Limit of letters in one list, and in a redrive that the request waits for.
pub const LETTERS_MAX: usize = 1000;
/// Limit of bytes in an imported package.
pub(crate) const IMPORT_BYTES: usize = 16 << 20;
/// Limit of bytes in an edited envelope: JSON takes more room than the record it describes.
pub(crate) const EDIT_BYTES: usize = 8 << 20;
/// Longest wait for a redrive.
const REDRIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for the stores that a plan asks.
const FORECAST_WITHIN: Duration = Duration::from_secs(30);

/// Filter and page of a list of letters.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuestion {
    /// Messages or notifications; default: both.
    #[serde(alias = "topic")]
    pub kind: Option<Kind>,
    /// Reason of death, such as `too_large`.
    pub reason: Option<String>,
    /// Cause, as `stats` writes it.
    pub cause: Option<String>,
    /// Text within the error.
    pub text: Option<String>,
    /// Conversation, such as `p:12:34`.
    pub conversation: Option<String>,
    /// User whom the letter misses.
    #[serde(with = "id::or_none")]
    #[schemars(with = "Option<String>")]
    pub user: Option<UserId>,
    /// Earliest time of death: RFC 3339, or milliseconds since 1970.
    #[schemars(with = "Option<String>")]
    pub since: Option<Time>,
    /// End of the times of death, exclusive: RFC 3339, or milliseconds since 1970.
    #[schemars(with = "Option<String>")]
    pub until: Option<Time>,
    /// Only letters that were redriven (true), or were not (false).
    pub redriven: Option<bool>,
    /// Only letters that are discarded (true), or are not (false).
    pub discarded: Option<bool>,
    /// Also letters that were discarded so long ago that they are gone.
    pub with_gone: bool,
    /// Letters of a page, 1 to 1000; default: 100. A page may have fewer, and a next one all the
    /// same: an answer looks at a limited number of records.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub after: Option<String>,
}

impl ListQuestion {
    fn after(&self) -> Result<Option<LetterCursor>, DeskRefusal> {
        let cursor = self.after.as_deref().map(str::parse).transpose();
        cursor.map_err(|text| DeskRefusal::new(StatusCode::BAD_REQUEST, text))
    }

    fn filter(&self) -> Result<Filter, DeskRefusal> {
        Ok(Filter {
            kind: self.kind,
            reason: self.reason.as_deref().map(reason_of).transpose()?,
            conversation: self.conversation.clone(),
            user: self.user,
            since: self.since,
            until: self.until,
            cause: self.cause.as_deref().and_then(|cause| cause.parse().ok()),
            text: self.text.clone(),
            redriven: self.redriven,
            discarded: self.discarded,
            with_gone: self.with_gone,
            ..Filter::default()
        })
    }
}

/// Page of the log of operations.
#[derive(Clone, Copy, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogQuestion {
    /// Entries of a page, 1 to 1000; default: 100. A page may have fewer, and a next one all the
    /// same: an answer looks at a limited number of records.
    pub limit: Option<usize>,
    /// Only requests of operators, not the work that follows.
    pub decisions: bool,
    /// `next` of the page before.
    #[serde(alias = "before", with = "id::or_none")]
    #[schemars(with = "Option<String>")]
    pub after: Option<u64>,
}

/// Reason for reading the body of a message.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookQuestion {
    /// The operator's reason; required if operators sign in.
    pub why: String,
}

/// Letters to export, and the reason for exporting message bodies.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportQuestion {
    /// Filter; pages have a size of their own.
    pub list: ListQuestion,
    /// The operator's reason; required if operators sign in.
    pub why: String,
}

/// Letters to import, and the reason.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImportQuestion {
    /// At most 500 letters, as an export gives them.
    pub letters: Vec<LetterPackage>,
    /// The operator's reason; required if operators sign in.
    pub why: String,
}

/// Reason for a pause.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PauseQuestion {
    /// The operator's reason.
    pub why: String,
}

pub(crate) async fn list(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<ListQuestion>,
) -> Answer<Page<Letter>> {
    let (filter, cursor) = (question.filter()?, question.after()?);
    let limit = question.limit.unwrap_or(100).clamp(1, LETTERS_MAX);
    let _turn = desk.log.turn().await.map_err(busy)?;
    let page = desk.letters.list(&filter, cursor, limit).await;
    let page = page.map_err(|e| failed(e.into()))?;
    Ok(Json(Page {
        items: page.letters,
        next: page.next.map(|next| next.to_string()),
    }))
}

pub(crate) async fn stats(State(desk): State<Arc<Desk>>) -> Answer<Stats> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .stats()
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

pub(crate) async fn show(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
) -> Answer<LetterDetail> {
    show_letter(&desk, &id, false).await
}

/// Shows a letter with the body of its message.
pub(crate) async fn read(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(question): Json<LookQuestion>,
) -> Answer<LetterDetail> {
    operator.may_read(&question.why)?;
    write_down_look(&desk, &operator, &id, &question.why).await?;
    show_letter(&desk, &id, true).await
}

async fn show_letter(desk: &Desk, id: &str, body: bool) -> Answer<LetterDetail> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    match desk.letters.show(id, body).await {
        Ok(Some(shown)) => Ok(Json(shown)),
        Ok(None) => Err(no_letter(id)),
        Err(error) => Err(failed(error.into())),
    }
}

/// Content of a letter, for editing.
pub(crate) async fn envelope(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(question): Json<LookQuestion>,
) -> Answer<Envelope> {
    operator.may_read(&question.why)?;
    write_down_look(&desk, &operator, &id, &question.why).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let envelope = desk.letters.envelope(&id).await.map_err(refused)?;
    envelope.map(Json).ok_or_else(|| no_letter(&id))
}

pub(crate) async fn edit(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(change): Json<LetterChange>,
) -> Answer<EditResult> {
    operator.may_edit(&change.why)?;
    if change.dry_run {
        // The difference shows the body.
        write_down_look(&desk, &operator, &id, &change.why).await?;
    }
    let _turn = desk.log.turn().await.map_err(busy)?;
    let result = desk.letters.edit(&operator.name, &id, change);
    let result = result.await.map_err(refused)?;
    result.map(Json).ok_or_else(|| no_letter(&id))
}

pub(crate) async fn count(
    State(desk): State<Arc<Desk>>,
    Json(selection): Json<Selection>,
) -> Answer<SelectionCount> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .count(&selection)
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

pub(crate) async fn export(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ExportQuestion>,
) -> Answer<Page<LetterPackage>> {
    let ExportQuestion { list, why: reason } = question;
    operator.may_read(&reason)?;
    let (filter, cursor) = (list.filter()?, list.after()?);
    let cluster = find_cluster(&desk).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let letters = &desk.letters;
    let export = letters.pack(&operator.name, cluster, &filter, cursor, &reason);
    let package = export.await.map_err(|e| failed(e.into()))?;
    Ok(Json(Page {
        items: package.letters,
        next: package.next.map(|next| next.to_string()),
    }))
}

pub(crate) async fn import(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ImportQuestion>,
) -> Answer<ImportResult> {
    let ImportQuestion {
        letters,
        why: reason,
    } = question;
    operator.may_import(&reason)?;
    let cluster = find_cluster(&desk).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let import = desk
        .letters
        .unpack(&operator.name, cluster, letters, &reason);
    import.await.map(Json).map_err(refused)
}

pub(crate) async fn plan(
    State(desk): State<Arc<Desk>>,
    Json(selection): Json<Selection>,
) -> Answer<Plan> {
    at_most(&selection)?;
    let turn = desk.log.turn().await.map_err(busy)?;
    let letters = desk.letters.plan_letters(&selection).await;
    let letters = letters.map_err(|e| failed(e.into()))?;
    // The stores may take long, and others read the log meanwhile.
    drop(turn);
    let forecasts = timeout(FORECAST_WITHIN, desk.letters.forecasts(letters)).await;
    let plan = forecasts.map_err(|_| {
        let text = format!(
            "the plan took longer than {FORECAST_WITHIN:?}: plan fewer letters, or try later"
        );
        DeskRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    plan.map(Json).map_err(|e| failed(e.into()))
}

/// Redrives a few letters and waits for the outcome.
pub(crate) async fn redrive(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(selection): Json<Selection>,
) -> Answer<RedriveAnswer> {
    operator.may(Role::Redrive)?;
    at_most(&selection)?;
    let turn = desk.log.turn().await.map_err(busy)?;
    let start = desk.letters.begin_redrive(&operator.name, &selection);
    let Some(task) = start.await.map_err(refused)? else {
        return Ok(Json(RedriveAnswer::default()));
    };
    drop(turn);
    let task = desk.letters.wait(task.id(), REDRIVE_TIMEOUT).await;
    let task = Task::from(task.map_err(refused)?);
    Ok(Json(task.into()))
}

pub(crate) async fn begin(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(request): Json<Request>,
) -> Answer<Task> {
    operator.may(required_role(request.work))?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let start = desk.letters.begin(&operator.name, request);
    Ok(Json(start.await.map_err(refused)?.into()))
}

pub(crate) async fn tasks(State(desk): State<Arc<Desk>>) -> Answer<List<Task>> {
    let tasks = desk.letters.tasks().await;
    let tasks = tasks.map_err(|e| failed(e.into()))?.into_iter();
    let tasks = tasks.map(|task| Task::from(task).summary());
    Ok(Json(tasks.collect::<Vec<_>>().into()))
}

pub(crate) async fn task(State(desk): State<Arc<Desk>>, Path(id): Path<TaskId>) -> Answer<Task> {
    let task = desk.letters.task(&id).await;
    Ok(Json(task.map_err(refused)?.into()))
}

pub(crate) async fn pause(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
    Json(question): Json<PauseQuestion>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let pause = desk.letters.pause(&operator.name, &id, &question.why);
    Ok(Json(pause.await.map_err(refused)?.into()))
}

pub(crate) async fn resume(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let resume = desk.letters.resume(&operator.name, &id);
    Ok(Json(resume.await.map_err(refused)?.into()))
}

pub(crate) async fn cancel(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let cancellation = desk.letters.cancel(&operator.name, &id);
    Ok(Json(cancellation.await.map_err(refused)?.into()))
}

pub(crate) async fn log(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<LogQuestion>,
) -> Answer<Page<Operation>> {
    let LogQuestion {
        limit,
        decisions,
        after: cursor,
    } = question;
    let log = desk.letters.log(limit.unwrap_or(100), decisions, cursor);
    let page = log.await.map_err(|e| failed(e.into()))?;
    Ok(Json(Page {
        items: page.entries.into_iter().map(Operation::from).collect(),
        next: page.next.map(|next| next.to_string()),
    }))
}

/// Logs a look before the body is shown.
async fn write_down_look(
    desk: &Desk,
    operator: &Operator,
    letter: &str,
    reason: &str,
) -> Result<(), DeskRefusal> {
    let log_entry = desk.letters.log_look(&operator.name, letter, reason).await;
    log_entry.map_err(|e| failed(e.into()))
}

async fn find_cluster(desk: &Desk) -> Result<u64, DeskRefusal> {
    let cluster = ask_discovery(desk.registry.cluster()).await?;
    cluster.ok_or_else(|| {
        failed(anyhow::anyhow!(
            "no station has started yet in this installation"
        ))
    })
}

fn no_letter(id: &str) -> DeskRefusal {
    DeskRefusal::new(StatusCode::NOT_FOUND, format!("no dead letter {id}"))
}

/// Checks that the operator may change a task: the role that begins one of its kind.
async fn may_change(desk: &Desk, operator: &Operator, id: &TaskId) -> Result<(), DeskRefusal> {
    let task = desk.letters.task(id).await.map_err(refused)?;
    operator.may(required_role(task.start.work))
}

const fn required_role(work: OperatorWork) -> Role {
    match work {
        OperatorWork::Redrive => Role::Redrive,
        OperatorWork::Discard | OperatorWork::Restore => Role::Discard,
    }
}

fn at_most(selection: &Selection) -> Result<(), DeskRefusal> {
    let letter_count = match selection {
        Selection::Ids { ids } => ids.len(),
        Selection::Filter { limit, .. } => *limit,
    };
    if letter_count > LETTERS_MAX {
        let text = format!("at most {LETTERS_MAX} letters at a time: start a task for more");
        return Err(DeskRefusal::new(StatusCode::BAD_REQUEST, text));
    }
    Ok(())
}

fn reason_of(name: &str) -> Result<DeadReason, DeskRefusal> {
    reason::from_name(name).ok_or_else(|| {
        let names = DeadReason::ALL.map(reason::name).join(", ");
        let text = format!("unknown reason {name:?}; use one of {names}");
        DeskRefusal::new(StatusCode::BAD_REQUEST, text)
    })
}

fn refused(task_refusal: dead_letters::TaskRefusal) -> DeskRefusal {
    match task_refusal {
        dead_letters::TaskRefusal::Refusal(refusal) => {
            let status = match refusal.code {
                Code::NotFound => StatusCode::NOT_FOUND,
                Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::BAD_REQUEST,
            };
            DeskRefusal::of(status, &refusal)
        }
        dead_letters::TaskRefusal::NotEdited(reason) => {
            let status = match reason {
                EditRefusal::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
                EditRefusal::Changed
                | EditRefusal::IsInHand
                | EditRefusal::Redriven
                | EditRefusal::Discarded => StatusCode::CONFLICT,
            };
            DeskRefusal::new(status, reason.to_string())
        }
        other @ dead_letters::TaskRefusal::OtherTask(_) => {
            DeskRefusal::new(StatusCode::CONFLICT, other.to_string())
        }
        dead_letters::TaskRefusal::Failed(error) => failed(error.into()),
    }
}

#[cfg(test)]
mod tests;
