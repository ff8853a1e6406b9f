//! Server side of WebSocket (RFC 6455): bytes in, messages and control frames out.
//!
//! Payloads are unmasked in place and handed on without a copy. A reader between two frames holds
//! nothing; inside one, memory follows the bytes received, not the length a head promises.

pub mod handshake;
mod mask;
#[cfg(test)]
mod tests;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{Code, Refusal};

use mask::unmask;

/// Bytes of the longest head: two, a length of eight, the mask.
pub const HEAD_BYTES_MAX: usize = 14;
/// Largest payload of a ping, a pong or a close.
const CONTROL_BYTES_MAX: u64 = 125;

/// Limits of a reader.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Payload of one message, all its fragments together.
    pub message_bytes_max: usize,
    /// Accepts text messages besides binary ones.
    pub takes_text: bool,
}

/// A message, or a control frame between its fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Binary(Bytes),
    /// UTF-8.
    Text(Bytes),
    /// A ping; the answer is a pong with the same payload.
    Ping(Bytes),
    Pong,
    /// The peer sends nothing more; with its code, if it gave one.
    Close(Option<u16>),
}

/// Invalid input. Nothing behind it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("frames are binary messages, this one was text")]
    Text,
    #[error("a text that is not UTF-8")]
    NotUtf8,
    #[error("a frame of {size} bytes; at most {max} are accepted")]
    TooLarge { size: u64, max: usize },
}

impl Violation {
    /// Code of the close frame for this violation (RFC 6455, 7.4.1).
    pub const fn close_code(self) -> u16 {
        match self {
            Violation::Protocol(_) => 1002,
            Violation::Text => 1003,
            Violation::NotUtf8 => 1007,
            Violation::TooLarge { .. } => 1009,
        }
    }
}

