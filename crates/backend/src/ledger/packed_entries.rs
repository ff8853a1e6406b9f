//! Entries of one call about one message, in the encoding of every backend: times are distances
//! from the message's own.

use bytes::Bytes;
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::message::Target;
use protocol::{MessageId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::embedded::value::{decode, encode};

/// Entry within a row; the key names the message.
#[derive(Serialize)]
struct PackedEntry<'a> {
    after_millis: i64,
    target: Option<Target>,
    event: &'a LedgerEvent,
}

#[derive(Deserialize)]
struct StoredRow {
    after_millis: i64,
    target: Option<Target>,
    event: LedgerEvent,
}

/// Encodes entries of one message.
pub(super) fn to_bytes(
    seam: &'static str,
    message: MessageId,
    entries: &[&LedgerEntry],
) -> Result<Bytes> {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| PackedEntry {
            after_millis: entry.at.millis() - message.timestamp().millis(),
            target: entry.target,
            event: &entry.event,
        })
        .collect();
    encode(seam, &rows)
}

pub(super) fn from_bytes(
    seam: &'static str,
    message: MessageId,
    bytes: &[u8],
) -> Result<impl Iterator<Item = LedgerEntry>> {
    let rows: Vec<StoredRow> = decode(seam, bytes)?;
    Ok(rows.into_iter().map(move |row| LedgerEntry {
        message,
        at: Timestamp::from_millis(message.timestamp().millis() + row.after_millis),
        target: row.target,
        event: row.event,
    }))
}
