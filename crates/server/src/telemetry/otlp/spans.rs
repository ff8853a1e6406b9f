//! Spans as OTLP says them.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{self as wire, Status};
use protocol::trace::{Span, Step};

/// A span, and when it was handed over, in nanoseconds since 1970.
pub(super) struct Recorded {
    pub(super) span: Span,
    pub(super) at: u64,
}

impl From<Recorded> for wire::Span {
    fn from(Recorded { span, at }: Recorded) -> Self {
        let ago = |age: std::time::Duration| {
            at.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
        };
        let parent = span.parent.map(|parent| parent.to_bytes().to_vec());
        let events = span.events.iter().map(|&(name, age)| Event {
            time_unix_nano: ago(age),
            name: name.to_owned(),
            ..Event::default()
        });
        wire::Span {
            trace_id: span.context.trace.to_bytes().to_vec(),
            span_id: span.context.span.to_bytes().to_vec(),
            parent_span_id: parent.unwrap_or_default(),
            // Sampled.
            flags: 1,
            name: span.step.name().to_owned(),
            kind: kind(span.step).into(),
            start_time_unix_nano: ago(span.began),
            end_time_unix_nano: ago(span.ended),
            attributes: attributes(&span),
            events: events.collect(),
            status: span.failed.then(|| Status {
                message: span.outcome.to_owned(),
                code: StatusCode::Error.into(),
            }),
            ..wire::Span::default()
        }
    }
}

fn kind(step: Step) -> SpanKind {
    match step {
        Step::Send | Step::Accept | Step::Push => SpanKind::Server,
        Step::Place => SpanKind::Consumer,
        Step::Deliver => SpanKind::Internal,
        Step::Notify => SpanKind::Client,
    }
}

/// Names of the semantic conventions where they have one.
fn attributes(span: &Span) -> Vec<KeyValue> {
    let (partition, offset) = span.record.unzip();
    [
        ("packetboat.outcome", Some(text(span.outcome))),
        // Larger than what a JavaScript number holds.
        (
            "messaging.message.id",
            span.message.map(|id| text(id.to_string())),
        ),
        ("packetboat.conversation.kind", span.conversation.map(text)),
        (
            "packetboat.platform",
            span.platform.map(|platform| text(platform.name())),
        ),
        (
            "messaging.destination.partition.id",
            partition.map(|partition| text(partition.to_string())),
        ),
        ("messaging.kafka.offset", offset.map(number)),
        ("packetboat.attempt", span.attempt.map(number)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some(attribute(key, value?)))
    .collect()
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

pub(super) fn text(text: impl Into<String>) -> Value {
    Value::StringValue(text.into())
}

fn number(number: impl TryInto<i64>) -> Value {
    Value::IntValue(number.try_into().unwrap_or(i64::MAX))
}
