//! Arrows between our crates, checked against Cargo's metadata. docs/architecture.md draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our crates that each of our crates may use.
const ARROWS: [(&str, &[&str]); 10] = [
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
];

/// Crates that `protocol`, the rules without I/O, never uses.
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

// The program uses the parts as they are: only tests put a hook around them.
#[test]
fn only_tests_hook_the_parts() {
    let mut count = 0;
    for (path, text) in files("crates", &["rs"]) {
        let hooks = text.contains(".hooked(") || text.contains("Hooked::new(");
        // Backends define the hooks.
        let may = ["/tests/", "/tests.rs", "/backend/src/"];
        let may = may.map(|part| path.to_string_lossy().contains(part));
        assert!(!hooks || may.contains(&true), "{}", path.display());
        count += usize::from(hooks);
    }
    assert!(count > 3, "they are hooked");
}

/// Rules that say what a record, a list, a page or a group comes to.
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

// The worlds of the simulator ask `protocol` for whole decisions: one that they put together
// from rules would be a second one.
#[test]
fn no_decision_is_made_in_the_worlds_of_the_simulator() {
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

/// Words of seams, of frames and of the log, and nouns of that form.
const PARTICIPLES: [&str; 17] = [
    "Accepted",
    "Acked",
    "Embedded",
    "Finding",
    "Framing",
    "Hidden",
    "Holding",
    "Hooked",
    "Housekeeping",
    "Missing",
    "Need",
    "Outgoing",
    "Placed",
    "Polled",
    "Reading",
    "Reasserted",
    "Setting",
];

/// Irregular participles, pronouns, and words that stood for many things.
const VAGUE: &str = "Told Kept Seen Found Known Given Taken Shown Sent Read Written Made Done Said Heard Held Lost Left \
                     Gone Open Shut Own Meant Laid Built Chosen Born Both What Who Whom Whose That Wish Deed Hush Seat";

// A name says what a thing is (CONTRIBUTING.md, words): a single participle or pronoun says when, or of whom.
#[test]
fn no_type_has_a_participle_or_a_pronoun_as_its_name() {
    let (mut count, mut offenders) = (0, Vec::new());
    for (path, text) in files("crates", &["rs"])
        .into_iter()
        .chain(files("tests", &["rs"]))
    {
        for line in text.lines().map(str::trim_start) {
            let line = without(line, ["pub ", "pub(crate) ", "pub(super) "]).unwrap_or(line);
            let kinds = ["struct ", "enum ", "trait ", "type "];
            let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else {
                continue;
            };
            let end = rest.find(|c: char| !c.is_alphanumeric());
            let name = &rest[..end.unwrap_or(rest.len())];
            count += 1;
            let is_one_word = name.chars().skip(1).all(char::is_lowercase);
            let is_participle = ["ed", "ing"].iter().any(|ending| name.ends_with(ending));
            let is_vague = VAGUE.split_whitespace().any(|word| word == name);
            if is_one_word && (is_participle || is_vague) && !PARTICIPLES.contains(&name) {
                offenders.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(offenders.is_empty(), "{offenders:#?}");
    assert!(count > 1000, "they are there: {count}");
}

// proves S3-02 in part: no framework of web applications takes the clients' connections.
#[test]
fn a_boat_is_no_web_container() {
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
    let others = [
        "ALLOW FILTERING",
        "CREATE INDEX",
        "CREATE CUSTOM INDEX",
        "MATERIALIZED VIEW",
    ];
    let statements = files("crates/backend/src", &["rs", "cql"]);
    assert!(statements.len() > 50, "they are there");
    for (path, text) in statements {
        for other in others {
            assert!(!text.contains(other), "{path:?} has {other}");
        }
    }
    let offered = files("proto", &["proto"]);
    assert!(offered.iter().any(|(_, text)| text.contains("rpc Sync(")));
    for (path, text) in offered {
        assert!(!text.to_lowercase().contains("search"), "{path:?}");
    }
}

// proves S1 Pitfall K in part: each call that is declared is made of something, and none answers that it is not there yet.
// Rooms are not declared.
#[test]
fn what_is_declared_is_built() {
    let mut sources = files("crates", &["rs"]);
    sources.retain(|(path, _)| {
        let within = path
            .components()
            .skip_while(|part| part.as_os_str() != "crates");
        let mut names = within.filter_map(|part| part.as_os_str().to_str());
        !names.any(|name| name == "tests" || name == "tests.rs")
    });
    assert!(sources.len() > 200, "they are there");
    for word in ["Status::unimplemented", "unimplemented!", "todo!"] {
        let mut having = sources.iter().filter(|(_, text)| text.contains(word));
        assert_eq!(having.next().map(|(path, _)| path), None, "{word}");
    }
    let declared = files("proto", &["proto"]);
    let calls = declared.iter().flat_map(|(_, text)| text.lines());
    let calls = calls.filter_map(|line| line.trim().strip_prefix("rpc ")?.split_once('('));
    let mut count = 0;
    for (call, _) in calls {
        let made = format!("async fn {}(", snake_case(call));
        assert!(
            sources.iter().any(|(_, text)| text.contains(&made)),
            "{call}"
        );
        count += 1;
    }
    assert!(count > 10, "they are there");
    for (path, text) in declared {
        assert!(!text.to_lowercase().contains("room"), "{path:?}");
    }
}

// Tokio picks at random the branch it polls first. The choice cannot be seeded on stable Rust,
// short of `tokio_unstable`. Simulations give the same log for the same seed only if each block
// sets its own order.
#[test]
fn branches_are_asked_in_the_order_in_which_they_are_written() {
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

/// Files and shapes that the walk of a message in docs/architecture.md has at most.
const FILES_MAX: usize = 40;
const SHAPES_MAX: usize = 15;

/// Structs that hold a message, each in its file, and are not on that walk.
const BESIDE: [(&str, &str); 18] = [
    // Changes of a message that is there, and their ruling.
    ("crates/protocol/src/change.rs", "ChangeRequest"),
    ("crates/protocol/src/change.rs", "OrderedChange"),
    ("crates/protocol/src/change.rs", "ChangeRow"),
    ("crates/protocol/src/change/ruling.rs", "RulingFacts"),
    ("crates/protocol/src/writer/draft.rs", "ChangeDraft"),
    ("crates/protocol/src/writer/draft.rs", "Death"),
    // A message of a group that was handled before: what pages show of it.
    ("crates/protocol/src/writer/draft.rs", "MessageDraft"),
    // Pages, lists and waiting mail: read later, by whoever comes.
    ("crates/protocol/src/writer/plan.rs", "TimelineEntry"),
    ("crates/protocol/src/frame.rs", "Summary"),
    ("crates/protocol/src/frame.rs", "SyncPage"),
    ("crates/protocol/src/reading/needs.rs", "LatestMessages"),
    ("crates/protocol/src/session/action.rs", "PageItem"),
    // State of a delivery within its machine, and its end.
    ("crates/protocol/src/delivery/machine/record.rs", "Record"),
    ("crates/protocol/src/delivery/action.rs", "Settlement"),
    // Retries and dead letters.
    ("crates/protocol/src/record.rs", "RetryTask"),
    ("crates/protocol/src/writer/retry.rs", "RetriedMessage"),
    ("crates/carrier/src/decoded_record.rs", "PoisonRecord"),
    ("crates/carrier/src/settler/lane.rs", "Item"),
];

/// A shape of a message on its way.
struct Shape {
    name: String,
    parts: Vec<String>,
    file: String,
}

/// Rows of the table of shapes.
fn shapes() -> Vec<Shape> {
    let text = section("## The files and the shapes of that walk");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let shape = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [name, parts, file] = cells[..] else {
            panic!("a shape, its parts, its file: {row}");
        };
        let only = |cell: &str| quoted(cell).next().expect("a name").to_owned();
        Shape {
            name: only(name),
            parts: quoted(parts).map(str::to_owned).collect(),
            file: only(file),
        }
    };
    rows.map(shape).collect()
}

/// Files of the walk, in its order.
fn walk_files() -> Vec<String> {
    let text = section("## The files and the shapes of that walk");
    let (_, list) = text.split_once("\n* ").expect("a list of files");
    quoted(list).map(str::to_owned).collect()
}

#[test]
fn the_walk_of_a_message_names_few_files_and_no_others() {
    let files = walk_files();
    assert!(files.len() <= FILES_MAX, "{} files", files.len());
    let once: BTreeSet<&String> = files.iter().collect();
    assert_eq!(once.len(), files.len(), "a file is listed twice");
    let is_gone = |file: &&String| !root().join(file).is_file();
    let gone: Vec<_> = files.iter().filter(is_gone).collect();
    assert!(gone.is_empty(), "{gone:?}");
    let walk = section("## The walk of a message");
    let (steps, _) = walk.split_once("\n\nIn one process").expect("its steps");
    let named: Vec<&str> = quoted(steps).filter(|name| name.ends_with(".rs")).collect();
    assert!(named.len() > 15, "the steps name files: {named:?}");
    for name in named {
        let ending = format!("/{name}");
        let is_listed = files.iter().any(|file| file.ends_with(&ending));
        assert!(is_listed, "{name} is a step, and not in the list");
    }
}

// Each shape is made of an earlier one in a file of the walk, which names both.
#[test]
fn the_walk_of_a_message_has_few_shapes_each_made_of_an_earlier_one() {
    let (files, shapes) = (walk_files(), shapes());
    assert!(
        (10..=SHAPES_MAX).contains(&shapes.len()),
        "{}",
        shapes.len()
    );
    let texts: Vec<String> = files.iter().map(|file| source(file)).collect();
    let mut earlier: Vec<&str> = Vec::new();
    for shape in &shapes {
        let Shape { name, parts, file } = shape;
        assert!(files.contains(file), "{file} of {name} is not in the list");
        let text = source(file);
        let words = match name.strip_prefix("v1::") {
            Some(name) => vec![format!("message {name} {{")],
            None => ["struct", "enum"]
                .map(|kind| format!("{kind} {name} {{"))
                .into(),
        };
        let is_defined = words.iter().any(|words| text.contains(words));
        assert!(is_defined, "{name} is not defined in {file}");
        let is_made =
            |text: &String| names(text, name) && earlier.iter().any(|earlier| names(text, earlier));
        let is_first = earlier.is_empty();
        assert!(is_first || texts.iter().any(is_made), "{name} of what?");
        earlier.extend(
            [name.as_str()]
                .into_iter()
                .chain(parts.iter().map(String::as_str)),
        );
    }
}

// A new type that holds a message is one more thing for whoever follows it.
#[test]
fn whatever_holds_a_message_is_a_shape_of_its_walk_or_beside_it() {
    let shapes = shapes();
    let found = holders();
    let parts: BTreeSet<&str> = shapes
        .iter()
        .flat_map(|shape| shape.parts.iter().map(String::as_str))
        .filter(|part| !part.starts_with("v1::"))
        .collect();
    let is_shape = |file: &str, name: &str| {
        let mut shapes = shapes.iter();
        shapes.any(|shape| shape.file == file && shape.name == name)
    };
    let mut unnamed = Vec::new();
    for (file, name) in &found {
        let is_beside = BESIDE.contains(&(file.as_str(), name.as_str()));
        if !is_beside && !is_shape(file, name) && !parts.contains(name.as_str()) {
            unnamed.push(format!("{name} in {file}"));
        }
    }
    assert!(unnamed.is_empty(), "they hold a message: {unnamed:#?}");
    for (file, name) in BESIDE {
        let entry = (file.to_owned(), name.to_owned());
        assert!(found.contains(&entry), "{name} in {file} holds none");
    }
    for part in parts {
        let is_found = found.iter().any(|(_, name)| name == part);
        assert!(is_found, "{part} holds no message");
    }
}

/// Fields of these names are the bytes of a message.
const BODIES: [&str; 4] = ["body", "data", "frame", "value"];

/// Structs that hold one message, or its bytes, themselves or in a part; with their files. Tests do
/// not count, nor what holds many.
fn holders() -> BTreeSet<(String, String)> {
    let mut sources = Vec::new();
    for name in ["protocol", "api", "boat", "station", "carrier"] {
        sources.extend(files(&format!("crates/{name}/src"), &["rs"]));
    }
    for seam in ["queue", "mailbox"] {
        let path = root().join(format!("crates/backend/src/{seam}/mod.rs"));
        let text = fs::read_to_string(&path).expect("a seam");
        sources.push((path, text));
    }
    sources.retain(|(path, _)| {
        let path = path.strip_prefix(root()).expect("below the root");
        let path = path.to_string_lossy();
        let endings = [
            "tests.rs",
            "arbitrary.rs",
            "interleavings.rs",
            "simulation.rs",
        ];
        !path.contains("/tests/") && !endings.iter().any(|ending| path.ends_with(ending))
    });
    let defined: Vec<_> = sources
        .iter()
        .flat_map(|(path, text)| definitions(text).into_iter().map(move |of| (path, of)))
        .collect();
    assert!(defined.len() > 500, "they are there: {}", defined.len());
    let (mut holders, mut known) = (BTreeSet::new(), BTreeSet::from(["Content"]));
    loop {
        let before = known.len();
        for (path, definition) in &defined {
            if definition.fields.iter().any(|field| is_held(field, &known)) {
                known.insert(definition.name);
                if definition.is_struct {
                    let path = path.strip_prefix(root()).expect("below the root");
                    let path = path.to_string_lossy().into_owned();
                    holders.insert((path, definition.name.to_owned()));
                }
            }
        }
        if known.len() == before {
            return holders;
        }
    }
}

/// True for a field that holds one of these types, or the bytes of a message.
fn is_held((name, kind): &(&str, &str), known: &BTreeSet<&str>) -> bool {
    let mut kind = *kind;
    while let Some(inner) = without(kind, ["Option<", "Box<", "Arc<"]) {
        kind = inner.trim_end_matches('>');
    }
    let kind = kind.split('<').next().unwrap_or_default();
    let kind = kind.rsplit("::").next().unwrap_or_default();
    known.contains(kind) || (kind == "Bytes" && BODIES.contains(name))
}

/// A struct or an enum, and the names and types of what it holds.
struct Definition<'a> {
    name: &'a str,
    is_struct: bool,
    fields: Vec<(&'a str, &'a str)>,
}

/// Definitions at the top level of a source, without its tests.
fn definitions(text: &str) -> Vec<Definition<'_>> {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next();
    let mut definitions: Vec<Definition<'_>> = Vec::new();
    let mut is_open = false;
    for line in text.unwrap_or_default().lines() {
        if let Some(definition) = definitions.last_mut().filter(|_| is_open) {
            is_open = line != "}";
            definition.fields.extend(field(line));
            continue;
        }
        let item = without(line, VISIBLE).unwrap_or(line);
        let (is_struct, item) = match (item.strip_prefix("struct "), item.strip_prefix("enum ")) {
            (Some(item), _) => (true, item),
            (None, Some(item)) => (false, item),
            (None, None) => continue,
        };
        let end = item.find(|c: char| !c.is_alphanumeric() && c != '_');
        definitions.push(Definition {
            name: &item[..end.unwrap_or(item.len())],
            is_struct,
            fields: field(item.trim_end_matches(';')).into_iter().collect(),
        });
        is_open = line.ends_with('{');
    }
    definitions
}

/// Name and type of a field, or of what a variant holds, in a line of a definition.
fn field(line: &str) -> Option<(&str, &str)> {
    let line = line.trim().trim_end_matches(',');
    if line.starts_with("//") || line.starts_with('#') {
        return None;
    }
    if let Some((name, kind)) = line.split_once(": ") {
        return Some((name.rsplit(' ').next()?, kind));
    }
    let kind = line.split_once('(')?.1.strip_suffix(')')?;
    Some(("", without(kind, VISIBLE).unwrap_or(kind)))
}

const VISIBLE: [&str; 3] = ["pub(crate) ", "pub(super) ", "pub "];

/// Rest of a text that begins with one of these.
fn without<'a>(text: &'a str, beginnings: [&str; 3]) -> Option<&'a str> {
    let mut beginnings = beginnings.into_iter();
    beginnings.find_map(|beginning| text.strip_prefix(beginning))
}

