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

use super::api::{Answer, Desk, busy, failed};
use super::kick::discovered;
use super::operation::Operation;
use super::operators::{Operator, Role};
use super::refusal::Refused;
use super::task::{RedriveAnswer, Task};
use crate::answer::{List, Page, Time, id, reason};
use crate::dead_letters::{
    self as dead_letters, EditResult, Envelope, Filter, ImportResult, Kind, Letter, LetterChange,
    LetterCursor, LetterDetail, LetterPackage, Plan, Request, Selection, SelectionCount, Stats,
};
use crate::desk::{EditRefusal, OperatorWork, TaskId};

/// Limit of letters in one list, and in a redrive that the request waits for.
pub const LETTERS_MAX: usize = 1000;
/// Limit of bytes in an imported package.
pub(super) const IMPORT_BYTES: usize = 16 << 20;
/// Limit of bytes in an edited envelope: JSON takes more room than the record it describes.
pub(super) const EDIT_BYTES: usize = 8 << 20;
/// Longest wait for a redrive.
const PATIENCE: Duration = Duration::from_secs(20);
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
    fn after(&self) -> Result<Option<LetterCursor>, Refused> {
        let after = self.after.as_deref().map(str::parse).transpose();
        after.map_err(|text| Refused::new(StatusCode::BAD_REQUEST, text))
    }

    fn filter(&self) -> Result<Filter, Refused> {
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

pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<ListQuestion>,
) -> Answer<Page<Letter>> {
    let (filter, after) = (question.filter()?, question.after()?);
    let limit = question.limit.unwrap_or(100).clamp(1, LETTERS_MAX);
    let _turn = desk.log.turn().await.map_err(busy)?;
    let page = desk.letters.list(&filter, after, limit).await;
    let page = page.map_err(|e| failed(e.into()))?;
    Ok(Json(Page {
        items: page.letters,
        next: page.next.map(|next| next.to_string()),
    }))
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
) -> Answer<EditResult> {
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

pub(super) async fn export(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ExportQuestion>,
) -> Answer<Page<LetterPackage>> {
    let ExportQuestion { list, why } = question;
    operator.may_read(&why)?;
    let (filter, after) = (list.filter()?, list.after()?);
    let cluster = cluster_of(&desk).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let letters = &desk.letters;
    let packed = letters.pack(&operator.name, cluster, &filter, after, &why);
    let package = packed.await.map_err(|e| failed(e.into()))?;
    Ok(Json(Page {
        items: package.letters,
        next: package.next.map(|next| next.to_string()),
    }))
}

pub(super) async fn import(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(question): Json<ImportQuestion>,
) -> Answer<ImportResult> {
    let ImportQuestion { letters, why } = question;
    operator.may_import(&why)?;
    let cluster = cluster_of(&desk).await?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let unpacked = desk.letters.unpack(&operator.name, cluster, letters, &why);
    unpacked.await.map(Json).map_err(refused)
}

pub(super) async fn plan(
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
        let text = format!("no forecast within {FORECAST_WITHIN:?}: plan fewer letters, or later");
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    plan.map(Json).map_err(|e| failed(e.into()))
}

/// Redrives a few letters and waits for the outcome.
pub(super) async fn redrive(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(selection): Json<Selection>,
) -> Answer<RedriveAnswer> {
    operator.may(Role::Redrive)?;
    at_most(&selection)?;
    let turn = desk.log.turn().await.map_err(busy)?;
    let begun = desk.letters.begin_redrive(&operator.name, &selection);
    let Some(task) = begun.await.map_err(refused)? else {
        return Ok(Json(RedriveAnswer::default()));
    };
    drop(turn);
    let task = desk.letters.wait(task.id(), PATIENCE).await;
    let task = Task::from(task.map_err(refused)?);
    Ok(Json(task.into()))
}

pub(super) async fn begin(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Json(request): Json<Request>,
) -> Answer<Task> {
    operator.may(role_of(request.work))?;
    let _turn = desk.log.turn().await.map_err(busy)?;
    let begun = desk.letters.begin(&operator.name, request);
    Ok(Json(begun.await.map_err(refused)?.into()))
}

pub(super) async fn tasks(State(desk): State<Arc<Desk>>) -> Answer<List<Task>> {
    let tasks = desk.letters.tasks().await;
    let tasks = tasks.map_err(|e| failed(e.into()))?.into_iter();
    let tasks = tasks.map(|task| Task::from(task).summary());
    Ok(Json(tasks.collect::<Vec<_>>().into()))
}

pub(super) async fn task(State(desk): State<Arc<Desk>>, Path(id): Path<TaskId>) -> Answer<Task> {
    let task = desk.letters.task(&id).await;
    Ok(Json(task.map_err(refused)?.into()))
}

pub(super) async fn pause(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
    Json(question): Json<PauseQuestion>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let paused = desk.letters.pause(&operator.name, &id, &question.why);
    Ok(Json(paused.await.map_err(refused)?.into()))
}

pub(super) async fn resume(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let resumed = desk.letters.resume(&operator.name, &id);
    Ok(Json(resumed.await.map_err(refused)?.into()))
}

pub(super) async fn cancel(
    State(desk): State<Arc<Desk>>,
    Extension(operator): Extension<Operator>,
    Path(id): Path<TaskId>,
) -> Answer<Task> {
    may_change(&desk, &operator, &id).await?;
    let cancelled = desk.letters.cancel(&operator.name, &id);
    Ok(Json(cancelled.await.map_err(refused)?.into()))
}

pub(super) async fn log(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<LogQuestion>,
) -> Answer<Page<Operation>> {
    let LogQuestion {
        limit,
        decisions,
        after,
    } = question;
    let log = desk.letters.log(limit.unwrap_or(100), decisions, after);
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
    why: &str,
) -> Result<(), Refused> {
    let looked = desk.letters.looked(&operator.name, letter, why).await;
    looked.map_err(|e| failed(e.into()))
}

async fn cluster_of(desk: &Desk) -> Result<u64, Refused> {
    let cluster = discovered(desk.registry.cluster()).await?;
    cluster.ok_or_else(|| failed(anyhow::anyhow!("no station was started here yet")))
}

fn no_letter(id: &str) -> Refused {
    Refused::new(StatusCode::NOT_FOUND, format!("no dead letter {id}"))
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
        Selection::Ids { ids } => ids.len(),
        Selection::Filter { limit, .. } => *limit,
    };
    if asked > LETTERS_MAX {
        let text = format!("at most {LETTERS_MAX} letters at a time: begin a task for more");
        return Err(Refused::new(StatusCode::BAD_REQUEST, text));
    }
    Ok(())
}

