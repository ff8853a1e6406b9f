//! The real parts that `make real-up` started: their addresses, and faults to inject.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

/// Addresses of a part (`kafka`, `redis-cluster`, `etcd`, `cql` …).
pub fn addresses(part: &str) -> Vec<String> {
    let name = format!(
        "PACKETBOAT_REAL_{}",
        part.to_ascii_uppercase().replace('-', "_")
    );
    let list = std::env::var(&name).unwrap_or_else(|_| {
        panic!("{name} is not set: `make real-up` starts the real parts, `make e2e` tests on them")
    });
    list.split(',').map(str::to_owned).collect()
}

/// The same as a TOML list.
pub fn list(part: &str) -> String {
    format!("{:?}", addresses(part))
}

/// Settings for the parts of `TLS=1`, as `section.key = value` lines; empty for parts without
/// access control.
pub fn secrets() -> String {
    let Some(folder) = std::env::var_os("PACKETBOAT_REAL_TLS").map(PathBuf::from) else {
        return String::new();
    };
    let file = |name: &str| folder.join(name);
    let (ca, cert, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
    let mut lines = vec!["kafka.sasl.mechanism = \"SCRAM-SHA-512\"".to_owned()];
    for (section, user, part) in [
        ("kafka", "kafka.sasl.", "kafka"),
        ("redis", "redis.", "redis"),
        ("redis", "redis.sentinel_", "redis"),
        ("etcd", "etcd.", "etcd"),
        ("scylla", "scylla.", "cql"),
    ] {
        let password = file(&format!("{part}.password"));
        lines.push(format!("{user}username = \"packetboat\""));
        lines.push(format!("{user}password_file = {password:?}"));
        if user != "redis.sentinel_" {
            lines.push(format!(
                "{section}.tls = {{ ca_file = {ca:?}, cert_file = {cert:?}, key_file = {key:?} }}"
            ));
        }
    }
    lines.join("\n")
}

/// Runs `scripts/real/<part> <verb> <node>…`: `stop` is `kill -9`, `start` brings nodes back with
/// their data, `wipe` stops them and removes it.
fn nodes(part: &str, verb: &str, nodes: &[String]) -> Result<(), String> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts/real")
        .join(part);
    let mut command = Command::new(script);
    let status = command.arg(verb).args(nodes).stdin(Stdio::null()).status();
    if status.expect("the script runs").success() {
        Ok(())
    } else {
        Err(format!("{part} {verb} {nodes:?} failed"))
    }
}

/// Killed nodes; the drop brings them back, even if the test fails.
pub struct Down {
    part: &'static str,
    nodes: Vec<String>,
}

impl Down {
    pub fn new(part: &'static str, names: &[String]) -> Down {
        let down = Down {
            part,
            nodes: names.to_owned(),
        };
        nodes(part, "stop", names).expect("they are killed");
        down
    }

    /// Like `new`; the nodes come back without their data.
    pub fn without_data(part: &'static str, names: &[String]) -> Down {
        let down = Down::new(part, names);
        nodes(part, "wipe", names).expect("their data is removed");
        down
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        match nodes(self.part, "start", &self.nodes) {
            Ok(()) => {}
            // A second panic would abort the process, and lose the message of the first.
            Err(failure) if thread::panicking() => eprintln!("{failure}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Moves the copies of a partition to these brokers.
pub fn place(topic: &str, partition: u32, brokers: &[&str]) {
    let partition = partition.to_string();
    let mut words = vec![topic.to_owned(), partition];
    words.extend(brokers.iter().map(|&broker| broker.to_owned()));
    nodes("kafka", "place", &words).expect("the copies move");
}

/// Sets `name=value` of a topic.
pub fn configure(topic: &str, setting: &str) {
    nodes(
        "kafka",
        "configure",
        &[topic.to_owned(), setting.to_owned()],
    )
    .expect("it is set");
}

/// Output of a part's own tool.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).env("ETCDCTL_API", "3").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Calls `poll` until it returns a value, for up to a minute.
pub fn eventually<T>(condition: &str, poll: impl FnMut() -> Option<T>) -> T {
    within(Duration::from_secs(60), condition, poll)
}

/// Calls `poll` until it returns a value. A call that begins in time may end later.
pub fn within<T>(timeout: Duration, condition: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    while began.elapsed() < timeout {
        if let Some(value) = poll() {
            return value;
        }
        thread::sleep(Duration::from_millis(200));
    }
    panic!("not within {timeout:?}: {condition}");
}
