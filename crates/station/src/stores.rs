//! Questions to stores, each under a deadline. A store that fails or is too slow refuses them, and they may be
//! repeated.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use backend::{Error, Kind};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use protocol::{Code, Refusal};
use tokio::time::{Instant, timeout, timeout_at};

/// Waits for a store, at most until the deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = backend::Result<T>>,
) -> Result<T, Refusal> {
    in_time(deadline, call).await?.map_err(unavailable)
}

/// Same for an answer that says itself what failed.
pub(crate) async fn in_time<T>(
    deadline: Duration,
    call: impl Future<Output = T>,
) -> Result<T, Refusal> {
    timeout(deadline, call).await.map_err(|_| too_late())
}

/// Waits for discovery, at most until the deadline: then it is unavailable, and whether the call
/// was done is unknown.
pub(crate) async fn answered_within<T>(
    deadline: Duration,
    call: impl Future<Output = backend::Result<T>>,
) -> backend::Result<T> {
    timeout(deadline, call).await.unwrap_or_else(|_| {
        let text = format!("no answer within {deadline:?}");
        Err(Error::unavailable("discovery", text))
    })
}

/// Refusal for a store that failed. Its error is for operators; the client can only ask again.
pub(crate) fn unavailable(error: Error) -> Refusal {
    metrics::counter!("station_store_failures_total", "seam" => error.seam).increment(1);
    tracing::warn!(seam = error.seam, %error, source = %error.source, "a store failed");
    store_refusal(&error)
}

/// Same for an error that is reported already.
fn store_refusal(error: &Error) -> Refusal {
    Refusal::new(Code::Unavailable, format!("{} is unavailable", error.seam))
}

/// Refusal for a store that did not answer in time.
pub(crate) fn too_late() -> Refusal {
    metrics::counter!("station_store_failures_total", "seam" => "deadline").increment(1);
    Refusal::new(Code::DeadlineExceeded, "a store did not answer in time")
}

/// Owners asked about at the same time. If a store answers for none of the first ones, it is not
/// asked about others.
pub(crate) const MAX_CONCURRENT_OWNERS: usize = 64;

/// Meaning of a key that a store cannot read (`Corrupt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// As if it was not there: the default answer.
    Absent,
    /// Nothing was written, or nothing is known: a refusal.
    Refused,
}

/// Answers of a store, in the order of the keys.
pub(crate) struct OwnerAnswers<T> {
    pub(crate) each: Vec<Result<T, Refusal>>,
    /// Whether a call about all keys failed before: a write may have been done by it.
    pub(crate) is_repeat: bool,
}

/// Asks a store about keys of many owners: about all of them, and after a failure about those of each owner, so that a
/// row that hangs or cannot be read fails only its owner. All within the deadline.
pub(crate) async fn by_owner<O, K, T, F>(
    timeout: Duration,
    unreadable: Unreadable,
    keys: Vec<K>,
    owner: impl Fn(&K) -> O,
    ask: impl Fn(Vec<K>) -> F,
) -> OwnerAnswers<T>
where
    O: Ord,
    K: Clone,
    T: Default,
    F: Future<Output = backend::Result<Vec<T>>>,
{
    let deadline = Instant::now() + timeout;
    let mut owners: BTreeMap<O, Vec<usize>> = BTreeMap::new();
    for (index, key) in keys.iter().enumerate() {
        owners.entry(owner(key)).or_default().push(index);
    }
    let is_repeat = owners.len() > 1;
    if is_repeat {
        match in_time(timeout / 2, ask(keys.clone())).await {
            Ok(Ok(answers)) => {
                return OwnerAnswers {
                    each: answers.into_iter().map(Ok).collect(),
                    is_repeat: false,
                };
            }
            Ok(Err(error)) => drop(unavailable(error)),
            Err(_) => {}
        }
    }
    let mut requests = Vec::with_capacity(owners.len());
    for indices in owners.into_values() {
        let owner_keys: Vec<K> = indices.iter().map(|index| keys[*index].clone()).collect();
        let answers = ask_owner(deadline, unreadable, owner_keys, &ask);
        requests.push(async move { (indices, answers.await) });
    }
    let mut each: Vec<Option<Result<T, Refusal>>> = keys.iter().map(|_| None).collect();
    let (mut failures, mut is_answered, mut failure) = (0, false, None);
    let mut results = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_OWNERS);
    while let Some((indices, answers)) = results.next().await {
        match answers {
            Ok(answers) => {
                is_answered = true;
                for (index, answer) in indices.into_iter().zip(answers) {
                    each[index] = Some(answer);
                }
            }
            Err(error) => {
                failures += 1;
                let refusal = refusal(error, is_repeat);
                for index in indices {
                    each[index] = Some(Err(refusal.clone()));
                }
                failure = Some(refusal);
            }
        }
        if !is_answered && failures >= MAX_CONCURRENT_OWNERS {
            break;
        }
    }
    let no_answer = || failure.clone().unwrap_or_else(too_late);
    let each = each.into_iter();
    OwnerAnswers {
        each: each
            .map(|answer| answer.unwrap_or_else(|| Err(no_answer())))
            .collect(),
        is_repeat,
    }
}

/// Asks about the keys of one owner; about each alone if one of them cannot be read. The error of
/// the store is `None` if time ran out.
async fn ask_owner<K, T, F>(
    deadline: Instant,
    unreadable: Unreadable,
    keys: Vec<K>,
    ask: &impl Fn(Vec<K>) -> F,
) -> Result<Vec<Result<T, Refusal>>, Option<Error>>
where
    K: Clone,
    T: Default,
    F: Future<Output = backend::Result<Vec<T>>>,
{
    match timeout_at(deadline, ask(keys.clone())).await {
        Ok(Ok(answers)) => Ok(answers.into_iter().map(Ok).collect()),
        Ok(Err(error)) if error.kind == Kind::Corrupt => {
            let retries = keys.into_iter().map(|key| async move {
                match timeout_at(deadline, ask(vec![key])).await {
                    Ok(Ok(mut answers)) => Ok(answers.pop().unwrap_or_default()),
                    Ok(Err(error)) => {
                        let is_absent =
                            error.kind == Kind::Corrupt && unreadable == Unreadable::Absent;
                        let refusal = unavailable(error);
                        if is_absent {
                            Ok(T::default())
                        } else {
                            Err(refusal)
                        }
                    }
                    Err(_) => Err(too_late()),
                }
            });
            Ok(join_all(retries).await)
        }
        Ok(Err(error)) => Err(Some(error)),
        Err(_) => Err(None),
    }
}

/// Refusal for an owner. A failure behind that of the whole question is not reported again.
fn refusal(error: Option<Error>, is_repeat: bool) -> Refusal {
    match error {
        Some(error) if is_repeat => store_refusal(&error),
        Some(error) => unavailable(error),
        None => too_late(),
    }
}
