//! Server side of TLS: ciphertext in, plaintext out, and back.
//!
//! rustls decrypts records in place and keeps no bytes of its own. A connection between two records
//! holds no buffer; inside one, memory follows the bytes received, not the length a head promises.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
    WriteTraffic,
};
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig};

use super::Outbox;

/// Type, version and length in front of a record.
const HEAD_BYTES: usize = 5;
/// The longest record with its head: 16 KiB of plaintext, and the expansion of encryption (RFC
/// 8446, 5.2).
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES + 16 * 1024 + 256;
/// Limits of a client's records before its handshake is over: bytes in all, heads included, and
/// their number.
pub const HANDSHAKE_BYTES_MAX: usize = 16 * 1024;
pub const HANDSHAKE_RECORDS_MAX: usize = 16;

/// Reason why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("TLS failed: {0}")]
    Failed(#[from] rustls::Error),
    #[error("handshake larger than {HANDSHAKE_BYTES_MAX} bytes")]
    HandshakeTooLarge,
    #[error("handshake of more than {HANDSHAKE_RECORDS_MAX} records")]
    TooManyRecords,
    #[error("record or message larger than {RECORD_BYTES_MAX} bytes")]
    RecordTooLarge,
    /// TLS 1.2 cannot rekey a connection: after some million records it ends.
    #[error("this connection's keys are exhausted")]
    Exhausted,
    #[error("cannot send before the handshake is complete")]
    Handshaking,
    #[error("cannot send any more")]
    Closed,
}

/// Side that has to fix something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSide {
    Client,
    Server,
}

impl TlsError {
    pub const fn fault(&self) -> FaultSide {
        match self {
            TlsError::HandshakeTooLarge | TlsError::TooManyRecords | TlsError::RecordTooLarge => {
                FaultSide::Client
            }
            TlsError::Exhausted | TlsError::Handshaking | TlsError::Closed => FaultSide::Server,
            TlsError::Failed(
                rustls::Error::EncryptError
                | rustls::Error::General(_)
                | rustls::Error::FailedToGetCurrentTime
                | rustls::Error::FailedToGetRandomBytes
                | rustls::Error::BadMaxFragmentSize
                | rustls::Error::InconsistentKeys(_)
                | rustls::Error::Other(_),
            ) => FaultSide::Server,
            TlsError::Failed(_) => FaultSide::Client,
        }
    }
}

/// The server's end of one TLS connection. Holds memory only while bytes wait in it.
pub struct Tls {
    connection: Box<UnbufferedServerConnection>,
    /// An incomplete record, preceded by any part of a handshake message that came in earlier
    /// records.
    partial: Vec<u8>,
    /// Length of that prefix: rustls has read it, and wants to see it again.
    read_len: usize,
    /// Ciphertext that the socket has not taken.
    unwritten: Outbox,
    handshake_bytes: usize,
    handshake_records: u8,
    /// True once the client has sent its close.
    has_ended: bool,
    /// True once we have sent ours.
    has_closed: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    pub fn new(config: Arc<ServerConfig>) -> Result<Tls, TlsError> {
        Ok(Tls {
            connection: Box::new(UnbufferedServerConnection::new(config)?),
            partial: Vec::new(),
            read_len: 0,
            unwritten: Outbox::default(),
            handshake_bytes: 0,
            handshake_records: 0,
            has_ended: false,
            has_closed: false,
        })
    }

    /// Takes bytes from the socket and decrypts them in place. Plaintext is appended to `plain`,
    /// even if an error follows, and responses to `unwritten`. Bytes after an error, after `close`
    /// and after the client's end are ignored.
    pub fn receive(&mut self, bytes: &mut [u8], plain: &mut BytesMut) -> Result<(), TlsError> {
        let result = self.read_all(bytes, plain);
        if result.is_err() {
            self.fail();
        }
        if !self.is_reading() {
            self.partial = Vec::new();
            self.read_len = 0;
        }
        result
    }

