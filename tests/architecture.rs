//! The arrows of the house, checked against what Cargo knows. docs/architecture.md draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate of ours may use of ours.
const ARROWS: [(&str, &[&str]); 9] = [
    ("protocol", &[]),
    ("api", &["protocol"]),
    ("backend", &["protocol"]),
    ("boat", &["protocol", "api", "backend"]),
    ("station", &["protocol", "api", "backend"]),
    ("carrier", &["protocol", "api", "backend"]),
    ("horn", &["protocol", "api", "backend"]),
    ("client", &["protocol", "api"]),
    (
        "server",
        &[
            "protocol", "api", "backend", "boat", "station", "carrier", "horn", "client",
        ],
    ),
];

/// What the rules never touch.
const NOT_IN_PROTOCOL: [&str; 6] = ["tokio", "tonic", "prost", "rand", "fjall", "getrandom"];

#[test]
fn crates_depend_on_each_other_only_along_the_arrows() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = ARROWS
        .iter()
        .map(|(name, uses)| (*name, uses.iter().copied().collect()))
        .collect();
    let packages = metadata();
    for (name, uses) in &allowed {
        let found: BTreeSet<&str> = dependencies(&packages, name)
            .into_iter()
            .filter(|dependency| allowed.contains_key(dependency))
            .collect();
        let wrong: Vec<_> = found.difference(uses).collect();
        assert!(wrong.is_empty(), "{name} must not depend on {wrong:?}");
    }
}

#[test]
fn the_rules_know_no_clock_no_chance_and_no_runtime() {
    let packages = metadata();
    let uses = dependencies(&packages, "protocol");
    for vendor in NOT_IN_PROTOCOL {
        assert!(
            !uses.contains(&vendor),
            "protocol must not depend on {vendor}"
        );
    }
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Normal and build dependencies of a package; what only its tests use does not count.
fn dependencies<'a>(metadata: &'a serde_json::Value, package: &str) -> Vec<&'a str> {
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages
        .iter()
        .find(|p| p["name"] == package)
        .unwrap_or_else(|| panic!("no package {package}"));
    package["dependencies"]
        .as_array()
        .expect("a list of dependencies")
        .iter()
        .filter(|dependency| dependency["kind"] != "dev")
        .map(|dependency| dependency["name"].as_str().expect("a name"))
        .collect()
}
