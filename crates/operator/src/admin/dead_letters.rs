//! Dead letters over HTTP: views, plans, and operations on them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use protocol::ledger::DeadReason;
use protocol::{Code, UserId};
use serde::{Deserialize, Serialize};

use super::api::{Answer, Desk, Refused, busy, failed};
use super::operators::{Operator, Role};
use crate::dead_letters::{
    self as dead_letters, Envelope, Filter, ImportResult, Kind, LetterChange, LetterChanged,
    LetterCursor, LetterDetail, LetterPackage, LetterPage, LogPage, Package, Plan, Request,
    Selection, SelectionCount, Stats, TaskAnswer,
};
use crate::desk::{EditRefusal, OperatorTask, OperatorWork, TaskId};

/// Limit of letters in one list, and in a redrive that the request waits for.
pub const LETTERS_MAX: usize = 1000;
/// Limit of bytes in an imported package.
const IMPORT_BYTES: usize = 16 << 20;
/// Limit of bytes in an edited envelope: JSON takes more room than the record it describes.
const EDIT_BYTES: usize = 8 << 20;
/// Longest wait for a redrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// Filter and page of a list of letters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuestion {
    /// Messages or notifications; default: both.
    pub topic: Option<Kind>,
    pub reason: Option<String>,
    /// Cause, as `stats` writes it.
    pub cause: Option<String>,
    /// Text within the error.
    pub text: Option<String>,
    pub conversation: Option<String>,
    pub user: Option<UserId>,
    /// Earliest time of death, milliseconds since 1970.
    pub since: Option<i64>,
    /// End of the times of death, exclusive, milliseconds since 1970.
    pub until: Option<i64>,
    /// Only letters that were redriven (true), or were not (false).
    pub redriven: Option<bool>,
    pub discarded: Option<bool>,
    /// Also letters that were discarded so long ago that they are gone.
    pub with_gone: bool,
    pub limit: Option<usize>,
    /// End of the previous page, as its answer gives it.
    pub after: Option<String>,
}

impl ListQuestion {
    fn after(&self) -> Result<Option<LetterCursor>, Refused> {
        let after = self.after.as_deref().map(str::parse).transpose();
        after.map_err(|text| (StatusCode::BAD_REQUEST, text))
    }

    pub(super) fn filter(&self) -> Result<Filter, Refused> {
        Ok(Filter {
            kind: self.topic,
            reason: self.reason.as_deref().map(reason).transpose()?,
            conversation: self.conversation.clone(),
            user: self.user,
            since: self.since.map(protocol::Timestamp::from_millis),
            until: self.until.map(protocol::Timestamp::from_millis),
            cause: self.cause.as_deref().and_then(|cause| cause.parse().ok()),
            text: self.text.clone(),
            redriven: self.redriven,
            discarded: self.discarded,
            with_gone: self.with_gone,
            ..Filter::default()
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogQuestion {
    pub limit: Option<usize>,
    /// Only decisions of operators, not the work that follows.
    pub decisions: bool,
    /// Only entries before this one, as the previous page gives it.
    pub before: Option<u64>,
}

/// Reason for reading the body of a message.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LookQuestion {
    pub why: String,
}

/// Letters to export, and the reason for exporting message bodies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportQuestion {
    pub list: ListQuestion,
    pub why: String,
}

/// Letters to import, and the reason.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImportQuestion {
    pub letters: Vec<LetterPackage>,
    pub why: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PauseQuestion {
    pub why: String,
}

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/", get(list))
        .route("/stats", get(stats))
        .route("/plan", post(plan))
        .route("/count", post(count))
        .route("/redrive", post(redrive))
        .route("/log", get(log))
        .route("/tasks", get(tasks).post(begin))
        .route("/tasks/{id}", get(task))
        .route("/tasks/{id}/pause", post(pause))
        .route("/tasks/{id}/resume", post(resume))
        .route("/tasks/{id}/cancel", post(cancel))
        .route("/export", post(export))
        .route(
            "/import",
            post(import).layer(DefaultBodyLimit::max(IMPORT_BYTES)),
        )
        .route("/{id}", get(show))
        // A read is logged, and so changes something.
        .route("/{id}/read", post(read))
        .route("/{id}/envelope", post(envelope))
        .route(
            "/{id}/edit",
            post(edit).layer(DefaultBodyLimit::max(EDIT_BYTES)),
        )
}

pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<ListQuestion>,
) -> Answer<LetterPage> {
    let (filter, after) = (question.filter()?, question.after()?);
    let limit = question.limit.unwrap_or(100).clamp(1, LETTERS_MAX);
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .list(&filter, after, limit)
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

pub(super) async fn stats(State(desk): State<Arc<Desk>>) -> Answer<Stats> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .stats()
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

pub(super) async fn show(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
) -> Answer<LetterDetail> {
    shown(&desk, &id, false).await
}

/// Shows a letter with the body of its message.
pub(super) async fn read(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(question): Json<LookQuestion>,
) -> Answer<LetterDetail> {
    operator.may_read(&question.why)?;
    write_down_look(&desk, &operator, &id, &question.why).await?;
    shown(&desk, &id, true).await
}

async fn shown(desk: &Desk, id: &str, body: bool) -> Answer<LetterDetail> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    match desk.letters.show(id, body).await {
        Ok(Some(shown)) => Ok(Json(shown)),
        Ok(None) => Err(no_letter(id)),
        Err(error) => Err(failed(error.into())),
    }
}

