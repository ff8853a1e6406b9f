//! Numbers of the command line that only measurements have, each within bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use server::cli::seconds;

/// Shortest time of a measurement.
const MEASURED_MIN: Duration = Duration::from_secs(1);

/// Least and greatest number of things per second.
const RATES: RangeInclusive<f64> = 0.001..=1e9;

/// Parses seconds that are long enough to measure in.
pub(super) fn long(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    let is_long = time >= MEASURED_MIN;
    is_long
        .then_some(time)
        .ok_or_else(|| "at least one second".to_owned())
}

/// Parses a number of things per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| RATES.contains(rate));
    rate.ok_or_else(|| format!("{} to {} per second", RATES.start(), RATES.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_positive_number() {
        assert_eq!(rate("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "1e300", ""] {
            assert!(rate(text).is_err(), "{text:?}");
        }
    }
}
