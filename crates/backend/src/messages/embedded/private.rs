//! Users' copies of private messages.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `private` | owner, id | the row: one range of an owner is all its messages in order of id |
//! | `private-index` | both users, seq | id, the same for both sides |
//! | `private-send` | send_id from its end, sender | id |
//! | `private-status` | owner, id | registers |
//!
//! Keys of at most 20 bytes lie in the store's index itself: comparing two of them touches no other
//! memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::frame::HistoryRange;
use protocol::history::{Direction, IdRange, Order, RowStatus, Version};
use protocol::message::Content;
use protocol::message_row::{CopySide, MessageRow, Owner, StoredPlace};
use protocol::receipt::StatusWrite;
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Options, Placed, Position, Recipient, SendId,
    Seq, Timestamp, UserId,
};
use serde::{Deserialize, Serialize};

use crate::embedded::aging_map::AgingMap;
use crate::embedded::messages::{self, reversed, scan};
use crate::embedded::value::{decode, decode_front, encode, encode_sized};
use crate::embedded::{Engine, ScanOrder as Scan, Table, WriteBatch};
use crate::messages::SEAM;
use crate::messages::owners::UserCopy;
use crate::{Error, Result};

/// Rows per read of a search that continues until it finds something.
const SCAN: usize = 256;

pub(super) struct PrivateTables {
    engine: Engine,
    /// Newest version among each conversation's rows; a row of a later version needs no comparison.
    /// Held from the read of a version or register to its write, never across an await.
    newest_versions: Mutex<AgingMap<ConversationId, Option<Version>>>,
    /// Places of the newest incoming rows: acknowledged messages were written a moment ago.
    places: Mutex<AgingMap<(UserId, MessageId), StoredPlace>>,
}

/// Stored row, without the fields of its key. The version comes first, so that it can be decoded
/// alone.
#[derive(Serialize, Deserialize)]
struct StoredMessage<'a> {
    version: Version,
    peer: UserId,
    direction: Direction,
    accepted_at: Timestamp,
    seq: Seq,
    incoming: u64,
    prev: Option<MessageId>,
    send_id: SendId,
    device: Cow<'a, DeviceId>,
    options: Options,
    content: Cow<'a, Content>,
}

impl PrivateTables {
    pub(super) fn new(engine: Engine) -> PrivateTables {
        PrivateTables {
            engine,
            newest_versions: Mutex::default(),
            places: Mutex::default(),
        }
    }

    pub(super) fn rows(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<MessageRow>>> {
        let row_keys: Vec<_> = keys.iter().map(|&(owner, id)| row_key(owner, id)).collect();
        let values = self.engine.multi_get(Table::Private, &row_keys)?;
        keys.iter()
            .zip(values)
            .map(|(&(owner, id), value)| value.map(|value| row(owner, id, &value)).transpose())
            .collect()
    }

    /// Reads rows that probably lie together, like those of a page: a single scan of their range,
    /// then lookups for rows beyond its reach because of the owner's other messages in between.
    fn near(&self, owner: UserId, ids: &[MessageId]) -> Result<Vec<Option<MessageRow>>> {
        let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) else {
            return Ok(Vec::new());
        };
        let (first, last) = (row_key(owner, *first), row_key(owner, *last));
        let window = self.engine.range(
            Table::Private,
            &first[..]..=&last[..],
            Scan::Forward,
            2 * ids.len(),
        )?;
        let mut rows = Vec::with_capacity(ids.len());
        for &id in ids {
            let key = row_key(owner, id);
            let position = window.binary_search_by(|(other, _)| other.as_ref().cmp(&key));
            let value = match position {
                Ok(position) => Some(window[position].1.clone()),
                Err(_) => self.engine.get(Table::Private, &key)?,
            };
            rows.push(value.map(|value| row(owner, id, &value)).transpose()?);
        }
        Ok(rows)
    }

    /// Newest version in a conversation: the one at its last position, as positions follow the log.
    fn newest(
        &self,
        recent: &mut AgingMap<ConversationId, Option<Version>>,
        owner: UserId,
        conversation: ConversationId,
    ) -> Result<Option<Version>> {
        if let Some(newest) = recent.get(&conversation) {
            return Ok(newest);
        }
        let (first, last) = (Seq::ZERO, Seq(u64::MAX));
        let (first, last) = (
            index_key(conversation, first),
            index_key(conversation, last),
        );
        let entries = self.engine.range(
            Table::PrivateIndex,
            &first[..]..&last[..],
            Scan::Backward,
            1,
        )?;
        let newest = match entries.first() {
            Some((_, id)) => self.version(owner, id_of(id)?)?,
            None => None,
        };
        recent.put(conversation, newest);
        Ok(newest)
    }