/// Content of a letter, for editing.
pub(super) async fn envelope(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(question): Json<LookQuestion>,
) -> Answer<Envelope> {
    operator.may_read(&question.why)?;
    write_down_look(&desk, &operator, &id, &question.why).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let held = desk.letters.envelope(&id).await.map_err(refused)?;
    held.map(Json).ok_or_else(|| no_letter(&id))
}

pub(super) async fn edit(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<String>,
    Json(change): Json<LetterChange>,
) -> Answer<LetterChanged> {
    operator.may_edit(&change.why)?;
    if change.dry_run {
        // The difference shows the body.
        write_down_look(&desk, &operator, &id, &change.why).await?;
    }
    let _turn = desk.log.turn().await.map_err(busy)?;
    let changed = desk.letters.edit(&operator.name, &id, change);
    let changed = changed.await.map_err(refused)?;
    changed.map(Json).ok_or_else(|| no_letter(&id))
}

pub(super) async fn count(
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

async fn export(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ExportQuestion>,
) -> Answer<Package> {
    let ExportQuestion { list, why } = question;
    operator.may_read(&why)?;
    let (filter, after) = (list.filter()?, list.after()?);
    let _turn = desk.log.turn().await.map_err(busy)?;
    let cluster = cluster_of(&desk).await?;
    let letters = &desk.letters;
    let packed = letters.pack(&operator.name, cluster, &filter, after, &why);
    packed.await.map(Json).map_err(|e| failed(e.into()))
}

async fn import(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ImportQuestion>,
) -> Answer<ImportResult> {
    let ImportQuestion { letters, why } = question;
    operator.may_import(&why)?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let cluster = cluster_of(&desk).await?;
    let unpacked = desk.letters.unpack(&operator.name, cluster, letters, &why);
    unpacked.await.map(Json).map_err(refused)
}

pub(super) async fn plan(
    State(desk): State<Arc<Desk>>,
    Json(selection): Json<Selection>,
) -> Answer<Plan> {
    at_most(&selection)?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .plan(&selection)
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

/// Redrives a few letters and waits for the outcome.
async fn redrive(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(selection): Json<Selection>,
) -> Answer<Vec<TaskAnswer>> {
    operator.may(Role::Redrive)?;
    at_most(&selection)?;
    let turn = desk.log.turn().await.map_err(busy)?;
    let begun = desk.letters.begin_redrive(&operator.name, &selection);
    let Some(task) = begun.await.map_err(refused)? else {
        return Ok(Json(Vec::new()));
    };
    drop(turn);
    let told = desk.letters.told(&task, PATIENCE);
    told.await.map(Json).map_err(refused)
}

pub(super) async fn begin(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(request): Json<Request>,
) -> Answer<OperatorTask> {
    operator.may(role_of(request.work))?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let begun = desk.letters.begin(&operator.name, request);
    begun.await.map(Json).map_err(refused)
}

pub(super) async fn tasks(State(desk): State<Arc<Desk>>) -> Answer<Vec<OperatorTask>> {
    let tasks = desk.letters.tasks().await;
    tasks.map(Json).map_err(|e| failed(e.into()))
}

pub(super) async fn task(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<TaskId>,
) -> Answer<OperatorTask> {
    desk.letters.task(&id).await.map(Json).map_err(refused)
}

pub(super) async fn pause(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
    Json(question): Json<PauseQuestion>,
) -> Answer<OperatorTask> {
    may_change(&desk, &operator, &id).await?;
    let paused = desk.letters.pause(&operator.name, &id, &question.why);
    paused.await.map(Json).map_err(refused)
}

pub(super) async fn resume(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<OperatorTask> {
    may_change(&desk, &operator, &id).await?;
    let resumed = desk.letters.resume(&operator.name, &id);
    resumed.await.map(Json).map_err(refused)
}

pub(super) async fn cancel(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<OperatorTask> {
    may_change(&desk, &operator, &id).await?;
    let cancelled = desk.letters.cancel(&operator.name, &id);
    cancelled.await.map(Json).map_err(refused)
}

async fn log(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<LogQuestion>,
) -> Answer<LogPage> {
    let LogQuestion {
        limit,
        decisions,
        before,
    } = question;
    let log = desk.letters.log(limit.unwrap_or(100), decisions, before);
    log.await.map(Json).map_err(|e| failed(e.into()))
}

/// Logs a look before the body is shown.
async fn write_down_look(
    desk: &Desk,
    operator: &Operator,
    letter: &str,
    why: &str,
) -> Result<(), Refused> {
    let looked = desk.letters.looked(&operator.name, letter, why).await;
    looked.map_err(|e| failed(e.into()))
}

async fn cluster_of(desk: &Desk) -> Result<u64, Refused> {
    let cluster = desk.registry.cluster().await;
    let cluster = cluster.map_err(|e| failed(e.into()))?;
    cluster.ok_or_else(|| failed(anyhow::anyhow!("no station was started here yet")))
}

fn no_letter(id: &str) -> Refused {
    (StatusCode::NOT_FOUND, format!("no dead letter {id}"))
}

/// Checks that the operator may change a task: the role that begins one of its kind.
async fn may_change(desk: &Desk, operator: &Operator, id: &TaskId) -> Result<(), Refused> {
    let task = desk.letters.task(id).await.map_err(refused)?;
    operator.may(role_of(task.begun.work))
}

const fn role_of(work: OperatorWork) -> Role {
    match work {
        OperatorWork::Redrive => Role::Redrive,
        OperatorWork::Discard | OperatorWork::Restore => Role::Discard,
    }
}

fn at_most(selection: &Selection) -> Result<(), Refused> {
    let asked = match selection {
        Selection::Ids(ids) => ids.len(),
        Selection::Filter { limit, .. } => *limit,
    };
    if asked > LETTERS_MAX {
        let text = format!("at most {LETTERS_MAX} letters at a time: begin a task for more");
        return Err((StatusCode::BAD_REQUEST, text));
    }
    Ok(())
}

fn reason(name: &str) -> Result<DeadReason, Refused> {
    DeadReason::from_name(name).ok_or_else(|| {
        let known: Vec<_> = DeadReason::ALL.iter().map(|reason| reason.name()).collect();
        let text = format!("{name:?} is no reason; there are {}", known.join(", "));
        (StatusCode::BAD_REQUEST, text)
    })
}

fn refused(refused: dead_letters::Refused) -> Refused {
    match refused {
        dead_letters::Refused::Refusal(refusal) => {
            let status = match refusal.code {
                Code::NotFound => StatusCode::NOT_FOUND,
                Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::BAD_REQUEST,
            };
            (status, refusal.text)
        }
        dead_letters::Refused::NotEdited(why) => {
            let status = match why {
                EditRefusal::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
                EditRefusal::Changed
                | EditRefusal::IsClaimed
                | EditRefusal::Redriven
                | EditRefusal::Discarded => StatusCode::CONFLICT,
            };
            (status, why.to_string())
        }
        dead_letters::Refused::Failed(error) => failed(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use protocol::bounds::Bounds;

    use super::*;
    use crate::admin::audit;
    use crate::admin::operators::Operators;
    use crate::desk::Version;
    use crate::in_memory::Environment;

    fn desk() -> State<Arc<Desk>> {
        let environment = Environment::in_memory().expect("stores in memory");
        State(Arc::new(Desk::new(
            &environment.backends,
            &environment.connector,
            Bounds::default(),
            Operators::default(),
        )))
    }

    fn anybody() -> Extension<Operator> {
        Extension(Operator::anybody())
    }

    #[tokio::test(start_paused = true)]
    async fn a_desk_that_is_busy_says_that_one_may_ask_again() {
        let desk = desk();
        let turn = desk.log.turn().await.expect("nobody reads");
        let listed = list(desk.clone(), Query(ListQuestion::default())).await;
        let counted = stats(desk.clone()).await;
        let audited =
            super::super::api::audit_all(desk.clone(), Query(audit::AuditQuestion::default()));
        for refused in [audited.await.err(), listed.err(), counted.err()] {
            let (status, text) = refused.expect("refused");
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert!(text.contains("ask again"), "{text}");
        }
        drop(turn);
        assert!(stats(desk).await.is_ok());
    }

    #[tokio::test]
    async fn a_redrive_has_an_end() {
        let many = Selection::Ids(vec!["message-0-0".to_owned(); LETTERS_MAX + 1]);
        let refused = redrive(desk(), anybody(), Json(many)).await;
        let (status, text) = refused.expect_err("refused");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("1000"), "{text}");
    }

    #[tokio::test]
    async fn a_role_is_needed() {
        let viewer = || Extension(Operator::with("ann", &[Role::View]));
        let one = Selection::Ids(vec!["message-0-0".to_owned()]);
        let refused = redrive(desk(), viewer(), Json(one)).await;
        assert_eq!(refused.expect_err("refused").0, StatusCode::FORBIDDEN);
        let because = |why: &str| {
            let why = why.to_owned();
            Json(LookQuestion { why })
        };
        let id = || Path("message-0-0".to_owned());
        let refused = read(desk(), viewer(), id(), because("a complaint")).await;
        assert_eq!(refused.expect_err("refused").0, StatusCode::FORBIDDEN);
        let reader = || Extension(Operator::with("bob", &[Role::View, Role::ViewBody]));
        let refused = read(desk(), reader(), id(), because("")).await;
        assert_eq!(refused.expect_err("refused").0, StatusCode::BAD_REQUEST);
        let desk = desk();
        let nothing = read(desk.clone(), reader(), id(), because("a complaint")).await;
        assert_eq!(nothing.expect_err("no letter").0, StatusCode::NOT_FOUND);
        let Json(page) = log(desk.clone(), Query(LogQuestion::default()))
            .await
            .expect("a log");
        assert_eq!(page.entries.len(), 1, "who looked is written down");
        assert_eq!(page.entries[0].by, "bob");
        let change = || {
            Json(LetterChange {
                base: Version::of(b""),
                envelope: "{}".to_owned(),
                why: "a test".to_owned(),
                dry_run: true,
                drop_unknown: false,
            })
        };
        let refused = edit(desk.clone(), reader(), id(), change()).await;
        assert_eq!(refused.expect_err("refused").0, StatusCode::FORBIDDEN);
        let blind = || Extension(Operator::with("eve", &[Role::View, Role::Edit]));
        let refused = edit(desk.clone(), blind(), id(), change()).await;
        assert_eq!(refused.expect_err("refused").0, StatusCode::FORBIDDEN);
        let editor = Operator::with("dan", &[Role::View, Role::ViewBody, Role::Edit]);
        let nothing = edit(desk.clone(), Extension(editor), id(), change()).await;
        assert_eq!(nothing.expect_err("no letter").0, StatusCode::NOT_FOUND);
        let page = log(desk, Query(LogQuestion::default())).await;
        let Json(page) = page.expect("a log");
        assert_eq!(
            page.entries.len(),
            2,
            "who saw a difference is written down"
        );
        assert_eq!(page.entries[0].by, "dan");
    }
}
