//! The store, on the runtime's threads for blocking work: one job at a time.

use tokio::task::JoinHandle;

use crate::core::{Account, Change, Saved};
use crate::store::{Store, StoreError};

/// The store, at rest or at work.
#[derive(Debug)]
pub(super) struct Shelf {
    store: Option<Store>,
    job: Option<JoinHandle<(Store, Result<Done, StoreError>)>>,
}

/// What a job has come to.
#[derive(Debug)]
pub(super) enum Done {
    Stored(u64),
    Switched(Box<Saved>),
}

impl Shelf {
    pub(super) fn new(store: Store) -> Shelf {
        Shelf {
            store: Some(store),
            job: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.job.is_none()
    }

    /// Without effect while a job goes on: the core never asks for two.
    pub(super) fn write(&mut self, batch: u64, changes: Vec<Change>) {
        if let Some(mut store) = self.store.take() {
            self.job = Some(tokio::task::spawn_blocking(move || {
                let written = store.write(&changes);
                (store, written.map(|()| Done::Stored(batch)))
            }));
        }
    }

    pub(super) fn switch(&mut self, account: Account) {
        if let Some(mut store) = self.store.take() {
            self.job = Some(tokio::task::spawn_blocking(move || {
                let switched = store.switch(account);
                (store, switched.map(|saved| Done::Switched(Box::new(saved))))
            }));
        }
    }

    /// The end of the job; never, where there is none. Cancel safe.
    pub(super) async fn done(&mut self) -> Result<Done, String> {
        let Some(job) = &mut self.job else {
            return std::future::pending().await;
        };
        let ended = job.await;
        self.job = None;
        match ended {
            Ok((store, done)) => {
                self.store = Some(store);
                done.map_err(|error| match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                })
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
