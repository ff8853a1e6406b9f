//! The operators' desk: what the handlers of all rooms share.

use std::sync::Arc;

use api::transport::Connector;
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

use super::operators::{Operator, Operators};
use super::refusal::DeskRefusal;
use super::supervisor::supervise;
use crate::DeadLetters;
use crate::audit::auditor::{self, Auditor};
use crate::audit::log::{Busy, Log};
use crate::boats::Boats;
use crate::users::Stations;

/// Dependencies of the operators' desk. Every scan of the log takes a turn first.
pub struct Desk {
    pub(crate) log: Arc<Log>,
    pub(crate) letters: DeadLetters,
    pub(crate) messages: Arc<dyn MessageStore>,
    pub(crate) ledger: Arc<dyn LedgerStore>,
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) audit: Arc<dyn AuditStore>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) stations: Stations,
    pub(crate) boats: Boats,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) operators: Arc<Operators>,
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

pub(crate) type Answer<T> = Result<Json<T>, DeskRefusal>;

pub(crate) async fn me(Extension(operator): Extension<Operator>) -> Json<Operator> {
    Json(operator)
}

pub(crate) fn busy(busy: Busy) -> DeskRefusal {
    DeskRefusal::new(StatusCode::TOO_MANY_REQUESTS, busy.to_string())
}

pub(crate) fn failed(error: anyhow::Error) -> DeskRefusal {
    let error = match error.downcast() {
        Ok(refused) => return busy(refused),
        Err(error) => error,
    };
    tracing::warn!(error = format!("{error:#}"), "admin API request failed");
    DeskRefusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}"))
}
