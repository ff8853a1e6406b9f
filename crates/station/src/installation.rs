//! Number of this installation, by which clients know it: stored in discovery and in the store, and
//! restored to the one that lost it.

use std::time::Duration;

use backend::{Backends, Error};
use protocol::id::installation::{COMPARE_INTERVAL, Replica, Verdict, compare};
use tokio::time::sleep;

use crate::start::StartError;
use crate::stores::answered_within as within;

/// Reads of the copies at a start, if others change them meanwhile.
const MAX_ATTEMPTS: usize = 3;

pub(crate) struct Installation {
    pub(crate) backends: Backends,
    pub(crate) deadline: Duration,
}

impl Installation {
    /// Agrees on the number that both have, or are given; `new_number` if the installation is new.
    pub(crate) async fn agree(&self, new_number: u64) -> Result<u64, StartError> {
        let mut failure = Error::unavailable("installation", "its number changes; try again");
        for _ in 0..MAX_ATTEMPTS {
            let (discovery, store) = self.copies().await;
            match compare(copy(&discovery), copy(&store), new_number) {
                Verdict::Number {
                    number,
                    to_discovery,
                    to_store,
                } => match self.write_number(number, to_discovery, to_store).await {
                    Ok(stored_number) if stored_number == number => return Ok(number),
                    // Another station was first.
                    Ok(_) => {}
                    // One of them has the number, and the other gets it later.
                    Err(_) if !(to_discovery && to_store) => return Ok(number),
                    Err(error) => failure = error,
                },
                Verdict::Differ { discovery, store } => {
                    return Err(StartError::Installations { discovery, store });
                }
                Verdict::Unknown => {
                    if let Some(error) = discovery.err().or_else(|| store.err()) {
                        failure = error;
                    }
                }
            }
        }
        Err(failure.into())
    }

    /// Restores the number wherever it is missing, for ever.
    pub(crate) async fn keep(&self, number: u64) {
        loop {
            sleep(COMPARE_INTERVAL).await;
            let (discovery, store) = self.copies().await;
            let numbers = [&discovery, &store].map(|copy| copy.as_ref().ok().copied().flatten());
            if let Some(other) = numbers.into_iter().flatten().find(|other| *other != number) {
                tracing::error!(
                    number,
                    other,
                    "this installation has two numbers: see docs/operations/installation.md"
                );
                metrics::counter!("station_installation_differs_total").increment(1);
                continue;
            }
            let (to_discovery, to_store) =
                (matches!(discovery, Ok(None)), matches!(store, Ok(None)));
            if to_discovery || to_store {
                let outcome = self.write_number(number, to_discovery, to_store).await;
                tracing::warn!(
                    number,
                    to_discovery,
                    to_store,
                    done = outcome.is_ok(),
                    "the installation number was missing; restoring it"
                );
                metrics::counter!("station_installation_restored_total").increment(1);
            }
        }
    }

    async fn copies(&self) -> (Answer, Answer) {
        tokio::join!(
            within(self.deadline, self.backends.registry.cluster()),
            within(self.deadline, self.backends.installation.number()),
        )
    }

    /// Puts the number into the store first, as discovery is the one that loses it. Returns the
    /// number that stands.
    async fn write_number(
        &self,
        number: u64,
        to_discovery: bool,
        to_store: bool,
    ) -> backend::Result<u64> {
        let mut stored_number = number;
        if to_store {
            let request = self
                .backends
                .installation
                .record(number, self.backends.clock.now());
            stored_number = within(self.deadline, request).await?;
        }
        if to_discovery && stored_number == number {
            stored_number =
                within(self.deadline, self.backends.registry.claim_cluster(number)).await?;
        }
        Ok(stored_number)
    }
}

type Answer = backend::Result<Option<u64>>;

fn copy(answer: &Answer) -> Replica {
    match answer {
        Ok(Some(number)) => Replica::Number(*number),
        Ok(None) => Replica::Missing,
        Err(_) => Replica::Unreachable,
    }
}