    fn version(&self, owner: UserId, id: MessageId) -> Result<Option<Version>> {
        let Some(row) = self.engine.get(Table::Private, &row_key(owner, id))? else {
            return Ok(None);
        };
        decode_front(SEAM, &row).map(|(version, _)| Some(version))
    }

    fn place(&self, (owner, id): (UserId, MessageId)) -> Result<Option<StoredPlace>> {
        if let Some(place) = self.places.lock().get(&(owner, id)) {
            return Ok(Some(place));
        }
        let Some(row) = self.engine.get(Table::Private, &row_key(owner, id))? else {
            return Ok(None);
        };
        type Front = (Version, UserId, Direction, Timestamp, Seq, u64);
        let ((_, peer, direction, _, seq, incoming_count), _) = decode_front::<Front>(SEAM, &row)?;
        Ok(Some(StoredPlace {
            peer,
            direction,
            seq,
            incoming_count,
        }))
    }

    /// Whether the row need not be written: a later one is stored, or this one with its index
    /// entry, or a later one owns its position.
    fn is_current(&self, UserCopy { owner, row, .. }: &UserCopy) -> Result<bool> {
        let stored_version = self.version(*owner, row.id())?;
        if stored_version != Some(row.version) {
            return Ok(stored_version > Some(row.version));
        }
        let position = index_key(row.placed.conversation, row.seq());
        let Some(indexed_id) = self.engine.get(Table::PrivateIndex, &position)? else {
            return Ok(false);
        };
        let indexed_id = indexed_id.as_ref().try_into().ok().map(i64::from_be_bytes);
        match indexed_id.and_then(|id| MessageId::new(id).ok()) {
            Some(id) if id == row.id() => Ok(true),
            Some(id) => Ok(self.version(*owner, id)? > Some(row.version)),
            None => Ok(false),
        }
    }

    /// Rows by id.
    pub(super) fn find(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let (table, number) = (Table::Private, owner.get());
        messages::find(SEAM, &self.engine, table, number, range, order, limit)?
            .into_iter()
            .map(|(id, value)| row(owner, id, &value))
            .collect()
    }

    fn statuses(&self, keys: &[[u8; 16]]) -> Result<Vec<RowStatus>> {
        self.engine
            .multi_get(Table::PrivateStatus, keys)?
            .into_iter()
            .map(|value| match value {
                Some(value) => decode(SEAM, &value),
                None => Ok(RowStatus::default()),
            })
            .collect()
    }

