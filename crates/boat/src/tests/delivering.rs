use std::time::Duration;

use api::v1;
use api::v1::outcome::Kind;
use protocol::Code;
use protocol::frame::ServerFrame;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;

use super::client::{Client, message};
use super::harbour::{Harbour, large_message_frame, message_frame, settle};
use super::{TEST_TIMEOUT, eventually};

/// A carrier's side of a `Deliver` stream. Within one process a stream lives as long as it is read,
/// so a reader always runs.
pub(super) struct Stream {
    batches: mpsc::Sender<v1::DeliverBatch>,
    outcomes: mpsc::Receiver<(u64, Kind)>,
    life: v1::BoatLife,
    _reader: AbortOnDropHandle<()>,
}

impl Stream {
    pub(super) async fn open(harbour: &Harbour) -> Stream {
        let (batches, receiver) = mpsc::channel(8);
        let (outcome_sender, outcomes) = mpsc::channel(64);
        let response = (harbour.carrier())
            .deliver(ReceiverStream::new(receiver))
            .await;
        let mut stream = response.expect("opens").into_inner();
        let reader = tokio::spawn(async move {
            while let Ok(Some(batch)) = stream.message().await {
                for outcome in batch.outcomes {
                    outcome_sender
                        .send((outcome.token, outcome.kind()))
                        .await
                        .expect("heard");
                }
            }
        });
        Stream {
            batches,
            outcomes,
            life: harbour.life(),
            _reader: AbortOnDropHandle::new(reader),
        }
    }

    pub(super) async fn deliver(&self, deliveries: Vec<v1::Delivery>) {
        let batch = v1::DeliverBatch {
            life: Some(self.life.clone()),
            deliveries,
            notices: Vec::new(),
        };
        self.batches.send(batch).await.expect("open");
    }

    /// The next `count` outcomes.
    pub(super) async fn outcomes(&mut self, count: usize) -> Vec<(u64, Kind)> {
        let mut outcomes = Vec::new();
        while outcomes.len() < count {
            let next = timeout(TEST_TIMEOUT, self.outcomes.recv()).await;
            outcomes.push(next.expect("an outcome").expect("open"));
        }
        outcomes
    }
}

pub(super) fn delivery(session: i64, id: i64) -> v1::Delivery {
    v1::Delivery {
        token: id as u64,
        session,
        msg_id: id,
        frame: message_frame(id),
        needs_ack: true,
        traceparent: String::new(),
    }
}

async fn expect_message(client: &mut Client, id: i64) {
    match client.next().await {
        Some(ServerFrame::Message(placed)) => assert_eq!(placed.message.id, message(id)),
        other => panic!("{other:?} instead of message {id}"),
    }
}

// proves S3-13, S3-14, S3-15
#[tokio::test]
async fn a_delivery_is_done_when_the_client_acknowledges() {
    let harbour = Harbour::open().await;
    let mut stream = Stream::open(&harbour).await;
    for mut client in harbour.both().await {
        let session = client.hello(2).await.session.get();
        stream
            .deliver(vec![delivery(session, 1), delivery(session, 2)])
            .await;
        expect_message(&mut client, 1).await;
        expect_message(&mut client, 2).await;
        client.received(2).await;
        assert_eq!(stream.outcomes(1).await, [(2, Kind::Done)]);
        client.received(1).await;
        assert_eq!(stream.outcomes(1).await, [(1, Kind::Done)]);
        assert!(matches!(client.next().await, Some(ServerFrame::Acked(_))));
    }
}

// proves S1-15
#[tokio::test(start_paused = true)]
async fn a_session_that_does_not_acknowledge_is_sent_away() {
    let ack_wait = Duration::from_secs(2);
    let harbour = Harbour::piped(|config| config.session.ack_wait = ack_wait).await;
    let mut stream = Stream::open(&harbour).await;
    for mut client in harbour.both().await {
        let session = client.hello(2).await.session.get();
        // In its first minute a session stays, and what it does not take is stored.
        stream.deliver(vec![delivery(session, 1)]).await;
        expect_message(&mut client, 1).await;
        assert_eq!(stream.outcomes(1).await, [(1, Kind::NoAck)]);
        stream.deliver(vec![delivery(session, 2)]).await;
        assert_eq!(stream.outcomes(1).await, [(2, Kind::Full)]);
        client.ping().await;
        assert_eq!(client.closing().await, Some(Code::Reconnect));
        stream.deliver(vec![delivery(session, 1)]).await;
        assert_eq!(stream.outcomes(1).await, [(1, Kind::NoSession)]);
    }
}

