//! Tables of messages: keys of an owner and a number, big-endian.

use std::ops::Bound;

use bytes::Bytes;
use protocol::history::{IdRange, Order};
use protocol::{MessageId, SendId};

use super::{Engine, ScanOrder as Scan, Table};
use crate::{Error, Result};

pub(crate) fn key(owner: i64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&owner.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Rows of an owner in this table by id, at most `limit`.
pub(crate) fn find(
    seam: &'static str,
    engine: &Engine,
    table: Table,
    owner: i64,
    range: IdRange,
    order: Order,
    limit: usize,
) -> Result<Vec<(MessageId, Bytes)>> {
    let to_key = |id: MessageId| key(owner, id.get() as u64);
    let (lower, upper) = (range.after_id.map(to_key), range.before_id.map(to_key));
    let first = owner.to_be_bytes();
    let end = (owner as u64 + 1).to_be_bytes();
    let start = match &lower {
        Some(key) => Bound::Excluded(&key[..]),
        None => Bound::Included(&first[..]),
    };
    let end = Bound::Excluded(upper.as_ref().map_or(&end[..], |key| &key[..]));
    let rows = engine.range(table, (start, end), scan(order), limit)?;
    let rows = rows.into_iter();
    rows.map(|(key, value)| Ok((id_of(seam, key.get(8..).unwrap_or_default())?, value)))
        .collect()
}

pub(crate) fn scan(order: Order) -> Scan {
    match order {
        Order::Forward => Scan::Forward,
        Order::Backward => Scan::Backward,
    }
}

/// Reverses a send_id: most kinds of UUID differ at the end, so that few bytes tell two of them
/// apart.
pub(crate) fn reversed(send_id: SendId) -> [u8; 16] {
    let mut bytes = *send_id.as_bytes();
    bytes.reverse();
    bytes
}

pub(crate) fn id_of(seam: &'static str, bytes: &[u8]) -> Result<MessageId> {
    bytes
        .try_into()
        .ok()
        .and_then(|bytes| MessageId::new(i64::from_be_bytes(bytes)).ok())
        .ok_or_else(|| Error::corrupt(seam, "a key holds no message id"))
}
