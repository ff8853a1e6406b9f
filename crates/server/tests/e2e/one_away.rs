//! One partition, all of etcd's data and one Redis shard are away for minutes, under load: users
//! that do not depend on them go on at the same rate and latency, and at the end nothing is lost,
//! shown twice or begun anew. Needs `make real-up` with three brokers and a Redis Cluster; run by
//! `make campaign`.

use std::thread;
use std::time::Duration;

use protocol::keys::{bucket_of, crc16, partition_of, record_key};
use protocol::{ConversationId, UserId};
use serde_json::Value;

use crate::blows::{leaders, masters, messages, replica_address, shard_slots};
use crate::fleet::Fleet;
use crate::process::{Process, run};
use crate::real::{self, Down, eventually};

/// Time a part is away.
const AWAY: Duration = Duration::from_secs(120);
/// Time over which the load is measured; a fault covers it whole.
const MEASURED: Duration = Duration::from_secs(90);
/// Messages per second of the measured chat.
const RATE: &str = "20";
/// Factor by which a fault may lower the rate, and raise the 99th percentile of the latency.
const SLOWER: u64 = 2;
/// Partitions of a fleet's topic `message`.
const PARTITIONS: u32 = 6;
/// Partition to be left without a leader, and the broker that gets its only copy.
const HURT: u32 = 0;
const BROKER: &str = "3";

/// Rate and latency of a chat that ran for a while.
#[derive(Debug)]
struct Load {
    accepted_count: u64,
    p99_ms: u64,
}

/// Users that depend on neither the partition nor the shard that will be away.
fn healthy(first: i64, slots: &[std::ops::RangeInclusive<u16>]) -> String {
    let user = |number| UserId::new(number).expect("a user");
    let is_near = |number| {
        let slot = crc16(format!("b{:04}", bucket_of(user(number))).as_bytes()) % 16_384;
        slots.iter().any(|range| range.contains(&slot))
    };
    let pairs = (0..).map(|pair| (first + pair * 2, first + pair * 2 + 1));
    let pairs = pairs.filter(|(sender, receiver)| {
        let conversation = ConversationId::private(user(*sender), user(*receiver));
        let conversation = conversation.expect("two users");
        let partition = partition_of(&record_key(conversation), PARTITIONS);
        partition != HURT && !is_near(*sender) && !is_near(*receiver)
    });
    let lines = pairs.map(|(sender, receiver)| format!("{sender} {receiver}\n"));
    lines.take(30).collect()
}

struct Bench<'a> {
    fleet: &'a Fleet,
    first: i64,
    slots: Vec<std::ops::RangeInclusive<u16>>,
    folder: tempfile::TempDir,
}

impl Bench<'_> {
    /// Measures a chat of users that no fault concerns.
    fn measure(&mut self, case: &str) -> Load {
        let users = self.folder.path().join("users");
        std::fs::write(&users, healthy(self.first, &self.slots)).expect("a file");
        // New users each time, as earlier messages would count.
        self.first += 1_000;
        let boats = [self.fleet.boat("boat-1"), self.fleet.boat("boat-2")];
        let seconds = MEASURED.as_secs().to_string();
        let mut command = self.fleet.bench(&["steady", "--rate", RATE]);
        command.arg("--users").arg(&users).args(["--away", "0"]);
        command.args(["--url", &boats[0], "--url", &boats[1]]);
        command.args(["--seconds", &seconds, "--settle", "20", "--output", "json"]);
        let output = run(&mut command);
        println!("{case}: {}", output.stdout.trim());
        let figures: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!(output.code, Some(0), "{case}: {figures}");
        Load {
            accepted_count: figures["accepted"].as_u64().expect("a count"),
            p99_ms: figures["p99_ms"].as_u64().expect("a latency"),
        }
    }

    /// Measures again while something is away, and compares with the time before.
    fn compare(&mut self, case: &str, baseline: &Load) {
        let load = self.measure(case);
        assert!(
            load.accepted_count * SLOWER >= baseline.accepted_count,
            "{case}: {load:?}, before {baseline:?}"
        );
        assert!(
            load.p99_ms <= baseline.p99_ms * SLOWER,
            "{case}: {load:?}, before {baseline:?}"
        );
    }
}

