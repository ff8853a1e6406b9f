//! Bounds of single settings, from the schema, against zeros and sizes that cannot be meant.

use std::time::Duration;

use protocol::settings::{Problems, SPAN};
use serde_json::Value;

use super::schema::schema;
use super::{Settings, span};

/// Settings outside their bounds.
pub(super) fn problems(settings: &Settings) -> Problems {
    let mut problems = Problems::default();
    if let Ok(value) = serde_json::to_value(settings) {
        walk("", &schema(), &value, &mut problems);
    }
    problems
}

fn walk(path: &str, schema: &Value, value: &Value, problems: &mut Problems) {
    match value {
        Value::Object(table) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (key, value) in table {
                let own = schema["properties"].get(key);
                let inner = own.unwrap_or_else(|| &schema["additionalProperties"]);
                walk(&format!("{path}{dot}{key}"), inner, value, problems);
            }
        }
        Value::Array(values) => {
            for value in values {
                walk(path, &schema["items"], value, problems);
            }
        }
        Value::Number(number) => {
            let lower = schema["minimum"].as_f64();
            let upper = schema["maximum"].as_f64();
            let number = number.as_f64().unwrap_or_default();
            let show = |bound: f64| bound.to_string();
            judge(path, number, (lower, upper), show, problems);
        }
        Value::String(text) if schema["format"] == SPAN => {
            let bound = |key: &str| time(schema[key].as_str()?);
            let bounds = (bound("spanMinimum"), bound("spanMaximum"));
            if let Some(time) = time(text) {
                judge(path, time, bounds, span::write, problems);
            }
        }
        _ => {}
    }
}

fn time(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok()
}

fn judge<T: PartialOrd + Copy>(
    path: &str,
    value: T,
    (lower, upper): (Option<T>, Option<T>),
    show: impl Fn(T) -> String,
    problems: &mut Problems,
) {
    if let Some(lower) = lower.filter(|lower| value < *lower) {
        let remedy = format!("At least {}", show(lower));
        problems.refuse(path, show(value), "too small", &remedy);
    }
    if let Some(upper) = upper.filter(|upper| value > *upper) {
        let remedy = format!("At most {}", show(upper));
        problems.refuse(path, show(value), "too large", &remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_with(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        problems(&settings).to_string()
    }

    #[test]
    fn the_defaults_lie_within_their_bounds() {
        assert_eq!(check_with(|_| ()), "");
    }

    #[test]
    fn a_zero_and_a_slip_of_the_pen_are_refused() {
        for (refusal, key) in [
            (
                check_with(|s| s.boat.session.heartbeat = Duration::ZERO),
                "boat.session.heartbeat is 0s",
            ),
            (
                check_with(|s| s.boat.session.frame_bytes_max = u32::MAX),
                "boat.session.frame_bytes_max is 4294967295",
            ),
            (
                check_with(|s| s.boat.connections_max = 0),
                "boat.connections_max is 0",
            ),
            (
                check_with(|s| s.carrier.shards = 2_000_000_000),
                "carrier.shards",
            ),
            (check_with(|s| s.boat.trace_share = 1.5), "boat.trace_share"),
            (
                check_with(|s| s.horn.age_max = Duration::MAX),
                "horn.age_max",
            ),
            (
                check_with(|s| s.station.auth.stale_max = Duration::from_secs(7_199)),
                "station.auth.stale_max is 1h 59m 59s",
            ),
            (
                check_with(|s| s.station.auth.stale_max = Duration::from_secs(30 * 86_400 + 1)),
                "station.auth.stale_max is 30days 1s",
            ),
            (
                check_with(|s| {
                    s.admin.assertion.lifetime_max = Duration::from_secs(90 * 86_400 + 1)
                }),
                "admin.assertion.lifetime_max is 90days 1s",
            ),
            (
                check_with(|s| s.carrier.retry_delays[0] = Duration::ZERO),
                "carrier.retry_delays",
            ),
        ] {
            assert!(refusal.starts_with(key), "{key}: {refusal}");
            assert_eq!(refusal.lines().count(), 1, "{refusal}");
        }
    }

    #[test]
    fn a_boat_may_have_all_the_memory_of_a_large_host() {
        let of = |gib: u64| check_with(|s| s.boat.memory_max = Some(gib << 30));
        assert_eq!(of(512), "");
        assert!(of(2048).starts_with("boat.memory_max"), "{}", of(2048));
    }

    #[test]
    fn a_zero_that_means_something_passes() {
        assert_eq!(check_with(|s| s.boat.drain_notice = Duration::ZERO), "");
        assert_eq!(check_with(|s| s.station.pages.private_bytes_max = 0), "");
    }
}
