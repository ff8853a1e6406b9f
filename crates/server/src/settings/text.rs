//! Settings as text, from their schema: the file with every default, and the reference page.

use std::fmt::Write as _;

use serde_json::Value;

use super::schema::{BYTES_MAX, COUNT_MAX, Key, SPAN_MAX, SPAN_MIN, Section, sections};

/// Column at which comments wrap.
const COLUMNS: usize = 100;

/// Settings file with every setting at its default, each with its comment; unset ones are commented
/// out.
pub fn template() -> String {
    let mut file = String::from(
        "# Every setting of Packetboat with its default; what is unset is commented out.\n",
    );
    for section in sections().iter().filter(|section| !section.keys.is_empty()) {
        // The root has no name; its own settings stand above all tables.
        let _ = match section.path.as_str() {
            "" => writeln!(file),
            path => write!(file, "\n{}[{path}]\n", comment(&summary(section))),
        };
        for key in &section.keys {
            file.push_str(&comment(&comment_text(key)));
            let _ = match (&key.default, example(key)) {
                (Some(default), _) => writeln!(file, "{} = {}", key.name, toml(default)),
                (None, Some(example)) => writeln!(file, "# {} = {}", key.name, toml(example)),
                (None, None) => writeln!(file, "# {} = \"\"", key.name),
            };
        }
    }
    file
}

/// Writes the reference page, in Markdown.
pub fn page() -> String {
    let mut page = String::from(PAGE_HEAD);
    for (part, title) in PARTS {
        let _ = write!(page, "\n## {title}\n");
        for section in sections() {
            let keys = section.keys.iter();
            let keys: Vec<&Key> = keys
                .filter(|key| part_of(&section.path, &key.name) == part)
                .collect();
            if !keys.is_empty() {
                write_table(&mut page, section, &keys);
            }
        }
    }
    page
}

fn write_table(page: &mut String, section: &Section, keys: &[&Key]) {
    let (path, summary) = match section.path.as_str() {
        "" => ("Above all sections", "The whole installation.".to_owned()),
        path => (path, summary(section)),
    };
    let _ = write!(page, "\n### {path}\n\n{}\n\n", cell(&summary));
    page.push_str("| key | default | |\n| --- | --- | --- |\n");
    for key in keys {
        let default = match &key.default {
            Some(default) => format!("`{}`", toml(default).replace('|', "\\|")),
            None => "unset".to_owned(),
        };
        let _ = writeln!(
            page,
            "| `{}` | {default} | {} |",
            key.name,
            cell(&comment_text(key))
        );
    }
}

/// Parts of the page, by what an operator has to do about a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    MustSet,
    MaySize,
    MayTune,
}

const PARTS: [(Part, &str); 3] = [
    (Part::MustSet, "What an installation must set"),
    (Part::MaySize, "What you may size"),
    (Part::MayTune, "What you may tune"),
];

/// Addresses, names, keys and certificates: sections as a whole, and single settings.
const MUST_SET: &[&str] = &[
    "production",
    "log.otlp.endpoint",
    "log.otlp.headers_file",
    "log.otlp.tls",
    "health",
    "admin",
    "embedded.data",
    "identity",
    "kafka.brokers",
    "kafka.partitions",
    "kafka.replication_factor",
    "kafka.min_insync_replicas",
    "kafka.tls",
    "kafka.sasl",
    "redis.mode",
    "redis.addresses",
    "redis.master",
    "redis.username",
    "redis.password_file",
    "redis.sentinel_username",
    "redis.sentinel_password_file",
    "redis.tls",
    "etcd.endpoints",
    "etcd.username",
    "etcd.password_file",
    "etcd.tls",
    "scylla.contact_points",
    "scylla.keyspace",
    "scylla.username",
    "scylla.password_file",
    "scylla.datacenter",
    "scylla.replication",
    "scylla.tls",
    "boat.name",
    "boat.websocket",
    "boat.tcp",
    "boat.listen",
    "boat.advertise",
    "boat.public_url",
    "boat.origins",
    "boat.tls",
    "boat.proxy",
    "station.name",
    "station.listen",
    "station.advertise",
    "station.auth.key_file",
    "station.auth.issuer",
    "station.auth.issuers",
    "station.auth.remote",
    "station.tickets",
    "station.http",
    "carrier.name",
    "horn.provider",
    "horn.url",
    "horn.secret_file",
];

