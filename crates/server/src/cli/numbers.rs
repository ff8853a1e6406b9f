//! Numbers of the command line, each within bounds: one that cannot be meant is refused as any other
//! mistake of usage is (exit 2).

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

/// Longest time: a hundred years, which can be added to the present time.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Parses seconds, such as `60` or `0.5`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    within(time).ok_or_else(|| format!("seconds, from 0 to {}", TIME_MAX.as_secs()))
}

/// Parses a time such as `90s` or `7days`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    within(Some(time)).ok_or_else(|| "at most a hundred years".to_owned())
}

/// Parses a whole number within these bounds.
pub fn whole<T>(bounds: RangeInclusive<u64>) -> RangedU64ValueParser<T>
where
    T: TryFrom<u64> + Clone + Send + Sync,
{
    RangedU64ValueParser::new().range(bounds)
}

fn within(time: Option<Duration>) -> Option<Duration> {
    time.filter(|time| *time <= TIME_MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_time_can_be_added_to_the_present() {
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        let longest = seconds("3153600000").expect("within the bounds");
        assert!(Instant::now().checked_add(longest).is_some());
        for text in [
            "18446744073709551615",
            "1e300",
            "-1",
            "NaN",
            "inf",
            "3153600001",
            "",
        ] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
        assert_eq!(span("7days"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["500years", "7", ""] {
            assert!(span(text).is_err(), "{text:?}");
        }
    }
}