/// Queues this many mebibytes for a client that reads nothing: more than kernels hold.
pub(super) async fn pile_up(harbour: &Harbour, session: i64, mebibytes: usize) {
    let notice = v1::Notice {
        session,
        notice: Some(v1::notice::Notice::Frame(large_message_frame(1, 60 * 1024))),
    };
    for _ in 0..mebibytes {
        let request = v1::NoticeRequest {
            life: Some(harbour.life()),
            notices: vec![notice.clone(); 17],
        };
        harbour.carrier().notice(request).await.expect("answers");
    }
}

/// A delivery of the largest frame.
fn large(session: i64, id: i64) -> v1::Delivery {
    v1::Delivery {
        frame: large_message_frame(id, 60 * 1024),
        ..delivery(session, id)
    }
}

// The kernel takes it at once, and the link has yet to carry it.
#[tokio::test]
async fn a_large_message_is_waited_for_on_a_slow_link() {
    let harbour = Harbour::with(|config| {
        config.session.ack_wait = Duration::from_millis(200);
    })
    .await;
    let mut stream = Stream::open(&harbour).await;
    for mut client in harbour.both().await {
        let session = client.hello(2).await.session.get();
        stream.deliver(vec![large(session, 1)]).await;
        // Its carrier is not kept waiting.
        assert_eq!(stream.outcomes(1).await, [(1, Kind::NoAck)]);
        expect_message(&mut client, 1).await;
        client.received(1).await;
        assert!(matches!(client.next().await, Some(ServerFrame::Acked(_))));
        client.ping().await;
    }
}

#[tokio::test]
async fn a_session_that_reads_nothing_is_sent_away() {
    let harbour = Harbour::with(|config| {
        config.session.write_wait = Duration::from_millis(300);
        config.session.link_bytes_min = u32::MAX;
        config.session.outgoing_bytes_max = u32::MAX;
    })
    .await;
    for mut client in harbour.both().await {
        let session = client.hello(2).await.session.get();
        pile_up(&harbour, session, 20).await;
        eventually("sent away", || harbour.handle.sessions() == 0).await;
        assert_eq!(client.closing().await, Some(Code::Slow));
    }
}

// A receipt that lingered and finds the socket full goes out once there is room.
#[tokio::test(start_paused = true)]
async fn a_receipt_that_finds_the_socket_full_goes_out_later() {
    let harbour = Harbour::piped(|config| config.linger = Duration::from_millis(50)).await;
    let mut stream = Stream::open(&harbour).await;
    for mut client in harbour.both().await {
        let session = client.hello(2).await.session.get();
        stream.deliver(vec![delivery(session, 1)]).await;
        assert!(matches!(client.next().await, Some(ServerFrame::Message(_))));
        let mut last_id = 2;
        loop {
            let filler = v1::Delivery {
                frame: large_message_frame(last_id, 12 * 1024),
                needs_ack: false,
                ..delivery(session, last_id)
            };
            stream.deliver(vec![filler]).await;
            let outcome = timeout(Duration::from_millis(200), stream.outcomes.recv()).await;
            if outcome.is_err() {
                break;
            }
            last_id += 1;
        }
        client.received(1).await;
        assert_eq!(stream.outcomes(1).await, [(1, Kind::Done)]);
        tokio::time::sleep(Duration::from_millis(200)).await;
        for id in 2..=last_id {
            expect_message(&mut client, id).await;
        }
        assert!(matches!(client.next().await, Some(ServerFrame::Acked(_))));
        assert_eq!(stream.outcomes(1).await, [(last_id as u64, Kind::Done)]);
    }
}

