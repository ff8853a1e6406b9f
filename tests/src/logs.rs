//! Collects warnings, errors and spans, so that a test fails on the ones it did not expect.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use api::trace::Collector;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::spans::RecordedSpans;

/// Warnings of one test, for as long as it runs on this thread.
pub struct Logs {
    lines: Lines,
    expected_parts: Vec<&'static str>,
    pub spans: Arc<RecordedSpans>,
    _subscriber: tracing::subscriber::DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Logs {
    /// Collects from here on, on this thread: a runtime of one thread logs everything here.
    pub fn collect() -> Logs {
        let (lines, spans) = (Lines::default(), Arc::<RecordedSpans>::default());
        let subscriber = tracing_subscriber::registry()
            .with(lines.clone())
            .with(Collector::new(spans.clone()));
        Logs {
            lines,
            expected_parts: Vec::new(),
            spans,
            _subscriber: tracing::subscriber::set_default(subscriber),
        }
    }

    /// Marks lines that contain `part` as expected by the test.
    pub fn expect(&mut self, part: &'static str) {
        self.expected_parts.push(part);
    }

    /// Panics on unexpected lines, and on expected ones that are missing.
    pub fn check(&self) {
        let mut lines = self.lines.0.lock().expect("nobody panics with it");
        // Cassandra warns about `USE` at each prepared statement.
        lines.retain(|line| !line.starts_with("WARN scylla::network::connection"));
        for expected_part in &self.expected_parts {
            let is_logged = lines.iter().any(|line| line.contains(expected_part));
            assert!(
                is_logged,
                "nothing was logged of {expected_part:?}: {lines:#?}"
            );
        }
        let unexpected_lines: Vec<_> = lines
            .iter()
            .filter(|line| !self.expected_parts.iter().any(|part| line.contains(part)))
            .collect();
        assert!(
            unexpected_lines.is_empty(),
            "unexpected log lines: {unexpected_lines:#?}"
        );
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut line = Line(format!(
            "{} {}:",
            event.metadata().level(),
            event.metadata().target()
        ));
        event.record(&mut line);
        if let Ok(mut lines) = self.0.lock() {
            lines.push(line.0);
        }
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}
