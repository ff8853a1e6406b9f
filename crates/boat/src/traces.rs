//! Picks the sends to record, and the context they continue under.
//!
//! A send whose client names a sampled trace is recorded as part of it, within a bound, as clients
//! must not decide what this costs. Of the others a share begins a trace of its own, if spans are
//! collected. All remaining sends cost a check of an `Option`.
//!
//! Keeps open spans until they end: recorded sends of one connection, and recorded pushes of one
//! stream.

use std::sync::Arc;

use api::trace::Spans;
use backend::clock::Entropy;
use parking_lot::Mutex;
use protocol::frame::{Send, ServerFrame};
use protocol::session::Outcome;
use protocol::trace::{Span, SpanId, Step};
use protocol::{MessageId, Platform, SendId, SessionId, Timestamp, TraceContext};
use tokio::time::Instant;

use crate::Config;

/// Unanswered sends recorded per connection; further ones are not.
const SENDS_MAX: usize = 64;

pub(crate) struct ConnectionTracer {
    spans: Spans,
    entropy: Arc<dyn Entropy>,
    /// A random number below this begins a trace.
    share: u64,
    clients_max: u32,
    /// The present second, and the number of traces that clients began in it.
    client_traces: Mutex<(i64, u32)>,
}

/// A send that is being recorded.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<SpanId>,
    pub(crate) at: Instant,
}

impl ConnectionTracer {
    pub(crate) fn new(
        config: &Config,
        spans: Spans,
        entropy: Arc<dyn Entropy>,
    ) -> ConnectionTracer {
        let share = if spans.is_collecting() {
            config.trace_share
        } else {
            0.0
        };
        ConnectionTracer {
            spans,
            entropy,
            // Saturates, and NaN becomes 0.
            share: (share * u64::MAX as f64) as u64,
            clients_max: config.client_traces_per_second,
            client_traces: Mutex::default(),
        }
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Gives a send the context it continues under. `Some` if it is to be recorded.
    pub(crate) fn begin(
        &self,
        send: &mut Send,
        session: SessionId,
        now: Timestamp,
    ) -> Option<OpenSpan> {
        let (context, parent) = match &mut send.trace {
            Some(trace) if trace.sampled => {
                if !self.has_room(now) {
                    trace.sampled = false;
                    return None;
                }
                let identity = [session.get() as u64, u64::from(send.attempt)];
                (trace.step(Step::Send, &identity), Some(trace.span))
            }
            Some(_) => return None,
            None => (self.start()?, None),
        };
        send.trace = Some(context);
        self.spans.sampled(send.trace).map(|context| OpenSpan {
            context,
            parent,
            at: Instant::now(),
        })
    }

    fn start(&self) -> Option<TraceContext> {
        if self.share == 0 || self.entropy.next() >= self.share {
            return None;
        }
        let [high, low, span] = std::array::from_fn(|_| self.entropy.next());
        Some(TraceContext::root(high, low, span))
    }

    fn has_room(&self, now: Timestamp) -> bool {
        let second = now.millis() / 1000;
        let mut client_traces = self.client_traces.lock();
        if client_traces.0 != second {
            *client_traces = (second, 0);
        }
        client_traces.1 = client_traces.1.saturating_add(1);
        client_traces.1 <= self.clients_max
    }
}

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

    pub(crate) fn end(self, outcome: Outcome, spans: &Spans) {
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

#[cfg(test)]
mod tests {
    use api::trace::{Collector, Sink};
    use backend::clock::SeededEntropy;
    use protocol::message::Content;
    use protocol::{Options, Recipient, UserId};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    struct Nowhere;

    impl Sink for Nowhere {
        fn record(&self, _: Span) {}
    }

    fn tracer(share: f64, is_collected: bool) -> ConnectionTracer {
        let config = Config {
            trace_share: share,
            client_traces_per_second: 2,
            ..Config::default()
        };
        let collector = is_collected.then(|| Collector::new(Arc::new(Nowhere)));
        let log = tracing_subscriber::registry().with(collector);
        let spans = tracing::subscriber::with_default(log, Spans::here);
        ConnectionTracer::new(&config, spans, Arc::new(SeededEntropy::new(1)))
    }

    fn begin_trace(
        tracer: &ConnectionTracer,
        trace: Option<TraceContext>,
        millis: i64,
    ) -> (Option<TraceContext>, bool) {
        let session = SessionId::new(7).expect("positive");
        let mut send = Send {
            send_id: SendId::from_bytes([1; 16]),
            to: Recipient::User(UserId::new(2).expect("positive")),
            options: Options::CHAT,
            content: Content::text("hello"),
            attempt: 0,
            age: std::time::Duration::ZERO,
            seen_seq: None,
            trace,
        };
        let span = tracer.begin(&mut send, session, Timestamp::from_millis(millis));
        (send.trace, span.is_some())
    }

    #[test]
    fn a_share_of_sends_begins_a_trace_where_somebody_collects() {
        let count = |tracer: ConnectionTracer| {
            (0..1000)
                .filter(|_| begin_trace(&tracer, None, 0).1)
                .count()
        };
        assert_eq!(count(tracer(1.0, true)), 1000);
        assert!((50..200).contains(&count(tracer(0.1, true))));
        assert_eq!(count(tracer(0.0, true)), 0);
        assert_eq!(count(tracer(f64::NAN, true)), 0);
        assert_eq!(begin_trace(&tracer(1.0, false), None, 0), (None, false));
    }

    #[test]
    fn a_clients_trace_goes_on_within_bounds() {
        let tracer = tracer(1.0, true);
        let root = TraceContext::root(1, 2, 3);
        for _ in 0..2 {
            let (trace, is_recorded) = begin_trace(&tracer, Some(root), 1_999);
            let trace = trace.expect("goes on");
            assert!(is_recorded && trace.trace == root.trace && trace.span != root.span);
        }
        let unsampled = TraceContext {
            sampled: false,
            ..root
        };
        assert_eq!(
            begin_trace(&tracer, Some(root), 1_999),
            (Some(unsampled), false)
        );
        assert!(begin_trace(&tracer, Some(root), 2_000).1, "the next second");
        assert_eq!(
            begin_trace(&tracer, Some(unsampled), 2_000),
            (Some(unsampled), false)
        );
    }

    // Another process may collect spans even if this one does not.
    #[test]
    fn a_clients_trace_goes_on_where_nobody_collects() {
        let root = TraceContext::root(1, 2, 3);
        let (trace, is_recorded) = begin_trace(&tracer(1.0, false), Some(root), 0);
        assert!(!is_recorded && trace.is_some_and(|trace| trace.sampled));
    }
}