#[tokio::test]
async fn without_acknowledgement_it_is_done_when_it_is_written() {
    let harbour = Harbour::open().await;
    let mut stream = Stream::open(&harbour).await;
    let mut client = harbour.websocket().await;
    let session = client.hello(2).await.session.get();
    let unacknowledged_delivery = v1::Delivery {
        needs_ack: false,
        ..delivery(session, 1)
    };
    let untracked_delivery = v1::Delivery {
        token: 0,
        needs_ack: false,
        ..delivery(session, 2)
    };
    stream
        .deliver(vec![
            unacknowledged_delivery,
            untracked_delivery,
            delivery(999, 3),
        ])
        .await;
    let mut outcomes = stream.outcomes(2).await;
    outcomes.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(outcomes, [(1, Kind::Done), (3, Kind::NoSession)]);
    expect_message(&mut client, 1).await;
    expect_message(&mut client, 2).await;
}

#[tokio::test]
async fn another_life_has_none_of_these_sessions() {
    let harbour = Harbour::open().await;
    let mut stream = Stream::open(&harbour).await;
    let mut client = harbour.tcp().await;
    let session = client.hello(2).await.session.get();
    stream.life.incarnation += 1;
    stream.deliver(vec![delivery(session, 1)]).await;
    assert_eq!(stream.outcomes(1).await, [(1, Kind::NoSession)]);

    let mut carrier = harbour.carrier();
    let request = |life| v1::NoticeRequest {
        life: Some(life),
        notices: [session, 999]
            .map(|session| v1::Notice {
                session,
                notice: Some(v1::notice::Notice::Hint(true)),
            })
            .into(),
    };
    let answer = carrier
        .notice(request(stream.life.clone()))
        .await
        .expect("answers");
    assert_eq!(answer.into_inner().missing, [session, 999]);
    let answer = carrier
        .notice(request(harbour.life()))
        .await
        .expect("answers");
    assert_eq!(answer.into_inner().missing, [999]);

    for (life, alive) in [(stream.life.clone(), false), (harbour.life(), true)] {
        let probe = v1::ProbeRequest { life: Some(life) };
        assert_eq!(
            carrier
                .probe(probe)
                .await
                .expect("answers")
                .into_inner()
                .alive,
            alive
        );
    }
}

// Two carriers number their pushes alike; each gets its own outcomes, and the end of one stream
// takes nothing from the client.
#[tokio::test]
async fn carriers_do_not_meet() {
    let harbour = Harbour::open().await;
    let (mut one, mut other) = (Stream::open(&harbour).await, Stream::open(&harbour).await);
    let mut client = harbour.tcp().await;
    let session = client.hello(2).await.session.get();
    one.deliver(vec![v1::Delivery {
        token: 5,
        ..delivery(session, 1)
    }])
    .await;
    other
        .deliver(vec![v1::Delivery {
            token: 5,
            ..delivery(session, 2)
        }])
        .await;
    for _ in 0..2 {
        assert!(matches!(client.next().await, Some(ServerFrame::Message(_))));
    }
    client.received(2).await;
    assert_eq!(other.outcomes(1).await, [(5, Kind::Done)]);
    drop(other);
    client.received(1).await;
    assert_eq!(one.outcomes(1).await, [(5, Kind::Done)]);
    one.deliver(vec![delivery(session, 3)]).await;
    expect_after_acks(&mut client, 3).await;
    drop(one);
    client.received(3).await;
    client.ping().await;
}

async fn expect_after_acks(client: &mut Client, id: i64) {
    loop {
        match client.next().await {
            Some(ServerFrame::Acked(_)) => {}
            Some(ServerFrame::Message(placed)) => {
                return assert_eq!(placed.message.id, message(id));
            }
            other => panic!("{other:?}"),
        }
    }
}

// A receipt that nobody waits for goes out with the next frame, or alone after its linger.
#[tokio::test(start_paused = true)]
async fn receipts_wait_for_company_and_messages_do_not() {
    const HOUR: Duration = Duration::from_secs(3600);
    for linger in [HOUR, Duration::from_millis(50)] {
        let harbour = Harbour::piped(|config| config.linger = linger).await;
        let stream = Stream::open(&harbour).await;
        for mut client in harbour.both().await {
            let session = client.hello(2).await.session.get();
            stream.deliver(vec![delivery(session, 1)]).await;
            expect_message(&mut client, 1).await;
            client.received(1).await;
            let next_frame = timeout(Duration::from_millis(500), client.next()).await;
            if linger == HOUR {
                assert!(
                    next_frame.is_err(),
                    "nothing else is to be said: {next_frame:?}"
                );
                stream.deliver(vec![delivery(session, 2)]).await;
                assert!(matches!(client.next().await, Some(ServerFrame::Acked(_))));
                expect_message(&mut client, 2).await;
            } else {
                assert!(matches!(next_frame, Ok(Some(ServerFrame::Acked(_)))));
            }
        }
    }
}

