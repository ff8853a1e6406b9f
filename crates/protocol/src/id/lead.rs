//! Lead of message ids over the clock, and when to report it: ids go on upwards while a clock that was
//! set back is behind them.

use std::time::Duration;

/// Largest lead that is not reported: small clock corrections, and ids of a full millisecond that
/// are taken from the next one, are normal.
pub const LEAD_MAX: Duration = Duration::from_secs(1);

/// Interval of reports while the lead lasts.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadReport {
    /// Ids are ahead of the clock by this.
    Ahead(Duration),
    /// The clock has caught up after a report.
    CaughtUp,
}

/// Decides when to report the lead: at each step of the clock, then once in [`REPORT_INTERVAL`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LeadReporter {
    lead: Duration,
    /// Time of the last report; `None` while there is nothing to report.
    reported_at: Option<Duration>,
}

impl LeadReporter {
    /// Takes the lead at `elapsed`, a time that only grows, since any start.
    pub fn observe(&mut self, lead: Duration, elapsed: Duration) -> Option<LeadReport> {
        let previous_lead = std::mem::replace(&mut self.lead, lead);
        if lead <= LEAD_MAX {
            return self.reported_at.take().map(|_| LeadReport::CaughtUp);
        }
        // Time alone makes a lead shorter.
        let has_stepped = lead > previous_lead + LEAD_MAX;
        let is_due = |at: Duration| elapsed.saturating_sub(at) >= REPORT_INTERVAL;
        if !has_stepped && !self.reported_at.is_none_or(is_due) {
            return None;
        }
        self.reported_at = Some(elapsed);
        Some(LeadReport::Ahead(lead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_small_lead_is_not_reported() {
        let mut reporter = LeadReporter::default();
        for second in 0..100 {
            assert_eq!(reporter.observe(LEAD_MAX, secs(second)), None);
        }
    }

    #[test]
    fn a_step_is_reported_once_then_once_a_minute() {
        let mut reporter = LeadReporter::default();
        let reports = (0..200).filter(|second| {
            let lead = secs(7200 - second);
            reporter.observe(lead, secs(*second)) == Some(LeadReport::Ahead(lead))
        });
        assert_eq!(reports.collect::<Vec<_>>(), [0, 60, 120, 180]);
    }

    #[test]
    fn a_second_step_is_reported_at_once() {
        let mut reporter = LeadReporter::default();
        let ahead_report = |lead| Some(LeadReport::Ahead(secs(lead)));
        assert_eq!(reporter.observe(secs(30), secs(0)), ahead_report(30));
        assert_eq!(reporter.observe(secs(29), secs(1)), None);
        assert_eq!(reporter.observe(secs(90), secs(2)), ahead_report(90));
        assert_eq!(
            reporter.observe(secs(0), secs(92)),
            Some(LeadReport::CaughtUp)
        );
        assert_eq!(reporter.observe(secs(0), secs(93)), None);
    }
}
