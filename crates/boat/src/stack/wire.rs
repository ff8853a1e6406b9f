//! Byte buffers of one connection: input that is not a frame yet, and output that the socket has
//! not taken.

use api::codec::{FrameError, Frames, put_length};
use bytes::{BufMut, Bytes, BytesMut};
use protocol::{Code, Refusal};
use tokio_util::codec::Decoder;

use super::websocket::{self, Event, Rules, Violation};
use super::{Outbox, Tls};

/// Unwritten bytes beyond which no frame is taken.
const UNWRITTEN_MAX: usize = 64 * 1024;
/// Unwritten bytes beyond which no ping is answered: a client that does not read its pongs gets
/// fewer.
const PONGS_MAX: usize = 4 * 1024;
/// A frame smaller than its allocation divided by this is copied out of the allocation.
const MIN_FRAME_SHARE: usize = 4;

/// Input from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientInput {
    Frame(Bytes),
    /// Not a valid frame: the client gets the refusal, then a close.
    Text(Bytes),
    /// Invalid frame: the client gets the refusal, then a close.
    Refused(Refusal),
    /// Bytes that are not WebSocket: the same.
    Violation(Violation),
    /// Sign of life without content: a ping, which is answered, or a pong.
    Ping,
    /// End of input.
    End,
}

#[derive(Debug)]
enum Framing {
    WebSocket(websocket::Reader),
    LengthPrefix,
}

/// Frames in both directions over one byte stream. Holds memory only while bytes wait in it.
#[derive(Debug)]
pub struct Wire {
    framing: Framing,
    frame_bytes_max: u32,
    /// Size of the allocation that `partial` and the frames from it share.
    allocation: u32,
    takes_text: bool,
    /// Bytes received of the next frame.
    partial: BytesMut,
    /// Output to be encrypted, or for the socket as it is.
    plain: Outbox,
    tls: Option<Box<Tls>>,
    /// True once further input is ignored.
    is_closing: bool,
    /// True once TLS has failed.
    has_failed: bool,
    /// True once a close frame was written, or the end needs none: closing happens once.
    has_closed: bool,
}

impl Wire {
    /// A WebSocket after its handshake: one frame per binary message.
    pub fn websocket(frame_bytes_max: usize) -> Wire {
        Wire::with_framing(
            Framing::WebSocket(websocket::Reader::default()),
            frame_bytes_max,
        )
    }

    /// Length-prefixed frames.
    pub fn length_prefix(frame_bytes_max: usize) -> Wire {
        Wire::with_framing(Framing::LengthPrefix, frame_bytes_max)
    }

    fn with_framing(framing: Framing, frame_bytes_max: usize) -> Wire {
        Wire {
            framing,
            frame_bytes_max: bound(frame_bytes_max),
            allocation: 0,
            takes_text: false,
            partial: BytesMut::new(),
            plain: Outbox::default(),
            tls: None,
            is_closing: false,
            has_failed: false,
            has_closed: false,
        }
    }

    /// Sets the largest frame accepted from now on.
    pub fn set_frame_bytes_max(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = bound(frame_bytes_max);
    }

    /// Accepts text as well. No client of a boat sends text, but WebSocket test suites do.
    #[must_use]
    pub fn with_text(mut self) -> Wire {
        self.takes_text = true;
        self
    }

