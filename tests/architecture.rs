//! Arrows between our crates, checked against Cargo's metadata. docs/architecture.md draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our crates that each of our crates may use.
const ARROWS: [(&str, &[&str]); 11] = [
    ("protocol", &[]),
    ("api", &["protocol"]),
    ("backend", &["protocol"]),
    ("boat", &["protocol", "api", "backend"]),
    ("station", &["protocol", "api", "backend"]),
    ("carrier", &["protocol", "api", "backend"]),
    ("horn", &["protocol", "api", "backend"]),
    ("operator", &["protocol", "api", "backend"]),
    ("client", &["protocol", "api"]),
    (
        "server",
        &[
            "protocol", "api", "backend", "boat", "station", "carrier", "horn", "operator",
            "client",
        ],
    ),
    (
        "bench",
        &[
            "protocol", "api", "backend", "boat", "station", "client", "server",
        ],
    ),
];

/// Crates that `protocol`, the rules without I/O, never uses.
const NOT_IN_PROTOCOL: [&str; 6] = ["tokio", "tonic", "prost", "rand", "fjall", "getrandom"];

#[test]
fn crates_depend_on_each_other_only_along_the_arrows() {
    let allowed_uses: BTreeMap<&str, BTreeSet<&str>> = ARROWS
        .iter()
        .map(|(name, uses)| (*name, uses.iter().copied().collect()))
        .collect();
    let packages = metadata();
    for (name, uses) in &allowed_uses {
        let actual_uses: BTreeSet<&str> = dependencies(&packages, name)
            .into_iter()
            .filter(|dependency| allowed_uses.contains_key(dependency))
            .collect();
        let wrong: Vec<_> = actual_uses.difference(uses).collect();
        assert!(wrong.is_empty(), "{name} must not depend on {wrong:?}");
    }
}

#[test]
fn protocol_depends_on_no_clock_randomness_or_runtime() {
    let packages = metadata();
    let uses = dependencies(&packages, "protocol");
    for vendor in NOT_IN_PROTOCOL {
        assert!(
            !uses.contains(&vendor),
            "protocol must not depend on {vendor}"
        );
    }
}

// The program uses the parts as they are: only tests put a hook around them.
#[test]
fn only_tests_hook_the_parts() {
    let mut count = 0;
    for (path, text) in files("crates", &["rs"]) {
        let has_hooks = text.contains(".hooked(") || text.contains("Hooked::new(");
        // Backends define the hooks.
        let exemptions = ["/tests/", "/tests.rs", "/backend/src/"];
        let exemptions = exemptions.map(|part| path.to_string_lossy().contains(part));
        assert!(
            !has_hooks || exemptions.contains(&true),
            "{}",
            path.display()
        );
        count += usize::from(has_hooks);
    }
    assert!(count > 3, "they are hooked");
}

/// Calls of single rules of `protocol` for records, lists, pages and groups.
const RULES: [&str; 16] = [
    ".compare(",
    ".place(",
    ".place_in_group(",
    ".place_change(",
    "change::judge(",
    "readable_after(",
    "dense_page(",
    "dense_changes(",
    "page_behind(",
    "changes_behind(",
    "range_behind(",
    "is_told(",
    ".summary(",
    "in_group(",
    "unread::base(",
    "private_before(",
];

