use futures_util::{SinkExt, StreamExt};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;

const RULES: Rules = Rules {
    message_bytes_max: 64 * 1024,
    takes_text: true,
};

/// A client's frame, with a length of the shortest form.
fn frame(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    put_head(Opcode::Binary, payload.len(), &mut bytes);
    bytes[0] = first;
    bytes[1] |= 0x80;
    bytes.put_slice(&mask);
    let masked_bytes = payload
        .iter()
        .zip(mask.iter().cycle())
        .map(|(byte, mask)| byte ^ mask);
    bytes.extend(masked_bytes);
    bytes.to_vec()
}

/// All events of `bytes`, read in pieces that end at each of `cuts`.
fn read(bytes: &[u8], cuts: &[usize], rules: &Rules) -> Result<Vec<Event>, Violation> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let (mut reader, mut input, mut events) = (Reader::default(), BytesMut::new(), Vec::new());
    for piece in cuts.windows(2) {
        input.extend_from_slice(&bytes[piece[0]..piece[1]]);
        while let Some(event) = reader.next(&mut input, rules)? {
            events.push(event);
        }
    }
    assert!(input.is_empty() || reader.frame.is_some() || input.len() < HEAD_BYTES_MAX);
    Ok(events)
}

/// Reads `bytes` with every cut into two, and a byte at a time.
fn read_at_every_split(bytes: &[u8], rules: &Rules) -> Result<Vec<Event>, Violation> {
    let whole = read(bytes, &[], rules);
    for cut in 1..bytes.len().min(600) {
        assert_eq!(read(bytes, &[cut], rules), whole, "cut at {cut}");
    }
    let each: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(read(bytes, &each, rules), whole, "a byte at a time");
    whole
}

const FIN: u8 = 0x80;

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    frame(first, payload, [0xa1, 0x02, 0xfe, 0x55])
}

#[test]
fn valid_client_frames_are_read_at_every_split() {
    let binary = |payload: &'static [u8]| Event::Binary(Bytes::from_static(payload));
    let text = |payload: &'static str| Event::Text(Bytes::from_static(payload.as_bytes()));
    let ping = |payload: &'static [u8]| Event::Ping(Bytes::from_static(payload));
    for (bytes, expected) in [
        (masked(FIN | 2, b"hello"), vec![binary(b"hello")]),
        (masked(FIN | 2, b""), vec![binary(b"")]),
        (
            masked(FIN | 1, "grüße 🚢".as_bytes()),
            vec![text("grüße 🚢")],
        ),
        (masked(FIN | 9, b"?"), vec![ping(b"?")]),
        (masked(FIN | 10, b"!"), vec![Event::Pong]),
        (masked(FIN | 8, b""), vec![Event::Close(None)]),
        (
            masked(FIN | 8, &[0x03, 0xe8]),
            vec![Event::Close(Some(1000))],
        ),
        (
            masked(FIN | 8, b"\x0f\xa0bye"),
            vec![Event::Close(Some(4000))],
        ),
        (
            [
                masked(2, b"in "),
                masked(FIN | 9, b"?"),
                masked(0, b"three "),
                masked(FIN, b"parts"),
            ]
            .concat(),
            vec![ping(b"?"), binary(b"in three parts")],
        ),
        (
            // A character of four bytes in as many fragments.
            [
                masked(1, b"\xf0"),
                masked(0, b"\x9f"),
                masked(0, b""),
                masked(0, b"\x9a"),
                masked(FIN, b"\xa2"),
            ]
            .concat(),
            vec![text("🚢")],
        ),
        (
            [masked(FIN | 2, b"one"), masked(FIN | 2, b"two")].concat(),
            vec![binary(b"one"), binary(b"two")],
        ),
    ] {
        assert_eq!(read_at_every_split(&bytes, &RULES), Ok(expected));
    }
    for len in [125, 126, 127, 300, 65_535, 65_536] {
        let payload = vec![7; len];
        let read = read(&masked(FIN | 2, &payload), &[3, 9, 200], &RULES);
        assert_eq!(read, Ok(vec![Event::Binary(payload.into())]), "{len}");
    }
}

#[test]
fn invalid_client_frames_have_their_code_at_every_split() {
    let head = |bytes: &[u8]| bytes.to_vec();
    for (bytes, code) in [
        (masked(FIN | 0x40 | 2, b""), 1002),
        (masked(FIN | 3, b""), 1002),
        (masked(FIN | 11, b""), 1002),
        (head(&[0x82, 0x00]), 1002),
        (masked(9, b""), 1002),
        (masked(FIN | 9, &[0; 126]), 1002),
        (masked(FIN, b""), 1002),
        ([masked(2, b""), masked(FIN | 2, b"")].concat(), 1002),
        (masked(FIN | 8, &[3]), 1002),
        (masked(FIN | 8, &[0x03, 0xed]), 1002),
        (masked(FIN | 8, &[0x13, 0x88]), 1002),
        (masked(FIN | 8, b"\x03\xe8\xff"), 1007),
        (masked(FIN | 1, b"\xce\xff"), 1007),
        // Half a character, and nothing behind it.
        (masked(FIN | 1, b"\xf0\x9f"), 1007),
        ([masked(1, b"\xf0\x9f"), masked(FIN, b"x")].concat(), 1007),
        (masked(FIN | 2, &[0; 65_537]), 1009),
        // The length is only a claim: no payload has come.
        (head(&[0x82, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0]), 1009),
        (
            [masked(2, &[0; 40_000]), masked(0, &[0; 30_000])].concat(),
            1009,
        ),
    ] {
        let violation = read_at_every_split(&bytes, &RULES).expect_err("refused");
        assert_eq!(violation.close_code(), code, "{violation}");
    }
    let binary_only = Rules {
        takes_text: false,
        ..RULES
    };
    let violation = read(&masked(FIN | 1, b"text"), &[], &binary_only);
    assert_eq!(violation, Err(Violation::Text));
}

