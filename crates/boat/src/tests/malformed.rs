//! T-B9: an invalid or oversized frame has a documented end, and the neighbour is not affected.

use api::codec::encode_client;
use bytes::Bytes;
use protocol::Code;
use protocol::frame::{ClientFrame, Hello, ServerFrame};
use tokio_tungstenite::tungstenite::Message;

use super::client::{Client, hello, send_id, text_send};
use super::harbour::Harbour;

enum Bad {
    Frame(&'static str, Bytes),
    Frames(&'static str, Vec<ClientFrame>),
    Message(&'static str, Message),
    Raw(&'static str, Vec<u8>),
}

fn first_frames() -> Vec<(Bad, Code)> {
    let version = |version| {
        ClientFrame::Hello(Hello {
            version,
            ..hello(1)
        })
    };
    vec![
        (
            Bad::Frame("garbage", Bytes::from_static(b"\xff\xff\xff\xff\xff")),
            Code::Malformed,
        ),
        (Bad::Frame("empty", Bytes::new()), Code::Malformed),
        (
            Bad::Frame("text inside", Bytes::from_static(b"GET / HTTP/1.1")),
            Code::Malformed,
        ),
        (
            Bad::Frame("half", encode_client(&version(1)).slice(..9)),
            Code::Malformed,
        ),
        // Later frames may be five times as large.
        (
            Bad::Frame("more than any hello", Bytes::from(vec![0; 12 * 1024 + 1])),
            Code::TooLarge,
        ),
        (
            Bad::Frame("as much as a hello", Bytes::from(vec![0; 12 * 1024])),
            Code::Malformed,
        ),
        (
            Bad::Frame("oversize", Bytes::from(vec![0; 70 * 1024])),
            Code::TooLarge,
        ),
        (
            Bad::Frames("version 0", vec![version(0)]),
            Code::UnsupportedVersion,
        ),
        (
            Bad::Frames("version 2", vec![version(2)]),
            Code::UnsupportedVersion,
        ),
        (
            Bad::Frames("no hello", vec![ClientFrame::Ping { nonce: 1 }]),
            Code::Malformed,
        ),
        (
            Bad::Frames("a send first", vec![text_send(2, 1, "hi")]),
            Code::Malformed,
        ),
        (
            Bad::Frames("hello twice", vec![version(1), version(1)]),
            Code::Malformed,
        ),
    ]
}

async fn provoke(client: &mut Client, bad: &Bad) -> &'static str {
    match bad {
        Bad::Frame(name, frame) => {
            client.send_bytes(frame.clone()).await;
            name
        }
        Bad::Frames(name, frames) => {
            for frame in frames {
                client.send(frame).await;
            }
            name
        }
        Bad::Message(name, message) => {
            client.send_message(message.clone()).await;
            name
        }
        Bad::Raw(name, bytes) => {
            client.send_raw(bytes).await;
            name
        }
    }
}

#[tokio::test]
async fn each_bad_beginning_has_its_code_on_either_link() {
    let harbour = Harbour::open().await;
    let mut neighbour = harbour.websocket().await;
    neighbour.hello(9).await;
    for (bad, expected) in first_frames() {
        for mut client in harbour.both().await {
            let name = provoke(&mut client, &bad).await;
            assert_eq!(client.closing().await, Some(expected), "{name}");
            neighbour.ping().await;
        }
    }
}

#[tokio::test]
async fn invalid_websocket_frames_have_their_code() {
    let harbour = Harbour::open().await;
    let mut neighbour = harbour.tcp().await;
    neighbour.hello(9).await;
    // FIN, opcode 3 (reserved); FIN, binary, unmasked; a length of 2^62; a fragmented ping.
    let cases = [
        (
            Bad::Message("text", Message::text("hello")),
            Code::Malformed,
        ),
        (
            Bad::Raw("a reserved opcode", vec![0x83, 0x80, 0, 0, 0, 0]),
            Code::Malformed,
        ),
        (
            Bad::Raw("not masked", vec![0x82, 0x01, 0x00]),
            Code::Malformed,
        ),
        (
            Bad::Raw(
                "endless",
                vec![0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
            ),
            Code::TooLarge,
        ),
        (
            Bad::Raw("a fragmented ping", vec![0x09, 0x80, 0, 0, 0, 0]),
            Code::Malformed,
        ),
    ];
    for is_admitted in [false, true] {
        for (bad, expected) in &cases {
            let mut client = harbour.websocket().await;
            if is_admitted {
                client.hello(1).await;
            }
            let name = provoke(&mut client, bad).await;
            assert_eq!(client.closing().await, Some(*expected), "{name}");
            assert_eq!(client.close_code().await, Some(expected.number()), "{name}");
            neighbour.ping().await;
        }
    }
}

#[tokio::test]
async fn fragments_count_together() {
    let harbour = Harbour::open().await;
    let mut client = harbour.websocket().await;
    client.hello(1).await;
    // Binary without FIN, then continuations without end, 32 KiB each, masked with zeros.
    for fragment in 0..3 {
        let opcode = if fragment == 0 { 0x02 } else { 0x00 };
        let mut bytes = vec![opcode, 0xfe, 0x80, 0x00, 0, 0, 0, 0];
        bytes.resize(8 + 32 * 1024, 0);
        client.send_raw(&bytes).await;
    }
    assert_eq!(client.closing().await, Some(Code::TooLarge));
}

#[tokio::test]
async fn invalid_length_prefixes_have_their_code() {
    let harbour = Harbour::open().await;
    let mut neighbour = harbour.tcp().await;
    neighbour.hello(9).await;
    let cases = [
        (
            Bad::Raw("a length without end", vec![0xff; 6]),
            Code::Malformed,
        ),
        (
            Bad::Raw("four gigabytes", vec![0xff, 0xff, 0xff, 0xff, 0x0f]),
            Code::TooLarge,
        ),
    ];
    for (bad, expected) in &cases {
        let mut client = harbour.tcp().await;
        let name = provoke(&mut client, bad).await;
        assert_eq!(client.closing().await, Some(*expected), "{name}");
        assert_eq!(client.next().await, None, "{name}");
        neighbour.ping().await;
    }
}

// A client that is refused while it still writes must be able to read the reason.
#[tokio::test]
async fn the_reason_reaches_a_client_that_goes_on_writing() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(1).await;
        client.send_bytes(Bytes::from(vec![1; 512 * 1024])).await;
        client.send_raw(&[0; 64 * 1024]).await;
        assert_eq!(client.closing().await, Some(Code::TooLarge));
    }
}

// The invalid send alone is refused; the connection goes on.
#[tokio::test]
async fn a_send_that_cannot_be_is_answered_as_a_send() {
    let harbour = Harbour::open().await;
    for mut client in harbour.both().await {
        client.hello(1).await;
        let wire = api::v1::ClientFrame {
            frame: Some(api::v1::client_frame::Frame::Send(api::v1::Send {
                message: Some(api::v1::MsgChat {
                    send_id: send_id(4).to_string(),
                    to_id: -1,
                    chat_type: api::v1::ChatType::P2p.into(),
                    ..Default::default()
                }),
                ..Default::default()
            })),
        };
        client
            .send_bytes(prost::Message::encode_to_vec(&wire).into())
            .await;
        match client.next().await {
            Some(ServerFrame::Refused {
                send_id: id,
                refusal,
            }) => {
                assert_eq!(id, send_id(4));
                assert_eq!(refusal.code, Code::InvalidArgument);
            }
            other => panic!("{other:?}"),
        }
        client.ping().await;
    }
}
