//! Trace of a message: from the client's frame over all services to the recipient's frame, as
//! spans.

use api::codec::message_trace;
use api::task::Value;
use backend::hook::Fault;
use backend::queue::{Partition, Record};
use protocol::frame::Send;
use protocol::keys::Topic;
use protocol::record::{Task, Work};
use protocol::trace::{Span, Step};
use protocol::{Platform, TraceContext};
use tests::faults::ROUTES;
use tests::system::eventually;
use tests::wire::{Port, Wire, send};
use tests::{Cluster, user};

fn root(number: u64) -> TraceContext {
    TraceContext::root(0x4bf9, number, 7)
}

fn traced_send(to: i64, trace: TraceContext) -> Send {
    Send {
        trace: Some(trace),
        ..send(to, "hello")
    }
}

/// Waits for the one span of this step.
async fn only_span(cluster: &Cluster, trace: TraceContext, step: Step) -> Span {
    let mut spans = eventually(step.name(), async || {
        let spans = cluster.spans.step_spans(trace.trace, step);
        (!spans.is_empty()).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), 1, "{spans:#?}");
    spans.remove(0)
}

/// The only record of topic `message`.
async fn record(cluster: &Cluster) -> Record {
    let queue = &cluster.backends.queue;
    let mut records = Vec::new();
    for number in 0..queue.partitions(Topic::Message) {
        let topic = Topic::Message;
        let page = queue.read(Partition { topic, number }, 0, 10).await;
        records.extend(page.expect("the log answers"));
    }
    assert_eq!(records.len(), 1);
    records.remove(0)
}

fn follows(span: &Span, parent: &Span) -> bool {
    span.context.trace == parent.context.trace && span.parent == Some(parent.context.span)
}

#[tokio::test]
async fn a_traced_message_is_one_trace_from_hand_to_hand() {
    let cluster = Cluster::start().await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let mut bea = Wire::signed_in(&cluster, Port::Tcp, 2).await;
    let trace = root(1);
    let id = ada.ask(traced_send(2, trace)).await.expect("accepted");
    let (placed, frame) = bea.next_message().await;
    bea.acknowledge(&placed).await;

    let send_span = only_span(&cluster, trace, Step::Send).await;
    let accept_span = only_span(&cluster, trace, Step::Accept).await;
    let place_span = only_span(&cluster, trace, Step::Place).await;
    let deliver_span = only_span(&cluster, trace, Step::Deliver).await;
    let push_span = only_span(&cluster, trace, Step::Push).await;
    assert_eq!(send_span.parent, Some(trace.span));
    assert!(
        follows(&accept_span, &send_span),
        "{send_span:?} {accept_span:?}"
    );
    assert!(
        follows(&place_span, &accept_span),
        "{accept_span:?} {place_span:?}"
    );
    assert!(
        follows(&deliver_span, &place_span),
        "{place_span:?} {deliver_span:?}"
    );
    assert!(
        follows(&push_span, &deliver_span),
        "{deliver_span:?} {push_span:?}"
    );
    let outcomes = [
        &send_span,
        &accept_span,
        &place_span,
        &deliver_span,
        &push_span,
    ]
    .map(|span| span.outcome);
    assert_eq!(
        outcomes,
        ["accepted", "accepted", "placed", "acked", "done"]
    );
    for span in cluster.spans.all() {
        assert!(!span.is_failure && span.message == Some(id), "{span:?}");
        assert!(span.began_ago >= span.ended_ago, "{span:?}");
    }
    assert_eq!(deliver_span.platform, Some(Platform::Desktop));
    let events: Vec<_> = deliver_span.events.iter().map(|(name, _)| *name).collect();
    assert_eq!(events, ["pushed", "acked"]);

    // The recipient's trace continues from the span that gave the message its position.
    assert_eq!(message_trace(frame), Some(place_span.context));
    let record = record(&cluster).await;
    assert_eq!(
        place_span.record,
        Some((record.partition.number, record.offset))
    );
    let header = record.header("traceparent").expect("a header");
    assert_eq!(header, accept_span.context.to_string().as_bytes());
    let task = Task::decode(record.value).expect("a task");
    assert_eq!(task.trace, Some(accept_span.context));
    cluster.stop().await;
}

#[tokio::test]
async fn trace_continues_when_the_message_is_fetched_later() {
    let cluster = Cluster::start().await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    drop(Wire::signed_in(&cluster, Port::WebSocket, 2).await);
    eventually("bea is gone", async || {
        let no_boats = protocol::presence::DeniedBoats::default();
        let sessions = cluster
            .backends
            .mailbox
            .sessions(&[user(2)], no_boats)
            .await;
        let sessions = sessions.into_iter().next().expect("an answer");
        sessions
            .expect("the mailbox answers")
            .is_empty()
            .then_some(())
    })
    .await;
    let trace = root(2);
    ada.ask(traced_send(2, trace)).await.expect("accepted");

    let place_span = only_span(&cluster, trace, Step::Place).await;
    let deliver_span = only_span(&cluster, trace, Step::Deliver).await;
    let notify_span = only_span(&cluster, trace, Step::Notify).await;
    assert!(follows(&deliver_span, &place_span) && follows(&notify_span, &deliver_span));
    let events: Vec<_> = deliver_span.events.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        (deliver_span.outcome, notify_span.outcome),
        ("stored", "sent")
    );
    assert_eq!(events, ["stored", "notified"]);
    assert!(cluster.spans.step_spans(trace.trace, Step::Push).is_empty());

    let mut bea = Wire::signed_in(&cluster, Port::WebSocket, 2).await;
    let (placed, frame) = bea.next_message().await;
    bea.acknowledge(&placed).await;
    assert_eq!(message_trace(frame), Some(place_span.context));
    cluster.stop().await;
}

