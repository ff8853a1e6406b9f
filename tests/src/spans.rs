//! Collects the spans of a system.

use std::sync::Mutex;

use api::trace::Sink;
use protocol::trace::{Span, Step, TraceId};

/// All spans, in the order of their ends.
#[derive(Default)]
pub struct RecordedSpans(Mutex<Vec<Span>>);

impl Sink for RecordedSpans {
    fn record(&self, span: Span) {
        self.0.lock().expect("nobody panics with it").push(span);
    }
}

impl RecordedSpans {
    pub fn all(&self) -> Vec<Span> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    /// Spans of this step in one trace.
    pub fn step_spans(&self, trace: TraceId, step: Step) -> Vec<Span> {
        let mut spans = self.all();
        spans.retain(|span| span.context.trace == trace && span.step == step);
        spans
    }
}
