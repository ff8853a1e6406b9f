//! Messages of groups in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `group` | group, id | the row: one range of a group is its messages in order of id |
//! | `group-index` | group, seq | version, id |
//! | `group-own` | group, sender, seq | id: counts if the index has the same one |
//! | `group-send` | send_id from its end, sender, group, id | |
//! | `group-status` | group, id | present if the message is deleted |

use std::borrow::Cow;
use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::frame::HistoryRange;
use protocol::group::GroupRow;
use protocol::history::{IdRange, Order, Version};
use protocol::message::Content;
use protocol::{DeviceId, GroupId, MessageId, Options, SendId, Seq, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::GroupHistoryStore;
use crate::embedded::messages::{self, reversed};
use crate::embedded::value::{decode, decode_front, encode, encode_sized};
use crate::embedded::{Engine, ScanOrder as Scan, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "group history";

/// Keys per read of a count.
const SCAN: usize = 1024;

/// Messages of groups in the embedded store.
pub struct EmbeddedGroupHistory {
    engine: Engine,
    /// Held from the read of stored versions to their replacement, never across an await.
    writing: Mutex<()>,
}

/// Stored row, without the fields of its key. The version comes first, so that it can be decoded
/// alone.
#[derive(Serialize, Deserialize)]
struct StoredMessage<'a> {
    version: Version,
    from: UserId,
    accepted_at: Timestamp,
    seq: Seq,
    prev: Option<MessageId>,
    send_id: SendId,
    device: Cow<'a, DeviceId>,
    options: Options,
    content: Cow<'a, Content>,
}

/// Entry of the index: the message at a position, and the version that put it there.
#[derive(Serialize, Deserialize)]
struct IndexEntry {
    version: Version,
    id: MessageId,
}

impl EmbeddedGroupHistory {
    pub fn new(engine: Engine) -> EmbeddedGroupHistory {
        EmbeddedGroupHistory {
            engine,
            writing: Mutex::new(()),
        }
    }

    /// Adds a row to the batch, with its index entries, unless a later version is stored.
    fn put(&self, batch: &mut WriteBatch, row: &GroupRow) -> Result<()> {
        let key = row_key(row.group, row.id);
        let standing = self.engine.get(Table::Group, &key)?;
        let standing = standing.as_deref().map(version).transpose()?;
        if standing > Some(row.version) {
            return Ok(());
        }
        let value = encode_sized(SEAM, &kept(row), row.content.data.len() + 128)?;
        batch.put(Table::Group, key.to_vec(), value);
        let sent = send_key(row.send_id, row.from, row.group, row.id);
        batch.put(Table::GroupSend, sent, Bytes::new());
        let key = index_key(row.group, row.seq);
        let standing = self.engine.get(Table::GroupIndex, &key)?;
        let standing = standing.as_deref().map(version).transpose()?;
        if standing <= Some(row.version) {
            let position = IndexEntry {
                version: row.version,
                id: row.id,
            };
            batch.put(Table::GroupIndex, key.to_vec(), encode(SEAM, &position)?);
            let own = own_key(row.group, row.from, row.seq);
            batch.put(Table::GroupOwn, own.to_vec(), encode(SEAM, &row.id)?);
        }
        Ok(())
    }

    fn of_keys(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        let row_keys: Vec<_> = keys.iter().map(|&(group, id)| row_key(group, id)).collect();
        let found = self.engine.multi_get(Table::Group, &row_keys)?;
        let rows = keys.iter().zip(found);
        rows.map(|(&(group, id), value)| value.map(|value| row(group, id, &value)).transpose())
            .collect()
    }

    fn standing(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        let keys: Vec<_> = seqs.iter().map(|&seq| index_key(group, seq)).collect();
        let found = self.engine.multi_get(Table::GroupIndex, &keys)?.into_iter();
        found
            .map(|value| value.map(|value| id_at(&value)).transpose())
            .collect()
    }

    /// Consecutive positions, in the order of `range`; `Corrupt` if a hole comes first.
    fn positions(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<(Seq, MessageId)>> {
        let key = |seq| index_key(group, seq);
        let (start, end, order, mut last) = match range {
            HistoryRange::Forward { after } => {
                let end = key(Seq(u64::MAX));
                (key(after), end, Scan::Forward, Some(after))
            }
            HistoryRange::Backward { before } => {
                let end = key(before.unwrap_or(Seq(u64::MAX)));
                (key(Seq::ZERO), end, Scan::Backward, None)
            }
        };
        let bounds = (Bound::Excluded(&start[..]), Bound::Excluded(&end[..]));
        let found = self.engine.range(Table::GroupIndex, bounds, order, limit)?;
        let mut positions = Vec::with_capacity(found.len());
        for (key, value) in &found {
            let seq = seq_of(key.get(8..).unwrap_or_default())?;
            if last.is_some_and(|last: Seq| last.0.abs_diff(seq.0) != 1) {
                break;
            }
            last = Some(seq);
            positions.push((seq, id_at(value)?));
        }
        if positions.is_empty() && !found.is_empty() {
            let text = format!("group {group}: no row follows {range:?}, but later ones are there");
            return Err(Error::corrupt(SEAM, text));
        }
        Ok(positions)
    }
}

#[async_trait]
impl GroupHistoryStore for EmbeddedGroupHistory {
    async fn save(&self, mut rows: Vec<GroupRow>) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        rows.sort_by_key(|row| row.version);
        let _writing = self.writing.lock();
        let mut batch = WriteBatch::new();
        for row in &rows {
            self.put(&mut batch, row)?;
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        self.of_keys(keys)
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let (table, number) = (Table::Group, group.get());
        messages::find(SEAM, &self.engine, table, number, range, order, limit)?
            .into_iter()
            .map(|(id, value)| row(group, id, &value))
            .collect()
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let positions = self.positions(group, range, limit)?;
        let keys: Vec<_> = positions.iter().map(|&(_, id)| (group, id)).collect();
        let rows = positions.iter().zip(self.of_keys(&keys)?);
        rows.map(|(&(seq, id), row)| {
            row.filter(|row| row.seq == seq).ok_or_else(|| {
                let text = format!("group {group}: position {seq} names {id}, which is not there");
                Error::corrupt(SEAM, text)
            })
        })
        .collect()
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        self.standing(group, seqs)
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>> {
        let first = send_key(send_id, from, group, since);
        let end = [&first[..SENT_TO], &[u8::MAX; 8]].concat();
        let found = self
            .engine
            .range(Table::GroupSend, &first[..]..&end[..], Scan::Forward, 16)?;
        let ids = found.iter().map(|(key, _)| id_of(&key[SENT_TO..]));
        let keys = ids.map(|id| Ok((group, id?))).collect::<Result<Vec<_>>>()?;
        let rows = self.of_keys(&keys)?.into_iter().flatten();
        let mut mine = rows.filter(|row| row.from == from && row.send_id == send_id);
        Ok(mine.next())
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        let prefix = reversed(send_id);
        let found = self
            .engine
            .prefix(Table::GroupSend, &prefix, Scan::Forward, 256)?;
        let sent = |key: &Bytes| {
            let (from, id) = key.get(16..24).zip(key.get(SENT_TO..))?;
            let from = i64::from_be_bytes(from.try_into().ok()?);
            Some((UserId::new(from).ok()?, id_of(id).ok()?))
        };
        let torn = || Error::corrupt(SEAM, "a key names no sender");
        let keys = found.iter();
        keys.map(|(key, _)| sent(key).ok_or_else(torn)).collect()
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> Result<u64> {
        let (mut from, end) = (own_key(group, user, after), own_key(group, user, last));
        let mut count = 0;
        loop {
            let bounds = (Bound::Excluded(&from[..]), Bound::Included(&end[..]));
            let found = self
                .engine
                .range(Table::GroupOwn, bounds, Scan::Forward, SCAN)?;
            let own = found.iter().map(|(key, value)| {
                let seq = seq_of(key.get(16..).unwrap_or_default())?;
                Ok((seq, decode::<MessageId>(SEAM, value)?))
            });
            let own = own.collect::<Result<Vec<_>>>()?;
            let seqs: Vec<Seq> = own.iter().map(|(seq, _)| *seq).collect();
            let standing = self.standing(group, &seqs)?;
            let pairs = own.iter().zip(standing);
            count += pairs.filter(|((_, id), there)| *there == Some(*id)).count() as u64;
            match seqs.last() {
                Some(seq) if found.len() == SCAN => from = own_key(group, user, *seq),
                _ => return Ok(count),
            }
        }
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for &id in ids {
            let key = row_key(group, id).to_vec();
            batch.put(Table::GroupStatus, key, encode(SEAM, &true)?);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>> {
        let keys: Vec<_> = ids.iter().map(|&id| row_key(group, id)).collect();
        let found = self
            .engine
            .multi_get(Table::GroupStatus, &keys)?
            .into_iter();
        found
            .map(|value| value.map_or(Ok(false), |value| decode(SEAM, &value)))
            .collect()
    }
}

fn kept(row: &GroupRow) -> StoredMessage<'_> {
    StoredMessage {
        version: row.version,
        from: row.from,
        accepted_at: row.accepted_at,
        seq: row.seq,
        prev: row.prev,
        send_id: row.send_id,
        device: Cow::Borrowed(&row.device),
        options: row.options,
        content: Cow::Borrowed(&row.content),
    }
}

fn row(group: GroupId, id: MessageId, value: &Bytes) -> Result<GroupRow> {
    let kept: StoredMessage<'_> = decode(SEAM, value)?;
    Ok(GroupRow {
        group,
        from: kept.from,
        id,
        accepted_at: kept.accepted_at,
        seq: kept.seq,
        prev: kept.prev,
        send_id: kept.send_id,
        device: kept.device.into_owned(),
        options: kept.options,
        content: kept.content.into_owned(),
        version: kept.version,
    })
}

/// Reads the version, the first field of a row and of an index entry.
fn version(value: &[u8]) -> Result<Version> {
    decode_front(SEAM, value).map(|(version, _)| version)
}

fn id_at(value: &[u8]) -> Result<MessageId> {
    decode(SEAM, value).map(|standing: IndexEntry| standing.id)
}

fn row_key(group: GroupId, id: MessageId) -> [u8; 16] {
    messages::key(group.get(), id.get() as u64)
}

fn index_key(group: GroupId, seq: Seq) -> [u8; 16] {
    messages::key(group.get(), seq.0)
}

fn own_key(group: GroupId, user: UserId, seq: Seq) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&messages::key(group.get(), user.get() as u64));
    key[16..].copy_from_slice(&seq.0.to_be_bytes());
    key
}

/// Length of a send's key up to the id.
const SENT_TO: usize = 32;

fn send_key(send_id: SendId, from: UserId, group: GroupId, id: MessageId) -> Vec<u8> {
    let (from, group) = (from.get().to_be_bytes(), group.get().to_be_bytes());
    [
        &reversed(send_id)[..],
        &from,
        &group,
        &id.get().to_be_bytes(),
    ]
    .concat()
}

fn seq_of(bytes: &[u8]) -> Result<Seq> {
    let bytes = bytes.try_into();
    let seq = bytes.map(|bytes| Seq(u64::from_be_bytes(bytes)));
    seq.map_err(|_| Error::corrupt(SEAM, "a key holds no position"))
}

fn id_of(bytes: &[u8]) -> Result<MessageId> {
    messages::id_of(SEAM, bytes)
}

#[cfg(test)]
mod tests;
