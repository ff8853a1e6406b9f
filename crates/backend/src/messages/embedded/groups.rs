//! Messages of groups.
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

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Version};
use protocol::message::Content;
use protocol::message_row::{MessageRow, Owner};
use protocol::reading::OwnRange;
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{
    ConversationId, DeviceId, GroupId, Message, MessageId, Options, Placed, Position, Recipient,
    SendId, Seq, Timestamp, UserId,
};
use serde::{Deserialize, Serialize};

use crate::embedded::messages::{self, reversed};
use crate::embedded::value::{decode, decode_front, encode, encode_sized};
use crate::embedded::{Engine, ScanOrder as Scan, Table, WriteBatch};
use crate::messages::SEAM;
use crate::messages::owners::GroupMessage;
use crate::{Error, Result};

/// Keys per read of a count.
const SCAN: usize = 1024;

pub(super) struct GroupTables {
    engine: Engine,
    /// Held from the read of stored versions to their replacement, never across an await.
    write_lock: Mutex<()>,
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

impl GroupTables {
    pub(super) fn new(engine: Engine) -> GroupTables {
        GroupTables {
            engine,
            write_lock: Mutex::new(()),
        }
    }

    /// Adds a row to the batch, with its index entries, unless a later version is stored.
    fn put(
        &self,
        batch: &mut WriteBatch,
        GroupMessage { group, row }: &GroupMessage,
    ) -> Result<()> {
        let message = &row.placed.message;
        let key = row_key(*group, message.id);
        let stored_version = self.engine.get(Table::Group, &key)?;
        let stored_version = stored_version.as_deref().map(version).transpose()?;
        if stored_version > Some(row.version) {
            return Ok(());
        }
        let value = encode_sized(SEAM, &stored_message(row), message.content.data.len() + 128)?;
        batch.put(Table::Group, key.to_vec(), value);
        let send_row = send_key(message.send_id, message.from, *group, message.id);
        batch.put(Table::GroupSend, send_row, Bytes::new());
        let key = index_key(*group, row.seq());
        let stored_version = self.engine.get(Table::GroupIndex, &key)?;
        let stored_version = stored_version.as_deref().map(version).transpose()?;
        if stored_version <= Some(row.version) {
            let position = IndexEntry {
                version: row.version,
                id: message.id,
            };
            batch.put(Table::GroupIndex, key.to_vec(), encode(SEAM, &position)?);
            let own = own_key(*group, message.from, row.seq());
            batch.put(Table::GroupOwn, own.to_vec(), encode(SEAM, &message.id)?);
        }
        Ok(())
    }

    pub(super) fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<MessageRow>>> {
        let row_keys: Vec<_> = keys.iter().map(|&(group, id)| row_key(group, id)).collect();
        let values = self.engine.multi_get(Table::Group, &row_keys)?;
        let rows = keys.iter().zip(values);
        rows.map(|(&(group, id), value)| value.map(|value| row(group, id, &value)).transpose())
            .collect()
    }

    fn ids_at(&self, places: &[(GroupId, Seq)]) -> Result<Vec<Option<MessageId>>> {
        let keys = places.iter().map(|&(group, seq)| index_key(group, seq));
        let keys: Vec<_> = keys.collect();
        let values = self.engine.multi_get(Table::GroupIndex, &keys)?.into_iter();
        values
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
        let entries = self.engine.range(Table::GroupIndex, bounds, order, limit)?;
        let mut positions = Vec::with_capacity(entries.len());
        for (key, value) in &entries {
            let seq = parse_seq(key.get(8..).unwrap_or_default())?;
            if last.is_some_and(|last: Seq| last.0.abs_diff(seq.0) != 1) {
                break;
            }
            last = Some(seq);
            positions.push((seq, id_at(value)?));
        }
        if positions.is_empty() && !entries.is_empty() {
            let text = format!("group {group}: no row in {range:?}, but later ones exist");
            return Err(Error::corrupt(SEAM, text));
        }
        Ok(positions)
    }

    pub(super) fn save(&self, mut messages: Vec<GroupMessage>) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        messages.sort_by_key(|message| message.row.version);
        let _write_guard = self.write_lock.lock();
        let mut batch = WriteBatch::new();
        for message in &messages {
            self.put(&mut batch, message)?;
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    /// Rows by id.
    pub(super) fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let (table, number) = (Table::Group, group.get());
        messages::find(SEAM, &self.engine, table, number, range, order, limit)?
            .into_iter()
            .map(|(id, value)| row(group, id, &value))
            .collect()
    }

    /// Conversation by position.
    pub(super) fn page(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let positions = self.positions(group, range, limit)?;
        let keys: Vec<_> = positions.iter().map(|&(_, id)| (group, id)).collect();
        let rows = positions.iter().zip(self.rows(&keys)?);
        rows.map(|(&(seq, id), row)| {
            row.filter(|row| row.seq() == seq).ok_or_else(|| {
                let text =
                    format!("group {group}: position {seq} refers to {id}, which is missing");
                Error::corrupt(SEAM, text)
            })
        })
        .collect()
    }

    /// Ids at these positions, each with its position as a tally.
    pub(super) fn at(&self, places: &[(GroupId, Seq)]) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let ids = places.iter().zip(self.ids_at(places)?);
        let tally = |seq| Tally { seq, incoming: 0 };
        Ok(ids.map(|(&(_, seq), id)| Some((id?, tally(seq)))).collect())
    }

