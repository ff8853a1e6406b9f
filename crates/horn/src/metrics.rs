//! Metrics of a horn.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

pub(crate) struct HornMetrics {
    pub(crate) sent_total: Counter,
    pub(crate) collapsed_total: Counter,
    pub(crate) nobody_total: Counter,
    pub(crate) muted_total: Counter,
    pub(crate) dead_total: Counter,
    pub(crate) retried_total: Counter,
    pub(crate) pending: Gauge,
    send: Histogram,
}

impl HornMetrics {
    pub(crate) fn new(provider: &'static str) -> HornMetrics {
        let outcome = |outcome: &'static str| metrics::counter!("horn_notifications_total", "provider" => provider, "outcome" => outcome);
        HornMetrics {
            sent_total: outcome("sent"),
            collapsed_total: outcome("collapsed"),
            nobody_total: outcome("nobody"),
            muted_total: outcome("muted"),
            dead_total: outcome("dead"),
            retried_total: metrics::counter!("horn_retries_total"),
            pending: metrics::gauge!("horn_pending_notifications"),
            send: metrics::histogram!("horn_send_seconds"),
        }
    }

    pub(crate) fn record_call(&self, elapsed: Duration) {
        self.send.record(elapsed.as_secs_f64());
    }
}
