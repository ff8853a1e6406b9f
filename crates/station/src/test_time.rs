//! Time of tests with real sockets: it moves only as they say, so that no deadline passes while a
//! slow machine or its kernel works.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::advance;

/// Far more than anything takes. After that time moves again, and what hangs meets its deadline.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops the clock of all timers for as long as the result lives. Paused time alone would jump to
/// the next timer while the kernel works.
#[must_use]
pub(crate) fn still() -> mpsc::Sender<()> {
    tokio::time::pause();
    let (still, moves) = mpsc::channel();
    // Time does not jump while a thread works.
    drop(spawn_blocking(move || moves.recv_timeout(PATIENCE)));
    still
}

/// Waits a moment in which no time passes for timers.
pub(crate) async fn moment() {
    let (over, passed) = oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        let _ = over.send(());
    });
    let _ = passed.await;
}

/// Lets time pass in short steps until the end of `work`.
pub(crate) async fn moving<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = moment() => advance(Duration::from_millis(100)).await,
        }
    }
}
