//! The operators' desk: dead letters, traces, audit, as JSON over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use backend::clock::Clock;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use carrier::DeadLetters;
use carrier::dead_letters::{Cursor, Filter, Kind, Page, Redrive, Selection, Shown, Stats};
use protocol::ledger::DeadReason;
use serde::{Deserialize, Serialize};

use super::log::{Busy, Log};
use super::{audit, trace};
use crate::compose::Seams;

/// Letters of one answer, and of one redrive.
pub const LETTERS_MAX: usize = 1000;

/// What the desk works with. Whatever goes over the log takes its turn.
pub struct Desk {
    log: Log,
    history: Arc<dyn HistoryStore>,
    ledger: Arc<dyn LedgerStore>,
    clock: Arc<dyn Clock>,
    letters: DeadLetters,
}

impl Desk {
    pub fn new(seams: &Seams) -> Desk {
        let (queue, ledger) = (seams.queue.clone(), seams.ledger.clone());
        Desk {
            letters: DeadLetters::new(queue.clone(), ledger.clone(), seams.clock.clone()),
            log: Log::new(queue),
            history: seams.history.clone(),
            ledger,
            clock: seams.clock.clone(),
        }
    }
}

/// A refusal of the desk: a status and a sentence.
type Refused = (StatusCode, String);
type Answer<T> = Result<Json<T>, Refused>;

/// Which letters a list shows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuestion {
    /// Messages or notifications; default: both.
    pub topic: Option<Kind>,
    pub reason: Option<String>,
    pub conversation: Option<String>,
    /// Only those that were, or were not, redriven.
    pub redriven: Option<bool>,
    pub limit: Option<usize>,
    /// Where the page before ended, as its answer says it.
    pub after: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ShowQuestion {
    #[serde(default)]
    pub body: bool,
}

pub(super) fn routes(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/trace/{id}", get(trace_one))
        .route("/audit", get(audit_all))
        .route("/dead-letters", get(list))
        .route("/dead-letters/stats", get(stats))
        .route("/dead-letters/redrive", post(redrive))
        .route("/dead-letters/{id}", get(show))
        .with_state(desk)
}

async fn trace_one(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
) -> Answer<Vec<trace::Report>> {
    let name = id.parse().map_err(|text| (StatusCode::BAD_REQUEST, text))?;
    let (history, ledger) = (desk.history.as_ref(), desk.ledger.as_ref());
    trace::trace(&desk.log, history, ledger, name)
        .await
        .map(Json)
        .map_err(failed)
}

async fn audit_all(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<audit::Question>,
) -> Answer<audit::Report> {
    let now = desk.clock.now();
    audit::audit(&desk.log, desk.ledger.as_ref(), &question, now)
        .await
        .map(Json)
        .map_err(failed)
}

async fn list(State(desk): State<Arc<Desk>>, Query(question): Query<ListQuestion>) -> Answer<Page> {
    let reason = question.reason.as_deref().map(reason).transpose()?;
    let after = question.after.map(|text| text.parse()).transpose();
    let after: Option<Cursor> = after.map_err(|text| (StatusCode::BAD_REQUEST, text))?;
    let filter = Filter {
        kind: question.topic,
        reason,
        conversation: question.conversation,
        redriven: question.redriven,
        ..Filter::default()
    };
    let limit = question.limit.unwrap_or(100).clamp(1, LETTERS_MAX);
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .list(&filter, after, limit)
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

async fn stats(State(desk): State<Arc<Desk>>) -> Answer<Stats> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    desk.letters
        .stats()
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

async fn show(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
    Query(question): Query<ShowQuestion>,
) -> Answer<Shown> {
    let _turn = desk.log.turn().await.map_err(busy)?;
    match desk.letters.show(&id, question.body).await {
        Ok(Some(shown)) => Ok(Json(shown)),
        Ok(None) => Err((StatusCode::NOT_FOUND, format!("no dead letter {id}"))),
        Err(error) => Err(failed(error.into())),
    }
}

async fn redrive(
    State(desk): State<Arc<Desk>>,
    Json(selection): Json<Selection>,
) -> Answer<Vec<Redrive>> {
    let asked = match &selection {
        Selection::Ids(ids) => ids.len(),
        Selection::Filter { limit, .. } => *limit,
    };
    if asked > LETTERS_MAX {
        let text =
            format!("at most {LETTERS_MAX} letters are redriven at a time: ask again for the rest");
        return Err((StatusCode::BAD_REQUEST, text));
    }
    let _turn = desk.log.turn().await.map_err(busy)?;
    let redriven = desk
        .letters
        .redrive(&selection)
        .await
        .map_err(|e| failed(e.into()))?;
    tracing::info!(letters = redriven.len(), "dead letters redriven");
    Ok(Json(redriven))
}

fn reason(name: &str) -> Result<DeadReason, Refused> {
    DeadReason::from_name(name).ok_or_else(|| {
        let known: Vec<_> = DeadReason::ALL.iter().map(|reason| reason.name()).collect();
        let text = format!("{name:?} is no reason; there are {}", known.join(", "));
        (StatusCode::BAD_REQUEST, text)
    })
}

fn busy(busy: Busy) -> Refused {
    (StatusCode::TOO_MANY_REQUESTS, busy.to_string())
}

fn failed(error: anyhow::Error) -> Refused {
    let error = match error.downcast() {
        Ok(refused) => return busy(refused),
        Err(error) => error,
    };
    tracing::warn!(error = format!("{error:#}"), "the desk could not answer");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compose::embedded::Config;

    #[tokio::test(start_paused = true)]
    async fn a_desk_that_is_busy_says_that_one_may_ask_again() {
        let seams = Seams::in_memory(&Config::default()).expect("stores in memory");
        let desk = Arc::new(Desk::new(&seams));
        let turn = desk.log.turn().await.expect("nobody reads");
        let audited = audit_all(State(desk.clone()), Query(audit::Question::default())).await;
        let listed = list(State(desk.clone()), Query(ListQuestion::default())).await;
        let counted = stats(State(desk.clone())).await;
        for refused in [audited.err(), listed.err(), counted.err()] {
            let (status, text) = refused.expect("refused");
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert!(text.contains("ask again"), "{text}");
        }
        drop(turn);
        assert!(stats(State(desk)).await.is_ok());
    }

    #[tokio::test]
    async fn a_redrive_has_an_end() {
        let seams = Seams::in_memory(&Config::default()).expect("stores in memory");
        let desk = Arc::new(Desk::new(&seams));
        let many = Selection::Ids(vec!["message-0-0".to_owned(); LETTERS_MAX + 1]);
        let (status, text) = redrive(State(desk), Json(many)).await.expect_err("refused");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("1000"), "{text}");
    }
}
