//! Spans in the types of OpenTelemetry's crates.

use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::trace::{
    Event, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use protocol::trace::{Span, Step};

/// Converts a span that was handed over `at` nanoseconds since 1970.
pub(super) fn data(span: &Span, at: u64, scope: &InstrumentationScope) -> SpanData {
    let ago = |age: Duration| {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        UNIX_EPOCH + Duration::from_nanos(at.saturating_sub(age))
    };
    let mut events = SpanEvents::default();
    let span_events = span.events.iter();
    events.events = span_events
        .map(|&(name, age)| Event::new(name, ago(age), Vec::new(), 0))
        .collect();
    let id = SpanId::from_bytes(span.context.span.to_bytes());
    let trace = TraceId::from_bytes(span.context.trace.to_bytes());
    let parent = span
        .parent
        .map(|parent| SpanId::from_bytes(parent.to_bytes()));
    SpanData {
        span_context: SpanContext::new(
            trace,
            id,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: false,
        span_kind: kind(span.step),
        name: span.step.name().into(),
        start_time: ago(span.began_ago),
        end_time: ago(span.ended_ago),
        attributes: attributes(span),
        dropped_attributes_count: 0,
        events,
        links: SpanLinks::default(),
        status: if span.is_failure {
            Status::error(span.outcome)
        } else {
            Status::Unset
        },
        instrumentation_scope: scope.clone(),
    }
}

pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("packetboat")
        .with_version(env!("CARGO_PKG_VERSION"))
        .build()
}

fn kind(step: Step) -> SpanKind {
    match step {
        Step::Send | Step::Accept | Step::Push => SpanKind::Server,
        Step::Place => SpanKind::Consumer,
        Step::Deliver => SpanKind::Internal,
        Step::Notify => SpanKind::Client,
    }
}

/// Attributes of a span, named by the semantic conventions where they have a name.
fn attributes(span: &Span) -> Vec<KeyValue> {
    let (partition, offset) = span.record.unzip();
    let pairs: [(&'static str, Option<Value>); 7] = [
        ("packetboat.outcome", Some(span.outcome.into())),
        // As text: larger than a JavaScript number holds.
        (
            "messaging.message.id",
            span.message.map(|id| id.to_string().into()),
        ),
        (
            "packetboat.conversation.kind",
            span.conversation.map(Value::from),
        ),
        (
            "packetboat.platform",
            span.platform.map(|platform| platform.name().into()),
        ),
        (
            "messaging.destination.partition.id",
            partition.map(|partition| partition.to_string().into()),
        ),
        ("messaging.kafka.offset", offset.map(number)),
        ("packetboat.attempt", span.attempt.map(number)),
    ];
    let pairs = pairs.into_iter();
    pairs
        .filter_map(|(key, value)| Some(KeyValue::new(key, value?)))
        .collect()
}

fn number(number: impl TryInto<i64>) -> Value {
    Value::I64(number.try_into().unwrap_or(i64::MAX))
}