/// The refusal for a client that speaks our protocol.
impl From<Violation> for Refusal {
    fn from(violation: Violation) -> Refusal {
        match violation {
            Violation::TooLarge { .. } => Refusal::new(Code::TooLarge, violation.to_string()),
            Violation::Text => Refusal::new(Code::Malformed, violation.to_string()),
            Violation::Protocol(_) | Violation::NotUtf8 => {
                let text = format!("invalid WebSocket message: {violation}");
                Refusal::new(Code::Malformed, text)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    const fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    const fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// A frame whose head has been read.
#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    len: usize,
    mask: [u8; 4],
    /// Payload bytes unmasked so far.
    unmasked_len: usize,
}

/// Fragments of a message that has not ended.
#[derive(Debug, Default)]
struct Fragments {
    is_text: bool,
    payload: BytesMut,
}

/// Parser of a client's frames.
#[derive(Debug, Default)]
pub struct Reader {
    frame: Option<Frame>,
    /// Boxed, as nearly no client fragments.
    fragments: Option<Box<Fragments>>,
    /// Bytes of the current text message known to be UTF-8.
    valid: usize,
}

impl Reader {
    /// Returns the next event that `input` holds whole, or `None` until more bytes come. Consumes
    /// the bytes it read.
    ///
    /// # Errors
    /// A [`Violation`]; the reader is of no use afterwards.
    pub fn next(
        &mut self,
        input: &mut BytesMut,
        rules: &Rules,
    ) -> Result<Option<Event>, Violation> {
        loop {
            let mut frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some((frame, head)) = self.head(input, rules)? else {
                        return Ok(None);
                    };
                    input.advance(head);
                    frame
                }
            };
            let received_len = frame.len.min(input.len());
            unmask(
                &mut input[frame.unmasked_len..received_len],
                frame.mask,
                frame.unmasked_len,
            );
            frame.unmasked_len = received_len;
            self.frame = Some(frame);
            if self.is_text(frame.opcode) {
                self.check_text(&input[..received_len])?;
            }
            if received_len < frame.len {
                return Ok(None);
            }
            self.frame = None;
            let payload = input.split_to(frame.len).freeze();
            if let Some(event) = self.end(frame, payload)? {
                return Ok(Some(event));
            }
        }
    }

    /// Bytes of a message's fragments whose end has not come.
    pub fn fragments(&self) -> usize {
        self.fragments.as_ref().map_or(0, |it| it.payload.len())
    }

    /// True for a frame that carries text.
    fn is_text(&self, opcode: Opcode) -> bool {
        let continues_text = self.fragments.as_ref().is_some_and(|it| it.is_text);
        opcode == Opcode::Text || opcode == Opcode::Continuation && continues_text
    }

    /// Refuses at the first byte that cannot be UTF-8. `payload` is the part of the frame received
    /// so far.
    fn check_text(&mut self, payload: &[u8]) -> Result<(), Violation> {
        let fragment_len = self.fragments.as_ref().map_or(0, |it| it.payload.len());
        // A character may span two fragments.
        if self.valid < fragment_len
            && let Some(fragments) = &self.fragments
        {
            let char_bytes = fragments.payload[self.valid..]
                .iter()
                .chain(payload)
                .copied();
            let char_bytes: Vec<u8> = char_bytes.take(4).collect();
            match utf8_prefix(&char_bytes)? {
                0 => return Ok(()),
                valid => self.valid += valid.max(fragment_len - self.valid),
            }
        }
        let start = self.valid - fragment_len;
        self.valid += utf8_prefix(payload.get(start..).unwrap_or_default())?;
        Ok(())
    }

    fn end(&mut self, frame: Frame, payload: Bytes) -> Result<Option<Event>, Violation> {
        match frame.opcode {
            Opcode::Ping => Ok(Some(Event::Ping(payload))),
            Opcode::Pong => Ok(Some(Event::Pong)),
            Opcode::Close => parse_close(&payload).map(|code| Some(Event::Close(code))),
            opcode if frame.is_final => {
                let (is_text, payload) = match self.fragments.take() {
                    Some(fragments) => (
                        fragments.is_text,
                        join_fragments(fragments.payload, payload),
                    ),
                    None => (opcode == Opcode::Text, payload),
                };
                let valid = std::mem::take(&mut self.valid);
                if is_text && valid < payload.len() {
                    return Err(Violation::NotUtf8);
                }
                let event = if is_text { Event::Text } else { Event::Binary };
                Ok(Some(event(payload)))
            }
            opcode => {
                let fragments = self.fragments.get_or_insert_default();
                fragments.is_text |= opcode == Opcode::Text;
                fragments.payload.extend_from_slice(&payload);
                Ok(None)
            }
        }
    }

    /// The head of the next frame and its length. Reports each violation as soon as the bytes show
    /// it.
    fn head(&self, input: &[u8], rules: &Rules) -> Result<Option<(Frame, usize)>, Violation> {
        let &[first, second, ..] = input else {
            return Ok(None);
        };
        let is_final = first & 0x80 != 0;
        if first & 0x70 != 0 {
            return Err(Violation::Protocol(
                "reserved bits of a frame, and no extension",
            ));
        }
        let opcode = Opcode::from_bits(first & 0x0f);
        let opcode = opcode.ok_or(Violation::Protocol("a frame of a reserved kind"))?;
        self.may_follow(opcode, is_final, rules)?;
        if second & 0x80 == 0 {
            return Err(Violation::Protocol("a client masks what it sends"));
        }
        let (len, at) = match second & 0x7f {
            126 => match input.get(2..4) {
                Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return Ok(None),
            },
            127 => match input.get(2..10).and_then(|len| len.try_into().ok()) {
                Some(len) => (u64::from_be_bytes(len), 10),
                None => return Ok(None),
            },
            len => (u64::from(len), 2),
        };
        let len = self.fits(opcode, len, rules)?;
        let Some(mask) = input.get(at..at + 4).and_then(|mask| mask.try_into().ok()) else {
            return Ok(None);
        };
        let frame = Frame {
            opcode,
            is_final,
            len,
            mask,
            unmasked_len: 0,
        };
        Ok(Some((frame, at + 4)))
    }

    fn may_follow(&self, opcode: Opcode, is_final: bool, rules: &Rules) -> Result<(), Violation> {
        let text = match opcode {
            _ if opcode.is_control() && !is_final => "a control frame in fragments",
            Opcode::Text if !rules.takes_text => return Err(Violation::Text),
            Opcode::Continuation if self.fragments.is_none() => "a continuation of no message",
            Opcode::Text | Opcode::Binary if self.fragments.is_some() => {
                "a message before the one under way has ended"
            }
            _ => return Ok(()),
        };
        Err(Violation::Protocol(text))
    }

    fn fits(&self, opcode: Opcode, len: u64, rules: &Rules) -> Result<usize, Violation> {
        if opcode.is_control() {
            return if len > CONTROL_BYTES_MAX {
                Err(Violation::Protocol(
                    "a control frame of more than 125 bytes",
                ))
            } else {
                Ok(len as usize)
            };
        }
        let max = rules.message_bytes_max;
        let fragment_len = self.fragments.as_ref().map_or(0, |it| it.payload.len());
        let size = len.saturating_add(fragment_len as u64);
        match usize::try_from(size) {
            Ok(size) if size <= max => Ok(size - fragment_len),
            _ => Err(Violation::TooLarge { size, max }),
        }
    }
}

fn join_fragments(mut payload: BytesMut, last: Bytes) -> Bytes {
    payload.extend_from_slice(&last);
    payload.freeze()
}

/// Length of the complete characters at the front; the remaining bytes may still become one.
fn utf8_prefix(bytes: &[u8]) -> Result<usize, Violation> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(bytes.len()),
        Err(error) if error.error_len().is_none() => Ok(error.valid_up_to()),
        Err(_) => Err(Violation::NotUtf8),
    }
}

