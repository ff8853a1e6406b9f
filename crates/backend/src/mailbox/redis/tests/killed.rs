//! A server killed in the middle of scripts, over and over.

use futures_util::future::join_all;

use super::server::Server;
use super::*;

/// I10: the data of a restarted server is whole, whatever it was doing when it was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn what_is_left_of_a_killed_server_is_whole() {
    let mut server = Server::start(&["--appendonly", "yes"]).await;
    let mut config = config(RedisMode::Single, vec![server.address()]);
    config.deadline = Duration::from_secs(1);
    let mailbox = Arc::new(open(&config).await);
    for round in 1..=8 {
        let crowd: Vec<_> = (0..8)
            .map(|lane| {
                let mailbox = Arc::clone(&mailbox);
                tokio::spawn(async move {
                    for n in 1.. {
                        let n = round * 100_000 + n;
                        // The first two share a bucket, and so the body.
                        let targets = [ios(1), on(37, contract::UNLIMITED), ios(lane + 100)];
                        let requests = targets.map(|target| request(target, n)).to_vec();
                        let routed = mailbox.route_or_store(requests).await;
                        let acked = acknowledge(&mailbox, targets[1], &[n, n - 3]).await;
                        if acked.is_err() || routed.iter().any(Result::is_err) {
                            return n - round * 100_000;
                        }
                    }
                    0
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.kill();
        for member in join_all(crowd).await {
            assert!(member.expect("no panic") > 1, "it did something");
        }
        server.again().await;
        eventually(async || mailbox.waiting(ios(1)).await).await;
        let audit = eventually(async || mailbox.audit().await).await;
        assert_eq!(audit.wrong, Vec::<String>::new(), "{audit:?}");
        assert!(audit.entries > 0);
    }
}
