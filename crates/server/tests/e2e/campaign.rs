//! Everything is killed once under a steady chat; after each blow the books balance, and at the end the
//! chat's own clients lost nothing and showed nothing twice. Needs `make real-up`; run by `make e2e`.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::fleet::{Fleet, SERVICES};
use crate::process::{Process, run};
use crate::real::{self, Down, eventually, tool};

/// How long a steady chat runs between two blows.
const BREATH: Duration = Duration::from_secs(3);

/// A running `bench steady` over both boats of a fleet.
struct Chat(Process);

impl Chat {
    fn begin(fleet: &Fleet) -> Chat {
        let boats = [fleet.boat("boat-1"), fleet.boat("boat-2")];
        let mut command = fleet.command(&["bench", "steady", "--pairs", "60", "--rate", "100"]);
        command.args(["--url", &boats[0], "--url", &boats[1]]);
        command.args(["--seconds", "100000", "--settle", "120", "--output", "json"]);
        let chat = Chat(Process::start(&mut command));
        thread::sleep(BREATH);
        chat
    }

    /// Ends it and looks at what its clients found.
    fn end(mut self) -> Value {
        assert!(self.0.is_running(), "the chat ended by itself");
        self.0.signal("TERM");
        let found = self.0.line_within(Duration::from_secs(180));
        let found = found.expect("it says what it found");
        let found: Value = serde_json::from_str(&found).expect("JSON");
        println!("the chat found {found}");
        for fault in ["twice", "out_of_order", "open"] {
            assert_eq!(found[fault], 0, "{fault} in {found}");
        }
        assert_eq!(found["missing"], Value::Array(Vec::new()), "{found}");
        found
    }
}

/// After a blow: new messages pass from end to end, and the books balance.
fn recovered(fleet: &Fleet, blow: &str) {
    eventually(&format!("a message passes after {blow}"), || {
        let send = ["send", "--user", "1", "--to", "2", "--timeout", "5", blow];
        (run(&mut fleet.user(&send)).code == Some(0)).then_some(())
    });
    eventually(&format!("it is shown after {blow}"), || {
        let listen = ["listen", "--user", "2", "--count", "1", "--timeout", "5"];
        (run(&mut fleet.user(&listen)).code == Some(0)).then_some(())
    });
    eventually(&format!("the books balance after {blow}"), || {
        let audit = run(&mut fleet.operator(&["audit"]));
        let balance = audit.stdout.lines().next().unwrap_or_default();
        println!("after {blow}: {balance}");
        (audit.code == Some(0)).then_some(())
    });
    thread::sleep(BREATH);
}

// proves S1-27 in part
#[test]
#[ignore = "needs the real parts: make e2e"]
fn whatever_is_killed_nothing_accepted_is_lost() {
    let mut fleet = Fleet::start("cluster");
    let chat = Chat::begin(&fleet);
    recovered(&fleet, "nothing");
    for service in SERVICES {
        let name = format!("{service}-1");
        fleet.kill(&name);
        thread::sleep(BREATH);
        fleet.restart(&name);
        recovered(&fleet, &format!("kill -9 of {name}"));
    }
    if real::addresses("kafka").len() > 1 {
        let broker = leader_of_a_partition(&fleet);
        let down = Down::of("kafka", &broker);
        thread::sleep(Duration::from_secs(10));
        recovered(&fleet, "kill -9 of a Kafka leader");
        drop(down);
    }
    promote_without_the_tail();
    recovered(
        &fleet,
        "the promotion of a Redis replica that lacked its tail",
    );
    for port in masters() {
        tool("redis-cli", &["-p", &port, "flushall"]);
    }
    recovered(&fleet, "FLUSHALL");
    let down = (real::addresses("etcd").len() > 1).then(|| Down::of("etcd", &etcd_leader()));
    recovered(&fleet, "kill -9 of the etcd leader");
    drop(down);
    revoke_lease_of(&fleet, "boat-1");
    recovered(&fleet, "the revocation of a boat's lease");
    let down = Down::of("cql", "1");
    thread::sleep(Duration::from_secs(20));
    drop(down);
    recovered(&fleet, "twenty seconds without the CQL node");
    chat.end();
    fleet.at_rest();
}

/// Slots move from one master to another and back, under load.
#[test]
#[ignore = "needs the real parts: make e2e"]
fn resharding_loses_nothing() {
    let fleet = Fleet::start("cluster");
    let chat = Chat::begin(&fleet);
    let masters = masters();
    let (first, second) = (&masters[0], &masters[1]);
    for (from, to) in [(first, second), (second, first)] {
        let (from_id, to_id) = (node_id(from), node_id(to));
        let moved = Command::new("redis-cli")
            .args(["--cluster", "reshard", &format!("127.0.0.1:{first}")])
            .args(["--cluster-from", &from_id, "--cluster-to", &to_id])
            .args(["--cluster-slots", "500", "--cluster-yes"])
            .output()
            .expect("redis-cli runs");
        let said = String::from_utf8_lossy(&moved.stdout);
        assert!(moved.status.success(), "{said}");
        recovered(&fleet, "resharding");
    }
    chat.end();
    fleet.at_rest();
    for service in SERVICES {
        for number in [1, 2] {
            let log = std::fs::read_to_string(fleet.log(&format!("{service}-{number}")));
            assert!(!log.expect("a log").to_uppercase().contains("CROSSSLOT"));
        }
    }
}

