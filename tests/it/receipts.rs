//! What the sender learns of its message.

use client::core::SendStatus;
use protocol::frame::{Ack, AckItem, ClientFrame, ServerFrame, SyncAnswer, SyncQuery, SyncRequest};
use protocol::receipt::ReceiptKind;
use tests::person::{accepted, conversation, reaches};
use tests::system::eventually;
use tests::wire::{Port, Wire, send};
use tests::{Cluster, settings};

// proves S3-10, S3-14, S3-16, S3-17 in part
#[tokio::test]
async fn delivered_and_then_read_reach_the_sender() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    let mut ticket = ada.write(2, "did you see this?").await;
    let shown = bea.hear().await;
    reaches(&mut ticket, |s| matches!(s, SendStatus::Delivered { .. })).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(
        matches!(ticket.status(), SendStatus::Delivered { .. }),
        "nobody has read it yet"
    );
    let placed = &shown.placed;
    let read = bea
        .client
        .read(placed.conversation, placed.position.seq, placed.message.id);
    read.await.expect("it is told");
    reaches(&mut ticket, |s| matches!(s, SendStatus::Read { .. })).await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

// The receiver reads it while the sender is away.
// proves S3-18
#[tokio::test]
async fn a_sender_that_was_away_learns_it_on_return() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("ada.sqlite");
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).keeping(state.clone()).ready().await;
    let mut ticket = ada.write(2, "tell me later").await;
    let id = accepted(&mut ticket).await;
    ada.close().await;
    let mut bea = cluster.device(2).ready().await;
    let shown = bea.hear().await;
    let seq = shown.placed.position.seq;
    bea.client
        .read(conversation(1, 2), seq, id)
        .await
        .expect("told");

    let mut ada = cluster.device(1).keeping(state).ready().await;
    let learned = async {
        loop {
            match ada.events.next().await {
                Some(client::Event::Status {
                    status: SendStatus::Read { id },
                    ..
                }) => return id,
                Some(_) => {}
                None => panic!("the client ended"),
            }
        }
    };
    let learned = tokio::time::timeout(tests::system::SOON, learned).await;
    assert_eq!(learned.expect("it learns"), id);
    cluster.stop().await;
}

// proves S3-18: with receipts not pushed, asking tells the same.
#[tokio::test]
async fn without_pushed_receipts_the_status_is_there_to_be_asked_for() {
    let mut quiet = settings();
    quiet.station.push_receipts = false;
    let cluster = Cluster::with(quiet, |seams| seams).await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let mut bea = Wire::signed_in(&cluster, Port::WebSocket, 2).await;
    let id = ada.ask(send(2, "psst")).await.expect("accepted");
    let seq = bea
        .find(|frame| match frame {
            ServerFrame::Message(placed) => Some(placed.position.seq),
            _ => None,
        })
        .await;
    for (kind, read) in [(ReceiptKind::Received, false), (ReceiptKind::Read, true)] {
        let item = AckItem {
            conversation: conversation(1, 2),
            id,
            seq,
        };
        bea.send(&ClientFrame::Ack(Ack {
            kind,
            items: vec![item],
        }))
        .await;
        // proves S3-15
        bea.find(|frame| match frame {
            ServerFrame::Acked(acked) if acked.kind == kind => {
                assert_eq!(acked.ids, [id]);
                Some(())
            }
            _ => None,
        })
        .await;
        let query = SyncQuery::Status { ids: vec![id] };
        let mut request = 0;
        let status = eventually("the status has come so far", async || {
            request += 1;
            let query = query.clone();
            ada.send(&ClientFrame::Sync(SyncRequest { request, query }))
                .await;
            let statuses = ada
                .find(|frame| match frame {
                    ServerFrame::Page(page) if page.request == request => match page.answer {
                        SyncAnswer::Status(statuses) => Some(statuses),
                        _ => None,
                    },
                    ServerFrame::Receipts(receipts) => panic!("{receipts:?} pushed"),
                    _ => None,
                })
                .await;
            statuses
                .into_iter()
                .find(|s| s.delivered_at.is_some() && (s.read_at.is_some() || !read))
        })
        .await;
        assert_eq!((status.id, status.read_at.is_some()), (id, read));
    }
    ada.hears_nothing().await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}
