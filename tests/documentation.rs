//! Claims of docs/ and the README, checked against the programs: codes, reasons, settings, metrics,
//! commands, paths. And what holds for the command lines of both programs.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bench::Bench;
use clap::{CommandFactory, Parser};
use operator::doctor::rules::Check;
use operator::doctor::user::{Damage, Unread};
use protocol::Code;
use protocol::ledger::DeadReason;
use server::cli::Cli;
use server::settings::Settings;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All pages for people, by path. The requirements are an input, not a description.
fn pages() -> BTreeMap<String, String> {
    let top = ["README.md", "CONTRIBUTING.md"];
    let mut pages: BTreeMap<String, String> = top.map(|page| (page.to_owned(), read(page))).into();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if path == "docs/spec" {
                continue;
            }
            if entry.file_type().expect("a type").is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.insert(path.clone(), read(&path));
            }
        }
    }
    assert!(pages.len() > 5, "{:?}", pages.keys());
    pages
}

/// Cells of all rows of the tables of a page.
fn rows(page: &str) -> Vec<Vec<&str>> {
    page.lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Text between backticks.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2))
}

#[test]
fn every_code_is_documented_and_nothing_else() {
    let page = read("docs/protocol.md");
    let page_codes: BTreeSet<(u16, &str)> = rows(&page)
        .into_iter()
        .filter_map(|row| Some((row.first()?.parse().ok()?, *row.get(1)?)))
        .collect();
    let codes = Code::ALL.map(|code| (code.number(), code.name()));
    assert_eq!(page_codes, BTreeSet::from(codes));
}

#[test]
fn every_reason_of_a_dead_letter_is_documented_and_nothing_else() {
    let page = read("docs/operations/dead-letters.md");
    let (_, reasons) = page.split_once("## Reasons").expect("the reasons");
    let page_reasons: BTreeSet<&str> = rows(reasons)
        .into_iter()
        .filter_map(|row| row.first()?.strip_prefix("[`")?.split('`').next())
        .collect();
    assert_eq!(page_reasons, DeadReason::ALL.map(DeadReason::name).into());
    for reason in page_reasons {
        let page = read(format!("docs/operations/reasons/{reason}.md"));
        assert!(page.starts_with(&format!("# `{reason}`\n")), "{reason}");
        for part in [
            "**Means",
            "**Who loses what.**",
            "**First checks",
            "**Redrive**",
            "**Discard**",
        ] {
            assert!(page.contains(part), "{reason}: {part}");
        }
    }
}

/// Names in the first column of the tables of a section.
fn documented_names(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, rest) = page.split_once(heading).expect("the section");
    let section = rest.split("\n## ").next().expect("its text");
    let first = rows(section)
        .into_iter()
        .filter_map(|row| row.first().copied());
    first.flat_map(quoted).map(str::to_owned).collect()
}

#[test]
fn documented_doctor_checks_and_damage_match_the_code() {
    let page = read("docs/operations/doctor.md");
    let checks = Check::ALL.map(|check| check.name().to_owned());
    assert_eq!(documented_names(&page, "## Checks"), checks.into());
    let kinds = Damage::NAMES.into_iter().chain([Unread::NAME]);
    let kinds: BTreeSet<_> = kinds.map(str::to_owned).collect();
    assert_eq!(documented_names(&page, "## One user"), kinds);
}

/// Checks names such as `carrier.shards`.
#[test]
fn every_setting_that_a_page_names_exists() {
    let defaults = serde_json::to_value(Settings::default()).expect("JSON");
    let sections: BTreeSet<&String> = defaults.as_object().expect("sections").keys().collect();
    let mut setting_count = 0;
    for (path, page) in pages() {
        for key in quoted(&page) {
            let mut parts = key.split('.').peekable();
            let is_setting = parts
                .next()
                .is_some_and(|s| sections.contains(&s.to_owned()))
                && parts.peek().is_some()
                && parts.all(|p| {
                    !p.is_empty() && p.chars().all(|c| "_".contains(c) || c.is_ascii_lowercase())
                })
                && !key.ends_with(".rs");
            if is_setting {
                setting_count += 1;
                let value = key.rsplit('.').fold(
                    serde_json::json!(null),
                    |inside, name| serde_json::json!({ name: inside }),
                );
                if let Err(error) = serde_json::from_value::<Settings>(value) {
                    let unknown = error.to_string().contains("unknown field");
                    assert!(!unknown, "{path}: {key}: {error}");
                }
            }
        }
    }
    assert!(setting_count > 5, "{setting_count}");
}

