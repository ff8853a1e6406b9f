//! Bytes that the socket has not taken.

use bytes::{Buf, BytesMut};

/// Queue of bytes for a socket. Owns memory only for bytes that a turn left unwritten: a turn fills
/// a borrowed buffer.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: BytesMut,
    is_lent: bool,
}

impl Outbox {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn bytes_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Notes that the socket took `count` bytes.
    pub fn wrote(&mut self, count: usize) {
        self.bytes.advance(count);
        if self.bytes.is_empty() && !self.is_lent {
            self.bytes = BytesMut::new();
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        self.wrote(self.len());
    }

    /// Borrows `buffer` for the next bytes, if none wait.
    pub fn lend(&mut self, buffer: &mut BytesMut) {
        if self.bytes.is_empty() && !self.is_lent {
            std::mem::swap(&mut self.bytes, buffer);
            self.is_lent = true;
        }
    }

    /// Returns the borrowed buffer, and keeps a copy of the bytes that the socket left.
    pub fn give_back(&mut self, buffer: &mut BytesMut) {
        if !std::mem::take(&mut self.is_lent) {
            return;
        }
        let rest = BytesMut::from(&self.bytes[..]);
        *buffer = std::mem::replace(&mut self.bytes, rest);
        buffer.clear();
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_bytes_are_kept_in_a_small_buffer_of_their_own() {
        let mut buffer = BytesMut::with_capacity(1000);
        let mut outbox = Outbox::default();
        outbox.lend(&mut buffer);
        outbox.bytes_mut().extend_from_slice(b"hello");
        outbox.wrote(2);
        outbox.give_back(&mut buffer);
        assert_eq!(outbox.bytes(), b"llo");
        assert!(outbox.capacity() < 100);
        assert!(buffer.is_empty());
        // Not empty now: no buffer is borrowed.
        outbox.lend(&mut buffer);
        outbox.give_back(&mut buffer);
        outbox.wrote(3);
        assert_eq!(outbox.capacity(), 0);
        assert!(buffer.try_reclaim(990));
    }
}