/// What grows with users, messages and machines.
const MAY_SIZE: &[&str] = &[
    "audit.retention",
    "embedded.ledger_retention",
    "embedded.engine.cache_bytes",
    "embedded.queue",
    "embedded.mailbox",
    "embedded.timeline",
    "kafka.retention",
    "kafka.record_bytes_max",
    "redis.expire",
    "redis.count_max",
    "redis.platforms",
    "timeline",
    "scylla.ledger_retention",
    "boat.connections_max",
    "boat.connections_per_address_max",
    "boat.arrivals_per_address",
    "boat.sign_in_failures_per_address",
    "boat.read_bytes_per_second",
    "boat.memory_max",
    "boat.session.frame_bytes_max",
    "station.body_bytes_max",
    "station.record_bytes_max",
    "station.group_size_max",
    "station.user_sign_ins_per_minute",
    "station.user_sends_per_second",
    "station.bot_sends_per_second",
    "station.private_sends_per_second",
    "station.group_sends_per_second",
    "station.user_questions_per_second",
    "station.user_history_reads_per_second",
    "station.pages",
    "carrier.shards",
    "carrier.group_members_max",
    "carrier.group_push_max",
    "carrier.bytes_in_flight_max",
    "horn.concurrency",
    "horn.pending_max",
];

fn part_of(section: &str, key: &str) -> Part {
    let path = format!("{section}.{key}");
    let path = path.trim_start_matches('.');
    let is_in = |entries: &[&str]| entries.iter().any(|entry| covers(entry, path));
    if is_in(MUST_SET) {
        Part::MustSet
    } else if is_in(MAY_SIZE) {
        Part::MaySize
    } else {
        Part::MayTune
    }
}

