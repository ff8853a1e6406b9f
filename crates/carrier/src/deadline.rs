//! Calls to stores under a deadline.

use std::future::Future;
use std::time::Duration;

use backend::Error;
use tokio::time::Instant;

use crate::Config;

pub(crate) type Result<T> = backend::Result<T>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDeadline(Duration);

impl StoreDeadline {
    pub(crate) fn new(config: &Config) -> StoreDeadline {
        StoreDeadline(config.store_timeout)
    }

    /// Deadline of calls that end by `until`, too.
    pub(crate) fn until(self, until: Instant) -> StoreDeadline {
        let rest = until.saturating_duration_since(Instant::now());
        StoreDeadline(self.0.min(rest))
    }

    /// Runs a call under the deadline. A call that takes too long counts as unavailable: whether it
    /// was done is unknown, and every call may be repeated.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.0, call).await {
            Ok(answer) => answer,
            Err(_) => Err(self.silent()),
        }
    }

    /// Same for a call that answers each of `count` questions on its own, in order.
    pub(crate) async fn each<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let answers = tokio::time::timeout(self.0, call).await;
        let silent = std::iter::repeat_with(|| Err(self.silent()));
        let answers = answers.unwrap_or_default().into_iter().chain(silent);
        answers.take(count).collect()
    }

    fn silent(&self) -> Error {
        Error::unavailable("store", format!("no answer within {:?}", self.0))
    }
}
