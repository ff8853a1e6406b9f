//! Calls to stores under a deadline.

use std::future::Future;
use std::time::Duration;

use backend::Error;
use tokio::time::Instant;

use crate::Config;

pub(crate) type Result<T> = backend::Result<T>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDeadline {
    /// Time limit of one call.
    timeout: Duration,
    /// Common end of several calls.
    deadline: Option<Instant>,
}

impl StoreDeadline {
    pub(crate) fn new(config: &Config) -> StoreDeadline {
        StoreDeadline {
            timeout: config.store_timeout,
            deadline: None,
        }
    }

    /// The same for calls that end within `timeout` from now, all together. None begins after that.
    pub(crate) fn with_timeout(self, timeout: Duration) -> StoreDeadline {
        StoreDeadline {
            deadline: Some(Instant::now() + timeout),
            ..self
        }
    }

    /// Runs a call under the deadline. A call that takes too long counts as unavailable: whether it
    /// was done is unknown, and every call may be repeated.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.answer(call).await {
            Ok(answer) => answer,
            Err(budget) => Err(silent(budget)),
        }
    }

    /// Same for a call that answers each of `count` questions on its own, in order.
    pub(crate) async fn each<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let (answers, budget) = match self.answer(call).await {
            Ok(answers) => (answers, self.timeout),
            Err(budget) => (Vec::new(), budget),
        };
        let silent = std::iter::repeat_with(|| Err(silent(budget)));
        answers.into_iter().chain(silent).take(count).collect()
    }

    /// Answer of a call, or the time in which there was none.
    async fn answer<T>(&self, call: impl Future<Output = T>) -> std::result::Result<T, Duration> {
        let now = Instant::now();
        let rest = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now));
        let budget = rest.map_or(self.timeout, |rest| rest.min(self.timeout));
        match rest {
            Some(Duration::ZERO) => Err(budget),
            _ => tokio::time::timeout(budget, call).await.map_err(|_| budget),
        }
    }
}

fn silent(budget: Duration) -> Error {
    let message = match budget {
        Duration::ZERO => "not asked: the deadline has passed".to_owned(),
        budget => format!("no answer within {budget:?}"),
    };
    Error::unavailable("store", message)
}