    /// Changes registers of rows. `change` returns whether it changed anything; so does this, per
    /// key.
    fn change_statuses<T>(
        &self,
        keys: Vec<([u8; 16], T)>,
        change: impl Fn(&mut RowStatus, T) -> bool,
    ) -> Result<Vec<bool>> {
        let _guard = self.newest_versions.lock();
        let row_keys: Vec<_> = keys.iter().map(|(key, _)| *key).collect();
        let mut statuses: BTreeMap<_, _> = row_keys
            .iter()
            .copied()
            .zip(self.statuses(&row_keys)?)
            .collect();
        let mut batch = WriteBatch::new();
        let mut changes = Vec::with_capacity(keys.len());
        for (key, update) in keys {
            let status = statuses.entry(key).or_default();
            let is_changed = change(status, update);
            if is_changed {
                let value = encode(SEAM, status)?;
                batch.put(Table::PrivateStatus, key.to_vec(), value);
            }
            changes.push(is_changed);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(changes)
    }

    pub(super) fn save(&self, mut copies: Vec<UserCopy>) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        copies.sort_by_key(|copy| copy.row.version);
        let mut newest_versions = self.newest_versions.lock();
        let mut batch = WriteBatch::new();
        let mut saved_copies = Vec::with_capacity(copies.len());
        let mut last_position = None;
        for copy in &copies {
            let UserCopy { owner, row, .. } = copy;
            let conversation = row.placed.conversation;
            let newest = self.newest(&mut newest_versions, *owner, conversation)?;
            if newest >= Some(row.version) && self.is_current(copy)? {
                continue;
            }
            let message = &row.placed.message;
            let value = encode_sized(
                SEAM,
                &stored_message(copy),
                message.content.data.len() + 128,
            )?;
            batch.put(Table::Private, row_key(*owner, row.id()).to_vec(), value);
            // Both sides share one position and one id.
            let position = (index_key(conversation, row.seq()), row.id());
            if last_position.as_ref() != Some(&position) {
                let id = row.id().get().to_be_bytes();
                batch.put(Table::PrivateIndex, position.0.clone(), id.to_vec());
                last_position = Some(position);
            }
            if copy.side.direction == Direction::Out {
                let id = row.id().get().to_be_bytes();
                let key = send_key(message.send_id, *owner);
                batch.put(Table::PrivateSend, key, id.to_vec());
            }
            saved_copies.push((copy, newest.max(Some(row.version))));
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        let mut places = self.places.lock();
        for (copy, newest) in saved_copies {
            let row = &copy.row;
            newest_versions.put(row.placed.conversation, newest);
            if copy.side.direction == Direction::In {
                places.put((copy.owner, row.id()), place_from_copy(copy));
            }
        }
        Ok(())
    }

    pub(super) fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<StoredPlace>>> {
        keys.iter().map(|&key| self.place(key)).collect()
    }

    /// Conversation by position.
    pub(super) fn page(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        if conversation.peer_of(owner).is_none() {
            return Ok(Vec::new());
        }
        let key = |seq| index_key(conversation, seq);
        let (start, end, order) = match range {
            HistoryRange::Forward { after } => (key(after), key(Seq(u64::MAX)), Order::Forward),
            HistoryRange::Backward { before } => (
                key(Seq::ZERO),
                key(before.unwrap_or(Seq(u64::MAX))),
                Order::Backward,
            ),
        };
        let bounds = (Bound::Excluded(&start[..]), Bound::Excluded(&end[..]));
        let index = self
            .engine
            .range(Table::PrivateIndex, bounds, scan(order), limit)?;
        let mut keys = Vec::with_capacity(index.len());
        let mut last = match range {
            HistoryRange::Forward { after } => Some(after.0),
            HistoryRange::Backward { .. } => None,
        };
        for (key, id) in &index {
            let seq = parse_seq(key)?;
            if last.is_some_and(|last| last.abs_diff(seq) != 1) {
                break;
            }
            last = Some(seq);
            keys.push(id_of(id)?);
        }
        if keys.is_empty() && !index.is_empty() {
            let gap =
                format!("{conversation} of {owner}: no row in {range:?}, but later ones exist");
            return Err(Error::corrupt(SEAM, gap));
        }
        self.near(owner, &keys)?
            .into_iter()
            .map(|row| row.ok_or_else(|| Error::corrupt(SEAM, "a position names no row")))
            .collect()
    }

    /// Ids and tallies at these positions.
    pub(super) fn at(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let keys = places
            .iter()
            .map(|(_, conversation, seq)| index_key(*conversation, *seq));
        let keys: Vec<_> = keys.collect();
        let ids = self.engine.multi_get(Table::PrivateIndex, &keys)?;
        let lookup = |(&(owner, _, _), id): (&(UserId, _, _), Option<Bytes>)| {
            let Some(id) = id else {
                return Ok(None);
            };
            let id = id_of(&id)?;
            let place = self.place((owner, id))?;
            Ok(place.map(|place| (id, Tally::from(place))))
        };
        places.iter().zip(ids).map(lookup).collect()
    }

    pub(super) fn find_sends(
        &self,
        sends: &[(SendKey, UserId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        let keys = sends.iter().map(|(key, _)| send_key(key.send_id, key.from));
        let keys: Vec<_> = keys.collect();
        let ids = self.engine.multi_get(Table::PrivateSend, &keys)?;
        let first = |((key, peer), id): (&(SendKey, UserId), Option<Bytes>)| {
            let id = id.map(|id| id_of(&id)).transpose()?;
            let Some(id) = id.filter(|id| *id >= key.min_id) else {
                return Ok(None);
            };
            let row = self.rows(&[(key.from, id)])?.pop().flatten();
            Ok(row.filter(|row| row.peer() == Some(*peer)))
        };
        sends.iter().zip(ids).map(first).collect()
    }

    pub(super) fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.engine
            .prefix(Table::PrivateSend, &reversed(send_id), Scan::Forward, SCAN)?
            .iter()
            .map(|(key, id)| Ok((parse_sender(key)?, id_of(id)?)))
            .collect()
    }

    pub(super) fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        let entries = writes
            .into_iter()
            .map(|write| (row_key(write.owner, write.id), write))
            .collect();
        self.change_statuses(entries, |status, write| status.tell(write.kind, write.at))
    }

    pub(super) fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        let keys: Vec<_> = keys.iter().map(|&(owner, id)| row_key(owner, id)).collect();
        self.statuses(&keys)
    }