/// Source of the whole program.
fn sources() -> String {
    let mut sources = String::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).expect("a source");
            }
        }
    }
    sources
}

/// Checks names only: a metric that was renamed leaves its alarm behind.
#[test]
fn every_metric_that_a_page_names_is_counted() {
    let sources = sources();
    let roles = ["boat_", "station_", "carrier_", "horn_", "audit_", "desk_"];
    let mut metric_count = 0;
    // Settings have names of the same form, and a page of their own.
    let pages = pages().into_iter();
    for (path, page) in pages.filter(|(path, _)| !path.ends_with("operations/settings.md")) {
        let is_metric = |name: &&str| {
            let is_file = name.ends_with(".rs");
            !is_file && roles.iter().any(|role| name.starts_with(role))
        };
        for name in quoted(&page).filter(is_metric) {
            let metric = name.split('{').next().expect("a name");
            assert!(sources.contains(&format!("\"{metric}\"")), "{path}: {name}");
            metric_count += 1;
        }
    }
    assert!(metric_count > 5, "{metric_count}");
}

/// Checks that each alarm's expression names a metric that is counted, and that each has a runbook
/// section.
#[test]
fn every_alarm_counts_something_and_has_a_runbook() {
    let sources = sources();
    let mut alarm_count = 0;
    for entry in std::fs::read_dir(root().join("deploy/alerts")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let rules = read(&path);
        let values = |key: &str| -> Vec<String> {
            let key = format!("{key}: ");
            let lines = rules
                .lines()
                .filter_map(|line| line.trim().strip_prefix(&key));
            lines.map(str::to_owned).collect()
        };
        let alarms = values("- alert");
        let (expressions, runbooks) = (values("expr"), values("runbook_url"));
        assert_eq!(
            (expressions.len(), runbooks.len()),
            (alarms.len(), alarms.len())
        );
        for (expression, runbook) in expressions.iter().zip(&runbooks) {
            let words = expression.split(|c: char| c != '_' && !c.is_ascii_lowercase());
            let metrics = words.filter(|word| word.contains('_') && *word != "label_replace");
            let metrics: BTreeSet<&str> = metrics.collect();
            assert!(!metrics.is_empty(), "{expression}");
            for metric in metrics {
                assert!(
                    sources.contains(&format!("\"{metric}\"")),
                    "{metric} of {expression}"
                );
            }
            let (page, section) = runbook.split_once('#').expect("a section");
            let heading = |line: &str| line.strip_prefix("## ").map(str::to_lowercase);
            let mut headings = read(page).lines().filter_map(heading).collect::<Vec<_>>();
            headings.retain(|heading| heading == section);
            assert_eq!(headings.len(), 1, "{runbook}");
            alarm_count += 1;
        }
    }
    assert!(alarm_count > 0, "{alarm_count}");
}

/// Checks that promtool (`make alerts`) tries each alarm in a case that fires, and in one that does
/// not.
// proves S2-34 in part
#[test]
fn every_alarm_is_tested_firing_and_silent() {
    let folder = root().join("deploy/alerts");
    for name in ["audit", "dead-letters", "services"] {
        let rules = read(folder.join(format!("{name}.yml")));
        let tests = read(folder.join(format!("tests/{name}.yml")));
        let cases: Vec<&str> = tests.split("- eval_time: ").skip(1).collect();
        for alarm in rules.split("- alert: ").skip(1) {
            let alarm = alarm.lines().next().expect("a name");
            let mut alarm_cases = cases.iter().filter(|case| {
                let mut lines = case.lines().map(str::trim);
                lines.any(|line| line == format!("alertname: {alarm}"))
            });
            let fires = |case: &&&str| !case.contains("exp_alerts: []");
            assert!(
                alarm_cases.clone().any(|case| fires(&case)),
                "{alarm} fires"
            );
            assert!(alarm_cases.any(|case| !fires(&case)), "{alarm} is silent");
        }
    }
}

/// Checks that one letter left open for a minute raises the alarm; the desk's own test shows that
/// the gauge counts it.
// proves S1-30
#[test]
fn one_dead_letter_raises_an_alarm() {
    let rules = read(root().join("deploy/alerts/dead-letters.yml"));
    let alarms = rules.split("- alert: ");
    let alarm = alarms
        .into_iter()
        .find(|alarm| alarm.starts_with("PacketboatDeadLetter\n"));
    let alarm = alarm.expect("it is there");
    assert!(alarm.contains("expr: sum(max by (kind, reason) (desk_letters_open)) > 0\n"));
    assert!(alarm.contains("for: 1m\n"), "{alarm}");
}