    /// Runs the wire over TLS, whose handshake is over.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>) -> Wire {
        self.tls = tls.map(Box::new);
        self
    }

    /// Takes bytes that were read and decrypted earlier.
    pub fn receive_plain(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        self.allocation = bound(self.partial.capacity());
    }

    pub fn is_websocket(&self) -> bool {
        matches!(self.framing, Framing::WebSocket(_))
    }

    /// Takes bytes from the socket, which may be decrypted in place.
    pub fn receive(&mut self, bytes: &mut [u8]) {
        if self.is_closing {
            return;
        }
        if let Some(tls) = &mut self.tls {
            if let Err(error) = tls.receive(bytes, &mut self.partial) {
                tracing::debug!(%error, "TLS failed on a connection");
                self.has_failed = true;
            }
        } else {
            self.partial.extend_from_slice(bytes);
        }
        self.allocation = bound(self.partial.capacity());
    }

    /// Returns the next complete frame. Answers pings and closes on the way.
    pub fn next_frame(&mut self) -> Option<ClientInput> {
        let input = self.next_plain_frame();
        if input.is_none() && !self.is_closing && self.has_ended() {
            self.stop_reading();
            // The client's close is answered with ours.
            self.has_closed |= !self.has_failed;
            return Some(ClientInput::End);
        }
        input
    }

    /// True once TLS has ended or failed.
    fn has_ended(&self) -> bool {
        self.has_failed || self.tls.as_ref().is_some_and(|tls| tls.has_ended())
    }

    fn next_plain_frame(&mut self) -> Option<ClientInput> {
        if self.partial.is_empty() {
            return None;
        }
        let mut input = match &mut self.framing {
            Framing::WebSocket(_) => self.next_message(),
            Framing::LengthPrefix => {
                let mut frames = Frames::new(self.frame_bytes_max as usize);
                match frames.decode(&mut self.partial) {
                    Ok(frame) => frame.map(ClientInput::Frame),
                    Err(FrameError::Refused(refusal)) => Some(ClientInput::Refused(refusal)),
                    Err(FrameError::Io(_)) => Some(ClientInput::End),
                }
            }
        };
        if let Some(ClientInput::Frame(frame)) = &mut input
            && frame.len() * MIN_FRAME_SHARE < self.allocation as usize
        {
            // A frame that is held, like a send until it is accepted, must not pin the whole read.
            *frame = Bytes::copy_from_slice(frame);
        }
        if ends(input.as_ref()) {
            self.stop_reading();
        } else if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        input
    }

    fn next_message(&mut self) -> Option<ClientInput> {
        let rules = Rules {
            message_bytes_max: self.frame_bytes_max as usize,
            takes_text: self.takes_text,
        };
        let Framing::WebSocket(reader) = &mut self.framing else {
            return None;
        };
        match reader.next(&mut self.partial, &rules) {
            Ok(event) => event.map(|event| self.input(event)),
            Err(violation) => Some(ClientInput::Violation(violation)),
        }
    }

    /// Turns an event of the WebSocket into input, and answers pings and closes.
    fn input(&mut self, event: Event) -> ClientInput {
        match event {
            Event::Binary(frame) => ClientInput::Frame(frame),
            Event::Text(text) => ClientInput::Text(text),
            Event::Pong => ClientInput::Ping,
            Event::Ping(payload) => {
                if self.unwritten_len() < PONGS_MAX {
                    websocket::put_pong(&payload, self.plain.bytes_mut());
                }
                ClientInput::Ping
            }
            Event::Close(code) => {
                self.put_close(code, "");
                ClientInput::End
            }
        }
    }

    /// Bytes held of a frame that has not come whole.
    pub fn partial(&self) -> usize {
        let fragments = match &self.framing {
            Framing::WebSocket(reader) => reader.fragments(),
            Framing::LengthPrefix => 0,
        };
        let encrypted_len = self.tls.as_ref().map_or(0, |tls| tls.partial());
        self.partial.len() + fragments + encrypted_len
    }

    /// True once nothing more can be sent, because the end was announced.
    pub fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// Whether another frame fits.
    pub fn has_room(&self) -> bool {
        self.unwritten_len() < UNWRITTEN_MAX
    }

    /// Bytes that the socket has not taken.
    fn unwritten_len(&self) -> usize {
        let encrypted_len = self.tls.as_ref().map_or(0, |tls| tls.unwritten().len());
        self.plain.len() + encrypted_len
    }

    /// Queues a frame, whatever room there is.
    pub fn send(&mut self, frame: &[u8]) {
        // Nothing follows a close.
        if self.has_closed {
            return;
        }
        match self.framing {
            Framing::WebSocket(_) => websocket::put_binary(frame.len(), self.plain.bytes_mut()),
            Framing::LengthPrefix => put_length(frame.len(), self.plain.bytes_mut()),
        }
        self.plain.bytes_mut().put_slice(frame);
    }

    /// Queues a text message, which must be UTF-8; dropped unless this is a WebSocket.
    pub fn send_text(&mut self, text: &[u8]) {
        if self.is_websocket() && !self.has_closed {
            websocket::put_text(text.len(), self.plain.bytes_mut());
            self.plain.bytes_mut().put_slice(text);
        }
    }

    /// Announces the end at the framing layer. Further input is discarded: closing a socket with
    /// unread bytes resets the connection, and the client could not read the reason.
    pub fn close(&mut self, code: Code) {
        self.close_as(code.number(), code.name());
    }

    /// Like `close`, with any close code.
    pub fn close_as(&mut self, code: u16, reason: &str) {
        match self.framing {
            Framing::WebSocket(_) => self.put_close(Some(code), reason),
            Framing::LengthPrefix => self.has_closed = true,
        }
        self.stop_reading();
    }

    fn put_close(&mut self, code: Option<u16>, reason: &str) {
        if !std::mem::replace(&mut self.has_closed, true) {
            websocket::put_close(code, reason, self.plain.bytes_mut());
        }
    }

    fn stop_reading(&mut self) {
        self.is_closing = true;
        self.partial = BytesMut::new();
    }

    /// Encrypts the turn's output if TLS is spoken: small frames share a record.
    pub fn seal(&mut self) {
        let Some(tls) = &mut self.tls else {
            return;
        };
        if !self.plain.is_empty() {
            // Output that cannot be sent any more is lost with the connection; the end of the
            // socket shows it.
            if let Err(error) = tls.send(self.plain.bytes()) {
                tracing::debug!(%error, "TLS accepts no more data on a connection");
                self.has_failed = true;
            }
            self.plain.clear();
        }
        if self.has_closed {
            tls.close();
        }
    }

    /// Sealed bytes for the socket.
    pub fn unwritten(&self) -> &[u8] {
        match &self.tls {
            Some(tls) => tls.unwritten(),
            None => self.plain.bytes(),
        }
    }

    /// Whether no bytes wait to be sealed or written.
    pub fn is_idle(&self) -> bool {
        self.plain.is_empty() && self.unwritten().is_empty()
    }

    /// Notes that the socket took `count` bytes of `unwritten`.
    pub fn wrote(&mut self, count: usize) {
        match &mut self.tls {
            Some(tls) => tls.wrote(count),
            None => self.plain.wrote(count),
        }
    }

    /// Borrows buffers for a turn's output: one plain, one encrypted.
    pub fn lend(&mut self, [plain, encrypted]: &mut [BytesMut; 2]) {
        self.plain.lend(plain);
        if let Some(tls) = &mut self.tls {
            tls.outbox().lend(encrypted);
        }
    }

    /// Returns the borrowed buffers, and keeps the bytes that the socket has not taken.
    pub fn give_back(&mut self, [plain, encrypted]: &mut [BytesMut; 2]) {
        self.plain.give_back(plain);
        if let Some(tls) = &mut self.tls {
            tls.outbox().give_back(encrypted);
        }
    }

    /// Stops reading and writing.
    pub fn clear(&mut self) {
        self.stop_reading();
        self.plain.clear();
        self.tls = None;
    }
}

