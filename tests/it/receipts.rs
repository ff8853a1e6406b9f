//! Receipts: the sender learns what becomes of its message.

use api::v1::{self, ChatMsgStatus};
use client::core::SendStatus;
use prost::Message as _;
use protocol::change::ChangeKind;
use protocol::frame::{
    Ack, AckItem, ClientFrame, HistoryRange, MessageStatus, ServerFrame, SyncAnswer, SyncQuery,
    SyncRequest,
};
use protocol::receipt::ReceiptKind;
use protocol::{Platform, Recipient};
use tests::person::{accepted, conversation, reaches, user};
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
    let message = bea.hear().await;
    reaches(&mut ticket, |s| matches!(s, SendStatus::Delivered { .. })).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(
        matches!(ticket.status(), SendStatus::Delivered { .. }),
        "nobody has read it yet"
    );
    let placed = &message.placed;
    let read = bea
        .client
        .read(placed.conversation, placed.position.seq, placed.message.id);
    read.await.expect("it is told");
    reaches(&mut ticket, |s| matches!(s, SendStatus::Read { .. })).await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

// proves S3-17: sent, delivered, read; finished when the platform that was away has it, too. Asked again and again, it
// never moves back.
#[tokio::test]
async fn a_message_is_finished_when_every_platform_has_it() {
    let cluster = Cluster::start().await;
    let mut wire = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    cluster
        .device_on(2, Platform::Ios, "away")
        .await
        .close()
        .await;
    let mut bea = cluster.device_on(2, Platform::Web, "there").await;
    let id = wire.ask(send(2, "hello")).await.expect("accepted");
    let mut previous = (false, false, false);
    let mut fetch_status = async |wire: &mut Wire| {
        let query = SyncQuery::Status { ids: vec![id] };
        let request = SyncRequest { request: 1, query };
        wire.send(&ClientFrame::Sync(request)).await;
        let page = wire.find(|frame| match frame {
            ServerFrame::Page(page) => Some(page.answer),
            _ => None,
        });
        let SyncAnswer::Status(statuses) = page.await else {
            panic!("no statuses");
        };
        let current = statuses.first().map_or(previous, |status| {
            let MessageStatus {
                delivered_at,
                read_at,
                is_finished,
                ..
            } = *status;
            (delivered_at.is_some(), read_at.is_some(), is_finished)
        });
        assert!(current >= previous, "{previous:?}, {current:?}");
        previous = current;
        current
    };
    assert_eq!(fetch_status(&mut wire).await, (false, false, false));
    let message = bea.hear().await;
    bea.events.taken();
    wait_for_status(&mut wire, &mut fetch_status, (true, false, false)).await;
    let placed = &message.placed;
    let read = bea
        .client
        .read(placed.conversation, placed.position.seq, id);
    read.await.expect("it is told");
    cluster.assert_settled(1).await;
    wait_for_status(&mut wire, &mut fetch_status, (true, true, false)).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(fetch_status(&mut wire).await, (true, true, false));
    let mut phone = cluster.device_on(2, Platform::Ios, "away").await;
    phone.hear().await;
    phone.events.taken();
    wait_for_status(&mut wire, &mut fetch_status, (true, true, true)).await;
    cluster.stop().await;
}

