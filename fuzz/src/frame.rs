//! Frames from bytes, for client and server, alone and behind a length: a decoded frame survives
//! encoding.
#![no_main]

use api::codec::{Frames, decode_client, decode_server, encode_client, encode_server};
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;

const FRAME_BYTES_MAX: usize = 64 * 1024;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(frame) = decode_client(bytes.clone(), FRAME_BYTES_MAX) {
        let again = decode_client(encode_client(&frame), usize::MAX);
        assert!(again.is_ok_and(|again| again == frame));
    }
    if let Ok(frame) = decode_server(bytes, FRAME_BYTES_MAX) {
        let again = decode_server(encode_server(&frame), usize::MAX);
        assert!(again.is_ok_and(|again| again == frame));
    }
    let (mut frames, mut stream) = (Frames::new(FRAME_BYTES_MAX), BytesMut::from(data));
    while let Ok(Some(frame)) = tokio_util::codec::Decoder::decode(&mut frames, &mut stream) {
        assert!(frame.len() <= FRAME_BYTES_MAX);
    }
});