/// True for a setting itself, and for a section around it.
fn covers(entry: &str, path: &str) -> bool {
    let rest = path.strip_prefix(entry);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

const PAGE_HEAD: &str = "# Settings

<!-- Written by the program from its types: make settings -->

A laptop needs none of them: `packetboat all` runs on the defaults. An installation on real parts sets those of the first
part, looks at the second when it grows, and leaves the third alone unless a page of these docs sends you there. What
nobody needs to change is not a setting: its value stands in the limits, the metrics and the pages about it.

A file says `[boat]` and `connections_max = 5000`; the environment says `PACKETBOAT_BOAT__CONNECTIONS_MAX=5000` and wins
over the file; flags win over both. `packetboat config default` prints a file with all of them, `config schema` a JSON
schema for editors, `config check` what is wrong with a file, `config print` what is in force. A number outside its
bounds is refused at start, and so is a setting of an earlier version that no longer exists, with what holds instead.
";

/// Text of a section without the section's name, which stands above it.
fn summary(section: &Section) -> String {
    let name = format!("Section `{}`: ", section.path);
    let text = section.doc.strip_prefix(&name).unwrap_or(&section.doc);
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Comment of a setting, with its choices and bounds.
fn comment_text(key: &Key) -> String {
    let mut text = key.doc().trim().to_owned();
    if let Some(choices) = choices(&key.schema) {
        let _ = write!(text, " One of {choices}.");
    }
    if let Some(fields) = fields(&key.schema) {
        let _ = write!(text, " Each has {fields}.");
    }
    if let Some(bounds) = bounds(key) {
        let _ = write!(text, " {bounds}.");
    }
    text.trim().to_owned()
}

/// Choices of an enum, each with its text.
fn choices(schema: &Value) -> Option<String> {
    let each = variants(schema)?;
    let texts = each.into_iter().map(|(name, text)| match text {
        "" => name,
        text => format!("{name} ({})", flat(text).trim_end_matches('.')),
    });
    Some(texts.collect::<Vec<_>>().join(", "))
}

/// Choices of an enum, by name alone.
fn names(schema: &Value) -> Option<String> {
    let names = variants(schema)?.into_iter().map(|(name, _)| name);
    Some(names.collect::<Vec<_>>().join(", "))
}

fn variants(schema: &Value) -> Option<Vec<(String, &str)>> {
    let plain = |schema: &Value| -> Vec<(String, &str)> {
        let names = schema["enum"].as_array().into_iter().flatten();
        names.filter_map(quoted).map(|name| (name, "")).collect()
    };
    match &schema["oneOf"] {
        Value::Array(each) => {
            let variants = each
                .iter()
                .flat_map(|schema| match quoted(&schema["const"]) {
                    Some(name) => vec![(name, schema["description"].as_str().unwrap_or_default())],
                    None => plain(schema),
                });
            Some(variants.collect())
        }
        _ if schema["enum"].is_array() => Some(plain(schema)),
        _ => None,
    }
}

fn quoted(value: &Value) -> Option<String> {
    Some(format!("`{}`", value.as_str()?))
}

/// Fields of each table within a list or a table, with their texts.
fn fields(schema: &Value) -> Option<String> {
    let inner = ["items", "additionalProperties"].map(|key| &schema[key]["properties"]);
    let fields = inner.into_iter().find_map(Value::as_object)?;
    let texts = fields.iter().map(|(name, schema)| {
        let text = schema["description"].as_str().unwrap_or_default();
        let text = flat(text);
        match names(&schema["items"]) {
            Some(names) => format!("`{name}` ({names})"),
            None => format!("`{name}` ({})", text.trim_end_matches('.')),
        }
    });
    Some(texts.collect::<Vec<_>>().join("; "))
}

/// Bounds of a setting that differ from those of every number and duration.
fn bounds(key: &Key) -> Option<String> {
    let schema = &key.schema;
    let (lower, upper) = if key.is_span() {
        let bound = |name: &str| schema[name].as_str().map(str::to_owned);
        (
            bound("spanMinimum").filter(|it| it != SPAN_MIN && it != "0s"),
            bound("spanMaximum").filter(|it| it != SPAN_MAX),
        )
    } else {
        let usual = [COUNT_MAX, BYTES_MAX, u8::MAX.into(), u32::MAX.into()];
        let is_usual = |max: &Value| max.as_u64().is_some_and(|max| usual.contains(&max));
        let lower = schema.get("minimum").filter(|it| it.as_u64() > Some(1));
        let upper = schema.get("maximum").filter(|it| !is_usual(it));
        (lower.map(Value::to_string), upper.map(Value::to_string))
    };
    match (lower, upper) {
        (Some(lower), Some(upper)) => Some(format!("{lower} to {upper}")),
        (Some(lower), None) => Some(format!("At least {lower}")),
        (None, Some(upper)) => Some(format!("At most {upper}")),
        (None, None) => None,
    }
}

fn example(key: &Key) -> Option<&Value> {
    key.schema["examples"].get(0)
}

/// Value as TOML writes it.
fn toml(value: &Value) -> String {
    let value = toml::Value::try_from(value);
    value.map_or_else(|_| String::new(), |value| value.to_string())
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    flat(text).replace('|', "\\|")
}

/// Wraps text, each line behind a `#`.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() + 3 > COLUMNS {
            let _ = writeln!(lines, "# {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(lines, "# {line}");
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::settings::Settings;

    fn parse(file: &str) -> Settings {
        toml::from_str(file).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_file_of_defaults_says_the_defaults() {
        let default = Settings::default().print().expect("TOML");
        assert_eq!(parse(&template()).print().expect("TOML"), default);
    }

    #[test]
    fn commented_out_lines_are_settings() {
        let unset = |line: &str| {
            let (key, _) = line.strip_prefix("# ")?.split_once(" = ")?;
            (!key.contains(' ')).then(|| line[2..].to_owned())
        };
        let template = template();
        let lines = template.lines();
        let file: Vec<String> = lines
            .map(|line| unset(line).unwrap_or_else(|| line.to_owned()))
            .collect();
        let settings = parse(&file.join("\n"));
        assert!(settings.station.auth.key_file.is_some());
        assert!(settings.horn.url.is_some());
        assert!(settings.log.otlp.endpoint.is_some());
    }

    #[test]
    fn every_setting_has_a_comment_and_readable_durations() {
        for section in sections().iter().filter(|section| !section.keys.is_empty()) {
            assert!(!section.doc.is_empty(), "[{}] has no comment", section.path);
            for key in &section.keys {
                let name = format!("{}.{}", section.path, key.name);
                assert!(!key.doc().is_empty(), "{name} has no comment");
                let is_unset = key.default.is_none();
                assert_eq!(
                    example(key).is_some(),
                    is_unset,
                    "{name}: an example where unset"
                );
            }
        }
        let file = template();
        assert!(file.contains("\nledger_retention = \"60days\"\n"), "{file}");
        assert!(!file.contains("month"), "{file}");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn each_part_of_the_page_names_settings_that_there_are() {
        let paths: Vec<String> = (sections().iter())
            .flat_map(|section| {
                let keys = section.keys.iter();
                keys.map(move |key| format!("{}.{}", section.path, key.name))
            })
            .collect();
        for entry in MUST_SET.iter().chain(MAY_SIZE) {
            let is_covered = |path: &String| covers(entry, path.trim_start_matches('.'));
            assert!(paths.iter().any(is_covered), "{entry}");
        }
        assert!(paths.len() <= 200, "{} settings", paths.len());
    }

    /// `make settings` writes the page anew.
    #[cfg(feature = "cluster")]
    #[test]
    fn the_reference_page_is_what_the_program_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/settings.md");
        if std::env::var_os("PACKETBOAT_TEST_WRITE").is_some() {
            std::fs::write(&path, page()).expect("written");
        }
        let contents = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            contents == page(),
            "docs/operations/settings.md is old: make settings"
        );
    }
}