/// The gate starts the parts, which it needs; this test stops them, with one server in place of
/// all.
// proves S1-01
#[test]
fn one_command_ends_the_parts_and_removes_their_data() {
    let verbs = read(root().join("Makefile"));
    for (verb, command) in [("real-up", "all up"), ("real-down", "all down")] {
        let rule = verbs.split(&format!("\n{verb}:")).nth(1);
        let command = format!("\n\t@scripts/real/{command}\n");
        assert!(rule.is_some_and(|rule| rule.contains(&command)), "{verb}");
    }
    let real = tempfile::tempdir().expect("a directory");
    let node = real.path().join("kafka/node-1");
    std::fs::create_dir_all(node.join("data")).expect("a directory");
    std::fs::write(node.join("data/records"), "kept").expect("written");
    let mut server = Command::new("sleep").arg("600").spawn().expect("it runs");
    let stat = read(format!("/proc/{}/stat", server.id()));
    let start_ticks = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(19));
    let boot = read("/proc/sys/kernel/random/boot_id");
    let pid = format!(
        "{} {} {boot}",
        server.id(),
        start_ticks.expect("a start time")
    );
    std::fs::write(node.join("pid"), pid).expect("written");
    let down = |wipe: &str| {
        let all = root().join("scripts/real/all");
        let mut down = Command::new(all);
        down.arg("down").env("PACKETBOAT_REAL_DIR", real.path());
        let output = down.env("WIPE", wipe).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    };
    // A zombie does not count as running.
    down("");
    let status = server.wait().expect("it ended");
    assert!(!status.success(), "by a signal");
    assert!(node.join("data/records").exists(), "its data stay");
    down("1");
    assert!(!node.exists());
}

