//! One connection's bytes: what came and is no frame yet, and what the socket has not taken.

use api::codec::{FrameError, Frames, put_length};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{Code, Refusal};
use tokio_util::codec::Decoder;

use super::websocket::{self, Event, Rules, Violation};

/// Beyond so much unwritten no frame is taken, and no ping is answered.
const UNWRITTEN_MAX: usize = 64 * 1024;

/// One thing that came from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Frame(Bytes),
    /// Not what may come here: to be told, then to be closed.
    Refused(Refusal),
    /// Nothing more comes.
    End,
}

#[derive(Debug)]
enum Framing {
    WebSocket(websocket::Reader),
    LengthPrefix,
}

/// Frames both ways over one stream of bytes. It holds memory only while something waits in it.
#[derive(Debug)]
pub struct Wire {
    framing: Framing,
    frame_bytes_max: usize,
    /// What has come of the next frame.
    partial: BytesMut,
    /// What the socket has not taken.
    unwritten: BytesMut,
    /// `unwritten` is a buffer of somebody else.
    is_lent: bool,
    /// Nothing that comes matters any more.
    is_closing: bool,
    /// A close frame was written: there is only one.
    has_closed: bool,
}

impl Wire {
    /// A WebSocket behind its handshake: a frame is a binary message.
    pub fn websocket(frame_bytes_max: usize) -> Wire {
        Wire::of(
            Framing::WebSocket(websocket::Reader::default()),
            frame_bytes_max,
        )
    }

    /// A frame has its length in front.
    pub fn length_prefix(frame_bytes_max: usize) -> Wire {
        Wire::of(Framing::LengthPrefix, frame_bytes_max)
    }

    fn of(framing: Framing, frame_bytes_max: usize) -> Wire {
        Wire {
            framing,
            frame_bytes_max,
            partial: BytesMut::new(),
            unwritten: BytesMut::new(),
            is_lent: false,
            is_closing: false,
            has_closed: false,
        }
    }

    pub fn is_websocket(&self) -> bool {
        matches!(self.framing, Framing::WebSocket(_))
    }

    /// Bytes that the socket gave.
    pub fn receive(&mut self, bytes: &mut [u8]) {
        if !self.is_closing {
            self.partial.extend_from_slice(bytes);
        }
    }

    /// The next frame that has come whole. Pings and closes are answered on the way.
    pub fn next_frame(&mut self) -> Option<Received> {
        if self.partial.is_empty() {
            return None;
        }
        let received = match &mut self.framing {
            Framing::WebSocket(_) => self.next_message(),
            Framing::LengthPrefix => {
                let mut frames = Frames::new(self.frame_bytes_max);
                match frames.decode(&mut self.partial) {
                    Ok(frame) => frame.map(Received::Frame),
                    Err(FrameError::Refused(refusal)) => Some(Received::Refused(refusal)),
                    Err(FrameError::Io(_)) => Some(Received::End),
                }
            }
        };
        if matches!(received, Some(Received::Refused(_) | Received::End)) {
            self.stop_reading();
        } else if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        received
    }

    fn next_message(&mut self) -> Option<Received> {
        let rules = Rules {
            message_bytes_max: self.frame_bytes_max,
            takes_text: false,
        };
        loop {
            let Framing::WebSocket(reader) = &mut self.framing else {
                return None;
            };
            match reader.next(&mut self.partial, &rules) {
                Ok(None) => return None,
                Ok(Some(Event::Binary(frame) | Event::Text(frame))) => {
                    return Some(Received::Frame(frame));
                }
                Ok(Some(Event::Pong)) => {}
                // Who does not read its pongs gets fewer.
                Ok(Some(Event::Ping(payload))) if self.has_room() => {
                    websocket::put_pong(&payload, &mut self.unwritten);
                }
                Ok(Some(Event::Ping(_))) => {}
                Ok(Some(Event::Close(code))) => {
                    self.put_close(code, "");
                    return Some(Received::End);
                }
                Err(violation) => return Some(Received::Refused(refusal(violation))),
            }
        }
    }

    /// Whether a further frame is taken.
    pub fn has_room(&self) -> bool {
        self.unwritten.len() < UNWRITTEN_MAX
    }

    /// Takes a frame, whatever room there is.
    pub fn send(&mut self, frame: &[u8]) {
        match self.framing {
            Framing::WebSocket(_) => websocket::put_binary(frame.len(), &mut self.unwritten),
            Framing::LengthPrefix => put_length(frame.len(), &mut self.unwritten),
        }
        self.unwritten.put_slice(frame);
    }

    /// Says on its own level that nothing more follows. What still comes is passed over: a socket that is closed with
    /// unread bytes resets the connection, and the client would not read why.
    pub fn close(&mut self, code: Code) {
        if self.is_websocket() {
            self.put_close(Some(code.number()), code.name());
        }
        self.stop_reading();
    }

