//! Metrics of the desk.

use metrics::{counter, gauge};
use protocol::Timestamp;
use protocol::ledger::DeadReason;

use super::index::Index;
use crate::dead_letters::rules::TaskOutcome;
use crate::dead_letters::types::Kind;

/// Shows the letters that nobody has dealt with.
pub(super) fn show(index: &Index, now: Timestamp) {
    set_gauges(|kind, reason| index.open(kind, reason));
    let age = index.oldest_open().map(|died_at| now.since(died_at));
    let age = age.unwrap_or_default();
    gauge!("desk_oldest_open_seconds").set(age.as_secs_f64());
}

/// Shows none, while another process works or none does.
pub(super) fn rest() {
    set_gauges(|_, _| 0);
    gauge!("desk_oldest_open_seconds").set(0.0);
}

fn set_gauges(count: impl Fn(Kind, DeadReason) -> u64) {
    for kind in Kind::ALL {
        for reason in DeadReason::ALL {
            let (kind_name, reason_name) = (kind.name(), reason.name());
            gauge!("desk_letters_open", "kind" => kind_name, "reason" => reason_name)
                .set(count(kind, reason) as f64);
        }
    }
}

/// Counts one letter of a redrive that came to its end.
pub(super) fn count_redriven(outcome: TaskOutcome) {
    counter!("desk_redrives_total", "outcome" => outcome.name()).increment(1);
}
