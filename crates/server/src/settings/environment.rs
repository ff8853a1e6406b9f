//! Environment: each variable of ours must be a setting or a flag; a typo is an error.

use std::collections::BTreeSet;

use protocol::settings::Problems;

use super::schema::sections;
use super::{PREFIX, SettingsError, removed};

/// Variables of the repository's scripts and tests, which may be exported where the program runs.
const SCRIPTS: [&str; 9] = [
    "CAMPAIGN_RATE",
    "IMAGE",
    "PROGRAM",
    "REAL_",
    "SEEDS",
    "SIM_",
    "TEST_",
    "TESTS_ON",
    "TOOLS_DIR",
];

/// Edit distance beyond which no name is near.
const DISTANCE_MAX: usize = 4;

/// Refuses each variable that begins with `PACKETBOAT_` and is neither a setting nor one of
/// `flags`.
pub fn check(
    variables: impl IntoIterator<Item = (String, String)>,
    flags: &BTreeSet<String>,
) -> Result<(), SettingsError> {
    let (settings, tables) = names();
    let mut problems = Problems::default();
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let is_setting =
            settings.contains(&name) || tables.iter().any(|table| within(&name, table));
        if is_setting || flags.contains(&name) || is_script(rest) || is_service_link(rest, &value) {
            continue;
        }
        if let Some(reason) = removed::reason_against(&name) {
            problems.refuse(&name, "", &reason, "Remove it");
            continue;
        }
        let remedy = match nearest(&name, settings.iter().chain(flags)) {
            Some(near) => format!("Perhaps {near}?"),
            None => format!("Remove it; settings are {PREFIX}SECTION__KEY"),
        };
        let reason = "neither a setting nor a flag: this variable would do nothing";
        problems.refuse(&name, "", reason, &remedy);
    }
    super::refuse(&problems)
}

/// Variables of all settings, and those that prefix whole tables, such as `kafka.properties`.
fn names() -> (BTreeSet<String>, Vec<String>) {
    let (mut settings, mut tables) = (BTreeSet::new(), Vec::new());
    for section in sections() {
        for key in &section.keys {
            let name = variable(&section.path, &key.name);
            if key.schema["additionalProperties"].is_object() {
                tables.push(name.clone());
            }
            settings.insert(name);
        }
    }
    (settings, tables)
}

/// Variable of a setting: `boat.session`, `heartbeat` → `PACKETBOAT_BOAT__SESSION__HEARTBEAT`;
/// above all sections, `production` → `PACKETBOAT_PRODUCTION`.
pub(super) fn variable(section: &str, key: &str) -> String {
    if section.is_empty() {
        return format!("{PREFIX}{}", key.to_uppercase());
    }
    let section = section.to_uppercase().replace('.', "__");
    format!("{PREFIX}{section}__{}", key.to_uppercase())
}

fn within(name: &str, table: &str) -> bool {
    let rest = name.strip_prefix(table);
    rest.is_some_and(|rest| rest.starts_with("__"))
}

fn is_script(rest: &str) -> bool {
    SCRIPTS.iter().any(|script| {
        if script.ends_with('_') {
            rest.starts_with(script)
        } else {
            rest == *script
        }
    })
}

/// True for a variable that Kubernetes sets for a Service called `packetboat-…`:
/// `STATION_SERVICE_HOST`, `STATION_SERVICE_PORT_GRPC`, `STATION_PORT` (an address),
/// `STATION_PORT_9100_TCP_ADDR`.
fn is_service_link(rest: &str, value: &str) -> bool {
    // A Service may be called `packetboat`, too.
    let rest = format!("_{rest}");
    if rest.ends_with("_SERVICE_HOST") || rest.ends_with("_SERVICE_PORT") {
        return true;
    }
    if rest.contains("_SERVICE_PORT_") {
        return value.parse::<u16>().is_ok();
    }
    if rest.ends_with("_PORT") && value.contains("://") {
        return true;
    }
    let Some((_, port)) = rest.split_once("_PORT_") else {
        return false;
    };
    let parts: Vec<&str> = port.split('_').collect();
    let (Some(number), Some(protocol)) = (parts.first(), parts.get(1)) else {
        return false;
    };
    let detail = (parts.get(2)).is_none_or(|it| matches!(*it, "ADDR" | "PORT" | "PROTO"));
    number.parse::<u16>().is_ok()
        && matches!(*protocol, "TCP" | "UDP" | "SCTP")
        && detail
        && parts.len() <= 3
}

