//! A client that breaks the protocol gets its code, and no other notices. docs/protocol.md lists
//! the codes.

use std::time::Duration;

use api::codec::encode_client;
use api::v1;
use bytes::Bytes;
use protocol::frame::{Ack, AckItem, ClientFrame, Hello, ServerFrame};
use protocol::receipt::ReceiptKind;
use protocol::{Code, MessageId, Platform, Seq};
use tests::Cluster;
use tests::person::{Device, conversation};
use tests::system::sign;
use tests::wire::{PORTS, Port, Wire, hello, send};

/// Two users with a chat that must not notice the misbehaviour of others.
struct Neighbours {
    one: Device,
    other: Device,
    rounds: usize,
}

impl Neighbours {
    async fn arrive(cluster: &Cluster) -> Neighbours {
        Neighbours {
            one: cluster.device(101).ready().await,
            other: cluster.device(102).over_tcp().ready().await,
            rounds: 0,
        }
    }

    async fn chat(&mut self, text: &str) {
        self.rounds += 1;
        self.one.say(102, text).await;
        assert_eq!(self.other.hear_texts(1).await, [text]);
    }
}

#[tokio::test]
async fn bytes_that_are_no_frames_end_only_their_own_connection() {
    let cluster = Cluster::start().await;
    let mut neighbours = Neighbours::arrive(&cluster).await;
    let hello_bytes = encode_client(&ClientFrame::Hello(hello(cluster.token(1))));
    let frames = [
        (
            "garbage",
            Bytes::from_static(b"\xff\xff\xff\xff\xff"),
            Code::Malformed,
        ),
        ("nothing", Bytes::new(), Code::Malformed),
        (
            "other protocol",
            Bytes::from_static(b"GET / HTTP/1.1"),
            Code::Malformed,
        ),
        (
            "half a hello",
            hello_bytes.slice(..hello_bytes.len() / 2),
            Code::Malformed,
        ),
        (
            "oversize",
            Bytes::from(vec![1; 64 * 1024 + 1]),
            Code::TooLarge,
        ),
    ];
    for port in PORTS {
        for (case, bytes, code) in &frames {
            // Before the sign-in …
            let mut wire = Wire::open(&cluster, port).await;
            wire.send_frame(bytes.clone()).await;
            assert_eq!(wire.closing().await, Some(*code), "{case} first, {port:?}");
            // … and after it.
            let mut wire = Wire::signed_in(&cluster, port, 1).await;
            let bytes = if *case == "half a hello" {
                let send = encode_client(&ClientFrame::Send(send(2, "cut off")));
                send.slice(..send.len() / 2)
            } else {
                bytes.clone()
            };
            wire.send_frame(bytes).await;
            assert_eq!(wire.closing().await, Some(*code), "{case} later, {port:?}");
            neighbours.chat(case).await;
        }
    }
    let mut wire = Wire::open(&cluster, Port::WebSocket).await;
    wire.send_text("hello").await;
    assert_eq!(wire.closing().await, Some(Code::Malformed), "a text");
    neighbours.chat("after a text").await;
    for (case, bytes, code) in [
        ("a length without end", &[0xff; 6][..], Code::Malformed),
        (
            "four gigabytes",
            &[0xff, 0xff, 0xff, 0xff, 0x0f][..],
            Code::TooLarge,
        ),
    ] {
        let mut wire = Wire::open(&cluster, Port::Tcp).await;
        wire.send_raw(bytes).await;
        assert_eq!(wire.closing().await, Some(code), "{case}");
        neighbours.chat(case).await;
    }
    cluster.assert_settled(neighbours.rounds as u64).await;
    cluster.stop().await;
}