    /// Encrypts everything into `unwritten`: the caller bounds it. Fails before the handshake is
    /// over.
    pub fn send(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        if self.has_closed {
            return Err(TlsError::Closed);
        }
        if self.is_handshaking() {
            return Err(TlsError::Handshaking);
        }
        let result = self.write(|traffic, room| traffic.encrypt(plain, room));
        if result.is_err() {
            self.fail();
        }
        result
    }

    /// Sends the close alert, once; without keys nothing can be sent.
    pub fn close(&mut self) {
        if !self.has_closed {
            let _ = self.write(|traffic, room| traffic.queue_close_notify(room));
            self.has_closed = true;
            self.partial = Vec::new();
            self.read_len = 0;
        }
    }

    /// True once the client has closed its side. A stream that ends without it was truncated.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The negotiated protocol, once known.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    pub fn version(&self) -> Option<ProtocolVersion> {
        self.connection.protocol_version()
    }

    /// Whether a ticket spared the full handshake.
    pub fn is_resumed(&self) -> bool {
        self.connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Bytes for the socket.
    pub fn unwritten(&self) -> &[u8] {
        self.unwritten.bytes()
    }

    /// Queue of the bytes for the socket.
    pub(super) fn outbox(&mut self) -> &mut Outbox {
        &mut self.unwritten
    }

    /// Notes that the socket took `count` bytes of `unwritten`.
    pub fn wrote(&mut self, count: usize) {
        self.unwritten.wrote(count);
    }

    /// Bytes held of a record that has not come whole.
    pub fn partial(&self) -> usize {
        self.partial.len()
    }

    fn is_reading(&self) -> bool {
        !self.has_ended && !self.has_closed
    }

    fn read_all(&mut self, bytes: &mut [u8], plain: &mut BytesMut) -> Result<(), TlsError> {
        let mut bytes = bytes;
        // Completes a record that was begun; those behind it are read in place.
        while self.is_reading() && !self.partial.is_empty() && !bytes.is_empty() {
            let count = missing_bytes(&self.partial[self.read_len..]).min(bytes.len());
            let (next, rest) = std::mem::take(&mut bytes).split_at_mut(count);
            bytes = rest;
            self.buffer_partial(next);
            let mut partial = std::mem::take(&mut self.partial);
            let consumed_bytes = self.read_records(&mut partial, plain)?;
            if consumed_bytes < partial.len() {
                partial.drain(..consumed_bytes);
                self.partial = partial;
            }
        }
        if self.is_reading() && !bytes.is_empty() {
            let consumed_bytes = self.read_records(bytes, plain)?;
            self.buffer_partial(&bytes[consumed_bytes..]);
        }
        Ok(())
    }

    /// Doubles the buffer as needed, but not beyond the longest record.
    fn buffer_partial(&mut self, bytes: &[u8]) {
        let len = self.partial.len() + bytes.len();
        if len > self.partial.capacity() {
            let double = self.partial.capacity() * 2;
            let capacity = double.min(RECORD_BYTES_MAX).max(len);
            self.partial.reserve_exact(capacity - self.partial.len());
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Reads the whole records of `bytes`, one by one, and returns the number of bytes consumed.
    fn read_records(&mut self, bytes: &mut [u8], plain: &mut BytesMut) -> Result<usize, TlsError> {
        let mut consumed_bytes = 0;
        while self.is_reading() {
            let bytes = &mut bytes[consumed_bytes..];
            let Some(record_bytes) = record_bytes(&bytes[self.read_len..]) else {
                break;
            };
            if let Err(error) = self.check(record_bytes) {
                // The head may not be that of a record at all: rustls's error says more.
                self.advance(&mut bytes[..self.read_len + HEAD_BYTES], plain)?;
                return Err(error);
            }
            let was_handshaking = self.is_handshaking();
            let end = self.read_len + record_bytes;
            let is_whole = end <= bytes.len();
            // rustls also sees partial records, so that it rejects a wrong head at once.
            let visible_end = end.min(bytes.len());
            let discard_count = self.advance(&mut bytes[..visible_end], plain)?;
            consumed_bytes += discard_count;
            self.read_len =
                if is_whole { end } else { self.read_len }.saturating_sub(discard_count);
            if !is_whole {
                break;
            }
            if was_handshaking {
                self.handshake_bytes += record_bytes;
                self.handshake_records += 1;
            }
        }
        Ok(consumed_bytes)
    }

    /// Checks the bounds of the next record by its head alone, so that an oversized one is not
    /// waited for.
    fn check(&self, record_bytes: usize) -> Result<(), TlsError> {
        if self.read_len + record_bytes > RECORD_BYTES_MAX {
            return Err(TlsError::RecordTooLarge);
        }
        if self.is_handshaking() {
            if usize::from(self.handshake_records) == HANDSHAKE_RECORDS_MAX {
                return Err(TlsError::TooManyRecords);
            }
            if self.handshake_bytes + record_bytes > HANDSHAKE_BYTES_MAX {
                return Err(TlsError::HandshakeTooLarge);
            }
        }
        Ok(())
    }

    /// Runs rustls over `bytes` as far as it gets, and returns the number of bytes it consumed.
    fn advance(&mut self, bytes: &mut [u8], plain: &mut BytesMut) -> Result<usize, TlsError> {
        let mut consumed_bytes = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } = self
                .connection
                .process_tls_records(&mut bytes[consumed_bytes..]);
            consumed_bytes += discard;
            match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        plain.extend_from_slice(record?.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    put(self.unwritten.bytes_mut(), |room| data.encode(room))?;
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::PeerClosed | ConnectionState::Closed => {
                    self.has_ended = true;
                    return Ok(consumed_bytes);
                }
                // Early data is never negotiated, and no other state advances by itself.
                _ => return Ok(consumed_bytes),
            }
        }
    }

    fn write(
        &mut self,
        encrypt: impl Fn(
            &mut WriteTraffic<'_, ServerConnectionData>,
            &mut [u8],
        ) -> Result<usize, EncryptError>,
    ) -> Result<(), TlsError> {
        // No record in `partial` is whole: rustls reads nothing, but expects to see it.
        let status = self.connection.process_tls_records(&mut self.partial);
        match status.state? {
            ConnectionState::WriteTraffic(mut traffic) => put(self.unwritten.bytes_mut(), |room| {
                encrypt(&mut traffic, room)
            }),
            _ => Err(TlsError::Handshaking),
        }
    }

    /// Collects the alert that rustls may have for the client.
    fn fail(&mut self) {
        self.has_closed = true;
        // While rustls has output it reads nothing; so it needs no input.
        while self.connection.wants_write() {
            let status = self.connection.process_tls_records(&mut []);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state else {
                return;
            };
            if put(self.unwritten.bytes_mut(), |room| data.encode(room)).is_err() {
                return;
            }
        }
    }
}

