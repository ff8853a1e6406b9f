//! Metrics of a horn.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

pub(crate) struct HornMetrics {
    pub(crate) sent: Counter,
    pub(crate) collapsed: Counter,
    pub(crate) nobody: Counter,
    pub(crate) muted: Counter,
    pub(crate) dead: Counter,
    pub(crate) retried: Counter,
    pub(crate) pending: Gauge,
    send: Histogram,
}

impl HornMetrics {
    pub(crate) fn new(provider: &'static str) -> HornMetrics {
        let outcome = |outcome: &'static str| metrics::counter!("horn_notifications_total", "provider" => provider, "outcome" => outcome);
        HornMetrics {
            sent: outcome("sent"),
            collapsed: outcome("collapsed"),
            nobody: outcome("nobody"),
            muted: outcome("muted"),
            dead: outcome("dead"),
            retried: metrics::counter!("horn_retries_total"),
            pending: metrics::gauge!("horn_pending_notifications"),
            send: metrics::histogram!("horn_send_seconds"),
        }
    }

    pub(crate) fn called(&self, took: Duration) {
        self.send.record(took.as_secs_f64());
    }
}