/// Code of a close frame (RFC 6455, 5.5.1 and 7.4).
fn parse_close(payload: &[u8]) -> Result<Option<u16>, Violation> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(Violation::Protocol("half a code of a close")),
        [a, b, reason @ ..] => (u16::from_be_bytes([*a, *b]), reason),
    };
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Violation::Protocol(
            "a close with a code that is not to be sent",
        ));
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(Violation::NotUtf8),
    }
}

/// Writes the head of a binary message. Its payload may follow as a slice of its own.
pub fn put_binary(len: usize, to: &mut impl BufMut) {
    put_head(Opcode::Binary, len, to);
}

/// Writes the head of a text message, whose payload must be UTF-8.
pub fn put_text(len: usize, to: &mut impl BufMut) {
    put_head(Opcode::Text, len, to);
}

/// Writes a pong.
pub fn put_pong(payload: &[u8], to: &mut impl BufMut) {
    put_head(Opcode::Pong, payload.len(), to);
    to.put_slice(payload);
}

/// Writes a close with a code and a reason, cut to the 123 bytes that fit.
pub fn put_close(code: Option<u16>, reason: &str, to: &mut impl BufMut) {
    let Some(code) = code else {
        return put_head(Opcode::Close, 0, to);
    };
    let reason = &reason[..reason.floor_char_boundary(CONTROL_BYTES_MAX as usize - 2)];
    put_head(Opcode::Close, 2 + reason.len(), to);
    to.put_u16(code);
    to.put_slice(reason.as_bytes());
}

fn put_head(opcode: Opcode, len: usize, to: &mut impl BufMut) {
    to.put_u8(0x80 | opcode as u8);
    match len {
        0..126 => to.put_u8(len as u8),
        126..=0xffff => {
            to.put_u8(126);
            to.put_u16(len as u16);
        }
        _ => {
            to.put_u8(127);
            to.put_u64(len as u64);
        }
    }
}
