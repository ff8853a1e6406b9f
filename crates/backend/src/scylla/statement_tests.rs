//! Threat 21: CQL is prepared, and made of our own names alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names in braces in texts of CQL: tables, columns and conditions written down in this crate.
const OURS: [&str; 19] = [
    "COLUMNS",
    "RECALL",
    "blocks",
    "column",
    "columns",
    "entries",
    "from",
    "is",
    "marks",
    "new",
    "order",
    "owner",
    "partition",
    "stage",
    "table",
    "to",
    "values",
    "which",
    "",
];

/// Sources of this crate without their tests, by path.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                folders.extend((name != "tests").then_some(path));
            } else if name.ends_with(".rs") && !name.contains("tests") && name != "contract.rs" {
                let text = std::fs::read_to_string(&path).expect("text");
                let (text, _) = text
                    .split_once("#[cfg(test)]\nmod tests {")
                    .unwrap_or((&text, ""));
                sources.push((path, text.to_owned()));
            }
        }
    }
    assert!(sources.len() > 100, "{}", sources.len());
    sources
}

/// Texts of CQL in a source, one literal each.
fn texts(source: &str) -> Vec<&str> {
    let literals = source.split('"').skip(1).step_by(2);
    let verbs = [
        "SELECT ",
        "INSERT ",
        "UPDATE ",
        "DELETE ",
        "BEGIN ",
        "TRUNCATE ",
    ];
    literals
        .filter(|text| verbs.iter().any(|verb| text.starts_with(verb)))
        .collect()
}

#[test]
fn no_statement_is_made_of_values() {
    let (mut count, mut used_names) = (0, BTreeSet::new());
    for (path, source) in sources() {
        let texts = texts(&source);
        let is_plain =
            !source.contains("Statement::new(") || source.contains("unprepared::Statement");
        assert!(is_plain || !texts.is_empty(), "{}", path.display());
        for text in texts {
            count += 1;
            for part in text.split('{').skip(1) {
                let name = part.split(['}', ':']).next().unwrap_or_default();
                let name = name.rsplit('.').next().unwrap_or_default();
                assert!(
                    OURS.contains(&name),
                    "{}: {{{name}}} in {text}",
                    path.display()
                );
                used_names.insert(name.to_owned());
            }
            // A quoted value would not be bound.
            assert!(!text.contains('\''), "{}: {text}", path.display());
        }
    }
    assert!(count > 40, "{count} statements were seen");
    assert_eq!(used_names, OURS.map(str::to_owned).into());
}

#[test]
fn nothing_is_asked_unprepared_but_the_schema() {
    let unprepared = [
        "query_unpaged",
        "query_single_page",
        "query_iter",
        "unprepared::Statement",
    ];
    let mut files = BTreeSet::new();
    for (path, source) in sources() {
        if unprepared.iter().any(|call| source.contains(call)) {
            files.insert(
                path.file_name()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        // Unbounded paging is never used.
        assert!(!source.contains("execute_iter"), "{}", path.display());
    }
    assert_eq!(files, BTreeSet::from(["schema.rs".to_owned()]));
}
