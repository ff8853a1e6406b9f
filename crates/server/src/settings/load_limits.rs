//! Limits lifted for a load, as each service has them, in the forms in which settings are given.

use std::num::NonZeroU32;
use std::sync::LazyLock;

use serde_json::Value;

use super::Settings;
use super::environment::variable;
use super::schema::COUNT_MAX;

/// Sections with limits on an address, a user or a conversation.
const SECTIONS: [&str; 2] = ["boat", "station"];

/// Value of a lifted limit: more than a load reaches, and no more than a setting may be.
const LIFTED: NonZeroU32 = NonZeroU32::new(COUNT_MAX as u32).expect("it fits");

struct Row {
    section: &'static str,
    key: String,
    value: String,
}

impl Settings {
    /// Lifts the limits that a load would meet, as it is faster than people and comes from one
    /// address.
    pub fn lift_limits(&mut self) {
        self.boat.lift_limits(LIFTED);
        self.station.lift_limits(LIFTED);
    }
}

/// Lifted limits as variables of the environment.
pub fn variables() -> &'static [(String, String)] {
    static VARIABLES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let rows = rows().into_iter();
        rows.map(|row| (variable(row.section, &row.key), row.value))
            .collect()
    });
    &VARIABLES
}

/// Lifted limits as lines of a settings file.
pub fn lines() -> String {
    let rows = rows().into_iter();
    rows.map(|row| format!("{}.{} = {}\n", row.section, row.key, row.value))
        .collect()
}

/// Settings that differ from their defaults once limits are lifted.
fn rows() -> Vec<Row> {
    let mut high_limits = Settings::default();
    high_limits.lift_limits();
    let to_json = |settings: &Settings| serde_json::to_value(settings).unwrap_or_default();
    let (default_values, raised_values) = (to_json(&Settings::default()), to_json(&high_limits));
    let mut rows = Vec::new();
    for section in SECTIONS {
        let keys = raised_values[section].as_object().into_iter().flatten();
        let changes = keys.filter(|(key, value)| default_values[section][key] != **value);
        rows.extend(changes.map(|(key, value): (&String, &Value)| Row {
            section,
            key: key.clone(),
            value: value.to_string(),
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_variables_lift_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("packetboat.toml");
        std::fs::write(&file, lines()).expect("written");
        let from_file = Settings::load(Some(&file)).expect("settings");
        let mut high_limits = Settings::default();
        high_limits.lift_limits();
        let to_json = |settings| serde_json::to_value(settings).expect("JSON");
        assert_eq!(to_json(from_file), to_json(high_limits));
        assert_eq!(variables().len(), lines().lines().count());
        let (name, value) = ("PACKETBOAT_BOAT__READ_BYTES_PER_SECOND", "1000000000");
        assert!(variables().contains(&(name.to_owned(), value.to_owned())));
    }
}
