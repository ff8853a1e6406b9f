//! Traces, audits and the chain over HTTP.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::{AuditQuestion, Report, answer, trace, verify};
use crate::answer::List;
use crate::port::desk::{Answer, Desk, failed};
use crate::port::refusal::DeskRefusal;

pub(crate) async fn trace_one(
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

pub(crate) async fn audit_all(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<AuditQuestion>,
) -> Answer<Report> {
    let now = desk.clock.now();
    question.check(now)?;
    let (ledger, store) = (desk.ledger.as_ref(), desk.audit.as_ref());
    answer::answer(&desk.log, ledger, store, &question, now)
        .await
        .map(Json)
        .map_err(failed)
}

pub(crate) async fn verify_chain(
    State(desk): State<Arc<Desk>>,
    Query(question): Query<verify::VerifyQuestion>,
) -> Answer<verify::Report> {
    let report = verify::verify(&desk.log, desk.audit.as_ref(), &question).await;
    report.map(Json).map_err(|error| match error.downcast() {
        Ok(verify::NoMinutes(text)) => DeskRefusal::new(StatusCode::BAD_REQUEST, text),
        Err(error) => failed(error),
    })
}