    fn put_close(&mut self, code: Option<u16>, reason: &str) {
        if !std::mem::replace(&mut self.has_closed, true) {
            websocket::put_close(code, reason, &mut self.unwritten);
        }
    }

    fn stop_reading(&mut self) {
        self.is_closing = true;
        self.partial = BytesMut::new();
    }

    /// For the socket.
    pub fn unwritten(&self) -> &[u8] {
        &self.unwritten
    }

    /// So many bytes of `unwritten` the socket has taken.
    pub fn wrote(&mut self, count: usize) {
        self.unwritten.advance(count);
        if self.unwritten.is_empty() && !self.is_lent {
            self.unwritten = BytesMut::new();
        }
    }

    /// Takes `buffer` for what is to be written, where nothing waits: a turn's bytes need no memory of their own.
    pub fn lend(&mut self, buffer: &mut BytesMut) {
        if self.unwritten.is_empty() {
            std::mem::swap(&mut self.unwritten, buffer);
            self.is_lent = true;
        }
    }

    /// Gives back what was lent, and keeps what the socket has not taken.
    pub fn give_back(&mut self, buffer: &mut BytesMut) {
        if !std::mem::take(&mut self.is_lent) {
            return;
        }
        let unwritten = BytesMut::from(&self.unwritten[..]);
        *buffer = std::mem::replace(&mut self.unwritten, unwritten);
        buffer.clear();
    }

    /// Nothing more is read or written.
    pub fn clear(&mut self) {
        self.stop_reading();
        self.unwritten = BytesMut::new();
    }
}

/// What went wrong, and whose fault it is.
fn refusal(violation: Violation) -> Refusal {
    match violation {
        Violation::TooLarge { .. } => Refusal::new(Code::TooLarge, violation.to_string()),
        Violation::Text => Refusal::new(Code::Malformed, violation.to_string()),
        Violation::Protocol(_) | Violation::NotUtf8 => {
            let text = format!("these bytes are no WebSocket message: {violation}");
            Refusal::new(Code::Malformed, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1024;

    /// A final frame of a client, masked with zeros.
    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80 | opcode, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        bytes.extend_from_slice(payload);
        bytes
    }

    fn said(wire: &mut Wire) -> Vec<u8> {
        let said = wire.unwritten().to_vec();
        wire.wrote(said.len());
        said
    }

    #[test]
    fn pings_are_answered_between_frames_and_a_close_once() {
        let mut wire = Wire::websocket(MAX);
        wire.receive(
            &mut [
                frame(9, b"1"),
                frame(2, b"frame"),
                frame(9, b"2"),
                frame(10, b""),
            ]
            .concat(),
        );
        let received = wire.next_frame();
        assert_eq!(
            received,
            Some(Received::Frame(Bytes::from_static(b"frame")))
        );
        assert_eq!(wire.next_frame(), None);
        assert_eq!(said(&mut wire), b"\x8a\x011\x8a\x012");
        wire.receive(&mut [frame(8, b"\x03\xe9"), frame(2, b"late")].concat());
        assert_eq!(wire.next_frame(), Some(Received::End));
        assert_eq!(wire.next_frame(), None);
        wire.close(Code::Reconnect);
        assert_eq!(said(&mut wire), b"\x88\x02\x03\xe9");
    }

    #[test]
    fn who_does_not_read_pongs_fills_no_memory_with_them() {
        let mut wire = Wire::websocket(MAX);
        let mut pings = frame(9, &[7; 100]).repeat(100);
        for _ in 0..100 {
            wire.receive(&mut pings);
            assert_eq!(wire.next_frame(), None);
        }
        assert!(!wire.has_room());
        assert!(wire.unwritten().len() <= UNWRITTEN_MAX + 102);
    }

    #[test]
    fn behind_a_violation_nothing_is_read_or_kept() {
        for mut wire in [Wire::websocket(MAX), Wire::length_prefix(MAX)] {
            wire.receive(&mut [0xff; 16]);
            let received = wire.next_frame();
            assert!(
                matches!(received, Some(Received::Refused(_))),
                "{received:?}"
            );
            wire.receive(&mut [0; 100_000]);
            assert_eq!(wire.next_frame(), None);
            assert_eq!(wire.partial.capacity(), 0);
        }
    }

    #[test]
    fn an_idle_wire_holds_no_memory() {
        for mut wire in [Wire::websocket(MAX), Wire::length_prefix(MAX)] {
            wire.receive(&mut match wire.is_websocket() {
                true => frame(2, b"hello"),
                false => b"\x05hello".to_vec(),
            });
            let received = wire.next_frame();
            assert_eq!(
                received,
                Some(Received::Frame(Bytes::from_static(b"hello")))
            );
            wire.send(b"answer");
            assert!(said(&mut wire).ends_with(b"answer"));
            assert_eq!((wire.partial.capacity(), wire.unwritten.capacity()), (0, 0));
        }
        assert!(size_of::<Wire>() <= 144, "{}", size_of::<Wire>());
    }
}