/// Length of the record at the front, head included, once its head is complete.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    Some(HEAD_BYTES + usize::from(u16::from_be_bytes([head[3], head[4]])))
}

/// Bytes missing to the end of the head, or behind it to the end of the record.
fn missing_bytes(bytes: &[u8]) -> usize {
    record_bytes(bytes).unwrap_or(HEAD_BYTES) - bytes.len()
}

/// Appends the output of `encode`, which is asked for its length first.
fn put<E: Into<Shortage>>(
    unwritten: &mut BytesMut,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), TlsError> {
    let start = unwritten.len();
    let mut result = encode(&mut []);
    for _ in 0..2 {
        match result.map_err(E::into) {
            Ok(count) => {
                unwritten.truncate(start + count);
                return Ok(());
            }
            Err(Shortage::Room(room)) => {
                unwritten.resize(start + room, 0);
                result = encode(&mut unwritten[start..]);
            }
            Err(Shortage::Keys) => break,
        }
    }
    unwritten.truncate(start);
    Err(TlsError::Exhausted)
}

/// Reasons why rustls did not write.
enum Shortage {
    Room(usize),
    Keys,
}

impl From<EncodeError> for Shortage {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Shortage::Room(required_size)
            }
            EncodeError::AlreadyEncoded => Shortage::Keys,
        }
    }
}

impl From<EncryptError> for Shortage {
    fn from(error: EncryptError) -> Self {
        match error {
            EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => {
                Shortage::Room(required_size)
            }
            EncryptError::EncryptExhausted => Shortage::Keys,
        }
    }
}
