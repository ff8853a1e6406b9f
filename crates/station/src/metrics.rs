//! Metrics of a station. Handles are made once; hot paths only add.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use protocol::Code;

use crate::accept::SendOutcome;

/// Metrics of accepting sends.
pub(crate) struct AcceptMetrics {
    accepted: Counter,
    refused: Vec<Counter>,
    seconds: Histogram,
    /// Sends that went on without a dedupe key, because the mailbox did not answer.
    pub(crate) dedupe_skipped: Counter,
}

impl AcceptMetrics {
    pub(crate) fn new() -> AcceptMetrics {
        AcceptMetrics {
            accepted: counter!("station_sends_total", "result" => "accepted"),
            refused: Code::ALL
                .iter()
                .map(|code| counter!("station_sends_total", "result" => code.name()))
                .collect(),
            seconds: histogram!("station_accept_seconds"),
            dedupe_skipped: counter!("station_dedupe_skipped_total"),
        }
    }

    pub(crate) fn record(&self, outcomes: &[SendOutcome], took: Duration) {
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.accepted.increment(accepted as u64);
        for refusal in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let place = Code::ALL.iter().position(|&code| code == refusal.code);
            if let Some(counter) = place.and_then(|place| self.refused.get(place)) {
                counter.increment(1);
            }
        }
        // One sample per send: each of them waited for the whole batch.
        self.seconds.record_many(took.as_secs_f64(), outcomes.len());
    }
}

/// Metrics of sessions.
pub(crate) struct AdmissionMetrics {
    pub(crate) connected: Counter,
    /// Resumed without a token.
    pub(crate) resumed: Counter,
    pub(crate) displaced: Counter,
    pub(crate) replaced: Counter,
    pub(crate) kickouts_published: Counter,
    /// Admitted without being registered.
    pub(crate) degraded: Counter,
    found: Counter,
    not_found: Counter,
}

impl AdmissionMetrics {
    pub(crate) fn new() -> AdmissionMetrics {
        AdmissionMetrics {
            connected: counter!("station_connects_total", "result" => "admitted"),
            resumed: counter!("station_sessions_resumed_total"),
            displaced: counter!("station_sessions_displaced_total"),
            replaced: counter!("station_sessions_replaced_total"),
            kickouts_published: counter!("station_kickouts_published_total"),
            degraded: counter!("station_connects_degraded_total"),
            found: counter!("station_route_lookups_total", "result" => "online"),
            not_found: counter!("station_route_lookups_total", "result" => "offline"),
        }
    }

    /// Counts a lookup of a user with or without a session.
    pub(crate) fn looked_up(&self, online: bool) {
        if online {
            self.found.increment(1);
        } else {
            self.not_found.increment(1);
        }
    }

    pub(crate) fn refused(&self, code: Code) {
        counter!("station_connects_total", "result" => code.name()).increment(1);
    }
}

/// Metrics of receipts.
#[derive(Clone)]
pub(crate) struct ReceiptMetrics {
    pub(crate) recorded: Counter,
    pub(crate) refused: Counter,
    pub(crate) pushed: Counter,
    pub(crate) push_failed: Counter,
    pub(crate) push_repeated: Counter,
}

impl ReceiptMetrics {
    pub(crate) fn new() -> ReceiptMetrics {
        ReceiptMetrics {
            recorded: counter!("station_receipts_total", "result" => "recorded"),
            refused: counter!("station_receipts_total", "result" => "refused"),
            pushed: counter!("station_receipt_pushes_total", "result" => "sent"),
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
        let refused = || Err(Refusal::new(Code::Unavailable, "away"));
        let outcomes: Vec<SendOutcome> = (0..20).map(|_| refused()).collect();
        metrics.record(&outcomes, Duration::from_millis(3));
        assert_eq!(samples.0.load(Ordering::Relaxed), 20);
    }
}
