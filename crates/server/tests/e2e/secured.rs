//! The services on parts that want certificates and passwords: `make real-up TLS=1`; run by `scripts/e2e secured`.

use crate::fleet::Fleet;
use crate::process::{SOON, run};

#[test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
fn a_message_finds_its_receiver_over_parts_with_tls() {
    let mut fleet = Fleet::with("cluster", "production = true");
    fleet.send("1", "2", "are you new here?");
    assert_eq!(fleet.listen("2", 1)[0]["text"], "are you new here?");
    fleet.at_rest();

    let told = run(&mut fleet.operator(&["doctor"])).ok().stdout;
    for part in ["Kafka", "Redis", "etcd", "ScyllaDB"] {
        let seen = format!("{part} is spoken to with TLS");
        assert!(told.contains(&seen), "{told}");
    }
    let dial = ["config", "check", "--connect"];
    run(&mut fleet.command(&dial)).ok();

    // Another root, or another password, is told by its setting.
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
        let ended = run(&mut wrong);
        assert_eq!(ended.code, Some(1), "{variable}: {}", ended.stderr);
        let line = ended
            .stdout
            .lines()
            .find(|line| line.starts_with(&format!("{part}: ")));
        let line = line.unwrap_or_default();
        assert!(line.contains(setting), "{variable}: {}", ended.stdout);
    }
    fleet.process("station-1").signal("TERM");
    fleet.process("station-1").ended(SOON);
}
