//! Calls to stores under a deadline.

use std::future::Future;
use std::time::Duration;

use backend::Error;
use tokio::time::Instant;

use crate::Config;

pub(crate) type Result<T> = backend::Result<T>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreDeadline {
    /// Time of a call.
    time: Duration,
    /// End of several calls together.
    until: Option<Instant>,
}

impl StoreDeadline {
    pub(crate) fn new(config: &Config) -> StoreDeadline {
        StoreDeadline {
            time: config.store_timeout,
            until: None,
        }
    }

    /// The same for calls that end within `time` from now, all together. Behind it none begins.
    pub(crate) fn together(self, time: Duration) -> StoreDeadline {
        StoreDeadline {
            until: Some(Instant::now() + time),
            ..self
        }
    }

    /// Runs a call under the deadline. A call that takes too long counts as unavailable: whether it
    /// was done is unknown, and every call may be repeated.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.answer(call).await;
        answer.unwrap_or_else(|| Err(self.silent()))
    }

    /// Same for a call that answers each of `count` questions on its own, in order.
    pub(crate) async fn each<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let answers = self.answer(call).await;
        let silent = std::iter::repeat_with(|| Err(self.silent()));
        let answers = answers.unwrap_or_default().into_iter().chain(silent);
        answers.take(count).collect()
    }

    async fn answer<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let now = Instant::now();
        let rest = self.until.map(|until| until.saturating_duration_since(now));
        match rest {
            Some(Duration::ZERO) => None,
            rest => {
                let time = rest.map_or(self.time, |rest| rest.min(self.time));
                tokio::time::timeout(time, call).await.ok()
            }
        }
    }

    fn silent(&self) -> Error {
        Error::unavailable("store", format!("no answer within {:?}", self.time))
    }
}
