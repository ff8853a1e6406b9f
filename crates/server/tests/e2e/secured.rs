//! Services on parts that require certificates and passwords: `make real-up TLS=1`; run by
//! `scripts/e2e secured`.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::cluster::count_at;
use crate::fleet::Fleet;
use crate::neighbours::{Chat, DELIVERED};
use crate::process::{WAIT_TIMEOUT, run};
use crate::real;
use crate::rotation::{runbook, type_line_with};

#[test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
fn a_message_finds_its_receiver_over_parts_with_tls() {
    let mut fleet = Fleet::with("cluster", "production = true");
    fleet.send("1", "2", "are you new here?");
    assert_eq!(fleet.listen("2", 1)[0]["text"], "are you new here?");
    fleet.at_rest();

    let report = run(&mut fleet.operator(&["doctor"])).ok().stdout;
    for part in ["Kafka", "Redis", "etcd", "ScyllaDB"] {
        let expected = format!("{part} uses TLS");
        assert!(report.contains(&expected), "{report}");
    }
    let dial = ["config", "check", "--connect"];
    run(&mut fleet.command(&dial)).ok();

    // A wrong root, or a wrong password, is reported by its setting.
    let file = fleet.identities().join("ca.crt");
    let file = file.to_string_lossy();
    for (variable, part, setting) in [
        ("KAFKA__TLS__CA_FILE", "Kafka", "kafka.tls.ca_file"),
        ("REDIS__TLS__CA_FILE", "Redis", "redis.tls.ca_file"),
        ("ETCD__PASSWORD_FILE", "etcd", "etcd.password_file"),
        ("SCYLLA__PASSWORD_FILE", "ScyllaDB", "scylla.password_file"),
    ] {
        let mut wrong = fleet.command(&dial);
        wrong.env(format!("PACKETBOAT_{variable}"), &*file);
        let output = run(&mut wrong);
        assert_eq!(output.code, Some(1), "{variable}: {}", output.stderr);
        let line = output
            .stdout
            .lines()
            .find(|line| line.starts_with(&format!("{part}: ")));
        let line = line.unwrap_or_default();
        assert!(line.contains(setting), "{variable}: {}", output.stdout);
    }
    fleet.process("station-1").signal("TERM");
    fleet.process("station-1").ended(WAIT_TIMEOUT);
}

/// Password of Packetboat's user at a Redis Cluster; the drop restores the one of the other tests.
struct Password {
    /// Files of the runbook, and of the operator who types it.
    folder: TempDir,
    server: String,
    operator: String,
}

/// Options of `redis-cli` for the folder's files.
const BY_TLS: &str = "--tls --cacert ca.crt --cert client.crt --key client.key";

impl Password {
    fn new() -> Password {
        let parts = PathBuf::from(std::env::var_os("PACKETBOAT_REAL_TLS").expect("TLS=1"));
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("redis")).expect("a folder");
        let copy = |from: &str, to: &str| {
            std::fs::copy(parts.join(from), folder.path().join(to)).expect("a copy");
        };
        copy("redis.password", "redis/password");
        copy("redis.password", "shared");
        for name in ["ca.crt", "client.crt", "client.key"] {
            copy(name, name);
        }
        let operator = std::fs::read_to_string(parts.join("operator.password"));
        Password {
            folder,
            server: real::addresses("redis-cluster").remove(0),
            operator: operator.expect("a password").trim().to_owned(),
        }
    }

    fn type_line(&self, line: &str) {
        let redis = format!("--user operator {BY_TLS} --cluster call {}", self.server);
        let variables = [("REDIS", &*redis), ("REDISCLI_AUTH", &*self.operator)];
        type_line_with(self.folder.path(), line, &variables);
    }

    /// A server's answer to Packetboat's user with the password from a file.
    fn answer(&self, file: &str) -> String {
        let (host, port) = self.server.split_once(':').expect("a port");
        let words = format!("--user packetboat {BY_TLS} -h {host} -p {port} PING");
        let password = std::fs::read_to_string(self.folder.path().join(file)).expect("a password");
        let mut redis = Command::new("redis-cli");
        redis.args(words.split(' ')).current_dir(self.folder.path());
        run(redis.env("REDISCLI_AUTH", password.trim())).stdout
    }
}

impl Drop for Password {
    fn drop(&mut self) {
        self.type_line("redis-cli $REDIS ACL SETUSER packetboat resetpass \">$(cat shared)\"");
    }
}

#[test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
fn a_new_password_of_redis_refuses_nothing() {
    let password_file = std::env::var("PACKETBOAT_REAL_TLS").expect("TLS=1") + "/redis.password";
    let password = Password::new();
    let own = password.folder.path().join("redis/password");
    let fleet = Fleet::with_other_settings("cluster", &password_file, &own.display().to_string());
    let urls = ["boat-1", "boat-2"].map(|name| fleet.boat(name));
    let chat = Chat::over(&[&urls[0], &urls[1]], 1_000_000);
    let delivered_count = || count_at(&fleet.admins(), DELIVERED);
    for line in runbook("A new password of Redis") {
        password.type_line(line);
        chat.goes_on_by(delivered_count);
    }
    // Live connections do not sign in again; the next ones do.
    password.type_line("redis-cli $REDIS CLIENT KILL USER packetboat");
    chat.goes_on_by(delivered_count);
    fleet.send("1", "2", "are you there yet?");
    assert_eq!(fleet.listen("2", 1)[0]["text"], "are you there yet?");
    chat.end().went_on();
    let count = |name: &str| count_at(&fleet.admins(), name);
    assert!(count("tls_reloads_total{result=\"reloaded\"}") >= 4);
    assert_eq!(count("tls_reloads_total{result=\"refused\"}"), 0);
    assert_eq!(password.answer("redis/password").trim(), "PONG");
    assert_ne!(password.answer("shared").trim(), "PONG");
    fleet.at_rest();
}