// A frame that stays incomplete is no frame: the boat waits for it no longer than for a hello.
#[tokio::test]
async fn half_a_frame_is_waited_for_only_so_long() {
    let mut settings = tests::settings();
    settings.boat.session.handshake = Duration::from_millis(200);
    let cluster = Cluster::with(settings, |backends| backends).await;
    let mut neighbours = Neighbours::arrive(&cluster).await;
    let hello_bytes = encode_client(&ClientFrame::Hello(hello(cluster.token(1))));
    for port in PORTS {
        let mut wire = Wire::open(&cluster, port).await;
        let prefix = match port {
            // A length with fewer bytes than it promises; likewise a masked binary message.
            Port::Tcp => [&[100][..], &hello_bytes[..50]].concat(),
            Port::WebSocket => [&[0x82, 0x80 | 100, 0, 0, 0, 0][..], &hello_bytes[..50]].concat(),
        };
        wire.send_raw(&prefix).await;
        assert_eq!(
            wire.closing().await,
            Some(Code::HandshakeTimeout),
            "{port:?}"
        );
        neighbours.chat("meanwhile").await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_connection_begins_with_a_hello_that_can_be_believed() {
    let cluster = Cluster::start().await;
    let mut neighbours = Neighbours::arrive(&cluster).await;
    let valid_hello = || hello(cluster.token(1));
    let mut expired_claims = cluster.claims(1);
    (expired_claims.iat, expired_claims.nbf, expired_claims.exp) =
        (1_000_000, 1_000_000, 1_000_060);
    let mut early_claims = cluster.claims(1);
    early_claims.nbf += 1800;
    let mut other_audience = cluster.claims(1);
    other_audience.aud = "ferry".into();
    let mut other_issuer = cluster.claims(1);
    other_issuer.iss = "somebody".into();
    let mut zero_user = cluster.claims(1);
    zero_user.sub = "0".into();
    let web_claims = cluster.claims(1).for_platform(Platform::Web);
    let forged_token = station::auth::Secret::new(&[7; 32])
        .and_then(|secret| station::auth::Signer::new(secret).sign(&cluster.claims(1)))
        .expect("a token");
    let cases = [
        (
            "version 0",
            Hello {
                version: 0,
                ..valid_hello()
            },
            Code::UnsupportedVersion,
        ),
        (
            "version 2",
            Hello {
                version: 2,
                ..valid_hello()
            },
            Code::UnsupportedVersion,
        ),
        ("no token", hello(String::new()), Code::Unauthenticated),
        ("no JWT", hello("sesame".into()), Code::Unauthenticated),
        ("other key", hello(forged_token), Code::Unauthenticated),
        ("expired", hello(sign(&expired_claims)), Code::TokenExpired),
        (
            "not yet valid",
            hello(sign(&early_claims)),
            Code::Unauthenticated,
        ),
        (
            "other audience",
            hello(sign(&other_audience)),
            Code::Unauthenticated,
        ),
        (
            "other issuer",
            hello(sign(&other_issuer)),
            Code::Unauthenticated,
        ),
        ("user 0", hello(sign(&zero_user)), Code::Unauthenticated),
        (
            "other platform",
            hello(sign(&web_claims)),
            Code::Unauthenticated,
        ),
    ];
    for port in PORTS {
        for (case, hello, code) in &cases {
            let mut wire = Wire::open(&cluster, port).await;
            wire.send(&ClientFrame::Hello(hello.clone())).await;
            assert_eq!(wire.closing().await, Some(*code), "{case}, {port:?}");
        }
        for (case, frames) in [
            ("a ping first", vec![ClientFrame::Ping { nonce: 1 }]),
            ("a send first", vec![ClientFrame::Send(send(2, "hi"))]),
            (
                "two hellos",
                vec![
                    ClientFrame::Hello(valid_hello()),
                    ClientFrame::Hello(valid_hello()),
                ],
            ),
        ] {
            let mut wire = Wire::open(&cluster, port).await;
            for frame in &frames {
                wire.send(frame).await;
            }
            assert_eq!(
                wire.closing().await,
                Some(Code::Malformed),
                "{case}, {port:?}"
            );
        }
        neighbours.chat("meanwhile").await;
    }
    cluster.assert_settled(neighbours.rounds as u64).await;
    cluster.stop().await;
}

// Each send gets its own answer, and its connection goes on.
#[tokio::test]
async fn a_send_that_cannot_be_is_refused_and_the_next_one_goes() {
    let cluster = Cluster::start().await;
    let mut neighbours = Neighbours::arrive(&cluster).await;
    let mut bea = cluster.device(2).ready().await;
    let mut good_count = 0;
    for port in PORTS {
        let mut wire = Wire::signed_in(&cluster, port, 1).await;
        let maximal = "m".repeat(60 * 1024);
        let oversize = "o".repeat(60 * 1024 + 1);
        for (case, to, text, code) in [
            ("to oneself", 1, "me", Code::ToSelf),
            ("empty", 2, "", Code::InvalidArgument),
            ("one byte too long", 2, &oversize, Code::TooLarge),
        ] {
            assert_eq!(
                wire.ask(send(to, text)).await,
                Err(code),
                "{case}, {port:?}"
            );
            wire.is_alive().await;
        }
        let to_zero = to_nobody();
        wire.send_frame(to_zero.0).await;
        assert_eq!(
            wire.answer(&to_zero.1).await,
            Err(Code::InvalidArgument),
            "{port:?}"
        );

        for text in ["after all that", &maximal] {
            let id = wire.ask(send(2, text)).await.expect("this one is good");
            let message = bea.hear().await;
            assert_eq!(message.placed.message.id, id);
            assert_eq!(message.placed.message.content.data, text);
            good_count += 1;
        }
        neighbours.chat("meanwhile").await;
    }
    bea.hears_nothing().await;
    cluster
        .assert_settled(good_count + neighbours.rounds as u64)
        .await;
    cluster.stop().await;
}

/// Send to user 0, which only bytes can express.
fn to_nobody() -> (Bytes, protocol::frame::Send) {
    use api::v1::client_frame::Frame;
    let send = send(2, "is anybody there?");
    let mut wire = api::v1::ClientFrame::from(&ClientFrame::Send(send.clone()));
    if let Some(Frame::Send(v1::Send {
        message: Some(message),
        ..
    })) = &mut wire.frame
    {
        message.to_id = 0;
    }
    (Bytes::from(prost::Message::encode_to_vec(&wire)), send)
}

#[tokio::test]
async fn ack_of_an_unsent_message_is_refused_without_effect() {
    let cluster = Cluster::start().await;
    let mut neighbours = Neighbours::arrive(&cluster).await;
    let ada = cluster.device(1).ready().await;
    let mut ticket = ada.write(2, "for bea only").await;
    let id = tests::person::accepted(&mut ticket).await;
    cluster.assert_settled(1).await;
    let unknown_id = MessageId::new(id.get() - 1).expect("an id");
    for port in PORTS {
        // User 3 acknowledges a message between 1 and 2, one that never existed, and one of its own
        // with 1.
        let mut wire = Wire::signed_in(&cluster, port, 3).await;
        for (conversation, id) in [
            (conversation(1, 2), id),
            (conversation(1, 3), id),
            (conversation(1, 3), unknown_id),
        ] {
            for kind in [ReceiptKind::Received, ReceiptKind::Read] {
                let item = AckItem {
                    conversation,
                    id,
                    seq: Seq(1),
                };
                wire.send(&ClientFrame::Ack(Ack {
                    kind,
                    items: vec![item],
                }))
                .await;
                let code = wire
                    .find(|frame| match frame {
                        ServerFrame::Acked(acked) => acked
                            .refusals
                            .into_iter()
                            .find(|(refused_id, _)| *refused_id == id)
                            .map(|(_, refusal)| refusal.code),
                        _ => None,
                    })
                    .await;
                assert_eq!(
                    code,
                    Code::NotFound,
                    "{conversation} {id} {kind:?} {port:?}"
                );
            }
        }
        wire.is_alive().await;
        neighbours.chat("meanwhile").await;
    }
    assert!(
        ticket.status().rank() < 4,
        "nobody of hers has it: {:?}",
        ticket.status()
    );
    cluster.stop().await;
}

// Two sends to two people under one send id: the second is refused, whatever became of the first by
// then, and no send is lost or falsely accepted.
#[tokio::test]
async fn a_send_id_for_two_people_is_refused_the_second_time() {
    let cluster = Cluster::start().await;
    let mut bea = cluster.device(2).ready().await;
    let mut cyd = cluster.device(3).ready().await;
    for port in PORTS {
        let mut wire = Wire::signed_in(&cluster, port, 1).await;
        let first = send(2, "for bea");
        let mut second = send(3, "for cyd");
        second.send_id = first.send_id;
        // First while the first send may still be under way …
        wire.send(&ClientFrame::Send(first.clone())).await;
        wire.send(&ClientFrame::Send(second.clone())).await;
        let mut answers = [wire.answer(&first).await, wire.answer(&second).await];
        answers.sort();
        let [Ok(id), Err(Code::InvalidArgument)] = answers else {
            panic!("{answers:?}, {port:?}");
        };
        // … and once the log has it, on any connection.
        let answer = wire.ask(second.clone()).await;
        assert_eq!(answer, Err(Code::InvalidArgument), "{port:?}");
        let mut resend = second.clone();
        (resend.attempt, resend.age) = (1, Duration::from_secs(1));
        let mut second_wire = Wire::signed_in(&cluster, port, 1).await;
        let answer = second_wire.ask(resend).await;
        assert_eq!(answer, Err(Code::InvalidArgument), "{port:?}");

        let message = bea.hear().await;
        assert_eq!(message.placed.message.id, id);
        assert_eq!(
            second_wire.ask(first).await,
            Ok(id),
            "the first is what it was"
        );
        cyd.hears_nothing().await;
        second.send_id = send(3, "").send_id;
        second_wire
            .ask(second)
            .await
            .expect("under a name of its own");
        assert_eq!(cyd.hear_texts(1).await, ["for cyd"]);
    }
    bea.hears_nothing().await;
    cluster.assert_settled(4).await;
    cluster.stop().await;
}

// Two sends under one send id, the second with another text: the send id decides.
// proves S3-22
#[tokio::test]
async fn a_send_id_stands_for_one_message_whatever_is_sent_under_it() {
    let cluster = Cluster::start().await;
    let mut bea = cluster.device(2).ready().await;
    for port in PORTS {
        let mut wire = Wire::signed_in(&cluster, port, 1).await;
        let first = send(2, "the first");
        let mut second = send(2, "the second");
        second.send_id = first.send_id;
        wire.send(&ClientFrame::Send(first.clone())).await;
        wire.send(&ClientFrame::Send(second.clone())).await;
        let id = wire.answer(&first).await.expect("accepted");
        // One answer serves both if the first was still under way.
        assert_eq!(wire.ask(second).await, Ok(id), "{port:?}");
        assert_eq!(bea.hear_texts(1).await, ["the first"]);
        bea.hears_nothing().await;
    }
    cluster.assert_settled(2).await;
    cluster.stop().await;
}
