//! Open spans: recorded sends of one connection, and recorded pushes of one stream, that have not
//! ended yet.

use api::trace::Spans;
use protocol::frame::{Send, ServerFrame};
use protocol::session::{self, Outcome};
use protocol::trace::{Span, Step};
use protocol::{MessageId, Platform, SendId, TraceContext};
use tokio::time::Instant;

use crate::tracer::OpenSpan;

/// Unanswered sends recorded per connection; further ones are not.
const SENDS_MAX: usize = 64;

/// Open sends of one connection. Most connections never have any.
#[derive(Debug, Default)]
pub(crate) struct SendTraces(Vec<TracedSend>);

#[derive(Debug)]
struct TracedSend {
    send_id: SendId,
    conversation: &'static str,
    attempt: u32,
    span: OpenSpan,
}

impl SendTraces {
    pub(crate) fn add(&mut self, send: &Send, span: OpenSpan) {
        if self.0.len() < SENDS_MAX {
            self.0.push(TracedSend {
                send_id: send.send_id,
                conversation: send.to.kind(),
                attempt: send.attempt,
                span,
            });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the recorded sends that this frame answers.
    pub(crate) fn answer(&mut self, frame: &ServerFrame, platform: Platform, spans: &Spans) {
        let (send_id, message, outcome) = match frame {
            ServerFrame::Accepted(accepted) => (accepted.send_id, Some(accepted.id), "accepted"),
            ServerFrame::Refused { send_id, refusal } => (*send_id, None, refusal.code.name()),
            _ => return,
        };
        let is_answered = |send: &mut TracedSend| send.send_id == send_id;
        for send in self.0.extract_if(.., is_answered) {
            spans.record(Span {
                message,
                is_failure: message.is_none(),
                ..send.span(platform, outcome)
            });
        }
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }

    /// Ends all sends: the connection is gone, and the answers with it.
    pub(crate) fn end(&mut self, platform: Platform, spans: &Spans) {
        for send in std::mem::take(&mut self.0) {
            spans.record(Span {
                is_failure: true,
                ..send.span(platform, "disconnected")
            });
        }
    }
}

impl TracedSend {
    fn span(&self, platform: Platform, outcome: &'static str) -> Span {
        let OpenSpan {
            context,
            parent,
            at,
        } = self.span;
        Span {
            conversation: Some(self.conversation),
            platform: Some(platform),
            attempt: Some(self.attempt),
            ..Span::new(Step::Send, context, parent, at.elapsed(), outcome)
        }
    }
}

/// A recorded push.
#[derive(Debug)]
pub(crate) struct PushTrace {
    /// Context of the carrier's delivery.
    delivery: TraceContext,
    number: u64,
    message: MessageId,
    started_at: Instant,
}

impl PushTrace {
    pub(crate) fn new(delivery: TraceContext, number: u64, message: MessageId) -> PushTrace {
        PushTrace {
            delivery,
            number,
            message,
            started_at: Instant::now(),
        }
    }

    pub(crate) fn end(self, outcome: session::Outcome, spans: &Spans) {
        let name = match outcome {
            Outcome::Done => "done",
            Outcome::NoAck => "no_ack",
            Outcome::NoSession => "no_session",
            Outcome::Full => "full",
        };
        // The newest session decides on a delivery, but other sessions are pushed to as well.
        let context = self.delivery.step(Step::Push, &[self.number]);
        let (parent, took) = (Some(self.delivery.span), self.started_at.elapsed());
        spans.record(Span {
            is_failure: outcome != Outcome::Done,
            message: Some(self.message),
            ..Span::new(Step::Push, context, parent, took, name)
        });
    }
}
