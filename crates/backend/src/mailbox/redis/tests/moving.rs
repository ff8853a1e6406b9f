//! A cluster whose slots move while they are used.

use protocol::keys::bucket_of;
use redis::Value;
use tokio_util::sync::CancellationToken;

use super::server::Server;
use super::*;

/// Three masters without replicas, each with a third of the slots.
async fn cluster() -> Vec<Server> {
    let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let mut masters = Vec::new();
    for _ in 0..3 {
        masters.push(Server::start(&args).await);
    }
    let slots = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
    for (n, (master, (first, last))) in masters.iter().zip(slots).enumerate() {
        let epoch = (n + 1).to_string();
        for words in [
            ["CLUSTER", "ADDSLOTSRANGE", first, last].as_slice(),
            &["CLUSTER", "SET-CONFIG-EPOCH", &epoch],
            &["CLUSTER", "MEET", "127.0.0.1", &masters[0].port.to_string()],
        ] {
            let _: Value = master.tell(words).await.expect("told");
        }
    }
    for master in &masters {
        for _ in 0..600 {
            let told: String = master.tell(&["CLUSTER", "INFO"]).await.expect("told");
            if told.contains("cluster_state:ok") && told.contains("cluster_known_nodes:3") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    masters
}

/// Moves a slot as an operator's tool does, a key at a time.
async fn migrate(slot: u16, from: &Server, to: &Server) {
    let slot = slot.to_string();
    let from_id: String = from.tell(&["CLUSTER", "MYID"]).await.expect("told");
    let to_id: String = to.tell(&["CLUSTER", "MYID"]).await.expect("told");
    let set =
        |state: &'static str, id: &str| ["CLUSTER", "SETSLOT", &slot, state, id].map(str::to_owned);
    let tell = async |server: &Server, words: [String; 5]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: Value = server.tell(&words).await.expect("told");
    };
    tell(to, set("IMPORTING", &from_id)).await;
    tell(from, set("MIGRATING", &to_id)).await;
    loop {
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot, "1"];
        let keys: Vec<String> = from.tell(&words).await.expect("told");
        let [key] = keys.as_slice() else {
            break;
        };
        let port = to.port.to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        let _: Value = from.tell(&words).await.expect("moved");
        // So that both have some for a while.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tell(to, set("NODE", &to_id)).await;
    tell(from, set("NODE", &to_id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn slots_may_move_under_load() {
    let masters = cluster().await;
    let mut config = config(
        RedisMode::Cluster,
        masters.iter().map(Server::address).collect(),
    );
    config.deadline = Duration::from_millis(500);
    let mailbox = open(&config).await;
    let web = on(1, contract::UNLIMITED);
    for n in 1..=40 {
        put(&mailbox, web, n).await.expect("stored");
    }
    let before = connect(&mailbox, ios(1), 1)
        .await
        .expect("connected")
        .marker;

    let end = CancellationToken::new();
    let load = async {
        let mut n = 100;
        while !end.is_cancelled() {
            n += 1;
            eventually(async || put(&mailbox, web, n).await).await;
        }
        n
    };
    let slot = crate::redis::slots::of_bucket(bucket_of(user(1)));
    let owner = usize::from(slot) * 3 / 16_384;
    let moves = async {
        for (from, to) in [(owner, (owner + 1) % 3), ((owner + 1) % 3, owner)] {
            migrate(slot, &masters[from], &masters[to]).await;
        }
        end.cancel();
    };
    let (last, ()) = tokio::join!(load, moves);
    // A script waits until all its keys lie in one place: few get through while the slot moves.
    assert!(last > 101, "{last}");

    let expected: Vec<i64> = (1..=40).chain(101..=last).collect();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = mailbox
            .page(web, after, 500, SystemClock.now())
            .await
            .expect("paged");
        assert_eq!(page.bodiless, []);
        found.extend(page.mails.iter().map(|mail| mail.id.get()));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(
        mailbox.audit().await.expect("audited").wrong,
        Vec::<String>::new()
    );
    // It came back to the master that it was told under.
    let after = connect(&mailbox, ios(1), 1)
        .await
        .expect("connected")
        .marker;
    assert_eq!(after, before);
}

/// One batch for users of all servers is answered in the order of the question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn a_batch_goes_to_all_servers_and_comes_back_in_order() {
    let mailbox = open_real(RedisMode::Cluster, "redis-cluster").await;
    assert_eq!(mailbox.pool().masters().len(), 3);
    for n in (2..=1_000).step_by(2) {
        connect(&mailbox, ios(n), n).await.expect("connected");
    }
    let requests: Vec<RouteRequest> = (1..=1_000).map(|n| request(ios(n), n)).collect();
    for (n, answer) in (1..).zip(mailbox.route_or_store(requests).await) {
        let answer = answer.expect("routed");
        let live: Vec<i64> = answer
            .live
            .iter()
            .map(|entry| entry.session.get())
            .collect();
        assert_eq!(live, if n % 2 == 0 { vec![n] } else { vec![] });
    }
    clean(&mailbox).await;
}
