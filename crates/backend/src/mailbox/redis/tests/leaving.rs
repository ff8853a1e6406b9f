//! A boat ends, and all of its sessions are signed off.

use std::time::Duration;

use tokio::time::Instant;

use super::*;

// proves S1-08: a hundred thousand users leave one after the other, each with a call of its own, and all at once, a
// thousand in a call: that takes less than a quarter of the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
#[allow(clippy::print_stdout, reason = "it is read by a person")]
async fn a_hundred_thousand_leave_at_once() {
    const EVERYBODY: i64 = 100_000;
    let (mode, part) = MODES[0];
    let mailbox = open_real(mode, part).await;
    let arrive = async |most: i64| {
        let everybody: Vec<i64> = (1..=most).collect();
        for some in everybody.chunks(1024) {
            let arriving = some.iter().map(|n| connect(&mailbox, ios(*n), *n));
            for arrived in futures_util::future::join_all(arriving).await {
                arrived.expect("connected");
            }
        }
    };
    let keys: Vec<_> = (1..=EVERYBODY)
        .map(|n| new_session(ios(n), n).key)
        .collect();
    let leave = async |together: usize, most: usize| {
        let start = Instant::now();
        for some in keys[..most].chunks(together) {
            let answers = mailbox.disconnect(some.to_vec()).await;
            assert!(answers.iter().all(Result::is_ok));
        }
        start.elapsed() / most as u32
    };
    // The machine may be busy meanwhile: take the quicker of two rounds each.
    let (mut alone, mut together) = (Duration::MAX, Duration::MAX);
    for _ in 0..2 {
        // A tenth suffices to measure the cost of one.
        arrive(EVERYBODY / 10).await;
        alone = alone.min(leave(1, keys.len() / 10).await);
        arrive(EVERYBODY).await;
        together = together.min(leave(1024, keys.len()).await);
    }
    println!("signing off: {alone:?} each, {together:?} each with 1,024 in a call");
    let users: Vec<_> = keys.iter().map(|key| key.user).collect();
    for some in users.chunks(1024) {
        for found in mailbox.sessions(some, DeniedBoats::default()).await {
            assert_eq!(found.expect("found"), []);
        }
    }
    clean(&mailbox).await;
    assert!(4 * together < alone, "{together:?}, {alone:?}");
}