/// Arguments of one command line, up to a pipe, a redirection or a comment.
fn arguments(line: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            (_, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            ('|' | '>' | '#' | '…' | '&', None) => break,
            (' ', None) => arguments.push(String::new()),
            _ => arguments.last_mut().expect("never empty").push(c),
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

fn assert_understood(place: &str, line: &str) {
    let arguments = arguments(line);
    let outcome = if line.starts_with("bench ") {
        Bench::try_parse_from(&arguments).map(drop)
    } else {
        Cli::try_parse_from(&arguments).map(drop)
    };
    if let Err(error) = outcome {
        assert!(!error.use_stderr(), "{place}: {arguments:?}: {error}");
    }
}

/// Both programs, each with its name and a space.
fn programs() -> [(&'static str, clap::Command); 2] {
    [
        ("packetboat ", Cli::command()),
        ("bench ", Bench::command()),
    ]
}

/// A command that a line shows, from the name of its program on.
fn command_in(line: &str) -> Option<String> {
    programs().into_iter().find_map(|(program, _)| {
        let (_, rest) = line.split_once(program)?;
        Some(format!("{program}{}", rest.trim_start_matches("-- ")))
    })
}

/// Checks code blocks; in prose a command may be named without its arguments.
#[test]
fn every_command_that_a_page_shows_is_understood() {
    let mut command_count = 0;
    for (path, page) in pages() {
        let lines = page.split("```").skip(1).step_by(2).flat_map(str::lines);
        // A part's own tool may name its user.
        let lines = lines.filter(|line| !line.starts_with("redis-cli "));
        for command in lines.filter_map(command_in) {
            assert_understood(&path, &command);
            command_count += 1;
        }
        for line in quoted(&page) {
            for (program, command) in programs() {
                let Some(rest) = line.strip_prefix(program) else {
                    continue;
                };
                let name = rest.split(' ').next().expect("a command");
                let is_known = command.find_subcommand(name).is_some();
                assert!(is_known, "{path}: {line}");
            }
        }
    }
    assert!(command_count > 10, "{command_count}");
}

#[test]
fn every_example_of_the_help_is_understood() {
    let mut commands: Vec<_> = Cli::command().get_subcommands().cloned().collect();
    commands.push(Bench::command());
    for mut command in commands {
        let help = command.render_long_help().to_string();
        let examples = help.split("Examples:").nth(1).unwrap_or_default();
        for example in examples.lines().filter_map(command_in) {
            assert_understood(command.get_name(), &example);
        }
    }
}

#[test]
fn every_file_that_a_page_names_is_there() {
    let mut path_count = 0;
    for (path, page) in pages() {
        let folder = Path::new(&path).parent().expect("a folder");
        let links = page
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let target = root()
                .join(folder)
                .join(link.split('#').next().expect("a path"));
            assert!(target.exists(), "{path}: {link}");
            path_count += 1;
        }
        for name in quoted(&page) {
            let ours = ["crates/", "tests/", "docs/", "proto/", "scripts/"];
            if ours.iter().any(|folder| name.starts_with(folder)) {
                assert!(root().join(name).exists(), "{path}: {name}");
                path_count += 1;
            }
        }
    }
    assert!(path_count > 10, "{path_count}");
}

/// Checks that the number is the one for the files of the host that it was measured on.
// proves S1-07: the page says what one boat held, what ended that, and what several held together.
#[test]
fn connection_count_of_a_boat_is_published_with_its_limit() {
    let page = read("docs/benchmarks.md");
    let (_, rest) = page
        .split_once("\n## Connections of one boat")
        .expect("it is there");
    let section = rest.split("\n## ").next().expect("its text");
    let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(Settings::default().boat.fit_files(20_000), 18_976);
    for words in [
        "bench edge storm --memory --connections 18976",
        "one boat held **18,976 connections at a time**",
        "a machine that allows a process 20,000 files",
        "On this machine the files decide",
        "six such boats held 100,000 together",
    ] {
        assert!(section.contains(words), "{words}");
    }
}

/// `make coverage` names the rulings that it refuses.
#[test]
fn every_ruling_names_a_decision_that_is_there() {
    let coverage = Command::new(root().join("scripts/coverage")).output();
    let coverage = coverage.expect("it runs");
    let stderr = String::from_utf8_lossy(&coverage.stderr);
    assert!(coverage.status.success(), "{stderr}");
}

#[test]
fn every_test_that_answers_a_threat_exists() {
    let page = read("docs/operations/security.md");
    let section = page.split("\n## Threats\n").nth(1).expect("the section");
    let named_tests: Vec<&str> = rows(section)
        .iter()
        .filter_map(|row| row.get(2).copied())
        .flat_map(quoted)
        .collect();
    assert!(named_tests.len() >= 20, "{named_tests:?}");
    let tests = functions();
    let missing_tests: Vec<_> = (named_tests.iter())
        .filter(|name| !tests.contains(**name))
        .collect();
    assert!(missing_tests.is_empty(), "no such tests: {missing_tests:?}");
}

/// Names of functions in all crates that may be tests.
fn functions() -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    let mut folders = vec![root().join("crates"), root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let names = read(&path);
            let names = names
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split_once('('));
            functions.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    functions
}

/// Numbers that are only compared with others: each is right.
const COMPARED: [&str; 3] = ["before", "confirm", "count"];

fn assert_numbers_have_bounds(command: &clap::Command, count: &mut usize) {
    for flag in command.get_arguments() {
        let (name, parser) = (flag.get_id().as_str(), flag.get_value_parser());
        let numbers = [
            TypeId::of::<u64>(),
            TypeId::of::<u32>(),
            TypeId::of::<i64>(),
            TypeId::of::<usize>(),
            TypeId::of::<f64>(),
            TypeId::of::<Duration>(),
        ];
        let is_number = numbers.iter().any(|number| parser.type_id() == *number);
        if !is_number || COMPARED.contains(&name) {
            continue;
        }
        *count += 1;
        let probe = clap::Arg::new("number").value_parser(parser.clone());
        let probe = clap::Command::new("alone").arg(probe.allow_hyphen_values(true));
        for text in [
            "18446744073709551615",
            "9223372036854775807",
            "-9223372036854775808",
            "1e300",
            "NaN",
            "500000000000years",
        ] {
            let outcome = probe.clone().try_get_matches_from(["alone", text]);
            let command = command.get_name();
            assert!(outcome.is_err(), "{command}: --{name} takes {text}");
        }
    }
    for command in command.get_subcommands() {
        assert_numbers_have_bounds(command, count);
    }
}

#[test]
fn numbers_of_both_command_lines_have_bounds() {
    for (program, command) in programs() {
        let mut count = 0;
        assert_numbers_have_bounds(&command, &mut count);
        assert!(count > 20, "{program}: they are there: {count}");
    }
}