fn reason_of(name: &str) -> Result<DeadReason, Refused> {
    reason::named(name).ok_or_else(|| {
        let known = DeadReason::ALL.map(reason::name).join(", ");
        let text = format!("{name:?} is no reason; there are {known}");
        Refused::new(StatusCode::BAD_REQUEST, text)
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
            Refused::of(status, &refusal)
        }
        dead_letters::Refused::NotEdited(why) => {
            let status = match why {
                EditRefusal::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
                EditRefusal::Changed
                | EditRefusal::IsClaimed
                | EditRefusal::Redriven
                | EditRefusal::Discarded => StatusCode::CONFLICT,
            };
            Refused::new(status, why.to_string())
        }
        other @ dead_letters::Refused::OtherTask(_) => {
            Refused::new(StatusCode::CONFLICT, other.to_string())
        }
        dead_letters::Refused::Failed(error) => failed(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use async_trait::async_trait;
    use backend::hook::{Hook, Op};
    use backend::queue::NewRecord;
    use protocol::bounds::Bounds;
    use protocol::{MessageId, Timestamp};
    use tokio::time::sleep;

    use super::*;
    use crate::admin::audit;
    use crate::admin::operators::Operators;
    use crate::admin::tests::{Books, dead_letter};
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
            let refused = refused.expect("refused");
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
            let error = refused.error;
            assert!(
                error.retry && error.message.contains("ask again"),
                "{error:?}"
            );
        }
        drop(turn);
        assert!(stats(desk).await.is_ok());
    }

    /// Ledger and discovery never answer.
    struct Away;

    #[async_trait]
    impl Hook for Away {
        async fn before(&self, op: &Op) -> backend::Result<()> {
            match op.name {
                "trace" | "cluster" => pending().await,
                _ => Ok(()),
            }
        }
    }

    /// A desk with the letter of a message, among stores that never answer.
    async fn desk_alone() -> State<Arc<Desk>> {
        let environment = Environment::in_memory().expect("stores in memory");
        let message = Books::new().record(MessageId::new(1 << 40).expect("positive"));
        let letter = NewRecord {
            key: message.key,
            value: message.value,
            ..dead_letter(0, Timestamp::ZERO)
        };
        let producer = environment.backends.queue.producer();
        let published = producer.publish(vec![letter]).await;
        assert!(published.iter().all(Result::is_ok), "{published:?}");
        let hook: Arc<dyn Hook> = Arc::new(Away);
        State(Arc::new(Desk::new(
            &environment.backends.hooked(&hook),
            &environment.connector,
            Bounds::default(),
            Operators::default(),
        )))
    }

    /// Has a turn while others wait for the stores.
    async fn turn_meanwhile(desk: &Desk) {
        sleep(Duration::from_secs(1)).await;
        drop(desk.log.turn().await.expect("nobody holds a turn"));
    }

    // A slow store kept all others from the log.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_the_stores_holds_no_turn_and_waits_for_an_end() {
        let desk = desk_alone().await;
        let one = Selection::ids(vec!["message-0-0".to_owned()]);
        let planned = plan(desk.clone(), Json(one));
        let (planned, ()) = tokio::join!(planned, turn_meanwhile(&desk));
        let exported = export(desk.clone(), anybody(), Json(ExportQuestion::default()));
        let (exported, ()) = tokio::join!(exported, turn_meanwhile(&desk));
        let imported = import(desk.clone(), anybody(), Json(ImportQuestion::default()));
        let (imported, ()) = tokio::join!(imported, turn_meanwhile(&desk));
        for refused in [planned.err(), exported.err(), imported.err()] {
            let refused = refused.expect("nobody answers");
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(refused.error.retry, "{refused:?}");
        }
    }

    // Nothing matched, and nothing done yet, were one answer.
    #[tokio::test(start_paused = true)]
    async fn a_redrive_counts_the_letters_without_an_outcome_and_names_its_task() {
        let desk = desk_alone().await;
        let filter = |text: &str| Selection::Filter {
            filter: Filter {
                text: Some(text.to_owned()),
                ..Filter::default()
            },
            limit: 10,
        };
        let nothing = redrive(desk.clone(), anybody(), Json(filter("no such error"))).await;
        let Json(nothing) = nothing.expect("an answer");
        assert_eq!(nothing, RedriveAnswer::default());
        // Nobody works.
        let begun = redrive(desk.clone(), anybody(), Json(filter(""))).await;
        let Json(begun) = begun.expect("an answer");
        assert_eq!((begun.items.len(), begun.truncated), (0, 1));
        let id = begun.task.expect("a task");
        let Json(task) = task(desk, Path(id)).await.expect("it goes on");
        assert_eq!(task.letters, 1);
    }

    #[tokio::test]
    async fn a_redrive_has_an_end() {
        let many = Selection::ids(vec!["message-0-0".to_owned(); LETTERS_MAX + 1]);
        let refused = redrive(desk(), anybody(), Json(many)).await;
        let refused = refused.expect_err("refused");
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.error.message.contains("1000"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_role_is_needed() {
        let viewer = || Extension(Operator::with("ann", &[Role::View]));
        let one = Selection::ids(vec!["message-0-0".to_owned()]);
        let refused = redrive(desk(), viewer(), Json(one)).await;
        assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
        let because = |why: &str| {
            let why = why.to_owned();
            Json(LookQuestion { why })
        };
        let id = || Path("message-0-0".to_owned());
        let refused = read(desk(), viewer(), id(), because("a complaint")).await;
        assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
        let reader = || Extension(Operator::with("bob", &[Role::View, Role::ViewBody]));
        let refused = read(desk(), reader(), id(), because("")).await;
        assert_eq!(
            refused.expect_err("refused").status,
            StatusCode::BAD_REQUEST
        );
        let desk = desk();
        let nothing = read(desk.clone(), reader(), id(), because("a complaint")).await;
        assert_eq!(
            nothing.expect_err("no letter").status,
            StatusCode::NOT_FOUND
        );
        let Json(page) = log(desk.clone(), Query(LogQuestion::default()))
            .await
            .expect("a log");
        assert_eq!(page.items.len(), 1, "who looked is written down");
        assert_eq!(page.items[0].by, "bob");
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
        assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
        let blind = || Extension(Operator::with("eve", &[Role::View, Role::Edit]));
        let refused = edit(desk.clone(), blind(), id(), change()).await;
        assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
        let editor = Operator::with("dan", &[Role::View, Role::ViewBody, Role::Edit]);
        let nothing = edit(desk.clone(), Extension(editor), id(), change()).await;
        assert_eq!(
            nothing.expect_err("no letter").status,
            StatusCode::NOT_FOUND
        );
        let page = log(desk, Query(LogQuestion::default())).await;
        let Json(page) = page.expect("a log");
        assert_eq!(page.items.len(), 2, "who saw a difference is written down");
        assert_eq!(page.items[0].by, "dan");
    }
}
