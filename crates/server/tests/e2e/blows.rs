//! Victims among the real parts, and faults of more than one step.

use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::fleet::Fleet;
use crate::real::{self, Down, eventually, tool};

/// Number of the broker that leads a partition of topic `message`.
pub fn partition_leader(fleet: &Fleet) -> String {
    leaders(fleet)[0].expect("a leader").to_string()
}

/// Brokers that lead the partitions of topic `message`; `None` for one without a leader.
pub fn leaders(fleet: &Fleet) -> Vec<Option<i64>> {
    let brokers = real::addresses("kafka").join(",");
    let metadata = tool(
        "kcat",
        &["-L", "-J", "-b", &brokers, "-t", &messages(fleet)],
    );
    let metadata: Value = serde_json::from_str(&metadata).expect("kcat speaks JSON");
    let partitions = metadata["topics"][0]["partitions"].as_array();
    let leaders = partitions.expect("partitions").iter();
    leaders
        .map(|partition| partition["leader"].as_i64().filter(|leader| *leader >= 0))
        .collect()
}

/// Name of a fleet's topic `message`.
pub fn messages(fleet: &Fleet) -> String {
    format!("{}-message", fleet.name())
}

/// Kills a master of the cluster while its replica hangs, then lets the replica take over without
/// the writes it missed. The old master comes back as a replica.
pub fn promote_without_the_tail() {
    let master = masters().remove(0);
    let replica = replica_address(&master);
    let pid = redis_pid(&replica);
    tool("kill", &["-s", "STOP", &pid]);
    thread::sleep(Duration::from_secs(2));
    let down = Down::new("redis", &[master]);
    tool("kill", &["-s", "CONT", &pid]);
    eventually("the replica is master", || {
        masters().contains(&replica).then_some(())
    });
    drop(down);
}

fn nodes() -> Vec<Vec<String>> {
    for address in real::addresses("redis-cluster") {
        let port = address.rsplit(':').next().expect("a port");
        let node_table = tool("redis-cli", &["-p", port, "cluster", "nodes"]);
        let lines: Vec<Vec<String>> = node_table
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

/// Ports of the live masters that hold slots.
pub fn masters() -> Vec<String> {
    let is_master = |fields: &Vec<String>| {
        fields[2].contains("master") && !fields[2].contains("fail") && fields.len() > 8
    };
    let nodes = nodes().into_iter().filter(is_master);
    nodes.map(|fields| port(&fields)).collect()
}

/// Slots of Redis Cluster that a master holds.
pub fn shard_slots(master: &str) -> Vec<RangeInclusive<u16>> {
    let mut nodes = nodes().into_iter();
    let node = nodes.find(|fields| port(fields) == master);
    let node = node.expect("a node");
    // Slots that migrate to another master stand in brackets.
    let ranges = node[8..].iter().filter(|range| !range.starts_with('['));
    ranges
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let slot = |text: &str| text.parse().expect("a slot");
            slot(first)..=slot(last)
        })
        .collect()
}

pub fn node_id(master: &str) -> String {
    let mut nodes = nodes().into_iter();
    let node = nodes.find(|fields| port(fields) == master);
    node.expect("a node").remove(0)
}

pub fn replica_address(master: &str) -> String {
    let id = node_id(master);
    let mut nodes = nodes().into_iter();
    let replica = nodes.find(|fields| fields[3] == id && fields[2].contains("slave"));
    port(&replica.expect("a replica"))
}

fn redis_pid(redis: &str) -> String {
    let info = tool("redis-cli", &["-p", redis, "info", "server"]);
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    pid.expect("a pid").trim().to_owned()
}

fn etcdctl(words: &[&str]) -> String {
    let endpoints = real::addresses("etcd").join(",");
    tool("etcdctl", &[&["--endpoints", &endpoints], words].concat())
}

fn etcd_says(words: &[&str]) -> Value {
    let json = etcdctl(&[words, &["-w", "json"]].concat());
    serde_json::from_str(&json).expect("etcdctl speaks JSON")
}

/// Number of the leading member, counted from 1 in the order of the addresses.
pub fn etcd_leader() -> String {
    let status = etcd_says(&["endpoint", "status"]);
    let leader = &status[0]["Status"]["leader"];
    let members = status.as_array().expect("a list");
    let index = members
        .iter()
        .position(|member| member["Status"]["header"]["member_id"] == *leader)
        .expect("the leader answers");
    (index + 1).to_string()
}

/// Compacts etcd up to its present revision.
pub fn compact_etcd() {
    let status = etcd_says(&["endpoint", "status"]);
    let revision = &status[0]["Status"]["header"]["revision"];
    let revision = revision.as_i64().expect("a revision").to_string();
    let output = etcdctl(&["compact", &revision]);
    assert!(output.contains("compacted"), "{output}");
}

pub fn revoke_boat_lease(fleet: &Fleet, boat: &str) {
    let prefix = format!("/{}", fleet.name());
    let entries = etcd_says(&["get", "--prefix", &prefix]);
    let keys = entries["kvs"].as_array().expect("keys").iter();
    let lease = keys
        .filter(|kv| decoded(&kv["key"]).contains("boat") && decoded(&kv["key"]).ends_with(boat))
        .find_map(|kv| kv["lease"].as_i64())
        .expect("the boat has a lease");
    let output = etcdctl(&["lease", "revoke", &format!("{lease:x}")]);
    assert!(output.contains("revoked"), "{output}");
}

fn decoded(value: &Value) -> String {
    let text = value.as_str().expect("base64");
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text);
    String::from_utf8(bytes.expect("base64")).expect("text")
}
