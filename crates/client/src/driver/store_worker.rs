//! Runs the store, one job at a time: on the runtime's threads for blocking work, unless it is in
//! memory.

use tokio::task::JoinHandle;

use crate::core::{Account, Change, Snapshot};
use crate::store::{Store, StoreError};

/// The store, idle or at work.
#[derive(Debug)]
pub(super) struct StoreWorker {
    store: Option<Store>,
    /// Nothing blocks: jobs run among the other tasks, in an order that does not depend on threads.
    is_in_memory: bool,
    job: Option<JoinHandle<(Store, Result<StoreResult, StoreError>)>>,
}

/// Result of a job.
#[derive(Debug)]
pub(super) enum StoreResult {
    Stored(u64),
    Switched(Box<Snapshot>),
}

impl StoreWorker {
    pub(super) fn new(store: Store, is_in_memory: bool) -> StoreWorker {
        StoreWorker {
            store: Some(store),
            is_in_memory,
            job: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.job.is_none()
    }

    /// Starts a write. No effect while a job runs: the core never asks for two.
    pub(super) fn write(&mut self, batch: u64, changes: Vec<Change>) {
        if let Some(mut store) = self.store.take() {
            self.job = Some(run(self.is_in_memory, move || {
                let result = store.write(&changes);
                (store, result.map(|()| StoreResult::Stored(batch)))
            }));
        }
    }

    pub(super) fn switch(&mut self, account: Account) {
        if let Some(mut store) = self.store.take() {
            self.job = Some(run(self.is_in_memory, move || {
                let result = store.switch(account);
                (
                    store,
                    result.map(|snapshot| StoreResult::Switched(Box::new(snapshot))),
                )
            }));
        }
    }

    /// Waits for the end of the job; forever, if there is none. Cancel safe.
    pub(super) async fn done(&mut self) -> Result<StoreResult, String> {
        let Some(job) = &mut self.job else {
            return std::future::pending().await;
        };
        let output = job.await;
        self.job = None;
        match output {
            Ok((store, result)) => {
                self.store = Some(store);
                result.map_err(|error| match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                })
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Runs a job of a store.
pub(super) fn run<T: Send + 'static>(
    is_in_memory: bool,
    job: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    if is_in_memory {
        tokio::spawn(async move { job() })
    } else {
        tokio::task::spawn_blocking(job)
    }
}
