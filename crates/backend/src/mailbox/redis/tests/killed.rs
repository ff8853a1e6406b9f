//! A server killed in the middle of scripts, over and over.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::server::Server;
use super::*;

/// I10: the data of a restarted server is whole, whatever it was doing when it was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn data_of_a_killed_server_is_whole() {
    let mut server = Server::start(&["--appendonly", "yes"]).await;
    let mut config = config(RedisMode::Single, vec![server.address()]);
    config.deadline = Duration::from_secs(1);
    let mailbox = Arc::new(open(&config).await);
    for round in 1..=8 {
        let (is_killed, started_tasks) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Semaphore::new(0)),
        );
        let crowd: Vec<_> = (0..8)
            .map(|lane| {
                let mailbox = Arc::clone(&mailbox);
                let (is_killed, started_tasks) =
                    (Arc::clone(&is_killed), Arc::clone(&started_tasks));
                tokio::spawn(async move {
                    let mut write_count = 0;
                    for n in 1.. {
                        let n = round * 100_000 + n;
                        // The first two share a bucket, and so the body.
                        let targets = [ios(1), on(37, contract::UNLIMITED), ios(lane + 100)];
                        let requests = targets.map(|target| request(target, n)).to_vec();
                        let answers = mailbox.route_or_store(requests).await;
                        let ack_result = acknowledge(&mailbox, targets[1], &[n, n - 3]).await;
                        if ack_result.is_ok() && answers.iter().all(Result::is_ok) {
                            write_count += 1;
                            started_tasks.add_permits(usize::from(write_count == 1));
                        } else if is_killed.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                    write_count
                })
            })
            .collect();
        let all = timeout(Duration::from_secs(60), started_tasks.acquire_many(8)).await;
        drop(all.expect("each does something").expect("open"));
        tokio::time::sleep(Duration::from_millis(150)).await;
        is_killed.store(true, Ordering::SeqCst);
        server.kill();
        for member in join_all(crowd).await {
            assert!(member.expect("no panic") > 0, "it did something");
        }
        server.restart().await;
        eventually(async || mailbox.waiting(ios(1)).await).await;
        let audit = eventually(async || mailbox.audit().await).await;
        assert_eq!(audit.wrong, Vec::<String>::new(), "{audit:?}");
        assert!(audit.entries > 0);
    }
}
