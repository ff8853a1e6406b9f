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
    time: Duration,
    /// Common end of several calls.
    until: Option<Instant>,
}

impl StoreDeadline {
    pub(crate) fn new(config: &Config) -> StoreDeadline {
        StoreDeadline {
            time: config.store_timeout,
            until: None,
        }
    }

    /// The same for calls that end within `time` from now, all together. None begins after that.
    pub(crate) fn together(self, time: Duration) -> StoreDeadline {
        StoreDeadline {
            until: Some(Instant::now() + time),
            ..self
        }
    }

    /// Runs a call under the deadline. A call that takes too long counts as unavailable: whether it
    /// was done is unknown, and every call may be repeated.
    pub(crate) async fn within<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.answer(call).await {
            Ok(answer) => answer,
            Err(left) => Err(silent(left)),
        }
    }

    /// Same for a call that answers each of `count` questions on its own, in order.
    pub(crate) async fn each<T>(
        &self,
        count: usize,
        call: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let (answers, left) = match self.answer(call).await {
            Ok(answers) => (answers, self.time),
            Err(left) => (Vec::new(), left),
        };
        let silent = std::iter::repeat_with(|| Err(silent(left)));
        answers.into_iter().chain(silent).take(count).collect()
    }

    /// Answer of a call, or the time in which there was none.
    async fn answer<T>(&self, call: impl Future<Output = T>) -> std::result::Result<T, Duration> {
        let now = Instant::now();
        let rest = self.until.map(|until| until.saturating_duration_since(now));
        let left = rest.map_or(self.time, |rest| rest.min(self.time));
        match rest {
            Some(Duration::ZERO) => Err(left),
            _ => tokio::time::timeout(left, call).await.map_err(|_| left),
        }
    }
}

fn silent(left: Duration) -> Error {
    let what = match left {
        Duration::ZERO => "not asked: the time was up".to_owned(),
        left => format!("no answer within {left:?}"),
    };
    Error::unavailable("store", what)
}
