//! Measures a server's throughput. `cargo test --release -p backend --all-features
//! redis::tests::costs -- --ignored --nocapture`

use tokio::time::Instant;

use super::*;

const TASKS: i64 = 64;
const USERS: i64 = 10_000;

/// Requests per second from 64 concurrent tasks, each making one call of `batch` requests after
/// another.
async fn rate(
    mailbox: &Arc<RedisMailbox>,
    batch: i64,
    make_request: impl Fn(i64) -> RouteRequest + Copy + Send + 'static,
) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(3);
    let start = Instant::now();
    let tasks = (0..TASKS).map(|task| {
        let mailbox = Arc::clone(mailbox);
        tokio::spawn(async move {
            let (mut n, mut request_count) = (task, 0);
            while Instant::now() < deadline {
                let requests = (0..batch)
                    .map(|step| make_request(n + step * TASKS))
                    .collect();
                n += batch * TASKS;
                for answer in mailbox.route_or_store(requests).await {
                    answer.expect("routed");
                    request_count += 1;
                }
            }
            request_count
        })
    });
    let mut request_count = 0;
    for task in futures_util::future::join_all(tasks).await {
        request_count += task.expect("no panic");
    }
    (request_count as f64 / start.elapsed().as_secs_f64()) as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "it is read by a person")]
async fn route_costs() {
    for (mode, part) in [MODES[0], MODES[2]] {
        let mailbox = Arc::new(open_real(mode, part).await);
        for n in 1..=USERS {
            connect(&mailbox, ios(n), n).await.expect("connected");
        }
        let store = |n: i64| request(on(n % USERS + 1, contract::UNLIMITED), n + 1);
        let live = |n: i64| request(ios(n % USERS + 1), n + 1);
        let look = |n: i64| RouteRequest {
            mail: None,
            ..request(ios(n % USERS + 1), n + 1)
        };
        for batch in [1, 16] {
            println!(
                "{part}, batches of {batch}: store {}/s, to the live {}/s, look {}/s",
                rate(&mailbox, batch, store).await,
                rate(&mailbox, batch, live).await,
                rate(&mailbox, batch, look).await,
            );
        }
        clean(&mailbox).await;
    }
}
