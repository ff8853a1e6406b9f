//! Limit on repeated warnings from one place in the code: the first ones are shown, the others
//! counted.
//!
//! A store that fails a thousand calls a second logs a thousand lines, and the line that explains
//! it is lost among them.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// Limit of lines from one place in each [`WINDOW`].
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(5);

static PLACES: Places = Places(Mutex::new(None));

/// Passes warnings and errors of a place up to [`LINES_MAX`]; lower levels all pass.
pub(super) struct FloodFilter;

/// Places, by callsite and by the part that an event is about: one that fails must not hide
/// another.
struct Places(Mutex<Option<HashMap<(Identifier, Part), Place>>>);

/// Field `seam` of an event.
#[derive(Default, PartialEq, Eq, Hash)]
struct Part(String);

impl Visit for Part {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "seam" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

struct Place {
    window_start: Instant,
    lines: u32,
    /// Lines left out and not yet reported.
    left_out: u64,
    metadata: &'static Metadata<'static>,
}

impl<S: Subscriber> Filter<S> for FloodFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Reports of lines left out are not left out themselves.
        if *metadata.level() > Level::WARN || metadata.module_path() == Some(module_path!()) {
            return true;
        }
        let mut part = Part::default();
        event.record(&mut part);
        PLACES.pass(metadata, part, Instant::now())
    }
}

impl Places {
    fn pass(&self, metadata: &'static Metadata<'static>, part: Part, now: Instant) -> bool {
        let mut places = self.0.lock();
        let places = places.get_or_insert_default();
        let place = places.entry((metadata.callsite(), part)).or_insert(Place {
            window_start: now,
            lines: 0,
            left_out: 0,
            metadata,
        });
        if now.saturating_duration_since(place.window_start) >= WINDOW {
            (place.window_start, place.lines) = (now, 0);
        }
        let passes = place.lines < LINES_MAX;
        if passes {
            place.lines += 1
        } else {
            place.left_out += 1
        }
        passes
    }

    /// Places with lines left out since the last call, each with the number of these lines.
    fn left_out(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut places = self.0.lock();
        let places = places.iter_mut().flat_map(HashMap::values_mut);
        places
            .filter(|place| place.left_out > 0)
            .map(|place| (place.metadata, std::mem::take(&mut place.left_out)))
            .collect()
    }
}

/// Reports the lines that were left out, in the log and in the metrics.
pub(super) fn report() {
    for (metadata, lines) in PLACES.left_out() {
        metrics::counter!("log_lines_repeated_total").increment(lines);
        tracing::warn!(
            target = metadata.target(),
            file = metadata.file(),
            line = metadata.line(),
            lines,
            "repeated warnings suppressed"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing_subscriber::layer::{Layer, SubscriberExt};

    use super::*;

    /// Counts the events that pass.
    struct Count(&'static AtomicUsize);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_warnings_of_one_place_are_twenty_and_a_number() {
        static SHOWN: AtomicUsize = AtomicUsize::new(0);
        let layer = Count(&SHOWN).with_filter(FloodFilter);
        let log = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(log, || {
            for _ in 0..1000 {
                tracing::warn!("a store failed");
            }
            // Other places pass, and lower levels pass without a limit.
            tracing::warn!("another place");
            for _ in 0..100 {
                tracing::info!("a step");
            }
        });
        // A store that fails hides no other one, though both warn at one place.
        let fails = |seam: &str| tracing::warn!(seam, "a store failed");
        let begin = SHOWN.swap(0, Ordering::Relaxed);
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(Count(&SHOWN).with_filter(FloodFilter)),
            || {
                (0..30).for_each(|_| fails("mailbox"));
                fails("messages");
            },
        );
        assert_eq!(SHOWN.load(Ordering::Relaxed), 20 + 1);
        assert_eq!(begin, 20 + 1 + 100);
        let left_out = PLACES.left_out();
        let line_counts = left_out.iter().filter(|(at, _)| at.file() == Some(file!()));
        let mut line_counts: Vec<_> = line_counts.map(|(_, lines)| *lines).collect();
        line_counts.sort_unstable();
        assert_eq!(line_counts, [10, 980]);
    }

    #[test]
    fn a_place_is_heard_again_after_a_while() {
        let places = Places(Mutex::new(None));
        let metadata = {
            static CALLSITE: tracing::callsite::DefaultCallsite =
                tracing::callsite::DefaultCallsite::new(&META);
            static META: Metadata<'static> = tracing::metadata! {
                name: "place", target: "test", level: Level::WARN, fields: &[],
                callsite: &CALLSITE, kind: tracing::metadata::Kind::EVENT
            };
            &META
        };
        let now = Instant::now();
        let count_passed = |at: Instant| {
            (0..30)
                .filter(|_| places.pass(metadata, Part::default(), at))
                .count()
        };
        assert_eq!(count_passed(now), 20);
        assert_eq!(count_passed(now + Duration::from_millis(4_999)), 0);
        assert_eq!(count_passed(now + WINDOW), 20);
        assert_eq!(
            places.left_out().pop().map(|(_, lines)| lines),
            Some(10 + 30 + 10)
        );
        assert!(places.left_out().is_empty());
    }
}
