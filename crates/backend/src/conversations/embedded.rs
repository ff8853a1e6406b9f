//! Conversation lists in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `conversation` | owner, kind, peer or group | the row |
//! | `conversation-register` | the same | registers |
//! | `hidden` | the same, mark | the hidden position |
//!
//! The list difference reads all rows of an owner: a second order by version would cost a removal
//! and an insert at each message, for one query per login.

use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::change::ListArrangement;
use protocol::conversation::{ConversationRow, ListEntry};
use protocol::history::Version;
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, MessageId, Seq, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::{ConversationStore, ListRegisters};
use crate::embedded::aging_map::AgingMap;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "conversations";

/// Rows per read of the list difference.
const SCAN: usize = 256;

type Key = [u8; 17];

/// Conversation lists in the embedded store. One instance per store: it remembers the rows it
/// wrote.
pub struct EmbeddedConversations {
    engine: Engine,
    /// Held from the read of a row or register to its write, never across an await.
    recent_writes: Mutex<RecentWrites>,
}

/// Cache of recent writes.
#[derive(Default)]
struct RecentWrites {
    rows: AgingMap<Key, StoredRow>,
    registers: AgingMap<Key, StoredRegisters>,
}

/// Stored row, without the fields of its key.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct StoredRow {
    source: Version,
    version: Timestamp,
    end: Tally,
    rev: u64,
    last_id: MessageId,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoredRegisters {
    read: Seq,
    received: Seq,
    cleared: Tally,
    touched: Timestamp,
    arranged: Option<(Version, ListArrangement)>,
    hidden: u64,
}

impl EmbeddedConversations {
    pub fn new(engine: Engine) -> EmbeddedConversations {
        EmbeddedConversations {
            engine,
            recent_writes: Mutex::default(),
        }
    }

    fn current_row(
        &self,
        recent: &mut AgingMap<Key, StoredRow>,
        key: &Key,
    ) -> Result<Option<StoredRow>> {
        if let Some(row) = recent.get(key) {
            return Ok(Some(row));
        }
        let value = self.engine.get(Table::Conversation, key)?;
        value.map(|value| decode(SEAM, &value)).transpose()
    }

    fn read_registers(&self, keys: &[Key]) -> Result<Vec<StoredRegisters>> {
        self.engine
            .multi_get(Table::ConversationRegister, keys)?
            .into_iter()
            .map(|value| match value {
                Some(value) => decode(SEAM, &value),
                None => Ok(StoredRegisters::default()),
            })
            .collect()
    }

    fn current_registers(
        &self,
        recent: &mut AgingMap<Key, StoredRegisters>,
        key: Key,
    ) -> Result<StoredRegisters> {
        match recent.get(&key) {
            Some(registers) => Ok(registers),
            None => Ok(self.read_registers(&[key])?.pop().unwrap_or_default()),
        }
    }

    /// Looks through all messages that the owner hid in the conversation.
    fn first_mark(
        &self,
        (owner, conversation, seq): (UserId, ConversationId, Seq),
    ) -> Result<Option<u64>> {
        let key = key(owner, conversation)?;
        let (mut cursor, end) = (hidden_key(key, 0), hidden_key(key, u64::MAX));
        loop {
            let bounds = (Bound::Excluded(&cursor[..]), Bound::Included(&end[..]));
            let rows = (self.engine).range(Table::Hidden, bounds, ScanOrder::Forward, SCAN)?;
            for (row, value) in &rows {
                if decode::<Seq>(SEAM, value)? == seq {
                    return parse_mark(row).map(Some);
                }
            }
            match rows.last() {
                Some((row, _)) if rows.len() == SCAN => cursor = hidden_key(key, parse_mark(row)?),
                _ => return Ok(None),
            }
        }
    }

    fn move_registers<T>(
        &self,
        moves: Vec<(UserId, ConversationId, T)>,
        forward: impl Fn(&mut StoredRegisters, T),
    ) -> Result<()> {
        self.move_registers_with(WriteBatch::new(), moves, forward)
    }