#[tokio::test]
async fn unsampled_message_leaves_no_span() {
    let cluster = Cluster::start().await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let mut bea = Wire::signed_in(&cluster, Port::WebSocket, 2).await;
    let context = TraceContext {
        sampled: false,
        ..root(3)
    };
    for (send, expected_trace) in [
        (send(2, "hello"), None),
        (traced_send(2, context), Some(context)),
    ] {
        ada.ask(send).await.expect("accepted");
        let (placed, frame) = bea.next_message().await;
        bea.acknowledge(&placed).await;
        assert_eq!(message_trace(frame), expected_trace);
    }
    cluster.assert_settled(2).await;
    assert_eq!(cluster.spans.all(), []);
    cluster.stop().await;
}

#[tokio::test]
async fn the_boat_begins_traces_of_its_own_for_a_share_of_the_sends() {
    let mut settings = tests::settings();
    settings.boat.trace_share = 1.0;
    let cluster = Cluster::with(settings, |backends| backends).await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let mut bea = Wire::signed_in(&cluster, Port::WebSocket, 2).await;
    ada.ask(send(2, "hello")).await.expect("accepted");
    let (placed, frame) = bea.next_message().await;
    bea.acknowledge(&placed).await;
    let trace = message_trace(frame).expect("it has a trace");
    let send_span = only_span(&cluster, trace, Step::Send).await;
    assert_eq!(send_span.parent, None);
    assert!(follows(
        &only_span(&cluster, trace, Step::Accept).await,
        &send_span
    ));
    only_span(&cluster, trace, Step::Push).await;
    cluster.stop().await;
}

// A refused send ends its span, too, and the end of a connection ends the spans of its unanswered
// sends.
#[tokio::test]
async fn a_send_that_is_refused_is_a_span_that_failed() {
    let cluster = Cluster::start().await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let trace = root(4);
    ada.ask(traced_send(1, trace))
        .await
        .expect_err("to herself");
    let send_span = only_span(&cluster, trace, Step::Send).await;
    assert_eq!((send_span.outcome, send_span.is_failure), ("to_self", true));
    assert_eq!(cluster.spans.all().len(), 1);
    cluster.stop().await;
}

// Each attempt is a delivery of its own, and its log lines name the trace.
#[tokio::test]
async fn retries_and_their_log_lines_belong_to_the_trace() {
    let (mut cluster, faults) = Cluster::with_faults(tests::settings()).await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    drop(cluster.device(2).ready().await);
    cluster.expect_log("trace_id=0000000000004bf90000000000000005");
    faults.begin(ROUTES.about(2), Fault::Conflict);
    let trace = root(5);
    ada.ask(traced_send(2, trace)).await.expect("accepted");
    eventually("an attempt fails", async || {
        (!cluster
            .spans
            .step_spans(trace.trace, Step::Deliver)
            .is_empty())
        .then_some(())
    })
    .await;
    faults.end(ROUTES.about(2));
    let attempts = eventually("it is stored", async || {
        let mut attempts = cluster.spans.step_spans(trace.trace, Step::Deliver);
        // Attempts without a platform are for whichever other sessions live.
        attempts.retain(|attempt| attempt.platform.is_some());
        let is_stored = attempts.last().is_some_and(|last| last.outcome == "stored");
        is_stored.then_some(attempts)
    })
    .await;
    let place_span = only_span(&cluster, trace, Step::Place).await;
    for (number, attempt) in attempts.iter().enumerate() {
        assert!(follows(attempt, &place_span), "{attempt:?}");
        assert_eq!(attempt.attempt, Some(number as u32));
        let is_last = number + 1 == attempts.len();
        assert_eq!(attempt.is_failure, !is_last, "{attempt:?}");
        let outcome = if is_last { "stored" } else { "retried" };
        assert_eq!(attempt.outcome, outcome);
    }
    let queue = cluster.backends.queue.clone();
    let mut retry_count = 0;
    for topic in [1, 2, 3].map(Topic::Retry) {
        for number in 0..queue.partitions(topic) {
            let records = queue.read(Partition { topic, number }, 0, 10).await;
            for record in records.expect("the log answers") {
                let header = record.header("traceparent").expect("a header");
                assert_eq!(header, place_span.context.to_string().as_bytes());
                let task = Task::decode(record.value).expect("a task");
                assert!(matches!(task.work, Work::Deliver(_)));
                retry_count += 1;
            }
        }
    }
    assert_eq!(retry_count, attempts.len() - 1);
    cluster.stop().await;
}
