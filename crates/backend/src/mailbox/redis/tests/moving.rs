//! A cluster whose slots move while in use.

use std::cell::Cell;

use protocol::keys::bucket_of;
use redis::Value;
use tokio_util::sync::CancellationToken;

use super::server::Server;
use super::*;

/// Three masters without replicas, each with a third of the slots.
async fn cluster() -> Vec<Server> {
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "10000",
    ];
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
            let _: Value = master.execute(words).await.expect("told");
        }
    }
    for master in &masters {
        for _ in 0..1200 {
            let info: String = master.execute(&["CLUSTER", "INFO"]).await.expect("told");
            if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    masters
}

/// A slot moving from one server to another, in the steps of an operator's tool.
struct Move<'a> {
    slot: String,
    from: &'a Server,
    to: &'a Server,
    to_id: String,
}

impl<'a> Move<'a> {
    async fn begin(slot: u16, from: &'a Server, to: &'a Server) -> Move<'a> {
        let from_id: String = from.execute(&["CLUSTER", "MYID"]).await.expect("told");
        let to_id: String = to.execute(&["CLUSTER", "MYID"]).await.expect("told");
        let slot = slot.to_string();
        let slot_move = Move {
            slot,
            from,
            to,
            to_id,
        };
        slot_move.set(to, "IMPORTING", &from_id).await;
        slot_move.set(from, "MIGRATING", &slot_move.to_id).await;
        slot_move
    }

    async fn set(&self, server: &Server, state: &str, id: &str) {
        let words = ["CLUSTER", "SETSLOT", &self.slot, state, id];
        let _: Value = server.execute(&words).await.expect("told");
    }

    /// Moves one key.
    async fn key(&self, key: &str) {
        let port = self.to.port.to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        let reply: String = self.from.execute(&words).await.expect("moved");
        assert_eq!(reply, "OK", "{key}");
    }

    /// Moves the remaining keys one by one, then the slot.
    async fn end(self) {
        loop {
            let words = ["CLUSTER", "GETKEYSINSLOT", &self.slot, "1"];
            let keys: Vec<String> = self.from.execute(&words).await.expect("told");
            let [key] = keys.as_slice() else {
                break;
            };
            self.key(key).await;
            // Both servers should have some keys for a while.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.set(self.to, "NODE", &self.to_id).await;
        self.set(self.from, "NODE", &self.to_id).await;
    }
}

/// The slot of user 1 and the index of its first master.
fn first_user_slot() -> (u16, usize) {
    let slot = crate::redis::slots::for_bucket(bucket_of(user(1)));
    (slot, usize::from(slot) * 3 / 16_384)
}

async fn open_cluster(masters: &[Server]) -> RedisMailbox {
    let addresses = masters.iter().map(Server::address).collect();
    let mut config = config(RedisMode::Cluster, addresses);
    config.deadline = Duration::from_secs(3);
    open(&config).await
}

/// All waiting mail; asserts that every page has its bodies.
async fn whole(mailbox: &RedisMailbox, target: Target) -> Result<Vec<i64>> {
    let (mut numbers, mut cursor) = (Vec::new(), None);
    loop {
        let page = mailbox.page(target, cursor, 500, SystemClock.now()).await?;
        assert_eq!(page.bodiless, []);
        for mail in &page.mails {
            assert_eq!(mail.body, format!("body {}", mail.id.get()));
            numbers.push(mail.id.get());
        }
        cursor = page.next;
        if cursor.is_none() {
            numbers.sort_unstable();
            return Ok(numbers);
        }
    }
}

