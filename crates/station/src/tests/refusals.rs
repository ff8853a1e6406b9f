//! Refusals as the station counts them: by the limit that was reached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;

/// Records nothing but `limits_total`.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Refusals {
    /// Limits that were reached, with the number of times.
    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let counters = self.0.lock();
        let counts = counters.iter();
        let counts = counts.map(|(limit, count)| (limit.clone(), count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Whether this limit was reached `count` times, and no other one.
    pub(crate) fn counted_only(&self, limit: &str, count: u64) -> bool {
        self.all() == [(limit.to_owned(), count)]
    }
}

impl Recorder for Refusals {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() != "limits_total" {
            return Counter::noop();
        }
        let limit = key.labels().find(|label| label.key() == "limit");
        let limit = limit.expect("a limit").value().to_owned();
        Counter::from_arc(self.0.lock().entry(limit).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
