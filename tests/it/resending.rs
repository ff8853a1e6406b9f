//! Resends by a client that did not hear the answer.

use std::time::Duration;

use backend::hook::Fault;
use protocol::MessageId;
use protocol::frame::{ClientFrame, Send, ServerFrame};
use tests::faults::MAILBOX;
use tests::wire::{Port, Wire, send};
use tests::{Cluster, patient_settings, settings};

fn resend(send: &Send) -> Send {
    Send {
        attempt: send.attempt + 1,
        age: Duration::from_secs(1),
        ..send.clone()
    }
}

/// Sends, and returns the ids in the answer and in the echo of the position, which come in any
/// order.
async fn send_and_place(wire: &mut Wire, send: &Send) -> (MessageId, MessageId) {
    let send_id = send.send_id;
    wire.send(&ClientFrame::Send(send.clone())).await;
    let (mut accepted_id, mut placed_id) = (None, None);
    wire.find(|frame| {
        match frame {
            ServerFrame::Accepted(answer) if answer.send_id == send_id => {
                accepted_id = Some(answer.id);
            }
            ServerFrame::Placed(echo) if echo.send_id == send_id => placed_id = Some(echo.id),
            _ => {}
        }
        accepted_id.zip(placed_id)
    })
    .await
}

// proves S3-22
#[tokio::test]
async fn a_repeated_send_is_answered_with_the_first_id_and_shown_once() {
    let cluster = Cluster::start().await;
    let mut bea = cluster.device(2).ready().await;
    let first = send(2, "once");
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let id = ada.ask(first.clone()).await.expect("accepted");
    assert_eq!(ada.ask(resend(&first)).await, Ok(id));
    drop(ada);
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    assert_eq!(ada.ask(resend(&resend(&first))).await, Ok(id));

    assert_eq!(bea.hear().await.placed.message.id, id);
    bea.hears_nothing().await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

// proves S3-22
#[tokio::test]
async fn after_a_restart_a_repeat_is_still_a_repeat() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = send(2, "once");
    let cluster = Cluster::on_disk(patient_settings(), dir.path()).await;
    cluster.device(2).ready().await.close().await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let id = ada.ask(first.clone()).await.expect("accepted");
    drop(ada);
    let settings = cluster.stop().await;

    let cluster = Cluster::on_disk(settings, dir.path()).await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    assert_eq!(ada.ask(resend(&first)).await, Ok(id));
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear().await.placed.message.id, id);
    bea.hears_nothing().await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

// The memory of sends is away: the answer may name a new id, but the writer finds the first message
// and reports its position, and nobody sees a second one.
// proves S3-22 in part: one message; the id that the sender ends up with is the first.
#[tokio::test]
async fn repeat_without_dedupe_store_makes_no_second_message() {
    let (cluster, faults) = Cluster::with_faults(settings()).await;
    let mut bea = cluster.device(2).ready().await;
    let mut ada = Wire::signed_in(&cluster, Port::WebSocket, 1).await;
    let first = send(2, "once");
    let dedupe_calls = ["dedupe_begin", "dedupe_done"].map(|name| MAILBOX.named(name));
    for calls in dedupe_calls {
        faults.begin(calls, Fault::Unavailable);
    }
    let (id, echo) = send_and_place(&mut ada, &first).await;
    assert_eq!(echo, id);
    assert_eq!(bea.hear().await.placed.message.id, id);

    let (_, echo) = send_and_place(&mut ada, &resend(&first)).await;
    assert_eq!(echo, id);
    for calls in dedupe_calls {
        faults.end(calls);
    }
    let next = send(2, "twice");
    ada.ask(next.clone()).await.expect("accepted");
    assert_eq!(bea.hear_texts(1).await, ["twice"]);
    bea.hears_nothing().await;
    cluster.stop().await;
}
