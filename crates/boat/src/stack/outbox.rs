//! Bytes that the socket has not taken.

use bytes::{Buf, BytesMut};

/// Queue of bytes for a socket. Memory of its own holds only what the socket leaves: a turn fills a buffer that is lent.
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

    /// The socket has taken so many bytes.
    pub fn wrote(&mut self, count: usize) {
        self.bytes.advance(count);
        if self.bytes.is_empty() && !self.is_lent {
            self.bytes = BytesMut::new();
        }
    }

    /// Forgets what it has.
    pub fn clear(&mut self) {
        self.wrote(self.len());
    }

    /// Takes `buffer` for what comes, where nothing waits.
    pub fn lend(&mut self, buffer: &mut BytesMut) {
        if self.bytes.is_empty() && !self.is_lent {
            std::mem::swap(&mut self.bytes, buffer);
            self.is_lent = true;
        }
    }

    /// Gives back what was lent, and keeps a copy of what the socket has left.
    pub fn give_back(&mut self, buffer: &mut BytesMut) {
        if !std::mem::take(&mut self.is_lent) {
            return;
        }
        let left = BytesMut::from(&self.bytes[..]);
        *buffer = std::mem::replace(&mut self.bytes, left);
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
    fn what_is_left_has_memory_of_its_own_and_no_more() {
        let mut buffer = BytesMut::with_capacity(1000);
        let mut outbox = Outbox::default();
        outbox.lend(&mut buffer);
        outbox.bytes_mut().extend_from_slice(b"hello");
        outbox.wrote(2);
        outbox.give_back(&mut buffer);
        assert_eq!(outbox.bytes(), b"llo");
        assert!(outbox.capacity() < 100);
        assert!(buffer.is_empty());
        // Now it has something: nothing is lent.
        outbox.lend(&mut buffer);
        outbox.give_back(&mut buffer);
        outbox.wrote(3);
        assert_eq!(outbox.capacity(), 0);
        assert!(buffer.try_reclaim(990));
    }
}