// Autobahn 6.4: the client gets the refusal before it has sent the rest.
#[test]
fn a_text_is_refused_at_its_first_bad_byte() {
    let bytes = masked(FIN | 1, b"\xce\xba\xf4\x90\x80\x80 and so on");
    let mut input = BytesMut::from(&bytes[..6 + 3]);
    let mut reader = Reader::default();
    assert_eq!(reader.next(&mut input, &RULES), Ok(None));
    input.extend_from_slice(&bytes[9..10]);
    assert_eq!(reader.next(&mut input, &RULES), Err(Violation::NotUtf8));
}

#[test]
fn a_reader_between_frames_is_small_and_holds_nothing() {
    assert!(size_of::<Reader>() <= 56, "{}", size_of::<Reader>());
    let mut reader = Reader::default();
    let mut input = BytesMut::from(&masked(FIN | 2, b"hello")[..]);
    reader.next(&mut input, &RULES).expect("a message");
    assert!(reader.frame.is_none() && reader.fragments.is_none() && input.is_empty());
}

#[test]
fn a_reason_that_does_not_fit_is_cut_between_characters() {
    let mut bytes = BytesMut::new();
    put_close(Some(1001), &"ü".repeat(100), &mut bytes);
    assert_eq!(bytes[1], 124);
    assert!(std::str::from_utf8(&bytes[4..]).is_ok());
}

proptest! {
    #[test]
    fn a_mask_goes_on_wherever_a_payload_is_cut(
        payload in vec(any::<u8>(), 0..100),
        mask in any::<[u8; 4]>(),
        cut in any::<usize>(),
    ) {
        let cut = cut % (payload.len() + 1);
        let mut bytes = payload.clone();
        unmask(&mut bytes[..cut], mask, 0);
        unmask(&mut bytes[cut..], mask, cut);
        let expected: Vec<u8> = payload.iter().zip(mask.iter().cycle()).map(|(a, b)| a ^ b).collect();
        prop_assert_eq!(bytes, expected);
    }

    #[test]
    fn any_bytes_are_read_alike_however_they_come(
        bytes in vec(prop_oneof![any::<u8>(), Just(0x82), Just(0x80), Just(0x81), Just(0x01), Just(0)], 0..200),
        cuts in vec(any::<usize>(), 0..8),
    ) {
        let whole = read(&bytes, &[], &RULES);
        prop_assert_eq!(read(&bytes, &cuts, &RULES), whole);
    }

    /// Interoperates with another implementation in both directions.
    #[test]
    fn another_implementation_agrees(
        payloads in vec(vec(any::<u8>(), 0..400), 1..6),
        cuts in vec(any::<usize>(), 0..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut ours, theirs) = tokio::io::duplex(1 << 20);
            let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
            for payload in &payloads {
                client.send(Message::Binary(payload.clone().into())).await.expect("written");
            }
            client.send(Message::Ping(Bytes::from_static(b"?"))).await.expect("written");
            let mut bytes = vec![0; 1 << 20];
            let count = tokio::io::AsyncReadExt::read(&mut ours, &mut bytes).await.expect("read");
            let mut expected: Vec<Event> =
                payloads.iter().map(|payload| Event::Binary(payload.clone().into())).collect();
            expected.push(Event::Ping(Bytes::from_static(b"?")));
            assert_eq!(read(&bytes[..count], &cuts, &RULES), Ok(expected));

            let mut out = BytesMut::new();
            for payload in &payloads {
                put_binary(payload.len(), &mut out);
                out.put_slice(payload);
            }
            put_pong(b"?", &mut out);
            put_close(Some(4007), "that is all", &mut out);
            tokio::io::AsyncWriteExt::write_all(&mut ours, &out).await.expect("written");
            for payload in &payloads {
                let message = client.next().await.expect("a message").expect("read");
                assert_eq!(message, Message::Binary(payload.clone().into()));
            }
            let pong = client.next().await.expect("a pong").expect("read");
            assert_eq!(pong, Message::Pong(Bytes::from_static(b"?")));
            match client.next().await.expect("a close").expect("read") {
                Message::Close(Some(close)) => {
                    assert_eq!((u16::from(close.code), &*close.reason), (4007, "that is all"));
                }
                other => panic!("{other:?}"),
            }
        });
    }
}
