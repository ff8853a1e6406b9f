//! Conversion of records to and from Kafka's form.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use protocol::Timestamp;
use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Header, Headers, OwnedHeaders};

use super::SEAM;
use super::layout::Layout;
use crate::queue::{NewRecord, Record};
use crate::{Error, Result};

/// Upper bound on the wire overhead of a record; a header has half of it.
const OVERHEAD: usize = 64;

/// Bytes that a record counts for.
pub(super) fn wire_size(record: &NewRecord) -> usize {
    let headers = record.headers.iter();
    let headers = headers.map(|(name, value)| name.len() + value.len() + OVERHEAD / 2);
    OVERHEAD + record.key.len() + record.value.len() + headers.sum::<usize>()
}

/// Refuses (`Conflict`) a record that Kafka could not return unchanged.
pub(super) fn check(record: &NewRecord, bytes_max: usize) -> Result<()> {
    let size = wire_size(record);
    if size > bytes_max {
        return Err(Error::conflict(
            SEAM,
            format!("a record of {size} bytes; at most {bytes_max} fit"),
        ));
    }
    if record.headers.iter().any(|(name, _)| name.contains('\0')) {
        return Err(Error::conflict(SEAM, "a header's name holds a zero byte"));
    }
    Ok(())
}

pub(super) fn owned_headers(record: &NewRecord) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let headers = OwnedHeaders::new_with_capacity(record.headers.len());
    Some(
        record
            .headers
            .iter()
            .fold(headers, |headers, (key, value)| {
                // An empty value is written as empty, not as null.
                let value = Some(value.as_ref());
                headers.insert(Header { key, value })
            }),
    )
}

/// Converts a record; `None` for a topic that is not ours. Null keys, values and headers, which
/// other tools may write, read as empty.
pub(super) fn read(message: &BorrowedMessage<'_>, layout: &Layout) -> Option<Record> {
    let bytes = |part: Option<&[u8]>| part.map_or_else(Bytes::new, Bytes::copy_from_slice);
    Some(Record {
        partition: layout.partition(message.topic(), message.partition())?,
        offset: u64::try_from(message.offset()).ok()?,
        appended_at: Timestamp::from_millis(message.timestamp().to_millis().unwrap_or_default()),
        key: bytes(message.key()),
        headers: read_headers(message),
        value: bytes(message.payload()),
    })
}

fn read_headers(message: &BorrowedMessage<'_>) -> Vec<(String, Bytes)> {
    let Some(headers) = message.headers() else {
        return Vec::new();
    };
    let read = || {
        let headers = headers.iter().map(|header| {
            let value = header.value.unwrap_or_default();
            (header.key.to_owned(), Bytes::copy_from_slice(value))
        });
        headers.collect()
    };
    // The client library panics on a header name that is not UTF-8. We never write one, and another
    // writer must not stop the partition: such a record loses its headers.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_default()
}