// The simulator asks `protocol` for whole decisions: one that it put together from single rules
// would be a second implementation.
#[test]
fn simulator_makes_no_decisions_of_its_own() {
    let (mut count, mut offenders) = (0, Vec::new());
    for (path, text) in files("tests/sim", &["rs"]) {
        // Judges count by hand what the machines came to.
        if path.to_string_lossy().contains("/judge") {
            continue;
        }
        count += 1;
        for rule in RULES.iter().filter(|rule| text.contains(**rule)) {
            offenders.push(format!("{}: {rule}", path.display()));
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
    assert!(count > 15, "they are there: {count}");
}

// proves S3-02 in part: no framework of web applications takes the clients' connections.
#[test]
fn boat_uses_no_web_framework() {
    let packages = metadata();
    let uses = dependencies(&packages, "boat");
    assert!(uses.contains(&"tokio") && uses.contains(&"hyper"));
    for framework in ["axum", "warp", "actix-web", "rocket", "poem", "salvo"] {
        assert!(!uses.contains(&framework), "boat uses {framework}");
    }
}

// proves S3-43: what a question names is the left part of a table's key, or the store refuses it: nobody filters, and
// nothing is indexed besides.
// proves S0-08: no search is offered, and nothing is kept for one. Whoever adds it adds an index beside, fed by the log;
// storage and sync stay as they are here, which is what turning it off comes to.
#[test]
fn tables_are_asked_along_their_keys_and_not_searched() {
    let forbidden_clauses = [
        "ALLOW FILTERING",
        "CREATE INDEX",
        "CREATE CUSTOM INDEX",
        "MATERIALIZED VIEW",
    ];
    let statements = files("crates/backend/src", &["rs", "cql"]);
    assert!(statements.len() > 50, "they are there");
    for (path, text) in statements {
        for clause in forbidden_clauses {
            assert!(!text.contains(clause), "{path:?} has {clause}");
        }
    }
    let protos = files("proto", &["proto"]);
    assert!(protos.iter().any(|(_, text)| text.contains("rpc Sync(")));
    for (path, text) in protos {
        assert!(!text.to_lowercase().contains("search"), "{path:?}");
    }
}

// proves S1 Pitfall K in part: each call that is declared is made of something, and none answers that it is not there yet.
// Rooms are not declared.
#[test]
fn declared_calls_are_implemented() {
    let mut sources = files("crates", &["rs"]);
    sources.retain(|(path, _)| {
        let crate_path = path
            .components()
            .skip_while(|part| part.as_os_str() != "crates");
        let mut names = crate_path.filter_map(|part| part.as_os_str().to_str());
        !names.any(|name| name == "tests" || name == "tests.rs")
    });
    assert!(sources.len() > 200, "they are there");
    for word in ["Status::unimplemented", "unimplemented!", "todo!"] {
        let mut offenders = sources.iter().filter(|(_, text)| text.contains(word));
        assert_eq!(offenders.next().map(|(path, _)| path), None, "{word}");
    }
    let protos = files("proto", &["proto"]);
    let calls = protos.iter().flat_map(|(_, text)| text.lines());
    let calls = calls.filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('('));
    let mut count = 0;
    for (call, _) in calls {
        let definition = format!("async fn {}(", snake_case(call));
        assert!(
            sources.iter().any(|(_, text)| text.contains(&definition)),
            "{call}"
        );
        count += 1;
    }
    assert!(count > 10, "they are there");
    for (path, text) in protos {
        assert!(!text.to_lowercase().contains("room"), "{path:?}");
    }
}

// Tokio picks at random the branch it polls first. The choice cannot be seeded on stable Rust,
// short of `tokio_unstable`. Simulations give the same log for the same seed only if each block
// sets its own order.
#[test]
fn select_branches_are_polled_in_written_order() {
    let (mut count, mut offenders) = (0, Vec::new());
    for (path, text) in files("crates", &["rs"]) {
        for (place, word) in text.match_indices("select!") {
            let block = text[place + word.len()..].trim_start();
            let Some(block) = block.strip_prefix(['{', '(', '[']) else {
                continue;
            };
            count += 1;
            if !block.trim_start().starts_with("biased;") {
                let line = text[..place].matches('\n').count() + 1;
                offenders.push(format!("{}:{line}", path.display()));
            }
        }
    }
    assert!(offenders.is_empty(), "not `biased;`: {offenders:#?}");
    assert!(count > 50, "they are there: {count}");
}

fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace")
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// Files below a folder of the repository with one of these endings, and their texts.
fn files(start: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    // A path through this folder would count as a test.
    let (mut folders, mut sources) = (vec![root().join(start)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                let text = fs::read_to_string(&path).expect("text");
                sources.push((path, text));
            }
        }
    }
    sources
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

/// Normal and build dependencies of a package; those of its tests do not count.
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

/// Fields of these names hold secrets, or text that people wrote.
const SECRET_FIELDS: [&str; 5] = ["token", "secret", "password", "body", "data"];

/// Load generator's own messages.
const EXEMPT_FILES: [&str; 1] = ["bench/src/dialect.rs"];

/// No `{value:?}` in a log line, wherever it stands, may show a token or a body.
#[test]
fn types_with_secrets_or_bodies_derive_no_debug() {
    let mut sources = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    collect(&crates, &mut sources);
    let mut type_count = 0;
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source");
        let path = path.strip_prefix(&crates).expect("below crates");
        let path = path.to_string_lossy();
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        if is_test || EXEMPT_FILES.iter().any(|open| path.ends_with(open)) {
            continue;
        }
        for (derives, fields) in types(&text) {
            type_count += 1;
            let exposed_field = fields.iter().find(|(name, kind)| {
                let holds = ["String", "Bytes", "Vec<u8>", "Arc<str>"];
                let is_open =
                    !kind.contains("Secret") && holds.iter().any(|text| kind.contains(text));
                SECRET_FIELDS.contains(name) && is_open
            });
            if let Some((name, _)) = exposed_field {
                assert!(
                    !derives.contains("Debug"),
                    "{path}: {name} is shown by a derived Debug"
                );
            }
        }
    }
    assert!(type_count > 100, "{type_count}");
}

/// Each derive, and the names and types of the fields below it.
fn types(text: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let (mut types, mut fields, mut derives) = (Vec::new(), Vec::new(), "");
    for line in text.lines().map(str::trim) {
        if let Some(list) = line.strip_prefix("#[derive(") {
            types.push((derives, std::mem::take(&mut fields)));
            derives = list;
        } else if line.starts_with("impl ") || line.starts_with("fn ") || line.contains(" fn ") {
            types.push((derives, std::mem::take(&mut fields)));
            derives = "";
        } else if let Some((name, kind)) = line.split_once(": ") {
            let name = name.rsplit(' ').next().unwrap_or_default();
            fields.push((name, kind));
        }
    }
    types.push((derives, fields));
    types
}

fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            sources.push(path);
        }
    }
}
