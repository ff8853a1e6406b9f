//! Invalid or oversized frames: each has its code, is counted, and ends no other connection.

use bytes::Bytes;
use protocol::Code;

use crate::all::All;
use crate::neighbours::Chat;
use crate::raw::RawClient;

const MASK: [u8; 4] = [0; 4];

/// A client's masked frame with a two-byte extended length.
fn frame(first: u8, bytes: usize) -> Vec<u8> {
    let length = u16::try_from(bytes).expect("a short frame").to_be_bytes();
    let mut frame = vec![first, 0xfe, length[0], length[1]];
    frame.extend(MASK);
    frame.resize(frame.len() + bytes, 0);
    frame
}

/// A message whose fragments never end.
fn fragments() -> Vec<u8> {
    let mut fragments = frame(0x02, 32 * 1024);
    for _ in 0..3 {
        fragments.extend(frame(0x00, 32 * 1024));
    }
    fragments
}

/// An empty frame, then empty fragments that never end.
fn empty_fragments() -> Vec<u8> {
    let mut fragments = vec![0x02, 0x80, 0, 0, 0, 0];
    for _ in 0..20_000 {
        fragments.extend([0x00, 0x80, 0, 0, 0, 0]);
    }
    fragments
}

// T-B9, and row 9 of the attacks by strangers: bounds apply before anything is buffered.
#[test]
fn garbage_of_every_kind_ends_its_own_connection_with_its_code() {
    let all = All::start();
    let chat = Chat::beside(&all);
    let old_memory = all.process.resident();
    let disconnects = |code| all.metric(&format!("boat_disconnects_total{{code=\"{code}\"}}"));
    let websocket: [(&str, Vec<u8>, Code); 6] = [
        ("noise", vec![0xff; 4096], Code::Malformed),
        ("fragments without end", fragments(), Code::TooLarge),
        // Sixteen mebibytes are claimed and never come.
        (
            "a message too long",
            vec![0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            Code::TooLarge,
        ),
        // The first reserved bit marks a compressed frame.
        (
            "compressed",
            vec![0xc2, 0x81, 0, 0, 0, 0, 0],
            Code::Malformed,
        ),
        ("not masked", vec![0x82, 0x01, 0x00], Code::Malformed),
        ("text", vec![0x81, 0x81, 0, 0, 0, 0, b'x'], Code::Malformed),
    ];
    let tcp: [(&str, Vec<u8>, Code); 3] = [
        ("a length without end", vec![0xff; 6], Code::Malformed),
        (
            "four gigabytes",
            vec![0xff, 0xff, 0xff, 0xff, 0x0f],
            Code::TooLarge,
        ),
        (
            "a request",
            b"GET / HTTP/1.1\r\n\r\n".repeat(10),
            Code::Malformed,
        ),
    ];
    for user in [None, Some(50)] {
        let mut expected = (disconnects("malformed"), disconnects("too_large"));
        let clients = websocket.iter().map(|case| (true, case));
        for (on_websocket, (what, bytes, code)) in
            clients.chain(tcp.iter().map(|case| (false, case)))
        {
            let client = if on_websocket {
                RawClient::websocket(&all.websocket)
            } else {
                RawClient::tcp(all.tcp())
            };
            let mut client = match user {
                Some(user) => client.signed_in(user),
                None => client,
            };
            client.send_raw(bytes);
            assert_eq!(client.closing(), Some(*code), "{what}");
            match code {
                Code::Malformed => expected.0 += 1,
                _ => expected.1 += 1,
            }
        }
        crate::process::within(crate::process::WAIT_TIMEOUT, || {
            (disconnects("malformed"), disconnects("too_large")) == expected
        });
        chat.goes_on(&all);
    }
    for mut client in [
        RawClient::websocket(&all.websocket),
        RawClient::tcp(all.tcp()),
    ] {
        client.send_bytes(Bytes::from(vec![0; 8 << 20]));
        assert_eq!(client.closing(), Some(Code::TooLarge), "eight mebibytes");
    }
    let grown = all.process.resident().saturating_sub(old_memory);
    assert!(grown < 64 << 20, "{grown} bytes");
    chat.end().undisturbed();
    all.at_rest();
}

// Empty fragments cost the bytes they consist of, and buffer none.
#[test]
fn fragments_of_nothing_are_bounded_by_time_and_memory() {
    let all = All::with("boat.session.heartbeat = \"1s\"");
    let mut client = RawClient::websocket(&all.websocket).signed_in(1);
    let old_memory = all.process.resident();
    client.send_raw(&empty_fragments());
    // The client has sent no complete frame since its hello.
    assert_eq!(client.closing(), Some(Code::HeartbeatMissed));
    let grown = all.process.resident().saturating_sub(old_memory);
    assert!(grown < 32 << 20, "{grown} bytes");
    let other = RawClient::websocket(&all.websocket);
    drop(other.signed_in(2));
}

// Compression is never negotiated, so that there is nothing to blow up.
#[test]
fn an_offer_to_compress_is_not_taken_and_no_harm() {
    let all = All::start();
    let offer = "permessage-deflate; client_max_window_bits, x-webkit-deflate-frame";
    let headers = [("Sec-WebSocket-Extensions", offer)];
    let answer = RawClient::websocket_with(&all.websocket, &headers);
    let (client, protocol) = answer.expect("upgraded");
    assert_eq!(protocol, None);
    drop(client.signed_in(1));
}
