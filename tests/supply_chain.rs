//! Third-party crates: their licences, their sources, and those banned, as deny.toml says.
//!
//! `cargo deny` checks the same, but takes minutes to build; this runs with the other tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cargo_metadata::{CargoOpt, MetadataCommand};
use spdx::{Expression, Licensee, ParseMode};

/// Both workspaces: the program, and its fuzzers.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Policy of deny.toml.
struct Policy {
    allowed_licences: Vec<Licensee>,
    /// Licences allowed for one crate alone, besides.
    exceptions: BTreeMap<String, Vec<Licensee>>,
    bans: Vec<Ban>,
}

struct Ban {
    name: String,
    /// Crates that may depend on it nevertheless.
    wrappers: BTreeSet<String>,
}

/// Third-party crate.
#[derive(Clone)]
struct Package {
    name: String,
    licence: Option<String>,
    is_from_crates_io: bool,
    /// Names of the crates that depend on it.
    parents: BTreeSet<String>,
}

#[test]
fn third_party_crates_comply_with_the_policy() {
    let policy = policy();
    for manifest in MANIFESTS {
        let packages = packages(&root().join(manifest));
        assert!(packages.len() > 50, "{manifest}: {}", packages.len());
        let violations = violations(&policy, &packages);
        assert!(
            violations.is_empty(),
            "{manifest}: deny.toml is against\n{}",
            violations.join("\n")
        );
    }
}

#[test]
fn the_lock_files_are_up_to_date() {
    for manifest in MANIFESTS {
        assert!(is_locked(&root().join(manifest)), "{manifest}");
    }
}

#[test]
fn violations_are_found_and_named() {
    let policy = policy();
    let package = |name: &str, licence: Option<&str>, parents: &[&str]| Package {
        name: name.to_owned(),
        licence: licence.map(str::to_owned),
        is_from_crates_io: true,
        parents: parents.iter().map(|parent| (*parent).to_owned()).collect(),
    };
    let fine = [
        package("fine", Some("GPL-3.0-only OR MIT"), &["server"]),
        package("old", Some("MIT/Apache-2.0"), &["server"]),
        package("openssl-sys", Some("MIT"), &["rdkafka-sys"]),
        package("libfuzzer-sys", Some("MIT AND NCSA"), &["fuzz"]),
    ];
    assert_eq!(violations(&policy, &fine), Vec::<String>::new());
    let foreign = Package {
        is_from_crates_io: false,
        ..package("elsewhere", Some("MIT"), &[])
    };
    for (violator, word) in [
        (
            package("copyleft", Some("GPL-3.0-only"), &[]),
            "GPL-3.0-only",
        ),
        (package("both", Some("MIT AND SSPL-1.0"), &[]), "SSPL-1.0"),
        (
            package(
                "excepted",
                Some("GPL-2.0-only WITH Classpath-exception-2.0"),
                &[],
            ),
            "Classpath",
        ),
        (package("another", Some("MIT AND NCSA"), &["fuzz"]), "NCSA"),
        (package("silent", None, &[]), "no licence"),
        (package("odd", Some("as you like"), &[]), "as you like"),
        (package("ring", Some("MIT"), &["rustls"]), "ring is banned"),
        (
            package("openssl-sys", Some("MIT"), &["rdkafka-sys", "curl-sys"]),
            "below curl-sys",
        ),
        (foreign, "crates.io"),
    ] {
        let name = violator.name.clone();
        let mut packages = fine.to_vec();
        packages.push(violator);
        let [violation] = &violations(&policy, &packages)[..] else {
            panic!("one violation by {name}");
        };
        assert!(
            violation.contains(&name) && violation.contains(word),
            "{violation}"
        );
    }
}

