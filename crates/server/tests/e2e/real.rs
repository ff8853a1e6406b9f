//! The real parts that `make real-up` started: where they answer, and how one of them is hurt.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The addresses of a part (`kafka`, `redis-cluster`, `etcd`, `cql` …).
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

/// `scripts/real/<part> <verb> <node>`: `stop` is `kill -9`, `start` brings it back with its data.
pub fn node(part: &str, verb: &str, node: &str) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts/real")
        .join(part);
    let mut command = Command::new(script);
    let status = command.args([verb, node]).stdin(Stdio::null()).status();
    assert!(
        status.expect("the script runs").success(),
        "{part} {verb} {node}"
    );
}

/// A node that is killed, and brought back when this is dropped, whatever becomes of the test.
pub struct Down {
    part: &'static str,
    node: String,
}

impl Down {
    pub fn of(part: &'static str, name: &str) -> Down {
        node(part, "stop", name);
        Down {
            part,
            node: name.to_owned(),
        }
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        node(self.part, "start", &self.node);
    }
}

/// What a command of a part's own tools prints.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).env("ETCDCTL_API", "3").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Looks until `seen` answers, for a minute.
pub fn eventually<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    for _ in 0..300 {
        if let Some(found) = seen() {
            return found;
        }
        thread::sleep(Duration::from_millis(200));
    }
    panic!("not within a minute: {what}");
}