    pub(super) fn find_sends(
        &self,
        sends: &[(SendKey, GroupId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        let first = |&(key, group): &(SendKey, GroupId)| self.find_send(&key, group);
        sends.iter().map(first).collect()
    }

    fn find_send(&self, key: &SendKey, group: GroupId) -> Result<Option<MessageRow>> {
        let first = send_key(key.send_id, key.from, group, key.min_id);
        let end = [&first[..SEND_PREFIX_LEN], &[u8::MAX; 8]].concat();
        let entries =
            self.engine
                .range(Table::GroupSend, &first[..]..&end[..], Scan::Forward, 16)?;
        let ids = entries
            .iter()
            .map(|(key, _)| id_of(&key[SEND_PREFIX_LEN..]));
        let keys = ids.map(|id| Ok((group, id?))).collect::<Result<Vec<_>>>()?;
        let rows = self.rows(&keys)?.into_iter().flatten();
        let mut matches = rows.filter(|row| {
            let message = &row.placed.message;
            (message.from, message.send_id) == (key.from, key.send_id)
        });
        Ok(matches.next())
    }

    pub(super) fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        let prefix = reversed(send_id);
        let entries = self
            .engine
            .prefix(Table::GroupSend, &prefix, Scan::Forward, 256)?;
        let parse = |key: &Bytes| {
            let (from, id) = key.get(16..24).zip(key.get(SEND_PREFIX_LEN..))?;
            let from = i64::from_be_bytes(from.try_into().ok()?);
            Some((UserId::new(from).ok()?, id_of(id).ok()?))
        };
        let torn = || Error::corrupt(SEAM, "a key names no sender");
        let keys = entries.iter();
        keys.map(|(key, _)| parse(key).ok_or_else(torn)).collect()
    }

    pub(super) fn own_between(&self, user: UserId, range: &OwnRange) -> Result<u64> {
        let group = range.group;
        let mut from = own_key(group, user, range.base);
        let end = own_key(group, user, range.last);
        let mut count = 0;
        loop {
            let bounds = (Bound::Excluded(&from[..]), Bound::Included(&end[..]));
            let entries = self
                .engine
                .range(Table::GroupOwn, bounds, Scan::Forward, SCAN)?;
            let own = entries.iter().map(|(key, value)| {
                let seq = parse_seq(key.get(16..).unwrap_or_default())?;
                Ok(((group, seq), decode::<MessageId>(SEAM, value)?))
            });
            let (places, ids): (Vec<_>, Vec<_>) =
                own.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            let current_ids = self.ids_at(&places)?;
            let pairs = ids.into_iter().zip(current_ids);
            count += pairs.filter(|(id, current)| *current == Some(*id)).count() as u64;
            match places.last() {
                Some((_, seq)) if entries.len() == SCAN => from = own_key(group, user, *seq),
                _ => return Ok(count),
            }
        }
    }

    pub(super) fn delete(&self, keys: &[(GroupId, MessageId)]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for &(group, id) in keys {
            let key = row_key(group, id).to_vec();
            batch.put(Table::GroupStatus, key, encode(SEAM, &true)?);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    pub(super) fn deleted(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<bool>> {
        let keys: Vec<_> = keys.iter().map(|&(group, id)| row_key(group, id)).collect();
        let values = self
            .engine
            .multi_get(Table::GroupStatus, &keys)?
            .into_iter();
        values
            .map(|value| value.map_or(Ok(false), |value| decode(SEAM, &value)))
            .collect()
    }
}

fn stored_message(row: &MessageRow) -> StoredMessage<'_> {
    let Placed {
        message, position, ..
    } = &row.placed;
    StoredMessage {
        version: row.version,
        from: message.from,
        accepted_at: message.accepted_at,
        seq: position.seq,
        prev: position.prev,
        send_id: message.send_id,
        device: Cow::Borrowed(&message.device),
        options: message.options,
        content: Cow::Borrowed(&message.content),
    }
}

fn row(group: GroupId, id: MessageId, value: &Bytes) -> Result<MessageRow> {
    let message: StoredMessage<'_> = decode(SEAM, value)?;
    Ok(MessageRow {
        owner: Owner::Group(group),
        placed: Placed {
            conversation: ConversationId::Group(group),
            position: Position {
                seq: message.seq,
                prev: message.prev,
            },
            message: Message {
                id,
                from: message.from,
                to: Recipient::Group(group),
                accepted_at: message.accepted_at,
                device: message.device.into_owned(),
                send_id: message.send_id,
                options: message.options,
                content: message.content.into_owned(),
            },
        },
        version: message.version,
        side: None,
    })
}

/// Reads the version, the first field of a row and of an index entry.
fn version(value: &[u8]) -> Result<Version> {
    decode_front(SEAM, value).map(|(version, _)| version)
}

fn id_at(value: &[u8]) -> Result<MessageId> {
    decode(SEAM, value).map(|entry: IndexEntry| entry.id)
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
const SEND_PREFIX_LEN: usize = 32;

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

fn parse_seq(bytes: &[u8]) -> Result<Seq> {
    let bytes = bytes.try_into();
    let seq = bytes.map(|bytes| Seq(u64::from_be_bytes(bytes)));
    seq.map_err(|_| Error::corrupt(SEAM, "a key holds no position"))
}

fn id_of(bytes: &[u8]) -> Result<MessageId> {
    messages::id_of(SEAM, bytes)
}
