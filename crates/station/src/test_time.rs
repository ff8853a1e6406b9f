//! Time of tests with real sockets: it moves only as they say, so that no deadline passes while a
//! slow machine or its kernel works.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::advance;

/// Real time after which the clock moves again, so that a test that hangs meets its deadline. Far
/// more than any test takes.
const REAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Stops the clock of all timers for as long as the result lives. Paused time alone would jump to
/// the next timer while the kernel works.
#[must_use]
pub(crate) fn freeze_time() -> mpsc::Sender<()> {
    tokio::time::pause();
    let (sender, receiver) = mpsc::channel();
    // Time does not jump while a thread works.
    drop(spawn_blocking(move || receiver.recv_timeout(REAL_TIMEOUT)));
    sender
}

/// Waits a moment in which no time passes for timers.
pub(crate) async fn short_wait() {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

/// Lets time pass in short steps until the end of `work`.
pub(crate) async fn advance_until<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = short_wait() => advance(Duration::from_millis(100)).await,
        }
    }
}
