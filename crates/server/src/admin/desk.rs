//! The operators' desk: dead letters, traces, audit, as JSON over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use backend::ledger::LedgerStore;
use backend::queue::Queue;
use carrier::DeadLetters;
use carrier::dead_letters::{Cursor, Filter, Page, Redrive, Selection, Shown, Stats};
use protocol::ledger::DeadReason;
use serde::{Deserialize, Serialize};

use super::{audit, trace};
use crate::compose::embedded::Seams;

/// Letters of one answer.
const PAGE_MAX: usize = 1000;

/// What the desk works with.
pub struct Desk {
    queue: Arc<dyn Queue>,
    ledger: Arc<dyn LedgerStore>,
    letters: DeadLetters,
}

impl Desk {
    pub fn new(seams: &Seams) -> Desk {
        let (queue, ledger) = (seams.queue.clone(), seams.ledger.clone());
        Desk {
            letters: DeadLetters::new(queue.clone(), ledger.clone(), seams.clock.clone()),
            queue,
            ledger,
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
    pub reason: Option<String>,
    pub conversation: Option<String>,
    /// Only those that were, or were not, redriven.
    pub redriven: Option<bool>,
    pub limit: Option<usize>,
    /// Where the page before ended: partition and offset.
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
    trace::trace(desk.queue.as_ref(), desk.ledger.as_ref(), name)
        .await
        .map(Json)
        .map_err(failed)
}

async fn audit_all(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<audit::Question>,
) -> Answer<audit::Report> {
    audit::audit(desk.queue.as_ref(), desk.ledger.as_ref(), &question)
        .await
        .map(Json)
        .map_err(failed)
}

async fn list(State(desk): State<Arc<Desk>>, Query(question): Query<ListQuestion>) -> Answer<Page> {
    let reason = question.reason.as_deref().map(reason).transpose()?;
    let after = question.after.as_deref().map(cursor).transpose()?;
    let filter = Filter {
        reason,
        conversation: question.conversation,
        redriven: question.redriven,
        ..Filter::default()
    };
    let limit = question.limit.unwrap_or(100).clamp(1, PAGE_MAX);
    desk.letters
        .list(&filter, after, limit)
        .await
        .map(Json)
        .map_err(|e| failed(e.into()))
}

async fn stats(State(desk): State<Arc<Desk>>) -> Answer<Stats> {
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

/// `0-17`: partition and offset.
fn cursor(text: &str) -> Result<Cursor, Refused> {
    let parts = text.split_once('-').and_then(|(partition, offset)| {
        Some(Cursor {
            partition: partition.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    });
    parts.ok_or_else(|| {
        (
            StatusCode::BAD_REQUEST,
            format!("{text:?} is no place in a list"),
        )
    })
}

fn failed(error: anyhow::Error) -> Refused {
    tracing::warn!(error = format!("{error:#}"), "the desk could not answer");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
}