/// No body goes missing, whichever keys have moved: those of entries, of some bodies, or of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn no_body_is_missing_while_its_slot_moves() {
    let masters = cluster().await;
    let mailbox = open_cluster(&masters).await;
    let (slot, owner) = first_user_slot();
    let (from, to) = (&masters[owner], &masters[(owner + 1) % 3]);
    let (web, pad) = (on(1, contract::UNLIMITED), on(1, Platform::Desktop));
    let all: Vec<i64> = (1..=120).collect();
    for &n in &all {
        put(&mailbox, web, n).await.expect("stored");
    }
    // An acknowledgement also names the key of marks, which must exist.
    put(&mailbox, ios(1), 200).await.expect("stored");
    acknowledge(&mailbox, ios(1), &[200])
        .await
        .expect("removed");
    put(&mailbox, ios(1), 201).await.expect("stored");
    put(&mailbox, pad, 202).await.expect("stored");
    let body = |n| mailbox.keys.body(bucket_of(user(1)), mail(n).id);

    let slot_move = Move::begin(slot, from, to).await;
    let look = async || {
        assert_eq!(whole(&mailbox, web).await.expect("paged"), all);
        assert_eq!(whole(&mailbox, ios(1)).await.expect("paged"), [201]);
        assert_eq!(whole(&mailbox, pad).await.expect("paged"), [202]);
    };
    look().await;
    // Some bodies move before their entries, others after.
    for n in (1..=80).chain([201]) {
        slot_move.key(&body(n)).await;
    }
    look().await;
    slot_move.key(&mailbox.keys.waiting(web)).await;
    slot_move.key(&mailbox.keys.waiting(pad)).await;
    look().await;

    // A body that exists nowhere is missing; a body on an unreachable server is not.
    let lost_id = mail(120).id;
    let _: Value = from.execute(&["DEL", &body(120)]).await.expect("deleted");
    let page = async |target, cursor| mailbox.page(target, cursor, 500, SystemClock.now()).await;
    let (mut missing_ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = page(web, cursor).await.expect("paged");
        missing_ids.extend(page.bodiless);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(missing_ids, [lost_id]);
    to.signal("STOP");
    let result = page(ios(1), None).await.map(|page| page.bodiless);
    to.signal("CONT");
    let error = result.expect_err("its body lies on a server that hangs");
    assert_eq!(error.kind, crate::Kind::Unavailable);
    eventually(async || page(ios(1), None).await.map(drop)).await;

    // The body has moved, its count has not.
    acknowledge(&mailbox, ios(1), &[201])
        .await
        .expect("removed");
    slot_move.end().await;
    assert_eq!(whole(&mailbox, ios(1)).await.expect("paged"), [0i64; 0]);
    assert_eq!(whole(&mailbox, pad).await.expect("paged"), [202]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn slots_may_move_under_load() {
    let masters = cluster().await;
    let mailbox = open_cluster(&masters).await;
    let web = on(1, contract::UNLIMITED);
    for n in 1..=40 {
        put(&mailbox, web, n).await.expect("stored");
    }
    let old_marker = connect(&mailbox, ios(1), 1)
        .await
        .expect("connected")
        .marker;

    let first: Vec<i64> = (1..=40).collect();
    let end = CancellationToken::new();
    let (puts, looks) = (Cell::new(0), Cell::new(0));
    let load = async {
        let mut n = 100;
        while !end.is_cancelled() {
            n += 1;
            eventually(async || put(&mailbox, web, n).await).await;
            puts.set(puts.get() + 1);
        }
        n
    };
    let device = async {
        while !end.is_cancelled() {
            let numbers = eventually(async || whole(&mailbox, web).await).await;
            assert!(numbers.starts_with(&first), "{numbers:?}");
            looks.set(looks.get() + 1);
        }
    };
    let (slot, owner) = first_user_slot();
    let moves = async {
        // Scripts wait until all their keys are in one place, so few get through while the slot
        // moves.
        while looks.get() <= 5 || puts.get() <= 1 {
            for (from, to) in [(owner, (owner + 1) % 3), ((owner + 1) % 3, owner)] {
                let slot_move = Move::begin(slot, &masters[from], &masters[to]).await;
                slot_move.end().await;
            }
        }
        end.cancel();
    };
    let (last, (), ()) = tokio::join!(load, device, moves);

    let expected: Vec<i64> = (1..=40).chain(101..=last).collect();
    assert_eq!(whole(&mailbox, web).await.expect("paged"), expected);
    assert_eq!(
        mailbox.audit().await.expect("audited").wrong,
        Vec::<String>::new()
    );
    // The slot is back at the master under which the marker was made.
    let new_marker = connect(&mailbox, ios(1), 1)
        .await
        .expect("connected")
        .marker;
    assert_eq!(new_marker, old_marker);
}

/// A batch for users of all servers is answered in request order.
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
