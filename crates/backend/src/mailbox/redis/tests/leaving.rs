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
    const USERS: i64 = 100_000;
    let (mode, part) = MODES[0];
    let mailbox = open_real(mode, part).await;
    let arrive = async |count: i64| {
        let everybody: Vec<i64> = (1..=count).collect();
        for chunk in everybody.chunks(1024) {
            let connects = chunk.iter().map(|n| connect(&mailbox, ios(*n), *n));
            for answer in futures_util::future::join_all(connects).await {
                answer.expect("connected");
            }
        }
    };
    let keys: Vec<_> = (1..=USERS).map(|n| new_session(ios(n), n).key).collect();
    let leave = async |batch_size: usize, count: usize| {
        let start = Instant::now();
        for chunk in keys[..count].chunks(batch_size) {
            let answers = mailbox.disconnect(chunk.to_vec()).await;
            assert!(answers.iter().all(Result::is_ok));
        }
        start.elapsed() / count as u32
    };
    // The machine may be busy meanwhile: take the quicker of two rounds each.
    let (mut single_cost, mut batch_cost) = (Duration::MAX, Duration::MAX);
    for _ in 0..2 {
        // A tenth suffices to measure the cost of one.
        arrive(USERS / 10).await;
        single_cost = single_cost.min(leave(1, keys.len() / 10).await);
        arrive(USERS).await;
        batch_cost = batch_cost.min(leave(1024, keys.len()).await);
    }
    println!("signing off: {single_cost:?} each, {batch_cost:?} each with 1,024 in a call");
    let users: Vec<_> = keys.iter().map(|key| key.user).collect();
    for chunk in users.chunks(1024) {
        for sessions in mailbox.sessions(chunk, DeniedBoats::default()).await {
            assert_eq!(sessions.expect("found"), []);
        }
    }
    clean(&mailbox).await;
    assert!(
        4 * batch_cost < single_cost,
        "{batch_cost:?}, {single_cost:?}"
    );
}
