//! What a station counts. Handles are made once; hot paths only add.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use protocol::Code;

use crate::accept::Outcome;

/// Of accepting sends.
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

    pub(crate) fn record(&self, outcomes: &[Outcome], took: Duration) {
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.accepted.increment(accepted as u64);
        for refusal in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            let place = Code::ALL.iter().position(|&code| code == refusal.code);
            if let Some(counter) = place.and_then(|place| self.refused.get(place)) {
                counter.increment(1);
            }
        }
        self.seconds.record(took.as_secs_f64());
    }
}

/// Of sessions.
pub(crate) struct AdmissionMetrics {
    pub(crate) connected: Counter,
    pub(crate) displaced: Counter,
    pub(crate) replaced: Counter,
    pub(crate) kickouts_published: Counter,
    found: Counter,
    not_found: Counter,
}

impl AdmissionMetrics {
    pub(crate) fn new() -> AdmissionMetrics {
        AdmissionMetrics {
            connected: counter!("station_connects_total", "result" => "admitted"),
            displaced: counter!("station_sessions_displaced_total"),
            replaced: counter!("station_sessions_replaced_total"),
            kickouts_published: counter!("station_kickouts_published_total"),
            found: counter!("station_route_lookups_total", "result" => "online"),
            not_found: counter!("station_route_lookups_total", "result" => "offline"),
        }
    }

    /// Whether a user who was asked for has a session.
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

/// Of receipts.
#[derive(Clone)]
pub(crate) struct ReceiptMetrics {
    pub(crate) recorded: Counter,
    pub(crate) refused: Counter,
    pub(crate) pushed: Counter,
    pub(crate) push_failed: Counter,
}

impl ReceiptMetrics {
    pub(crate) fn new() -> ReceiptMetrics {
        ReceiptMetrics {
            recorded: counter!("station_receipts_total", "result" => "recorded"),
            refused: counter!("station_receipts_total", "result" => "refused"),
            pushed: counter!("station_receipt_pushes_total", "result" => "sent"),
            push_failed: counter!("station_receipt_pushes_total", "result" => "failed"),
        }
    }
}
