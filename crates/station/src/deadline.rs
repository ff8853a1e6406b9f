//! Failed or slow stores, as refusals that may be retried.

use std::future::Future;
use std::time::Duration;

use protocol::{Code, Refusal};
use tokio::time::timeout;

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
        Err(backend::Error::unavailable("discovery", text))
    })
}

/// Refusal for a store that failed. Its error is for operators; the client can only ask again.
pub(crate) fn unavailable(error: backend::Error) -> Refusal {
    metrics::counter!("station_store_failures_total", "seam" => error.seam).increment(1);
    tracing::warn!(seam = error.seam, %error, source = %error.source, "a store failed");
    store_refusal(&error)
}

/// Same for an error that is reported already.
pub(crate) fn store_refusal(error: &backend::Error) -> Refusal {
    Refusal::new(Code::Unavailable, format!("{} is unavailable", error.seam))
}

/// Refusal for a store that did not answer in time.
pub(crate) fn too_late() -> Refusal {
    metrics::counter!("station_store_failures_total", "seam" => "deadline").increment(1);
    Refusal::new(Code::DeadlineExceeded, "a store did not answer in time")
}
