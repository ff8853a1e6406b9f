//! Durations as people write them: `60days`, not `1month 29days 13h 26m 24s`.

use std::time::Duration;

const DAY: u64 = 86_400;

/// Writes whole days first: `humantime` has months of 30.44 days.
pub(super) fn write(time: Duration) -> String {
    let days = time.as_secs() / DAY;
    let rest = Duration::new(time.as_secs() % DAY, time.subsec_nanos());
    let days = match days {
        0 => return humantime::format_duration(rest).to_string(),
        1 => "1day".to_owned(),
        days => format!("{days}days"),
    };
    if rest.is_zero() {
        days
    } else {
        format!("{days} {}", humantime::format_duration(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_it_was_written() {
        for text in [
            "0s", "250us", "500ms", "1m 30s", "1day", "60days", "2days 3h",
        ] {
            let time = humantime::parse_duration(text).expect("a duration");
            assert_eq!(write(time), text);
        }
    }
}