/// Clamps a size to the `u32` that a connection stores.
fn bound(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Whether nothing behind this input is read.
fn ends(input: Option<&ClientInput>) -> bool {
    match input {
        Some(ClientInput::Refused(_) | ClientInput::Violation(_) | ClientInput::End) => true,
        Some(ClientInput::Frame(_) | ClientInput::Text(_) | ClientInput::Ping) | None => false,
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

    fn written_bytes(wire: &mut Wire) -> Vec<u8> {
        let bytes = wire.unwritten().to_vec();
        wire.wrote(bytes.len());
        bytes
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
        let inputs: Vec<_> = std::iter::from_fn(|| wire.next_frame()).collect();
        let expected_frame = ClientInput::Frame(Bytes::from_static(b"frame"));
        let ping = || ClientInput::Ping;
        assert_eq!(inputs, [ping(), expected_frame, ping(), ping()]);
        assert_eq!(written_bytes(&mut wire), b"\x8a\x011\x8a\x012");
        wire.receive(&mut [frame(8, b"\x03\xe9"), frame(2, b"late")].concat());
        assert_eq!(wire.next_frame(), Some(ClientInput::End));
        assert_eq!(wire.next_frame(), None);
        wire.close(Code::Reconnect);
        assert_eq!(written_bytes(&mut wire), b"\x88\x02\x03\xe9");
    }

    #[test]
    fn text_is_for_wires_that_take_it() {
        let mut wire = Wire::websocket(MAX);
        wire.receive(&mut frame(1, b"hello"));
        let violation = Some(ClientInput::Violation(Violation::Text));
        assert_eq!(wire.next_frame(), violation);
        assert_eq!(wire.next_frame(), None);

        let mut wire = Wire::websocket(MAX).with_text();
        wire.receive(&mut [frame(1, b"hello"), frame(1, b"\xff"), frame(1, b"late")].concat());
        let text = Some(ClientInput::Text(Bytes::from_static(b"hello")));
        assert_eq!(wire.next_frame(), text);
        wire.send_text(b"hello");
        let violation = Some(ClientInput::Violation(Violation::NotUtf8));
        assert_eq!(wire.next_frame(), violation);
        assert_eq!(wire.next_frame(), None);
        wire.close_as(Violation::NotUtf8.close_code(), "");
        wire.send_text(b"late");
        assert_eq!(written_bytes(&mut wire), b"\x81\x05hello\x88\x02\x03\xef");
    }

    #[test]
    fn behind_a_violation_nothing_is_read_or_kept() {
        for mut wire in [Wire::websocket(MAX), Wire::length_prefix(MAX)] {
            wire.receive(&mut [0xff; 16]);
            let input = wire.next_frame();
            assert!(
                matches!(
                    input,
                    Some(ClientInput::Refused(_) | ClientInput::Violation(_))
                ),
                "{input:?}"
            );
            wire.receive(&mut [0; 100_000]);
            assert_eq!(wire.next_frame(), None);
            assert_eq!(wire.partial.capacity(), 0);
        }
    }

    #[test]
    fn an_idle_wire_holds_no_memory() {
        for mut wire in [Wire::websocket(MAX), Wire::length_prefix(MAX)] {
            wire.receive(&mut if wire.is_websocket() {
                frame(2, b"hello")
            } else {
                b"\x05hello".to_vec()
            });
            let input = wire.next_frame();
            assert_eq!(
                input,
                Some(ClientInput::Frame(Bytes::from_static(b"hello")))
            );
            wire.send(b"answer");
            assert!(written_bytes(&mut wire).ends_with(b"answer"));
            assert_eq!((wire.partial.capacity(), wire.plain.capacity()), (0, 0));
        }
        assert!(size_of::<Wire>() <= 136, "{}", size_of::<Wire>());
    }

    /// A send is held until it is accepted, and must not pin the pings read along with it; a large
    /// one is not copied.
    #[test]
    fn a_small_frame_leaves_the_memory_that_it_came_in() {
        for (len, is_unique) in [(1, true), (MAX, false)] {
            let mut wire = Wire::websocket(MAX);
            let mut bytes = frame(2, &[7; 100]);
            if len == MAX {
                bytes = vec![0x82, 0xfe, 4, 0, 0, 0, 0, 0];
                bytes.extend([7; MAX]);
            }
            for _ in 0..16 {
                bytes.extend(frame(9, &[1; 100]));
            }
            wire.receive(&mut bytes);
            let Some(ClientInput::Frame(frame)) = wire.next_frame() else {
                panic!("a frame");
            };
            assert_eq!(frame.is_unique(), is_unique, "{len}");
        }
    }

    /// Unlike pongs, frames are taken up to a higher limit.
    #[test]
    fn unread_pongs_fill_no_memory() {
        let mut wire = Wire::websocket(MAX);
        let mut pings = frame(9, &[7; 100]).repeat(100);
        for _ in 0..100 {
            wire.receive(&mut pings);
            while wire.next_frame().is_some() {}
        }
        let unwritten = wire.unwritten().len();
        assert!((4096..4096 + 102).contains(&unwritten), "{unwritten}");
        assert!(wire.has_room());
    }

    #[test]
    fn partial_frame_bytes_are_counted_until_it_ends() {
        for mut wire in [Wire::websocket(MAX), Wire::length_prefix(MAX)] {
            assert_eq!(wire.partial(), 0);
            let mut bytes = if wire.is_websocket() {
                frame(2, &[7; 100])
            } else {
                [vec![100], vec![7; 100]].concat()
            };
            let last = bytes.split_off(bytes.len() - 1);
            wire.receive(&mut bytes);
            assert_eq!(wire.next_frame(), None);
            assert!((99..=100).contains(&wire.partial()), "{}", wire.partial());
            wire.receive(&mut last.clone());
            assert!(wire.next_frame().is_some());
            assert_eq!(wire.partial(), 0);
        }
        // In fragments, which a ping may come between.
        let mut wire = Wire::websocket(MAX);
        let mut first = frame(2, &[7; 100]);
        first[0] = 0x02;
        wire.receive(&mut [first, frame(9, b"")].concat());
        assert_eq!(wire.next_frame(), Some(ClientInput::Ping));
        assert_eq!(wire.partial(), 100);
        wire.receive(&mut frame(0, b""));
        assert!(wire.next_frame().is_some());
        assert_eq!(wire.partial(), 0);
    }

    #[test]
    fn the_bound_of_a_frame_may_grow() {
        for mut wire in [Wire::websocket(8), Wire::length_prefix(8)] {
            wire.set_frame_bytes_max(9);
            let mut bytes = if wire.is_websocket() {
                frame(2, &[7; 9])
            } else {
                [vec![9], vec![7; 9]].concat()
            };
            wire.receive(&mut bytes);
            assert!(matches!(wire.next_frame(), Some(ClientInput::Frame(_))));
        }
    }
}