/// Name that differs least, if one is near at all.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let distance = |other: &String| strsim::damerau_levenshtein(name, other);
    let (least, near) = names.map(|other| (distance(other), other)).min()?;
    (least <= DISTANCE_MAX).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> Option<String> {
        let flags = BTreeSet::from(["PACKETBOAT_TOKEN".to_owned(), "PACKETBOAT_URL".to_owned()]);
        let outcome = check([(name.to_owned(), value.to_owned())], &flags);
        outcome.err().map(|error| error.to_string())
    }

    #[test]
    fn a_setting_a_flag_and_a_service_link_pass() {
        for (name, value) in [
            ("HOME", "/root"),
            ("PACKETBOAT_TOKEN", "x"),
            ("PACKETBOAT_ADMIN__LISTEN", "127.0.0.1:1"),
            ("PACKETBOAT_BOAT__SESSION__HEARTBEAT", "30s"),
            ("PACKETBOAT_PRODUCTION", "true"),
            ("PACKETBOAT_REAL_KAFKA", "127.0.0.1:9092"),
            ("PACKETBOAT_STATION_SERVICE_HOST", "10.0.0.1"),
            ("PACKETBOAT_STATION_SERVICE_PORT", "9100"),
            ("PACKETBOAT_STATION_SERVICE_PORT_GRPC", "9100"),
            ("PACKETBOAT_STATION_PORT", "tcp://10.0.0.1:9100"),
            ("PACKETBOAT_STATION_PORT_9100_TCP", "tcp://10.0.0.1:9100"),
            ("PACKETBOAT_STATION_PORT_9100_TCP_ADDR", "10.0.0.1"),
            ("PACKETBOAT_SERVICE_HOST", "10.0.0.1"),
        ] {
            assert_eq!(refusal(name, value), None, "{name}");
        }
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn keys_within_tables_pass() {
        assert_eq!(refusal("PACKETBOAT_KAFKA__PROPERTIES__DEBUG", "all"), None);
        assert!(refusal("PACKETBOAT_KAFKA__PROPERTIESX__DEBUG", "all").is_some());
    }

    #[test]
    fn a_slip_of_the_pen_is_refused_with_the_nearest_name() {
        for (name, near) in [
            (
                "PACKETBOAT_ADMIN_LISTEN",
                "Perhaps PACKETBOAT_ADMIN__LISTEN?",
            ),
            (
                "PACKETBOAT_BOAT__WEBSOCKT",
                "Perhaps PACKETBOAT_BOAT__WEBSOCKET?",
            ),
            ("PACKETBOAT_TOKN", "Perhaps PACKETBOAT_TOKEN?"),
            // A port whose value is no address is no link of Kubernetes.
            ("PACKETBOAT_ADMIN_PORT", "would do nothing"),
            ("PACKETBOAT_STATION_PORT_TCP", "would do nothing"),
            ("PACKETBOAT_ZZZZZZZZZZZZZZ", "Remove it"),
        ] {
            let refusal = refusal(name, "9190").unwrap_or_default();
            assert!(refusal.starts_with(name), "{refusal}");
            assert!(refusal.contains(near), "{refusal}");
        }
    }

    #[test]
    fn all_of_them_are_refused_at_once() {
        let names = ["PACKETBOAT_ONE_", "PACKETBOAT_TWO_"].map(|it| (it.to_owned(), String::new()));
        let refusal = check(names, &BTreeSet::new()).expect_err("refused");
        assert_eq!(refusal.to_string().lines().count(), 2);
    }
}