/// True if this word stands in a text, `v1::` and all.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

fn source(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Text under a heading of docs/architecture.md.
fn section(heading: &str) -> String {
    let page = source("docs/architecture.md");
    let (_, rest) = page.split_once(heading).expect("the section");
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
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
fn files(below: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    // A path through this folder would count as a test.
    let (mut folders, mut found) = (vec![root().join(below)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
                let text = fs::read_to_string(&path).expect("text");
                found.push((path, text));
            }
        }
    }
    found
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
const HIDDEN: [&str; 5] = ["token", "secret", "password", "body", "data"];

/// Load generator's own messages.
const OPEN: [&str; 1] = ["server/src/cli/bench/dialect.rs"];

/// No `{value:?}` in a log line, wherever it stands, may show a token or a body.
#[test]
fn what_holds_a_secret_or_a_body_derives_no_debug() {
    let mut sources = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    collect(&crates, &mut sources);
    let mut looked_at = 0;
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source");
        let path = path.strip_prefix(&crates).expect("below crates");
        let path = path.to_string_lossy();
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        if is_test || OPEN.iter().any(|open| path.ends_with(open)) {
            continue;
        }
        for (derives, fields) in types(&text) {
            looked_at += 1;
            let hidden = fields.iter().find(|(name, kind)| {
                let holds = ["String", "Bytes", "Vec<u8>", "Arc<str>"];
                let is_open =
                    !kind.contains("Secret") && holds.iter().any(|text| kind.contains(text));
                HIDDEN.contains(name) && is_open
            });
            if let Some((name, _)) = hidden {
                assert!(
                    !derives.contains("Debug"),
                    "{path}: {name} is shown by a derived Debug"
                );
            }
        }
    }
    assert!(looked_at > 100, "{looked_at}");
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
