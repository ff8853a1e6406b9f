//! Background work that goes on until the process ends, even after a panic.

use std::future::Future;
use std::time::Duration;

use metrics::counter;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Pause of work that has panicked.
const REST: Duration = Duration::from_secs(5);

/// Runs background work until `stop`, and restarts it after a panic. A panic loses the state of
/// the work, so that has to be kept elsewhere.
pub(super) fn supervise<F>(
    name: &'static str,
    stop: CancellationToken,
    mut begin: impl FnMut() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let panics = counter!("desk_panics_total", "work" => name);
    tokio::spawn(async move {
        while let Err(join_error) = tokio::spawn(begin()).await {
            if !join_error.is_panic() {
                return;
            }
            panics.increment(1);
            tracing::error!(work = name, "background work panicked; restarting it");
            if stop.run_until_cancelled(sleep(REST)).await.is_none() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_begins_anew_until_it_is_stopped() {
        let starts = Arc::new(AtomicU32::new(0));
        let stop = CancellationToken::new();
        let counts = starts.clone();
        supervise("test", stop.clone(), move || {
            counts.fetch_add(1, Ordering::SeqCst);
            async { panic!("on purpose") }
        });
        sleep(REST * 3 - REST / 2).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
        stop.cancel();
        sleep(REST * 3).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_done_is_not_begun_again() {
        let starts = Arc::new(AtomicU32::new(0));
        let counts = starts.clone();
        supervise("test", CancellationToken::new(), move || {
            counts.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        sleep(REST * 3).await;
        assert_eq!(starts.load(Ordering::SeqCst), 1);
    }
}
