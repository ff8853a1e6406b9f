//! Spans of calls to the provider.

use std::time::Duration;

use api::trace::Spans;
use protocol::TraceContext;
use protocol::notify::NotifyFailure;
use protocol::trace::{Span, Step};

use super::push_queue::PendingPush;
use crate::provider::{ProviderError, ProviderPush};

/// Context of the next call for a notification; the provider continues from it.
pub(super) fn call_context(pending: &PendingPush) -> Option<TraceContext> {
    let salt = [
        u64::from(pending.source.partition),
        pending.source.offset,
        u64::from(pending.attempts),
    ];
    (pending.task.trace).map(|trace| trace.step(Step::Notify, &salt))
}

pub(super) fn record_call(
    spans: &Spans,
    parent: Option<TraceContext>,
    push: &ProviderPush,
    elapsed: Duration,
    answer: &Result<(), ProviderError>,
) {
    let Some((context, parent)) = spans.sampled(push.trace).zip(parent) else {
        return;
    };
    let outcome = match answer {
        Ok(()) => "sent",
        Err(error) => match error.failure {
            NotifyFailure::Unavailable => "unavailable",
            NotifyFailure::Throttled => "throttled",
            NotifyFailure::Gone => "gone",
            NotifyFailure::Muted => "muted",
            NotifyFailure::Refused => "refused",
            NotifyFailure::Panicked => "panicked",
        },
    };
    let notification = push.notification;
    spans.record(Span {
        is_failure: answer.is_err(),
        message: Some(notification.message),
        conversation: Some(notification.conversation.kind()),
        platform: Some(notification.target.platform),
        attempt: Some(push.attempt - 1),
        ..Span::new(Step::Notify, context, Some(parent.span), elapsed, outcome)
    });
}