/// Asks until the status is as expected.
async fn wait_for_status(
    wire: &mut Wire,
    fetch_status: &mut impl AsyncFnMut(&mut Wire) -> (bool, bool, bool),
    expected: (bool, bool, bool),
) {
    let poll = async {
        while fetch_status(wire).await != expected {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let result = tokio::time::timeout(tests::system::TEST_TIMEOUT, poll).await;
    result.unwrap_or_else(|_| panic!("never {expected:?}"));
}

// The recipient reads it while the sender is away.
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
    let message = bea.hear().await;
    let seq = message.placed.position.seq;
    bea.client
        .read(conversation(1, 2), seq, id)
        .await
        .expect("told");

    let mut ada = cluster.device(1).keeping(state).ready().await;
    let read_id = async {
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
    let read_id = tokio::time::timeout(tests::system::TEST_TIMEOUT, read_id).await;
    assert_eq!(read_id.expect("it learns"), id);
    cluster.stop().await;
}

// proves S3-18: with receipts not pushed, asking tells the same.
#[tokio::test]
async fn status_can_be_queried_without_pushed_receipts() {
    let mut no_push = settings();
    no_push.station.push_receipts = false;
    let cluster = Cluster::with(no_push, |backends| backends).await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let mut bea = Wire::signed_in(&cluster, Port::WebSocket, 2).await;
    let id = ada.ask(send(2, "psst")).await.expect("accepted");
    let seq = bea
        .find(|frame| match frame {
            ServerFrame::Message(placed) => Some(placed.position.seq),
            _ => None,
        })
        .await;
    for (kind, is_read) in [(ReceiptKind::Received, false), (ReceiptKind::Read, true)] {
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
                .find(|s| s.delivered_at.is_some() && (s.read_at.is_some() || !is_read))
        })
        .await;
        assert_eq!((status.id, status.read_at.is_some()), (id, is_read));
    }
    ada.hears_nothing().await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

async fn newest(wire: &mut Wire) -> v1::HistoryPage {
    let query = SyncQuery::History {
        conversation: conversation(1, 2),
        range: HistoryRange::Backward { before: None },
        limit: 10,
    };
    wire.send(&ClientFrame::Sync(SyncRequest { request: 1, query }))
        .await;
    wire.next_history().await
}

/// Owner of the copy that a pushed message is.
async fn owner(wire: &mut Wire) -> i64 {
    let (_, bytes) = wire.next_message().await;
    let frame = v1::ServerFrame::decode(bytes).expect("a frame").frame;
    match frame {
        Some(v1::server_frame::Frame::Message(message)) => message.user_id,
        other => panic!("no message: {other:?}"),
    }
}

// proves S0-34, S0-44, S0-45: on every copy of a private message, pushed or read, stands whose it is; on the sender's, how
// far it has come.
#[tokio::test]
async fn message_copy_names_its_owner_and_status() {
    let mut slow_acks = settings();
    // Two of the devices never acknowledge, however slow the machine is.
    slow_acks.boat.session.ack_wait = tests::system::TEST_TIMEOUT;
    slow_acks.carrier.ack_wait = tests::system::TEST_TIMEOUT;
    let cluster = Cluster::with(slow_acks, |backends| backends).await;
    let ada = cluster.device_on(1, Platform::Ios, "phone").await;
    let mut laptop = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let mut bea = cluster.device_on(2, Platform::Ios, "phone").await;
    let mut tablet = Wire::signed_in(&cluster, Port::Tcp, 2).await;
    let mut read_ticket = ada.write(2, "one").await;
    let placed = bea.hear().await.placed;
    let (seq, id) = (placed.position.seq, placed.message.id);
    let result = bea.client.read(placed.conversation, seq, id).await;
    result.expect("it is told");
    reaches(&mut read_ticket, |s| matches!(s, SendStatus::Read { .. })).await;
    let mut delivered_ticket = ada.write(2, "two").await;
    bea.hear().await;
    reaches(&mut delivered_ticket, |s| {
        matches!(s, SendStatus::Delivered { .. })
    })
    .await;
    let recalled_id = ada.say(2, "three").await;
    bea.hear().await;
    let to_bea = Recipient::User(user(2));
    ada.change(to_bea, recalled_id, ChangeKind::Recall, "")
        .await;
    bea.next_change().await;
    bea.close().await;
    ada.say(2, "four").await;
    for _ in 0..4 {
        assert_eq!(owner(&mut laptop).await, 1);
        assert_eq!(owner(&mut tablet).await, 2);
    }

    let page = newest(&mut laptop).await;
    assert!(page.messages.iter().all(|message| message.user_id == 1));
    let statuses: Vec<_> = page.messages.iter().map(|m| m.status()).collect();
    use ChatMsgStatus::{Deleted, Delivered, Read, Sent};
    assert_eq!(statuses, [Sent, Deleted, Delivered, Read]);
    let times = |message: &v1::MsgChat| {
        let times = [message.send_reply, message.recv_reply, message.read_reply];
        times.map(|time| time >= message.tm)
    };
    assert_eq!(times(&page.messages[0]), [true, false, false]);
    assert_eq!(times(&page.messages[2]), [true, true, false]);
    assert_eq!(times(&page.messages[3]), [true, true, true]);

    let page = newest(&mut tablet).await;
    assert!(page.messages.iter().all(|message| message.user_id == 2));
    let statuses: Vec<_> = page.messages.iter().map(|m| m.status()).collect();
    assert_eq!(statuses, [Sent, Deleted, Sent, Sent]);
    // A draining boat would wait for their connections.
    drop((laptop, tablet));
    cluster.stop().await;
}