/// The number of the broker that leads a partition of topic `message`.
fn leader_of_a_partition(fleet: &Fleet) -> String {
    let brokers = real::addresses("kafka").join(",");
    let topic = format!("{}-message", fleet.name());
    let told = tool("kcat", &["-L", "-J", "-b", &brokers, "-t", &topic]);
    let told: Value = serde_json::from_str(&told).expect("kcat speaks JSON");
    told["topics"][0]["partitions"][0]["leader"]
        .as_i64()
        .expect("a leader")
        .to_string()
}

/// Kills a master of the cluster while its replica hangs, then lets the replica take over without what it
/// missed. The old master comes back as a replica.
fn promote_without_the_tail() {
    let master = masters().remove(0);
    let replica = replica_of(&master);
    let stopped = pid_of(&replica);
    tool("kill", &["-s", "STOP", &stopped]);
    thread::sleep(Duration::from_secs(2));
    let down = Down::of("redis", &master);
    tool("kill", &["-s", "CONT", &stopped]);
    eventually("the replica is master", || {
        masters().contains(&replica).then_some(())
    });
    drop(down);
}

fn nodes() -> Vec<Vec<String>> {
    for address in real::addresses("redis-cluster") {
        let port = address.rsplit(':').next().expect("a port");
        let told = tool("redis-cli", &["-p", port, "cluster", "nodes"]);
        let lines: Vec<Vec<String>> = told
            .lines()
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .filter(|fields: &Vec<String>| fields.len() > 7)
            .collect();
        if !lines.is_empty() {
            return lines;
        }
    }
    panic!("no node of the Redis cluster answers");
}

fn port(fields: &[String]) -> String {
    let address = fields[1].split('@').next().expect("an address");
    address.rsplit(':').next().expect("a port").to_owned()
}

/// The ports of the masters that live and hold slots.
fn masters() -> Vec<String> {
    let is_master = |fields: &Vec<String>| {
        fields[2].contains("master") && !fields[2].contains("fail") && fields.len() > 8
    };
    let nodes = nodes().into_iter().filter(is_master);
    nodes.map(|fields| port(&fields)).collect()
}

fn node_id(master: &str) -> String {
    let mut nodes = nodes().into_iter();
    let node = nodes.find(|fields| port(fields) == master);
    node.expect("a node").remove(0)
}

fn replica_of(master: &str) -> String {
    let id = node_id(master);
    let mut nodes = nodes().into_iter();
    let replica = nodes.find(|fields| fields[3] == id && fields[2].contains("slave"));
    port(&replica.expect("a replica"))
}

fn pid_of(redis: &str) -> String {
    let info = tool("redis-cli", &["-p", redis, "info", "server"]);
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    pid.expect("a pid").trim().to_owned()
}

fn endpoints() -> String {
    real::addresses("etcd").join(",")
}

/// The number of the member that leads, counted from 1 in the order of the addresses.
fn etcd_leader() -> String {
    let told = tool(
        "etcdctl",
        &[
            "--endpoints",
            &endpoints(),
            "endpoint",
            "status",
            "-w",
            "json",
        ],
    );
    let told: Value = serde_json::from_str(&told).expect("etcdctl speaks JSON");
    let leader = &told[0]["Status"]["leader"];
    let members = told.as_array().expect("a list");
    let index = members
        .iter()
        .position(|member| member["Status"]["header"]["member_id"] == *leader)
        .expect("the leader answers");
    (index + 1).to_string()
}

fn revoke_lease_of(fleet: &Fleet, boat: &str) {
    let prefix = format!("/{}", fleet.name());
    let get = [
        "--endpoints",
        &endpoints(),
        "get",
        "--prefix",
        &prefix,
        "-w",
        "json",
    ];
    let told: Value = serde_json::from_str(&tool("etcdctl", &get)).expect("etcdctl speaks JSON");
    let keys = told["kvs"].as_array().expect("keys").iter();
    let lease = keys
        .filter(|kv| decoded(&kv["key"]).contains("boat") && decoded(&kv["key"]).ends_with(boat))
        .find_map(|kv| kv["lease"].as_i64())
        .expect("the boat has a lease");
    let revoke = [
        "--endpoints",
        &endpoints(),
        "lease",
        "revoke",
        &format!("{lease:x}"),
    ];
    let told = tool("etcdctl", &revoke);
    assert!(told.contains("revoked"), "{told}");
}

fn decoded(value: &Value) -> String {
    let text = value.as_str().expect("base64");
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text);
    String::from_utf8(bytes.expect("base64")).expect("text")
}