#[tokio::test]
async fn a_session_without_room_says_full() {
    let harbour = Harbour::with(|config| config.session.push_window = 2).await;
    let mut stream = Stream::open(&harbour).await;
    let mut client = harbour.websocket().await;
    let session = client.hello(2).await.session.get();
    stream
        .deliver((1..=3).map(|id| delivery(session, id)).collect())
        .await;
    assert_eq!(stream.outcomes(1).await, [(3, Kind::Full)]);
    client.ping().await;
}

/// Retries exactly the acknowledgements that a part of the mailbox did not answer.
#[tokio::test]
async fn an_unanswered_acknowledgement_is_sent_again() {
    let harbour = Harbour::open().await;
    let item = |id| v1::MailItem {
        msg_id: id,
        frame: message_frame(id),
    };
    harbour.peer.mail.lock().push_back(item(1));
    harbour.peer.unavailable_users.lock().push(2);
    let mut unavailable_client = harbour.websocket().await;
    unavailable_client.hello(2).await;
    expect_message(&mut unavailable_client, 1).await;
    unavailable_client.received(1).await;
    let mut other_client = harbour.websocket().await;
    other_client.hello(3).await;
    expect_message(&mut other_client, 1).await;
    other_client.received(1).await;
    eventually("the other's is removed", || {
        *harbour.peer.removed_ids.lock() == [1]
    })
    .await;
    harbour.peer.unavailable_users.lock().clear();
    eventually("it is sent again", || {
        *harbour.peer.removed_ids.lock() == [1, 1]
    })
    .await;
}

// proves S0-77: what waits is pushed page by page, and removed when a device has it.
#[tokio::test]
async fn stored_mail_is_pushed_after_the_welcome_until_it_is_acked() {
    let harbour = Harbour::open().await;
    let mail = (1..=5).map(|id| v1::MailItem {
        msg_id: id,
        frame: message_frame(id),
    });
    harbour.peer.mail.lock().extend(mail);
    let mut client = harbour.websocket().await;
    client.hello(2).await;
    for id in 1..=5 {
        expect_after_acks(&mut client, id).await;
        if id <= 3 {
            client.received(id).await;
        }
    }
    eventually("three are removed", || {
        *harbour.peer.removed_ids.lock() == [1, 2, 3]
    })
    .await;
    drop(client);

    let mut second_client = harbour.tcp().await;
    let session = second_client.hello(2).await.session.get();
    for id in 4..=5 {
        expect_message(&mut second_client, id).await;
        second_client.received(id).await;
    }
    eventually("all are removed", || harbour.peer.mail.lock().is_empty()).await;
    // Stored while this session lives: the hint delivers it.
    harbour.peer.mail.lock().push_back(v1::MailItem {
        msg_id: 6,
        frame: message_frame(6),
    });
    let hint = v1::Notice {
        session,
        notice: Some(v1::notice::Notice::Hint(true)),
    };
    let request = v1::NoticeRequest {
        life: Some(harbour.life()),
        notices: vec![hint],
    };
    harbour.carrier().notice(request).await.expect("answers");
    expect_after_acks(&mut second_client, 6).await;
}

#[tokio::test]
async fn a_kick_ends_exactly_one_session() {
    let harbour = Harbour::open().await;
    let [mut kicked_client, mut other_client] = harbour.both().await;
    let session = kicked_client.hello(2).await.session.get();
    other_client.hello(2).await;
    let refusal = protocol::Refusal::new(Code::Displaced, "signed in elsewhere");
    let close = v1::Notice {
        session,
        notice: Some(v1::notice::Notice::Close((&refusal).into())),
    };
    let request = v1::NoticeRequest {
        life: Some(harbour.life()),
        notices: vec![close],
    };
    harbour.carrier().notice(request).await.expect("answers");
    assert_eq!(kicked_client.closing().await, Some(Code::Displaced));
    assert_eq!(kicked_client.close_code().await, Some(4505));
    other_client.ping().await;
    eventually("signed off", || harbour.handle.sessions() == 1).await;
    settle().await;
    assert_eq!(harbour.handle.sessions(), 1);
}