    /// As `move_registers`, in one write with `batch`.
    fn move_registers_with<T>(
        &self,
        mut batch: WriteBatch,
        moves: Vec<(UserId, ConversationId, T)>,
        forward: impl Fn(&mut StoredRegisters, T),
    ) -> Result<()> {
        let mut recent = self.recent_writes.lock();
        let mut updates: BTreeMap<Key, StoredRegisters> = BTreeMap::new();
        for (owner, conversation, to) in moves {
            let key = key(owner, conversation)?;
            let current = match updates.get(&key) {
                Some(registers) => *registers,
                None => self.current_registers(&mut recent.registers, key)?,
            };
            let mut new_registers = current;
            forward(&mut new_registers, to);
            if new_registers != current {
                updates.insert(key, new_registers);
            }
        }
        for (key, registers) in &updates {
            let value = encode(SEAM, registers)?;
            batch.put(Table::ConversationRegister, key.to_vec(), value);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        for (key, registers) in updates {
            recent.registers.put(key, registers);
        }
        Ok(())
    }
}

#[async_trait]
impl ConversationStore for EmbeddedConversations {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        let mut recent = self.recent_writes.lock();
        // A busy conversation has many rows in one call; only the last is written.
        let mut updates: BTreeMap<Key, StoredRow> = BTreeMap::new();
        for row in rows {
            let key = key(row.owner, row.conversation)?;
            let current = match updates.get(&key) {
                Some(row) => Some(*row),
                None => self.current_row(&mut recent.rows, &key)?,
            };
            let mut new = StoredRow {
                source: row.source,
                version: row.version,
                end: row.end,
                rev: row.rev,
                last_id: row.last_id,
            };
            match current {
                Some(old) if old.source > new.source => continue,
                // A slow clock must not hide the change from clients that saw the older stamp.
                Some(old) => new.version = new.version.max(old.version),
                None => {}
            }
            updates.insert(key, new);
        }
        let mut batch = WriteBatch::new();
        for (key, row) in &updates {
            batch.put(Table::Conversation, key.to_vec(), encode(SEAM, row)?);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        for (key, row) in updates {
            recent.rows.put(key, row);
        }
        Ok(())
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<ListEntry>>> {
        let row_keys = keys
            .iter()
            .map(|&(owner, conversation)| key(owner, conversation))
            .collect::<Result<Vec<_>>>()?;
        let rows = self.engine.multi_get(Table::Conversation, &row_keys)?;
        let registers = self.read_registers(&row_keys)?;
        keys.iter()
            .zip(rows.into_iter().zip(registers))
            .map(|(&(owner, conversation), (row, registers))| {
                let stored_row = row.map(|row| decode(SEAM, &row)).transpose()?;
                Ok(stored_row
                    .map(|stored_row| list_entry(owner, conversation, stored_row, registers)))
            })
            .collect()
    }

    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<ListRegisters>> {
        let keys = keys
            .iter()
            .map(|&(owner, conversation)| key(owner, conversation))
            .collect::<Result<Vec<_>>>()?;
        let state = self.read_registers(&keys)?.into_iter();
        let registers = state.map(|state| ListRegisters {
            read_seq: state.read,
            received_seq: state.received,
            cleared: state.cleared,
            touched: state.touched,
            arranged: state.arranged.map(|(_, a)| a).unwrap_or_default(),
            hidden: state.hidden,
        });
        Ok(registers.collect())
    }

    async fn changed(
        &self,
        owner: UserId,
        min_version: Timestamp,
        cursor: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<ListEntry>> {
        let (first, end) = owner_bounds(owner);
        let mut from = match cursor {
            Some(conversation) => Bound::Excluded(key(owner, conversation)?.to_vec()),
            None => Bound::Included(first.to_vec()),
        };
        let mut entries: Vec<ListEntry> = Vec::new();
        while entries.len() < limit {
            let bounds = (from.as_ref().map(Vec::as_slice), Bound::Excluded(&end[..]));
            let page = self
                .engine
                .range(Table::Conversation, bounds, ScanOrder::Forward, SCAN)?;
            let keys = page.iter().map(|(key, _)| parse_key(owner, key));
            let keys: Vec<_> = keys.collect::<Result<_>>()?;
            let row_keys: Vec<Key> = keys.iter().map(|(key, _)| *key).collect();
            let registers = self.read_registers(&row_keys)?;
            for (((_, value), (_, conversation)), registers) in page.iter().zip(keys).zip(registers)
            {
                let entry = list_entry(owner, conversation, decode(SEAM, value)?, registers);
                if entry.version() >= min_version && entries.len() < limit {
                    entries.push(entry);
                }
            }
            match page.last() {
                Some((key, _)) if page.len() == SCAN => from = Bound::Excluded(key.to_vec()),
                _ => break,
            }
        }
        Ok(entries)
    }

    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.move_registers(reads, |registers, seq| {
            if seq > registers.read {
                registers.touched = registers.touched.max(at);
            }
            registers.read = registers.read.max(seq);
            registers.received = registers.received.max(seq);
        })
    }

    async fn set_received(&self, moves: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        self.move_registers(moves, |registers, seq| {
            registers.received = registers.received.max(seq);
        })
    }

    async fn arrange(
        &self,
        arrangements: Vec<(UserId, ConversationId, Version, ListArrangement)>,
        at: Timestamp,
    ) -> Result<()> {
        let moves = arrangements.into_iter();
        let moves = moves.map(|(owner, conversation, version, arrangement)| {
            (owner, conversation, (version, arrangement))
        });
        self.move_registers(moves.collect(), |registers, new| {
            if registers
                .arranged
                .is_none_or(|(version, _)| version <= new.0)
            {
                registers.arranged = Some(new);
                registers.touched = registers.touched.max(at);
            }
        })
    }

    async fn set_cleared(
        &self,
        moves: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()> {
        self.move_registers(moves, |registers, to| {
            // A repeated write stamps the registers anew.
            if to >= registers.cleared {
                registers.touched = registers.touched.max(at);
            }
            registers.cleared = registers.cleared.max(to);
        })
    }

    async fn hide(
        &self,
        messages: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut batch = WriteBatch::new();
        let mut moves = Vec::with_capacity(messages.len());
        for (owner, conversation, version, seq) in messages {
            let mark = version.mark();
            let row = hidden_key(key(owner, conversation)?, mark);
            batch.put(Table::Hidden, row.to_vec(), encode(SEAM, &seq)?);
            moves.push((owner, conversation, mark));
        }
        self.move_registers_with(batch, moves, |registers, mark| {
            if mark >= registers.hidden {
                registers.touched = registers.touched.max(at);
            }
            registers.hidden = registers.hidden.max(mark);
        })
    }

    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        cursor: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>> {
        let key = key(owner, conversation)?;
        let (cursor, end) = (hidden_key(key, cursor), hidden_key(key, u64::MAX));
        let bounds = (Bound::Excluded(&cursor[..]), Bound::Included(&end[..]));
        let rows = (self.engine).range(Table::Hidden, bounds, ScanOrder::Forward, limit)?;
        rows.iter()
            .map(|(key, seq)| Ok((parse_mark(key)?, decode(SEAM, seq)?)))
            .collect()
    }

    async fn first_hidden(
        &self,
        keys: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<u64>>> {
        keys.iter().map(|key| self.first_mark(*key)).collect()
    }

    async fn touch(
        &self,
        conversations: Vec<(UserId, ConversationId)>,
        at: Timestamp,
    ) -> Result<()> {
        let moves = conversations
            .into_iter()
            .map(|(owner, conversation)| (owner, conversation, ()));
        self.move_registers(moves.collect(), |registers, ()| {
            registers.touched = registers.touched.max(at);
        })
    }
}

fn list_entry(
    owner: UserId,
    conversation: ConversationId,
    row: StoredRow,
    registers: StoredRegisters,
) -> ListEntry {
    ListEntry {
        row: ConversationRow {
            owner,
            conversation,
            end: row.end,
            rev: row.rev,
            last_id: row.last_id,
            version: row.version,
            source: row.source,
        },
        read_seq: registers.read,
        received_seq: registers.received,
        cleared: registers.cleared,
        touched: registers.touched,
        arranged: registers
            .arranged
            .map(|(_, arrangement)| arrangement)
            .unwrap_or_default(),
        hidden: registers.hidden,
    }
}

/// Key of a row: short enough for the store's index itself. Keys of an owner sort as the
/// conversations do.
fn key(owner: UserId, conversation: ConversationId) -> Result<Key> {
    let (kind, other) = match conversation {
        ConversationId::Private { .. } => {
            let peer = conversation
                .peer_of(owner)
                .ok_or_else(|| Error::conflict(SEAM, "a private conversation of others"))?;
            (0, peer.get())
        }
        ConversationId::Group(group) => (1, group.get()),
        ConversationId::System(user) => (2, user.get()),
    };
    let mut key = [0; 17];
    key[..8].copy_from_slice(&owner.get().to_be_bytes());
    key[8] = kind;
    key[9..].copy_from_slice(&other.to_be_bytes());
    Ok(key)
}

fn hidden_key(row_key: Key, mark: u64) -> [u8; 25] {
    let mut key = [0; 25];
    key[..17].copy_from_slice(&row_key);
    key[17..].copy_from_slice(&mark.to_be_bytes());
    key
}

fn parse_mark(hidden_key: &[u8]) -> Result<u64> {
    let mark = hidden_key.get(17..).and_then(|mark| mark.try_into().ok());
    mark.map(u64::from_be_bytes)
        .ok_or_else(|| Error::corrupt(SEAM, "a key names no hidden message"))
}

fn parse_key(owner: UserId, bytes: &[u8]) -> Result<(Key, ConversationId)> {
    let conversation = |key: &Key| {
        let other = i64::from_be_bytes(key[9..].try_into().ok()?);
        match key[8] {
            0 => ConversationId::private(owner, UserId::new(other).ok()?),
            1 => GroupId::new(other).ok().map(ConversationId::Group),
            2 => UserId::new(other).ok().map(ConversationId::System),
            _ => None,
        }
    };
    bytes
        .try_into()
        .ok()
        .and_then(|key: Key| Some((key, conversation(&key)?)))
        .ok_or_else(|| Error::corrupt(SEAM, "a key names no conversation"))
}

/// First key of an owner, and first key after the owner.
fn owner_bounds(owner: UserId) -> ([u8; 8], [u8; 8]) {
    let owner = owner.get() as u64;
    (owner.to_be_bytes(), (owner + 1).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::contract;
    use crate::test_ids::{TestIds, at, on_memory_and_disk};

    contract::checks!(on_memory_and_disk!(super::EmbeddedConversations::new));

    /// A new instance has no memory and reads before it writes.
    #[tokio::test]
    async fn a_new_life_replaces_nothing_that_is_later() {
        let (engine, fresh) = (Engine::memory(), TestIds::new(1));
        let (owner, peer) = (fresh.user(), fresh.user());
        let conversation = ConversationId::private(owner, peer).expect("two users");
        let row = |offset| ConversationRow {
            owner,
            conversation,
            end: Tally {
                seq: Seq(offset),
                incoming: 0,
            },
            rev: 0,
            last_id: MessageId::floor_of(at(offset)),
            version: at(offset),
            source: Version { epoch: 1, offset },
        };
        for offset in [9, 8] {
            let store = EmbeddedConversations::new(engine.clone());
            store.save(vec![row(offset)]).await.expect("saves");
        }
        let store = EmbeddedConversations::new(engine);
        let entries = store.get(&[(owner, conversation)]).await.expect("reads");
        assert_eq!(entries[0].map(|entry| entry.row), Some(row(9)));
    }
}
