//! The operators' desk: traces and audit here, dead letters beside it, as JSON over HTTP.

use std::sync::Arc;

use api::transport::Connector;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use backend::Backends;
use backend::audit::AuditStore;
use backend::clock::Clock;
use backend::discovery::Registry;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::messages::MessageStore;
use protocol::access::{Caller, Role};
use protocol::bounds::Bounds;
use tokio_util::sync::CancellationToken;

use super::auditor::{self, Auditor};
use super::drain::Boats;
use super::kick::Stations;
use super::log::{Busy, Log};
use super::operators::{Operator, Operators};
use super::refusal::DeskRefusal;
use super::supervisor::supervise;
use super::{audit, audit_answer, trace, verify};
use crate::DeadLetters;
use crate::answer::List;

/// Dependencies of the operators' desk. Every scan of the log takes a turn first.
pub struct Desk {
    pub(super) log: Arc<Log>,
    pub(super) letters: DeadLetters,
    messages: Arc<dyn MessageStore>,
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
    /// `bounds` are those of messages that are redriven.
    pub fn new(
        backends: &Backends,
        connector: &Connector,
        bounds: Bounds,
        operators: Operators,
    ) -> Desk {
        let caller = Caller::new(Role::Desk, "desk");
        let connector = connector.clone().with_caller(caller);
        Desk {
            letters: DeadLetters::new(backends.clone(), bounds),
            log: Arc::new(Log::new(backends.queue.clone())),
            messages: backends.messages.clone(),
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

    /// Works off the tasks of operators under this name until `stop`, whenever no other process
    /// does.
    pub fn employ(&self, name: &str, stop: CancellationToken) {
        let (letters, name) = (self.letters.clone(), name.to_owned());
        let worker_stop = stop.clone();
        supervise("letters", stop, move || {
            letters.clone().work(name.clone(), worker_stop.clone())
        });
    }

    /// Closes minutes until `stop`, if the settings want it and whenever no other process does.
    /// Reads the log of this desk, in turn with its questions. `worker`: a number unique to this
    /// process.
    pub fn close_minutes(
        self: &Arc<Self>,
        worker: u64,
        config: &auditor::Config,
        stop: CancellationToken,
    ) {
        if !config.continuous {
            return;
        }
        let (desk, config, worker_stop) = (self.clone(), config.clone(), stop.clone());
        supervise("audit", stop, move || {
            desk.auditor(worker, config.clone())
                .run(worker_stop.clone())
        });
    }

    /// The auditor that `close_minutes` keeps running.
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

pub(super) type Answer<T> = Result<Json<T>, DeskRefusal>;

pub(super) async fn me(Extension(operator): Extension<Operator>) -> Json<Operator> {
    Json(operator)
}

pub(super) async fn trace_one(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
) -> Answer<List<trace::Report>> {
    let unreadable = |text: String| DeskRefusal::new(StatusCode::BAD_REQUEST, text);
    let name = id.parse().map_err(unreadable)?;
    let witnesses = trace::Witnesses {
        log: &desk.log,
        messages: desk.messages.as_ref(),
        ledger: desk.ledger.as_ref(),
        mailbox: desk.mailbox.as_ref(),
    };
    let reports = witnesses.trace(name, desk.clock.now()).await;
    Ok(Json(reports.map_err(failed)?.into()))
}

pub(super) async fn audit_all(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<audit::AuditQuestion>,
) -> Answer<audit::Report> {
    let now = desk.clock.now();
    question.check(now)?;
    let (ledger, store) = (desk.ledger.as_ref(), desk.audit.as_ref());
    audit_answer::answer(&desk.log, ledger, store, &question, now)
        .await
        .map(Json)
        .map_err(failed)
}

pub(super) async fn verify_chain(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<verify::VerifyQuestion>,
) -> Answer<verify::Report> {
    let report = verify::verify(&desk.log, desk.audit.as_ref(), &question).await;
    report.map(Json).map_err(|error| match error.downcast() {
        Ok(verify::NoMinutes(text)) => DeskRefusal::new(StatusCode::BAD_REQUEST, text),
        Err(error) => failed(error),
    })
}

pub(super) fn busy(busy: Busy) -> DeskRefusal {
    DeskRefusal::new(StatusCode::TOO_MANY_REQUESTS, busy.to_string())
}

pub(super) fn failed(error: anyhow::Error) -> DeskRefusal {
    let error = match error.downcast() {
        Ok(refused) => return busy(refused),
        Err(error) => error,
    };
    tracing::warn!(error = format!("{error:#}"), "admin API request failed");
    DeskRefusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
}
