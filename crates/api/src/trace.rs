//! Traces within and between services: collection of spans, and the trace of the present task.
//!
//! A message's own trace travels with it, as a value ([`TraceContext`]). This module does the rest:
//! a call for one message bears its trace as metadata, and log lines on its behalf name it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use protocol::TraceContext;
use protocol::trace::{Span, TraceId};
use tracing::field::DisplayValue;
use tracing::{Instrument, Subscriber};
use tracing_subscriber::Layer;

/// Metadata of a call, and header of a record.
pub const TRACEPARENT: &str = "traceparent";

/// Takes finished spans.
pub trait Sink: Send + Sync {
    /// Records a span. Never waits; spans without room are dropped.
    fn record(&self, span: Span);
}

/// Layer beside the log of a process: services that log to it record their spans in this sink.
pub struct Collector(Arc<dyn Sink>);

impl Collector {
    pub fn new(sink: Arc<dyn Sink>) -> Collector {
        Collector(sink)
    }
}

impl<S: Subscriber> Layer<S> for Collector {}

/// Sink for a service's spans; perhaps none. Clones share it.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<dyn Sink>>);

impl Spans {
    /// Uses the [`Collector`] of the log in force here. Call it once, at the start of a service.
    pub fn here() -> Spans {
        Spans(tracing::dispatcher::get_default(|log| {
            let collector = log.downcast_ref::<Collector>()?;
            Some(Arc::clone(&collector.0))
        }))
    }

    /// Whether spans are collected.
    pub fn is_collecting(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the context if its spans are to be recorded.
    pub fn sampled(&self, trace: Option<TraceContext>) -> Option<TraceContext> {
        trace.filter(|trace| trace.sampled && self.is_collecting())
    }

    pub fn record(&self, span: Span) {
        if let Some(sink) = &self.0 {
            sink.record(span);
        }
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spans").field(&self.is_collecting()).finish()
    }
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Trace of the present task.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|trace| *trace).ok()
}

/// Runs `work` on behalf of a trace: its calls bear the trace, and its log lines name it.
pub async fn within<F: Future>(trace: Option<TraceContext>, work: F) -> F::Output {
    let Some(trace) = trace else {
        return work.await;
    };
    let span = tracing::error_span!("trace", trace_id = %trace.trace);
    Box::pin(CURRENT.scope(trace, work.instrument(span))).await
}

/// Trace id for a log line, as its field `trace_id`.
pub fn id(trace: Option<TraceContext>) -> Option<DisplayValue<TraceId>> {
    trace.map(|trace| tracing::field::display(trace.trace))
}

/// Text on the wire; empty if there is no trace.
pub(crate) fn trace_text(trace: Option<TraceContext>) -> String {
    trace.map_or_else(String::new, |trace| trace.to_string())
}

/// Headers of a record.
pub(crate) fn headers(trace: Option<TraceContext>) -> Vec<(String, Bytes)> {
    let header = |trace: TraceContext| (TRACEPARENT.to_owned(), trace.to_string().into());
    trace.map(header).into_iter().collect()
}

/// Trace of an incoming call.
pub(crate) fn call_trace(headers: &HeaderMap) -> Option<TraceContext> {
    TraceContext::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

/// Adds the trace of the present task to a call that names none itself.
pub(crate) fn put_on_call(headers: &mut HeaderMap) {
    let Some(trace) = current() else { return };
    // Digits and dashes are always a header value.
    if let Ok(value) = HeaderValue::try_from(trace.to_string()) {
        headers.entry(TRACEPARENT).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use protocol::trace::Step;
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Default)]
    struct SpanLog(Mutex<Vec<Span>>);

    impl Sink for SpanLog {
        fn record(&self, span: Span) {
            self.0.lock().push(span);
        }
    }

    // Also under a filter, and however many layers are around it.
    #[test]
    fn the_collector_beside_the_log_is_found() {
        let (sink, root) = (Arc::<SpanLog>::default(), TraceContext::root(1, 2, 3));
        let log = tracing_subscriber::registry()
            .with(LevelFilter::ERROR)
            .with(Some(Collector::new(sink.clone())))
            .with(tracing_subscriber::fmt::layer());
        let spans = tracing::subscriber::with_default(log, Spans::here);
        assert_eq!(spans.sampled(Some(root)), Some(root));
        spans.record(Span::new(
            Step::Send,
            root,
            None,
            Duration::ZERO,
            "accepted",
        ));
        assert_eq!(sink.0.lock().len(), 1);

        let log = tracing_subscriber::registry().with(None::<Collector>);
        let spans = tracing::subscriber::with_default(log, Spans::here);
        assert_eq!(spans.sampled(Some(root)), None);
    }

    #[tokio::test]
    async fn a_task_works_for_the_trace_that_it_is_told() {
        let root = TraceContext::root(1, 2, 3);
        let put = async || {
            let mut headers = HeaderMap::new();
            put_on_call(&mut headers);
            call_trace(&headers)
        };
        assert_eq!(within(Some(root), put()).await, Some(root));
        assert_eq!(within(None, put()).await, None);
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static("nonsense"));
        assert_eq!(call_trace(&headers), None);
    }
}