/// A chat over all partitions and shards, from before the first fault until after the last.
fn whole_chat(fleet: &Fleet) -> Process {
    let boats = [fleet.boat("boat-1"), fleet.boat("boat-2")];
    let mut command = fleet.bench(&["steady", "--pairs", "40", "--rate", "10"]);
    command.args(["--url", &boats[0], "--url", &boats[1]]);
    command.args(["--seconds", "100000", "--settle", "180", "--output", "json"]);
    Process::start(&mut command)
}

fn balances(fleet: &Fleet, step: &str) {
    eventually(&format!("the books balance after {step}"), || {
        let audit = run(&mut fleet.operator(&["audit", "--deep", "--last", "1h"]));
        let balance = audit.stdout.lines().next().unwrap_or_default();
        println!("after {step}: {balance}");
        (audit.code == Some(0)).then_some(())
    });
}

fn partition_without_leader(fleet: &Fleet, bench: &mut Bench<'_>, baseline: &Load) {
    // With fewer than two copies in sync, brokers would keep the old replicas in the partition's
    // list of eligible leaders, and never elect the only one that has it.
    real::configure(&messages(fleet), "min.insync.replicas=1");
    real::place(&messages(fleet), HURT, &[BROKER]);
    let down = Down::new("kafka", &[BROKER.to_owned()]);
    eventually("all other partitions have leaders", || {
        let leaders = leaders(fleet);
        let is_rest_led = leaders
            .iter()
            .skip(1)
            .all(|leader| leader.is_some_and(|leader| leader.to_string() != BROKER));
        (leaders[HURT as usize].is_none() && is_rest_led).then_some(())
    });
    let start = tokio::time::Instant::now();
    bench.compare("one partition without leader", baseline);
    thread::sleep(AWAY.saturating_sub(start.elapsed()));
    drop(down);
    real::place(&messages(fleet), HURT, &[BROKER, "1", "2"]);
    real::configure(&messages(fleet), "min.insync.replicas=2");
}

fn etcd_emptied(fleet: &mut Fleet) {
    let members = real::addresses("etcd").len();
    let members: Vec<String> = (1..=members).map(|member| member.to_string()).collect();
    drop(Down::without_data("etcd", &members));
    // Starts a station on the empty etcd, beside one that has run since before.
    fleet.kill("station-2");
    fleet.restart("station-2");
    fleet.kill("boat-2");
    fleet.restart("boat-2");
}

// proves S1-27 in part
#[test]
#[ignore = "needs the real parts: make campaign"]
fn one_part_away_delays_only_its_own() {
    assert!(real::addresses("kafka").len() == 3, "three brokers");
    let shard = masters().remove(0);
    let mut fleet = Fleet::start("cluster");
    let mut chat = whole_chat(&fleet);
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = 5_000_000;
    let slots = shard_slots(&shard);
    let baseline = {
        let mut bench = Bench {
            fleet: &fleet,
            first,
            slots: slots.clone(),
            folder,
        };
        bench.measure("warming up");
        let baseline = bench.measure("before");
        partition_without_leader(&fleet, &mut bench, &baseline);
        first = bench.first;
        baseline
    };
    balances(&fleet, "one partition without leader");

    etcd_emptied(&mut fleet);
    let mut bench = Bench {
        fleet: &fleet,
        first,
        slots,
        folder: tempfile::tempdir().expect("a folder"),
    };
    bench.compare("etcd emptied", &baseline);
    balances(&fleet, "etcd emptied and started anew");

    let down = Down::new("redis", &[replica_address(&shard), shard.clone()]);
    let start = tokio::time::Instant::now();
    thread::sleep(Duration::from_secs(5));
    bench.compare("one Redis shard away", &baseline);
    thread::sleep(AWAY.saturating_sub(start.elapsed()));
    drop(down);
    balances(&fleet, "one Redis shard away");

    assert!(chat.is_running(), "the chat ended by itself");
    chat.signal("TERM");
    let figures = chat.line_within(Duration::from_secs(300)).expect("figures");
    println!("the whole chat: {figures}");
    let figures: Value = serde_json::from_str(&figures).expect("JSON");
    for fault in ["twice", "out_of_order", "open", "resets"] {
        assert_eq!(figures[fault], 0, "{fault} in {figures}");
    }
    assert_eq!(figures["missing"], Value::Array(Vec::new()), "{figures}");
    fleet.at_rest();
}
