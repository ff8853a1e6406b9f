mod json;

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use prost::encoding::encode_varint;
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::{Code, SendId};
use tokio_util::codec::{Decoder, Encoder};

use super::*;
use crate::convert::arbitrary;

const MAX: usize = 64 * 1024;

proptest! {
    #[test]
    fn frames_survive_their_bytes(
        client in arbitrary::client_frame(),
        server in arbitrary::server_frame(),
    ) {
        prop_assert_eq!(decode_client(encode_client(&client), MAX), Ok(client));
        prop_assert_eq!(decode_server(encode_server(&server), MAX), Ok(server));
    }

    #[test]
    fn the_short_way_writes_the_same_bytes(placed in arbitrary::placed()) {
        let owner = match placed.message.to {
            Recipient::User(to) => Some(to),
            Recipient::Group(_) => None,
        };
        let mut long_way = v1::ServerFrame::from(ServerFrame::Message(placed.clone()));
        if let Some(v1::server_frame::Frame::Message(chat)) = &mut long_way.frame {
            chat.user_id = owner.map_or(0, UserId::get);
        }
        prop_assert_eq!(encode_message(&placed), long_way.encode_to_vec());
    }

    // A reader that knows nothing of traces still reads the rest.
    #[test]
    fn a_message_bears_its_trace(placed in arbitrary::placed(), trace in arbitrary::trace()) {
        let frame = encode_traced(&placed, Some(trace));
        prop_assert_eq!(message_trace(frame.clone()), Some(trace));
        prop_assert_eq!(decode_server(frame, MAX), Ok(ServerFrame::Message(placed.clone())));
        prop_assert_eq!(message_trace(encode_message(&placed)), None);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_never_a_panic(bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        for refusal in [
            decode_client(bytes.clone(), MAX).err(),
            decode_server(bytes, MAX).err(),
        ].into_iter().flatten() {
            prop_assert!(!refusal.code.retryable(), "{}", refusal);
        }
    }

    // Near misses find more than noise does: real frames with a few bytes changed.
    #[test]
    fn damaged_frames_are_refused_or_read_never_a_panic(
        frame in arbitrary::client_frame(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode_client(&frame).to_vec();
        for (index, value) in damage {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        drop(decode_client(bytes.into(), MAX));
    }

    // However a stream is cut into reads, the same frames come out, and half a frame stays half.
    #[test]
    fn a_stream_gives_the_frames_that_were_written(
        frames in vec(vec(any::<u8>(), 0..300), 0..8),
        cuts in vec(1..64usize, 1..40),
        lost in 0..400usize,
    ) {
        let mut codec = Frames::new(MAX);
        let mut stream = BytesMut::new();
        let mut ends = Vec::new();
        for frame in &frames {
            codec.encode(Bytes::from(frame.clone()), &mut stream).expect("small");
            ends.push(stream.len());
        }
        stream.truncate(stream.len().saturating_sub(lost));
        let whole = ends.iter().filter(|&&end| end <= stream.len()).count();
        let ends_between_frames = whole.checked_sub(1).map_or(0, |last| ends[last]) == stream.len();

        let mut buffer = BytesMut::new();
        let mut read_frames = Vec::new();
        for cut in cuts.iter().cycle() {
            let chunk = stream.split_to((*cut).min(stream.len()));
            buffer.extend_from_slice(&chunk);
            while let Some(frame) = codec.decode(&mut buffer).expect("well-formed") {
                read_frames.push(frame.to_vec());
            }
            if stream.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&read_frames[..], &frames[..whole]);
        match codec.decode_eof(&mut buffer) {
            Ok(end) => prop_assert!(end.is_none() && ends_between_frames),
            Err(FrameError::Io(error)) => {
                prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                prop_assert!(!ends_between_frames);
            }
            Err(FrameError::Refused(refusal)) => prop_assert!(false, "{}", refusal),
        }
    }

    #[test]
    fn an_arbitrary_stream_is_refused_or_read_within_the_limit(bytes: Vec<u8>, max in 0..64usize) {
        let mut codec = Frames::new(max);
        let mut src = BytesMut::from(&bytes[..]);
        let mut read_bytes = 0;
        while let Ok(Some(frame)) = codec.decode(&mut src) {
            prop_assert!(frame.len() <= max);
            read_bytes += frame.len() + 1;
        }
        prop_assert!(read_bytes <= bytes.len());
    }
}

fn decode_prefix(prefix: &[u8], max: usize) -> Result<Option<Bytes>, FrameError> {
    let mut src = BytesMut::from(prefix);
    let result = Frames::new(max).decode(&mut src);
    assert!(
        src.capacity() <= prefix.len().max(16 * 1024),
        "allocated on a claim"
    );
    result
}

fn refusal_code(result: Result<Option<Bytes>, FrameError>) -> Code {
    match result {
        Err(FrameError::Refused(refusal)) => refusal.code,
        other => panic!("{other:?} is no refusal"),
    }
}

#[test]
fn the_limit_is_checked_before_anything_is_allocated() {
    let mut length = BytesMut::new();
    put_length(MAX + 1, &mut length);
    assert_eq!(refusal_code(decode_prefix(&length, MAX)), Code::TooLarge);
    assert_eq!(
        refusal_code(decode_prefix(b"\xff\xff\xff\xff\x7f", MAX)),
        Code::TooLarge
    );
    // At the limit it is only a claim: no frame comes out, and little is allocated for it.
    length.clear();
    put_length(16 * 1024 * 1024, &mut length);
    assert!(matches!(decode_prefix(&length, 16 * 1024 * 1024), Ok(None)));
}

#[test]
fn an_overlong_length_is_malformed() {
    assert!(matches!(decode_prefix(b"\x80\x80\x80\x80", MAX), Ok(None)));
    assert_eq!(
        refusal_code(decode_prefix(b"\x80\x80\x80\x80\x80", MAX)),
        Code::Malformed
    );
    assert_eq!(
        refusal_code(decode_prefix(b"\x80\x80\x80\x80\x80\x01", MAX)),
        Code::Malformed
    );
}

#[test]
fn an_encoded_frame_keeps_the_limit_too() {
    let mut dst = BytesMut::new();
    let result = Frames::new(10).encode(Bytes::from(vec![0; 11]), &mut dst);
    assert!(matches!(result, Err(FrameError::Refused(refusal)) if refusal.code == Code::TooLarge));
    assert!(dst.is_empty());
}

#[test]
fn a_frame_over_the_limit_is_not_decoded() {
    let ping = encode_client(&ClientFrame::Ping { nonce: u64::MAX });
    assert!(decode_client(ping.clone(), ping.len()).is_ok());
    let refusal = decode_client(ping.clone(), ping.len() - 1).expect_err("one byte too many");
    assert_eq!(refusal.code, Code::TooLarge);
}

#[test]
fn the_body_is_a_slice_of_the_frame() {
    let body = vec![7; 10_000];
    let mut send = v1::Send::default();
    send.message.get_or_insert_default().to_id = 7;
    let chat = send.message.get_or_insert_default();
    chat.chat_type = v1::ChatType::P2p.into();
    chat.send_id = SendId::from_bytes([1; 16]).to_string();
    chat.data = body.clone().into();
    let frame = Some(Frame::Send(send));
    let bytes = Bytes::from(v1::ClientFrame { frame }.encode_to_vec());
    let ClientFrame::Send(send) = decode_client(bytes.clone(), MAX).expect("well-formed") else {
        panic!("another frame");
    };
    assert_eq!(send.content.data, body);
    let range = bytes.as_ptr_range();
    assert!(range.contains(&send.content.data.as_ptr()), "copied");
}

#[test]
fn a_refusal_says_what_it_is_about() {
    let send_id = SendId::from_bytes([9; 16]);
    let context = |frame| {
        let bytes = v1::ClientFrame { frame: Some(frame) }.encode_to_vec();
        decode_client_about(bytes.into(), MAX)
            .expect_err("bad on purpose")
            .context
    };
    let mut send = v1::Send::default();
    send.message.get_or_insert_default().send_id = send_id.to_string();
    assert_eq!(
        context(Frame::Send(send.clone())),
        FrameContext::Send(send_id)
    );
    send.message.get_or_insert_default().send_id.clear();
    assert_eq!(context(Frame::Send(send)), FrameContext::Frame);
    let sync = v1::SyncRequest {
        request: 5,
        query: None,
    };
    assert_eq!(context(Frame::Sync(sync)), FrameContext::Sync(5));
    let noise = decode_client_about(Bytes::from_static(b"\xff\xff\xff"), MAX);
    assert_eq!(noise.expect_err("noise").context, FrameContext::Frame);
}

// A frame of a later version may hold more: unknown fields are skipped.
#[test]
fn unknown_fields_are_passed_over() {
    let ping = encode_client(&ClientFrame::Ping { nonce: 3 });
    let mut longer = BytesMut::from(&ping[..]);
    encode_varint(1000 << 3, &mut longer);
    encode_varint(77, &mut longer);
    let read = decode_client(longer.freeze(), MAX);
    assert_eq!(read, Ok(ClientFrame::Ping { nonce: 3 }));
    let mut unknown = BytesMut::new();
    encode_varint(1000 << 3, &mut unknown);
    unknown.put_u8(1);
    assert_eq!(unknown.remaining(), 3);
    let refusal = decode_client(unknown.freeze(), MAX).expect_err("holds nothing we know");
    assert_eq!(refusal.code, Code::Malformed);
}

// A server changes nothing that it does not know.
#[test]
fn a_send_with_an_unknown_kind_of_change_is_refused() {
    let mut send = v1::Send::default();
    let chat = send.message.get_or_insert_default();
    chat.to_id = 7;
    chat.chat_type = v1::ChatType::P2p.into();
    chat.send_id = SendId::from_bytes([1; 16]).to_string();
    chat.change = Some(v1::ChangeOf {
        msg_id: 5,
        kind: None,
    });
    let decode = |send: &v1::Send| {
        let frame = Some(Frame::Send(send.clone()));
        decode_client(v1::ClientFrame { frame }.encode_to_vec().into(), MAX)
    };
    assert_eq!(
        decode(&send).map_err(|refusal| refusal.code),
        Err(Code::Malformed)
    );
    let chat = send.message.get_or_insert_default();
    let change = chat.change.get_or_insert_default();
    change.kind = Some(v1::change_of::Kind::Recall(v1::Recall {}));
    assert!(decode(&send).is_ok(), "with a kind it is a send");
}

// By hand: cargo test -p api -- --ignored --nocapture how_long
#[test]
#[ignore = "prints figures"]
#[allow(clippy::print_stdout, clippy::disallowed_methods)]
fn how_long_a_frame_takes() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let tree = arbitrary::placed().new_tree(&mut runner);
    let mut message = tree.expect("a message").current();
    message.message.content.data = vec![7; 200].into();
    let rounds = 1_000_000;
    let start = std::time::Instant::now();
    let frame = (0..rounds).fold(Bytes::new(), |_, _| {
        encode_message(std::hint::black_box(&message))
    });
    println!(
        "encode a message of 200 bytes: {:?}",
        start.elapsed() / rounds
    );
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        std::hint::black_box(decode_server(frame.clone(), MAX)).expect("well-formed");
    }
    println!("decode it: {:?}", start.elapsed() / rounds);
}
