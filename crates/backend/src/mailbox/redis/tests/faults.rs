//! Calls to a server that is full, slow, forgetful or isolated.

use super::server::Server;
use super::*;
use crate::Kind;

async fn open_own(server: &Server) -> RedisMailbox {
    open(&config(RedisMode::Single, vec![server.address()])).await
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn full_memory_refuses_what_would_be_stored_and_nothing_else() {
    let server = Server::start(&[]).await;
    let mailbox = open_own(&server).await;
    for n in 1..=3 {
        put(&mailbox, ios(1), n).await.expect("stored");
    }
    connect(&mailbox, ios(2), 1).await.expect("connected");
    let full: String = server
        .execute(&["CONFIG", "SET", "maxmemory", "1"])
        .await
        .expect("set");
    assert_eq!(full, "OK");

    let error = put(&mailbox, ios(1), 4).await.expect_err("full");
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(why(&error).contains("raise maxmemory"), "{}", why(&error));
    // Requests of one batch succeed or fail independently.
    let answers = mailbox
        .route_or_store(vec![request(ios(1), 4), request(ios(2), 4)])
        .await;
    assert!(answers[0].is_err());
    assert_eq!(answers[1].as_ref().expect("live").live.len(), 1);
    connect(&mailbox, ios(3), 2).await.expect("connected");
    assert_eq!(waiting(&mailbox, ios(1)).await.expect("paged"), [1, 2, 3]);
    acknowledge(&mailbox, ios(1), &[1])
        .await
        .expect("acknowledged");
    let policy = MailboxPolicy {
        count_max: Some(1),
        ..mailbox.policies.of(Platform::Ios)
    };
    let count = mailbox.trim(ios(1), policy, SystemClock.now()).await;
    assert_eq!(count.expect("trimmed"), 1);
    let result = mailbox.disconnect(vec![new_session(ios(2), 1).key]).await;
    assert!(matches!(result[..], [Ok(())]));

    let _: String = server
        .execute(&["CONFIG", "SET", "maxmemory", "0"])
        .await
        .expect("set");
    put(&mailbox, ios(1), 4).await.expect("stored");
    assert_eq!(waiting(&mailbox, ios(1)).await.expect("paged"), [3, 4]);
    assert_eq!(
        mailbox.audit().await.expect("audited").wrong,
        Vec::<String>::new()
    );
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_start_puts_up_with_a_server_that_is_late() {
    let server = Server::start(&[]).await;
    server.signal("STOP");
    let connect_wait = Duration::from_millis(500);
    let config = RedisConfig {
        connect_wait,
        ..config(RedisMode::Single, vec![server.address()])
    };
    let answers_late = async {
        tokio::time::sleep(8 * connect_wait).await;
        server.signal("CONT");
    };
    tokio::join!(open(&config), answers_late);
}

// proves S2-29 in part
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_master_without_its_replicas_stores_nothing() {
    let server = Server::start(&["--min-replicas-to-write", "1"]).await;
    let mailbox = open_own(&server).await;
    let error = put(&mailbox, ios(1), 1).await.expect_err("alone");
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(why(&error).contains("min-replicas"), "{}", why(&error));
    assert_eq!(waiting(&mailbox, ios(1)).await.ok(), None);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn lost_scripts_are_loaded_again() {
    let server = Server::start(&[]).await;
    let mailbox = open_own(&server).await;
    for n in 1..=3 {
        let _: String = server.execute(&["SCRIPT", "FLUSH"]).await.expect("flushed");
        let requests = (1..=40).map(|user| request(ios(user), n)).collect();
        for answer in mailbox.route_or_store(requests).await {
            assert_eq!(answer.expect("stored").stored_platforms, [Platform::Ios]);
        }
    }
    assert_eq!(waiting(&mailbox, ios(1)).await.expect("paged"), [1, 2, 3]);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_server_that_hangs_costs_one_deadline() {
    let server = Server::start(&[]).await;
    let mut config = config(RedisMode::Single, vec![server.address()]);
    let deadline = Duration::from_secs(2);
    config.deadline = deadline;
    config.in_flight_max = 4;
    let mailbox = Arc::new(open(&config).await);
    server.signal("STOP");
    let start = tokio::time::Instant::now();
    // Many pipelines; once one is unanswered, the rest are not tried.
    let requests = (1..=1_000).map(|user| request(ios(user), 1)).collect();
    for answer in mailbox.route_or_store(requests).await {
        assert_eq!(answer.expect_err("hangs").kind, Kind::Unavailable);
    }
    assert!(start.elapsed() < 4 * deadline, "{:?}", start.elapsed());
    // At most in_flight_max pipelines are in flight; the others wait as long and then fail.
    let crowd = (1..=20).map(|n| {
        let mailbox = Arc::clone(&mailbox);
        tokio::spawn(async move { put(&mailbox, ios(n), 2).await })
    });
    for member in futures_util::future::join_all(crowd).await {
        let error = member.expect("no panic").expect_err("hangs");
        assert_eq!(error.kind, Kind::Unavailable);
    }
    assert!(start.elapsed() < 10 * deadline, "{:?}", start.elapsed());
    // After this many unanswered calls nobody waits for the server any more.
    for n in 1..=8 {
        put(&mailbox, ios(n), 3).await.expect_err("hangs");
    }
    let start = tokio::time::Instant::now();
    for n in 1..=100 {
        let error = put(&mailbox, ios(n), 3).await.expect_err("hangs");
        assert_eq!(error.kind, Kind::Unavailable);
    }
    // Each of them waited for its deadline otherwise.
    assert!(start.elapsed() < 5 * deadline, "{:?}", start.elapsed());
    server.signal("CONT");
    eventually(async || put(&mailbox, ios(1), 3).await).await;
    // Calls reported as unavailable may have taken effect, but only as a whole.
    assert_eq!(
        mailbox.audit().await.expect("audited").wrong,
        Vec::<String>::new()
    );
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_server_that_comes_back_is_found_again() {
    let mut server = Server::start(&[]).await;
    let mailbox = open_own(&server).await;
    put(&mailbox, ios(1), 1).await.expect("stored");
    server.kill();
    let error = put(&mailbox, ios(1), 2).await.expect_err("gone");
    assert_eq!(error.kind, Kind::Unavailable);
    server.restart().await;
    eventually(async || put(&mailbox, ios(1), 3).await).await;
    assert_eq!(
        waiting(&mailbox, ios(1)).await.expect("paged"),
        [3],
        "it kept nothing"
    );
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_replica_is_no_master() {
    let master = Server::start(&[]).await;
    let port = master.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]).await;
    replica.wait_for_info("master_link_status:up").await;
    let config = config(RedisMode::Single, vec![replica.address()]);
    let error = RedisMailbox::connect(&config, Arc::new(SystemEntropy)).await;
    let error = error.err().expect("a replica");
    assert!(why(&error).contains("is a replica"), "{}", why(&error));

    // A demoted master in use refuses pages too: they may be stale.
    let mailbox = open_own(&master).await;
    put(&mailbox, ios(1), 1).await.expect("stored");
    let other = replica.port.to_string();
    let _: String = replica
        .execute(&["REPLICAOF", "NO", "ONE"])
        .await
        .expect("promoted");
    let _: String = master
        .execute(&["REPLICAOF", "127.0.0.1", &other])
        .await
        .expect("demoted");
    for error in [
        put(&mailbox, ios(1), 2).await.err(),
        waiting(&mailbox, ios(1)).await.err(),
    ] {
        assert_eq!(error.expect("demoted").kind, Kind::Unavailable);
    }
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn unreadable_rows_fail_only_their_user() {
    let server = Server::start(&[]).await;
    let mailbox = open_own(&server).await;
    let key = mailbox.keys.sessions(user(1));
    let _: i64 = server
        .execute(&["HSET", &key, "7", "ios-boat"])
        .await
        .expect("set");
    let key = mailbox.keys.waiting(ios(3));
    let _: String = server
        .execute(&["SET", &key, "no zset"])
        .await
        .expect("set");
    let requests = (1..=3).map(|n| request(ios(n), 1)).collect();
    let kinds: Vec<_> = (mailbox.route_or_store(requests).await.into_iter())
        .map(|answer| answer.err().map(|error| error.kind))
        .collect();
    assert_eq!(kinds, [Some(Kind::Corrupt), None, Some(Kind::Corrupt)]);
    // The corrupt requests changed nothing, and the unreadable rows stay. S1, pitfall A.
    let audit = mailbox.audit().await.err().map(|error| error.kind);
    assert_eq!(audit, Some(Kind::Corrupt));
    let session_count: i64 = server
        .execute(&["HLEN", &mailbox.keys.sessions(user(1))])
        .await
        .expect("read");
    assert_eq!(session_count, 1);
    let bodies: Vec<String> = server.execute(&["KEYS", "*/m"]).await.expect("read");
    assert_eq!(bodies.len(), 1);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn pages_are_bounded_in_bytes_and_trims_in_steps() {
    let mut config = config(
        RedisMode::Single,
        crate::test_servers::addresses("redis-single"),
    );
    config.page_bytes_max = 15;
    let mailbox = open(&config).await;
    let web = on(1, contract::UNLIMITED);
    let now = SystemClock.now();
    let many = 2 * mail::STEP as i64 + 10;
    // Equal times: the ids decide the order.
    let requests = (1..=many).map(|n| {
        let mut request = request(web, n);
        request.mail = request.mail.map(|mail| Mail {
            accepted_at: now,
            ..mail
        });
        request
    });
    for answer in mailbox.route_or_store(requests.collect()).await {
        answer.expect("stored");
    }
    let (mut cursor, mut pages) = (None, Vec::new());
    for _ in 0..4 {
        let page = mailbox.page(web, cursor, 500, now).await.expect("paged");
        // Entries may be acknowledged between pages, including the one at the cursor.
        let ids: Vec<MessageId> = page.mails.iter().map(|mail| mail.id).collect();
        pages.push(ids.iter().map(|id| id.get()).collect::<Vec<_>>());
        cursor = page.next;
        let acks = vec![(web, ids)];
        assert!(mailbox.acknowledge(acks, now).await[0].is_ok());
    }
    assert_eq!(pages, [[1, 2], [3, 4], [5, 6], [7, 8]]);
    let policy = MailboxPolicy {
        expire: contract::EXPIRE,
        count_max: Some(3),
    };
    let removed_count = mailbox.trim(web, policy, now).await.expect("trimmed");
    assert_eq!(i64::from(removed_count), many - 8 - 3);
    assert_eq!(mailbox.waiting(web).await.expect("counted"), 3);
    assert_eq!(
        mailbox.audit().await.expect("audited").wrong,
        Vec::<String>::new()
    );
    clean(&mailbox).await;
}

/// Marks are bounded in number, and the oldest are forgotten.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn only_so_many_acknowledgements_are_remembered() {
    let mailbox = open_real(RedisMode::Single, "redis-single").await;
    let start = SystemClock.now();
    for n in 1..=400 {
        let acks = vec![(ios(1), vec![MessageId::new(n).expect("positive")])];
        let now = start + Duration::from_millis(n as u64);
        assert!(mailbox.acknowledge(acks, now).await[0].is_ok());
    }
    let bucket = protocol::keys::bucket_of(user(1));
    let count = Call::command(bucket, "HLEN").key(mailbox.keys.mark(ios(1)));
    let count = reply::integer(mailbox.pool().ask(count).await.expect("read")).expect("a number");
    assert!((192..=256).contains(&count), "{count}");
    assert_eq!(
        put(&mailbox, ios(1), 400)
            .await
            .expect("routed")
            .acknowledged_platforms,
        [Platform::Ios]
    );
    assert_eq!(
        put(&mailbox, ios(1), 1)
            .await
            .expect("routed")
            .stored_platforms,
        [Platform::Ios]
    );
    clean(&mailbox).await;
}
