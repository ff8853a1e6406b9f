//! Metrics of the audit.

use std::sync::atomic::{AtomicI64, Ordering};

use metrics::{Counter, Gauge, counter, gauge};
use protocol::Timestamp;
use protocol::ledger::minute::MinuteFigures;

pub(super) struct Gauges {
    minutes: Counter,
    contradictions: Counter,
    missing_count: Gauge,
    in_flight: Gauge,
    lag: Gauge,
    /// Newest known end of the closed minutes, in milliseconds; 0: unknown.
    closed_until_ms: AtomicI64,
}

impl Gauges {
    pub(super) fn new() -> Gauges {
        Gauges {
            minutes: counter!("audit_minutes_total"),
            contradictions: counter!("audit_contradictions_total"),
            missing_count: gauge!("audit_missing"),
            in_flight: gauge!("audit_in_flight"),
            lag: gauge!("audit_lag_seconds"),
            closed_until_ms: AtomicI64::new(0),
        }
    }

    pub(super) fn count_closed(&self) {
        self.minutes.increment(1);
    }

    pub(super) fn count_contradictions(&self, more: u64) {
        self.contradictions.increment(more);
    }

    /// Sets missing and in-flight messages, summed over all closed minutes that are still open.
    pub(super) fn open(&self, minutes: impl Iterator<Item = MinuteFigures>) {
        let (mut missing_count, mut in_flight) = (0, 0);
        for figures in minutes {
            missing_count += figures.missing;
            in_flight += figures.in_flight;
        }
        self.missing_count.set(missing_count as f64);
        self.in_flight.set(in_flight as f64);
    }

    /// Notes that everything accepted before `end` is in a closed minute.
    pub(super) fn closed_until(&self, end: Timestamp) {
        self.closed_until_ms.store(end.millis(), Ordering::Relaxed);
    }

    /// Sets the lag, which grows until a store answers with a newer end.
    pub(super) fn lag(&self, now: Timestamp) {
        let end_ms = self.closed_until_ms.load(Ordering::Relaxed);
        if end_ms > 0 {
            let lag = now.since(Timestamp::from_millis(end_ms));
            self.lag.set(lag.as_secs_f64());
        }
    }
}
