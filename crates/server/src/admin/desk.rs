//! The operators' desk: traces and audit here, dead letters beside it, as JSON over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use backend::audit::AuditStore;
use backend::clock::Clock;
use backend::discovery::Registry;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use carrier::DeadLetters;
use protocol::access::{Caller, Role};
use tokio_util::sync::CancellationToken;

use super::auditor::{self, Auditor};
use super::drain::{self, Boats};
use super::keep::keep;
use super::kick::{self, Stations};
use super::log::{Busy, Log};
use super::operators::{Operator, Operators, authenticate};
use super::{answer, audit, letters, trace, verify};
use crate::compose::Environment;

/// What the desk works with. Whatever goes over the log takes its turn.
pub struct Desk {
    pub(super) log: Arc<Log>,
    pub(super) letters: DeadLetters,
    history: Arc<dyn HistoryStore>,
    ledger: Arc<dyn LedgerStore>,
    mailbox: Arc<dyn MailboxStore>,
    audit: Arc<dyn AuditStore>,
    pub(super) registry: Arc<dyn Registry>,
    pub(super) stations: Stations,
    pub(super) boats: Boats,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) operators: Arc<Operators>,
}

impl Desk {
    pub fn new(environment: &Environment, station: &station::Config, operators: Operators) -> Desk {
        let Environment {
            backends,
            connector,
            ..
        } = environment.clone();
        let connector = connector.with_caller(Caller::new(Role::Desk, "desk"));
        Desk {
            letters: DeadLetters::new(backends.clone(), station.bounds()),
            log: Arc::new(Log::new(backends.queue.clone())),
            history: backends.history.clone(),
            ledger: backends.ledger.clone(),
            mailbox: backends.mailbox.clone(),
            audit: backends.audit.clone(),
            registry: backends.registry.clone(),
            stations: Stations::new(
                backends.registry.clone(),
                connector.clone(),
                backends.entropy.clone(),
            ),
            boats: Boats::new(backends.registry.clone(), connector),
            clock: backends.clock.clone(),
            operators: Arc::new(operators),
        }
    }

    /// Does what operators ask for until `stop`, under this name, whenever no other process does.
    pub fn employ(&self, name: &str, stop: CancellationToken) {
        let (letters, name) = (self.letters.clone(), name.to_owned());
        let until = stop.clone();
        keep("letters", stop, move || {
            letters.clone().work(name.clone(), until.clone())
        });
    }

    /// Closes minutes until `stop`, whenever no other process does, where the settings want it. Reads the same
    /// log as this desk, in turn with its questions. `worker`: a number that no other process has.
    pub fn close_minutes(
        self: &Arc<Self>,
        worker: u64,
        config: &auditor::Config,
        stop: CancellationToken,
    ) {
        if !config.continuous {
            return;
        }
        let (desk, config, until) = (self.clone(), config.clone(), stop.clone());
        keep("audit", stop, move || {
            desk.auditor(worker, config.clone()).run(until.clone())
        });
    }

    /// What `close_minutes` keeps running.
    pub fn auditor(&self, worker: u64, config: auditor::Config) -> Auditor {
        Auditor::new(
            self.log.clone(),
            self.ledger.clone(),
            self.audit.clone(),
            self.clock.clone(),
            worker,
            config,
        )
    }
}

/// A refusal of the desk: a status and a sentence.
pub(super) type Refused = (StatusCode, String);
pub(super) type Answer<T> = Result<Json<T>, Refused>;

pub(super) fn routes(desk: Arc<Desk>) -> Router {
    let operators = desk.operators.clone();
    Router::new()
        .route("/me", get(me))
        .route("/trace/{id}", get(trace_one))
        .route("/audit", get(audit_all))
        .route("/audit/verify", get(verify_chain))
        .route("/users/{user}/kick", post(kick::kick))
        .route("/boats", get(drain::list))
        .route("/boats/{boat}", get(drain::progress))
        .route("/boats/{boat}/drain", post(drain::drain))
        .nest("/dead-letters", letters::routes())
        .layer(middleware::from_fn_with_state(operators, authenticate))
        .with_state(desk)
}

async fn me(Extension(operator): Extension<Operator>) -> Json<Operator> {
    Json(operator)
}

pub(super) async fn trace_one(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
) -> Answer<Vec<trace::Report>> {
    let name = id.parse().map_err(|text| (StatusCode::BAD_REQUEST, text))?;
    let witnesses = trace::Witnesses {
        log: &desk.log,
        history: desk.history.as_ref(),
        ledger: desk.ledger.as_ref(),
        mailbox: desk.mailbox.as_ref(),
    };
    let traced = witnesses.trace(name, desk.clock.now()).await;
    traced.map(Json).map_err(failed)
}

pub(super) async fn audit_all(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<audit::Question>,
) -> Answer<audit::Report> {
    let (ledger, store) = (desk.ledger.as_ref(), desk.audit.as_ref());
    answer::answer(&desk.log, ledger, store, &question, desk.clock.now())
        .await
        .map(Json)
        .map_err(failed)
}

async fn verify_chain(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<verify::Question>,
) -> Answer<verify::Report> {
    verify::verify(&desk.log, desk.audit.as_ref(), &question)
        .await
        .map(Json)
        .map_err(failed)
}

pub(super) fn busy(busy: Busy) -> Refused {
    (StatusCode::TOO_MANY_REQUESTS, busy.to_string())
}

pub(super) fn failed(error: anyhow::Error) -> Refused {
    let error = match error.downcast() {
        Ok(refused) => return busy(refused),
        Err(error) => error,
    };
    tracing::warn!(error = format!("{error:#}"), "the desk could not answer");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
}
