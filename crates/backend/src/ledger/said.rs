//! What one call says of one message, as every backend keeps it: times are kept as distances from the
//! message's own.

use bytes::Bytes;
use protocol::ledger::{Event, LedgerEntry};
use protocol::message::Target;
use protocol::{MessageId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::embedded::value::{decode, encode};

/// An entry of a row, of a message that the key names.
#[derive(Serialize)]
struct Said<'a> {
    after_millis: i64,
    target: Option<Target>,
    event: &'a Event,
}

#[derive(Deserialize)]
struct Kept {
    after_millis: i64,
    target: Option<Target>,
    event: Event,
}

/// Entries of one message.
pub(super) fn to_bytes(
    seam: &'static str,
    message: MessageId,
    entries: &[&LedgerEntry],
) -> Result<Bytes> {
    let said: Vec<_> = entries
        .iter()
        .map(|entry| Said {
            after_millis: entry.at.millis() - message.timestamp().millis(),
            target: entry.target,
            event: &entry.event,
        })
        .collect();
    encode(seam, &said)
}

pub(super) fn from_bytes(
    seam: &'static str,
    message: MessageId,
    bytes: &[u8],
) -> Result<impl Iterator<Item = LedgerEntry>> {
    let kept: Vec<Kept> = decode(seam, bytes)?;
    Ok(kept.into_iter().map(move |kept| LedgerEntry {
        message,
        at: Timestamp::from_millis(message.timestamp().millis() + kept.after_millis),
        target: kept.target,
        event: kept.event,
    }))
}