    pub(super) fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        let rows = self.rows(keys)?;
        let mut sides = Vec::with_capacity(2 * keys.len());
        for (&(owner, id), row) in keys.iter().zip(rows) {
            sides.push((row_key(owner, id), ()));
            let peer = row.and_then(|row| row.peer());
            sides.extend(peer.map(|peer| (row_key(peer, id), ())));
        }
        self.change_statuses(sides, |status, ()| {
            !std::mem::replace(&mut status.deleted, true)
        })?;
        Ok(())
    }
}

fn stored_message(copy: &UserCopy) -> StoredMessage<'_> {
    let Placed {
        message, position, ..
    } = &copy.row.placed;
    StoredMessage {
        version: copy.row.version,
        peer: copy.peer,
        direction: copy.side.direction,
        accepted_at: message.accepted_at,
        seq: position.seq,
        incoming: copy.side.incoming_count,
        prev: position.prev,
        send_id: message.send_id,
        device: Cow::Borrowed(&message.device),
        options: message.options,
        content: Cow::Borrowed(&message.content),
    }
}

fn row(owner: UserId, id: MessageId, value: &Bytes) -> Result<MessageRow> {
    let message: StoredMessage<'_> = decode(SEAM, value)?;
    let corrupt = || Error::corrupt(SEAM, "a row of a user with itself");
    let (from, to) = match message.direction {
        Direction::Out => (owner, message.peer),
        Direction::In => (message.peer, owner),
    };
    Ok(MessageRow {
        owner: Owner::User(owner),
        placed: Placed {
            conversation: ConversationId::private(owner, message.peer).ok_or_else(corrupt)?,
            position: Position {
                seq: message.seq,
                prev: message.prev,
            },
            message: Message {
                id,
                from,
                to: Recipient::User(to),
                accepted_at: message.accepted_at,
                device: message.device.into_owned(),
                send_id: message.send_id,
                options: message.options,
                content: message.content.into_owned(),
            },
        },
        version: message.version,
        side: Some(CopySide {
            direction: message.direction,
            incoming_count: message.incoming,
        }),
    })
}

fn place_from_copy(copy: &UserCopy) -> StoredPlace {
    StoredPlace {
        peer: copy.peer,
        direction: copy.side.direction,
        seq: copy.row.seq(),
        incoming_count: copy.side.incoming_count,
    }
}

fn row_key(owner: UserId, id: MessageId) -> [u8; 16] {
    messages::key(owner.get(), id.get() as u64)
}

/// Key of a position: both users, the number of the position's bytes without leading zeros, then
/// those bytes. Keys sort as positions do.
fn index_key(conversation: ConversationId, seq: Seq) -> Vec<u8> {
    let bytes = seq.0.to_be_bytes();
    let zeros = seq.0.leading_zeros() as usize / 8;
    let users = &conversation.to_key()[1..];
    [users, &[(bytes.len() - zeros) as u8], &bytes[zeros..]].concat()
}

fn parse_seq(index_key: &[u8]) -> Result<u64> {
    let torn = || Error::corrupt(SEAM, "corrupt index key");
    let (&length, digits) = index_key
        .get(16..)
        .and_then(<[u8]>::split_first)
        .ok_or_else(torn)?;
    if digits.len() != usize::from(length) || digits.len() > 8 {
        return Err(torn());
    }
    let mut bytes = [0; 8];
    bytes[8 - digits.len()..].copy_from_slice(digits);
    Ok(u64::from_be_bytes(bytes))
}

fn send_key(send_id: SendId, from: UserId) -> Vec<u8> {
    [&reversed(send_id)[..], &from.get().to_be_bytes()].concat()
}

fn parse_sender(send_key: &[u8]) -> Result<UserId> {
    send_key
        .get(16..)
        .and_then(|bytes| bytes.try_into().ok())
        .and_then(|bytes| UserId::new(i64::from_be_bytes(bytes)).ok())
        .ok_or_else(|| Error::corrupt(SEAM, "a key names no sender"))
}

fn id_of(bytes: &[u8]) -> Result<MessageId> {
    messages::id_of(SEAM, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_index_sort_as_positions_do() {
        let user = |number| UserId::new(number).expect("positive");
        let conversation = ConversationId::private(user(1), user(2)).expect("two users");
        let seqs = [
            0,
            1,
            255,
            256,
            65_535,
            65_536,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ];
        let keys: Vec<_> = seqs
            .iter()
            .map(|&seq| index_key(conversation, Seq(seq)))
            .collect();
        assert!(keys.is_sorted());
        let read: Vec<_> = keys
            .iter()
            .map(|key| parse_seq(key).expect("whole"))
            .collect();
        assert_eq!(read, seqs);
        assert!(parse_seq(&keys[3][..17]).is_err());
    }
}