#[test]
fn a_lock_file_that_lacks_a_crate_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("written");
    };
    let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
    let whole = format!("{}[dependencies]\nb = {{ path = \"b\" }}\n", package("a"));
    write("Cargo.toml", &whole);
    write("src/lib.rs", "");
    write("b/Cargo.toml", &package("b"));
    write("b/src/lib.rs", "");
    let manifest = dir.path().join("Cargo.toml");
    write(
        "Cargo.lock",
        "version = 4\n[[package]]\nname = \"a\"\nversion = \"0.0.0\"\n",
    );
    assert!(!is_locked(&manifest), "b is not in it");
    fs::remove_file(dir.path().join("Cargo.lock")).expect("removed");
    let output = cargo(&manifest, &["generate-lockfile", "--offline"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(is_locked(&manifest));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn policy() -> Policy {
    let text = fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let deny: toml::Table = text.parse().expect("TOML");
    let list = |section: &str, key: &str| {
        let list = deny[section][key].as_array().cloned();
        list.unwrap_or_else(|| panic!("deny.toml: {section}.{key} is a list"))
    };
    let text = |value: &toml::Value| value.as_str().expect("text").to_owned();
    let licensees = |licences: &[toml::Value]| -> Vec<Licensee> {
        let licences = licences.iter().map(text);
        let parse = |licence: String| {
            Licensee::parse(&licence).unwrap_or_else(|error| panic!("{licence}: {error}"))
        };
        licences.map(parse).collect()
    };
    let exceptions = list("licenses", "exceptions").into_iter().map(|exception| {
        let exempt_licences = exception["allow"].as_array().expect("a list");
        (text(&exception["crate"]), licensees(exempt_licences))
    });
    let bans = list("bans", "deny").into_iter().map(|ban| Ban {
        name: text(&ban["crate"]),
        wrappers: match ban.get("wrappers").and_then(toml::Value::as_array) {
            Some(wrappers) => wrappers.iter().map(text).collect(),
            None => BTreeSet::new(),
        },
    });
    // The test implements this rule of sources, and no other.
    for key in ["unknown-registry", "unknown-git"] {
        assert_eq!(deny["sources"][key].as_str(), Some("deny"));
    }
    let policy = Policy {
        allowed_licences: licensees(&list("licenses", "allow")),
        exceptions: exceptions.collect(),
        bans: bans.collect(),
    };
    assert!(policy.allowed_licences.len() > 5 && policy.bans.len() > 3);
    policy
}

fn violations(policy: &Policy, packages: &[Package]) -> Vec<String> {
    let violations = packages.iter().map(|package| violation(policy, package));
    violations.flatten().collect()
}

fn violation(policy: &Policy, package: &Package) -> Option<String> {
    let name = &package.name;
    if !package.is_from_crates_io {
        return Some(format!("{name} comes from elsewhere than crates.io"));
    }
    if let Some(ban) = policy.bans.iter().find(|ban| ban.name == *name) {
        let parents = package.parents.difference(&ban.wrappers);
        let parents: Vec<&str> = parents.map(String::as_str).collect();
        if !parents.is_empty() || ban.wrappers.is_empty() {
            let parents = parents.join(", ");
            return Some(format!("{name} is banned, and stands below {parents}"));
        }
    }
    let Some(licence) = &package.licence else {
        return Some(format!("{name} has no licence expression"));
    };
    let expression = match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{name}: {licence:?} is no licence: {error}")),
    };
    let exceptions = policy.exceptions.get(name).into_iter().flatten();
    let allowed: Vec<&Licensee> = policy.allowed_licences.iter().chain(exceptions).collect();
    let is_allowed =
        expression.evaluate(|required| allowed.iter().any(|allowed| allowed.satisfies(required)));
    (!is_allowed).then(|| format!("{name}: {licence} is not among the licences of deny.toml"))
}

/// All third-party crates that any feature and any platform brings.
fn packages(manifest: &Path) -> Vec<Package> {
    let parents = parents(manifest);
    let metadata = MetadataCommand::new()
        .cargo_path(env!("CARGO"))
        .manifest_path(manifest)
        .features(CargoOpt::AllFeatures)
        .other_options(["--locked".to_owned()])
        .exec()
        .unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let third_party = metadata.packages.into_iter().filter_map(|package| {
        let source = package.source.as_ref()?;
        // The lock file lists crates that are never built.
        let key = (package.name.to_string(), package.version.to_string());
        let parents = parents.get(&key)?;
        Some(Package {
            is_from_crates_io: source.is_crates_io(),
            name: key.0,
            licence: package.license,
            parents: parents.clone(),
        })
    });
    third_party.collect()
}

/// Crates by name and version, with the names of those that depend on them.
fn parents(manifest: &Path) -> BTreeMap<(String, String), BTreeSet<String>> {
    let tree = cargo(
        manifest,
        &[
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--target=all",
            "--edges=normal,build,dev",
            "--prefix=depth",
            "--format= {p}",
        ],
    );
    let errors = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{}: {errors}", manifest.display());
    let text = String::from_utf8(tree.stdout).expect("text");
    let (mut ancestors, mut parents) = (Vec::new(), BTreeMap::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let depth: usize = words.next().expect("a depth").parse().expect("a number");
        let name = words.next().expect("a name").to_owned();
        let version = words.next().expect("a version").trim_start_matches('v');
        ancestors.truncate(depth);
        let key = (name.clone(), version.to_owned());
        let own_parents: &mut BTreeSet<String> = parents.entry(key).or_default();
        own_parents.extend(ancestors.last().cloned());
        ancestors.push(name);
    }
    parents
}

/// Whether a lock file satisfies its manifests.
fn is_locked(manifest: &Path) -> bool {
    let arguments = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
    ];
    cargo(manifest, &arguments).status.success()
}

fn cargo(manifest: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .expect("cargo runs")
}
