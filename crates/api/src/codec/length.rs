//! Frames on a byte stream: a varint length, then that many bytes.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{Code, Refusal};
use thiserror::Error;
use tokio_util::codec::{Decoder, Encoder};

/// Longest encoding of a length, in bytes.
pub const LENGTH_BYTES_MAX: usize = 5;

/// Room made at once for a frame that has not come yet.
const STEP_BYTES: usize = 8 * 1024;

/// Reason for the end of a byte stream of frames.
#[derive(Debug, Error)]
pub enum FrameError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side broke the rules: send this as the last frame, then close.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Cuts a byte stream into frames, and writes frames onto one. The limit is checked on the length,
/// before anything is allocated for the frame.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    max: usize,
}

impl Frames {
    /// `max` is the limit of a frame in bytes, without its length.
    pub const fn new(max: usize) -> Frames {
        Frames { max }
    }

    pub const fn max(&self) -> usize {
        self.max
    }

    fn fits(&self, len: u64) -> Result<usize, Refusal> {
        match usize::try_from(len) {
            Ok(len) if len <= self.max => Ok(len),
            Ok(_) | Err(_) => {
                let text = format!("a frame of {len} bytes; at most {} are accepted", self.max);
                Err(Refusal::new(Code::TooLarge, text))
            }
        }
    }
}

/// Reads the length at the beginning of `bytes`, and the number of bytes it takes; `None` while it
/// is incomplete.
fn read_length(bytes: &[u8]) -> Result<Option<(u64, usize)>, Refusal> {
    let mut length = 0u64;
    for (index, &byte) in bytes.iter().take(LENGTH_BYTES_MAX).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Ok(Some((length, index + 1)));
        }
    }
    if bytes.len() < LENGTH_BYTES_MAX {
        return Ok(None);
    }
    Err(Refusal::new(
        Code::Malformed,
        "a frame begins with its length as a varint of at most 5 bytes",
    ))
}

/// Writes the length of a frame. The frame itself may follow as a slice of its own.
pub fn put_length(len: usize, to: &mut impl BufMut) {
    prost::encoding::encode_varint(len as u64, to);
}

impl Decoder for Frames {
    type Item = Bytes;
    type Error = FrameError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        let Some((length, prefix)) = read_length(src)? else {
            return Ok(None);
        };
        let len = self.fits(length)?;
        let missing_bytes = (prefix + len).saturating_sub(src.len());
        if missing_bytes > 0 {
            // In steps: a length is only a claim, and memory follows the bytes that have really
            // come.
            src.reserve(missing_bytes.min(STEP_BYTES));
            return Ok(None);
        }
        src.advance(prefix);
        Ok(Some(src.split_to(len).freeze()))
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
        match self.decode(src)? {
            Some(frame) => Ok(Some(frame)),
            None if src.is_empty() => Ok(None),
            None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection ended inside a frame",
            )
            .into()),
        }
    }
}

impl Encoder<Bytes> for Frames {
    type Error = FrameError;

    fn encode(&mut self, frame: Bytes, dst: &mut BytesMut) -> Result<(), FrameError> {
        self.fits(frame.len() as u64)?;
        dst.reserve(LENGTH_BYTES_MAX + frame.len());
        put_length(frame.len(), dst);
        dst.put_slice(&frame);
        Ok(())
    }
}
