//! Metrics of a station. Handles are made once; hot paths only add.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use protocol::Code;

use crate::accept::SendOutcome;

/// Metrics of accepting sends.
pub(crate) struct AcceptMetrics {
    accepted_total: Counter,
    refused_total: Vec<Counter>,
    seconds: Histogram,
    /// Sends that went on without a dedupe key, because the mailbox did not answer.
    pub(crate) dedupe_skipped: Counter,
}

impl AcceptMetrics {
    pub(crate) fn new() -> AcceptMetrics {
        AcceptMetrics {
            accepted_total: counter!("station_sends_total", "result" => "accepted"),
            refused_total: Code::ALL
                .iter()
                .map(|code| counter!("station_sends_total", "result" => code.name()))
                .collect(),
            seconds: histogram!("station_accept_seconds"),
            dedupe_skipped: counter!("station_dedupe_skipped_total"),
        }
    }

    pub(crate) fn record(&self, outcomes: &[SendOutcome], elapsed: Duration) {
        let accepted_count = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.accepted_total.increment(accepted_count as u64);
        for refusal in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let index = Code::ALL.iter().position(|&code| code == refusal.code);
            if let Some(counter) = index.and_then(|index| self.refused_total.get(index)) {
                counter.increment(1);
            }
        }
        // One sample per send: each of them waited for the whole batch.
        self.seconds
            .record_many(elapsed.as_secs_f64(), outcomes.len());
    }
}

/// Metrics of sessions.
pub(crate) struct AdmissionMetrics {
    pub(crate) connected_total: Counter,
    /// Resumed without a token.
    pub(crate) resumed_total: Counter,
    pub(crate) displaced_total: Counter,
    pub(crate) replaced_total: Counter,
    /// Admitted without being registered.
    pub(crate) degraded_total: Counter,
    found_total: Counter,
    not_found_total: Counter,
}

impl AdmissionMetrics {
    pub(crate) fn new() -> AdmissionMetrics {
        AdmissionMetrics {
            connected_total: counter!("station_connects_total", "result" => "admitted"),
            resumed_total: counter!("station_sessions_resumed_total"),
            displaced_total: counter!("station_sessions_displaced_total"),
            replaced_total: counter!("station_sessions_replaced_total"),
            degraded_total: counter!("station_connects_degraded_total"),
            found_total: counter!("station_route_lookups_total", "result" => "online"),
            not_found_total: counter!("station_route_lookups_total", "result" => "offline"),
        }
    }

    /// Counts a lookup of a user with or without a session.
    pub(crate) fn record_lookup(&self, is_online: bool) {
        if is_online {
            self.found_total.increment(1);
        } else {
            self.not_found_total.increment(1);
        }
    }

    pub(crate) fn record_refusal(&self, code: Code) {
        counter!("station_connects_total", "result" => code.name()).increment(1);
    }
}

/// Metrics of receipts.
pub(crate) struct ReceiptMetrics {
    pub(crate) recorded_total: Counter,
    pub(crate) refused_total: Counter,
    pub(crate) pushed_total: Counter,
    pub(crate) push_failed: Counter,
    pub(crate) push_repeated: Counter,
}

impl ReceiptMetrics {
    pub(crate) fn new() -> ReceiptMetrics {
        ReceiptMetrics {
            recorded_total: counter!("station_receipts_total", "result" => "recorded"),
            refused_total: counter!("station_receipts_total", "result" => "refused"),
            pushed_total: counter!("station_receipt_pushes_total", "result" => "sent"),
            push_failed: counter!("station_receipt_pushes_total", "result" => "failed"),
            push_repeated: counter!("station_receipt_pushes_total", "result" => "repeated"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use metrics::HistogramFn;
    use protocol::Refusal;

    use super::*;

    #[derive(Default)]
    struct Samples(AtomicUsize);

    impl HistogramFn for Samples {
        fn record(&self, _: f64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    // One batch of twenty counted as one send.
    #[test]
    fn each_send_of_a_batch_is_a_sample() {
        let samples = Arc::new(Samples::default());
        let metrics = AcceptMetrics {
            seconds: Histogram::from_arc(samples.clone()),
            ..AcceptMetrics::new()
        };
        let refusal = || Err(Refusal::new(Code::Unavailable, "away"));
        let outcomes: Vec<SendOutcome> = (0..20).map(|_| refusal()).collect();
        metrics.record(&outcomes, Duration::from_millis(3));
        assert_eq!(samples.0.load(Ordering::Relaxed), 20);
    }
}
