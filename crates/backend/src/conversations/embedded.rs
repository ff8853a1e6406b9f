//! Conversation lists in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `conversation` | owner, kind, conversation | the row |
//! | `conversation-register` | the same | registers |
//!
//! The list difference reads all rows of an owner: a second order by version would cost a removal and an
//! insert at each message, for a question that is asked once a login.

use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::conversation::ConversationRow;
use protocol::history::Version;
use protocol::{ConversationId, MessageId, Position, Seq, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::{ConversationStore, Listed};
use crate::embedded::recent::Recent;
use crate::embedded::value::{decode, encode};
use crate::embedded::{Batch, Engine, Order, Table};
use crate::{Error, Result};

const SEAM: &str = "conversations";

/// Rows read at once where the list difference looks for changed ones.
const SCAN: usize = 256;

type Key = [u8; 25];

/// Conversation lists in the embedded store. Make one for each store: it remembers the rows that it
/// wrote.
pub struct EmbeddedConversations {
    engine: Engine,
    /// Held between looking at a row or register and writing it, never across an await.
    writing: Mutex<Recent<Key, Kept>>,
}

/// A row without what its key says.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Kept {
    source: Version,
    version: Timestamp,
    position: Position,
    last_id: MessageId,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Registers {
    read: Seq,
    received: Seq,
}

impl EmbeddedConversations {
    pub fn new(engine: Engine) -> EmbeddedConversations {
        EmbeddedConversations {
            engine,
            writing: Mutex::default(),
        }
    }

    fn standing(&self, recent: &mut Recent<Key, Kept>, key: &Key) -> Result<Option<Kept>> {
        if let Some(row) = recent.get(key) {
            return Ok(Some(row));
        }
        let value = self.engine.get(Table::Conversation, key)?;
        value.map(|value| decode(SEAM, &value)).transpose()
    }

    fn registers(&self, keys: &[Key]) -> Result<Vec<Registers>> {
        self.engine
            .multi_get(Table::ConversationRegister, keys)?
            .into_iter()
            .map(|value| match value {
                Some(value) => decode(SEAM, &value),
                None => Ok(Registers::default()),
            })
            .collect()
    }

    fn move_registers(
        &self,
        moves: Vec<(UserId, ConversationId, Seq)>,
        forward: impl Fn(&mut Registers, Seq),
    ) -> Result<()> {
        let keys: Vec<_> = moves.iter().map(|&(owner, c, _)| key(owner, c)).collect();
        let _writing = self.writing.lock();
        let mut registers: BTreeMap<Key, (Registers, bool)> = keys
            .iter()
            .copied()
            .zip(self.registers(&keys)?.into_iter().map(|r| (r, false)))
            .collect();
        for (key, (_, _, seq)) in keys.iter().zip(moves) {
            if let Some((registers, changed)) = registers.get_mut(key) {
                let before = (registers.read, registers.received);
                forward(registers, seq);
                *changed |= before != (registers.read, registers.received);
            }
        }
        let mut batch = Batch::new();
        for (key, (registers, _)) in registers.iter().filter(|(_, (_, changed))| *changed) {
            let value = encode(SEAM, registers)?;
            batch.put(Table::ConversationRegister, key.to_vec(), value);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }
}

#[async_trait]
impl ConversationStore for EmbeddedConversations {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        let mut writing = self.writing.lock();
        // A busy conversation has many rows in one call, and only the last is written.
        let mut changed: BTreeMap<Key, Kept> = BTreeMap::new();
        for row in rows {
            let key = key(row.owner, row.conversation);
            let standing = match changed.get(&key) {
                Some(row) => Some(*row),
                None => self.standing(&mut writing, &key)?,
            };
            let mut new = Kept {
                source: row.source,
                version: row.version,
                position: row.position,
                last_id: row.last_id,
            };
            match standing {
                Some(old) if old.source > new.source => continue,
                // A clock that is behind must not hide the change from who has seen the older stamp.
                Some(old) => new.version = new.version.max(old.version),
                None => {}
            }
            changed.insert(key, new);
        }
        let mut batch = Batch::new();
        for (key, row) in &changed {
            batch.put(Table::Conversation, key.to_vec(), encode(SEAM, row)?);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        for (key, row) in changed {
            writing.put(key, row);
        }
        Ok(())
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<Listed>>> {
        let row_keys: Vec<_> = keys.iter().map(|&(owner, c)| key(owner, c)).collect();
        let rows = self.engine.multi_get(Table::Conversation, &row_keys)?;
        let registers = self.registers(&row_keys)?;
        keys.iter()
            .zip(rows.into_iter().zip(registers))
            .map(|(&(owner, conversation), (row, registers))| {
                let kept = row.map(|row| decode(SEAM, &row)).transpose()?;
                Ok(kept.map(|kept| listed(owner, conversation, kept, registers)))
            })
            .collect()
    }

    async fn changed(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        let (first, end) = owner_bounds(owner);
        let mut from = match after {
            Some(conversation) => Bound::Excluded(key(owner, conversation).to_vec()),
            None => Bound::Included(first.to_vec()),
        };
        let mut found: Vec<(Key, ConversationId, Kept)> = Vec::new();
        while found.len() < limit {
            let bounds = (from.as_ref().map(Vec::as_slice), Bound::Excluded(&end[..]));
            let page = self
                .engine
                .range(Table::Conversation, bounds, Order::Forward, SCAN)?;
            for (key, value) in &page {
                let kept: Kept = decode(SEAM, value)?;
                if kept.version >= since && found.len() < limit {
                    let (key, conversation) = conversation_of(key)?;
                    found.push((key, conversation, kept));
                }
            }
            match page.last() {
                Some((key, _)) if page.len() == SCAN => from = Bound::Excluded(key.to_vec()),
                _ => break,
            }
        }
        let keys: Vec<_> = found.iter().map(|(key, ..)| *key).collect();
        let registers = self.registers(&keys)?;
        Ok(found
            .into_iter()
            .zip(registers)
            .map(|((_, conversation, kept), registers)| {
                listed(owner, conversation, kept, registers)
            })
            .collect())
    }

    async fn set_read(&self, reads: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        self.move_registers(reads, |registers, seq| {
            registers.read = registers.read.max(seq);
            registers.received = registers.received.max(seq);
        })
    }

    async fn set_received(&self, received: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        self.move_registers(received, |registers, seq| {
            registers.received = registers.received.max(seq);
        })
    }
}

fn listed(owner: UserId, conversation: ConversationId, kept: Kept, registers: Registers) -> Listed {
    Listed {
        row: ConversationRow {
            owner,
            conversation,
            position: kept.position,
            last_id: kept.last_id,
            version: kept.version,
            source: kept.source,
        },
        read_seq: registers.read,
        received_seq: registers.received,
    }
}

/// Keys sort as conversations do: the tag of the conversation's own key is replaced by its rank.
fn key(owner: UserId, conversation: ConversationId) -> Key {
    let mut key = [0; 25];
    key[..8].copy_from_slice(&owner.get().to_be_bytes());
    key[8..].copy_from_slice(&conversation.to_key());
    key[8] = match conversation {
        ConversationId::Private { .. } => 0,
        ConversationId::Group(_) => 1,
        ConversationId::System(_) => 2,
    };
    key
}

fn conversation_of(stored: &[u8]) -> Result<(Key, ConversationId)> {
    let torn = || Error::corrupt(SEAM, "a key names no conversation");
    let key: Key = stored.try_into().map_err(|_| torn())?;
    let mut conversation = [0; 17];
    conversation.copy_from_slice(&key[8..]);
    conversation[0] = match key[8] {
        0 => b'p',
        1 => b'g',
        2 => b's',
        _ => return Err(torn()),
    };
    let conversation = ConversationId::from_key(&conversation).ok_or_else(torn)?;
    Ok((key, conversation))
}

/// The first key of an owner, and the first after it.
fn owner_bounds(owner: UserId) -> ([u8; 8], [u8; 8]) {
    let owner = owner.get() as u64;
    (owner.to_be_bytes(), (owner + 1).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::contract;
    use crate::fresh::{Fresh, at, on_memory_and_disk};

    on_memory_and_disk!(super::EmbeddedConversations::new:
        a_row_comes_back_with_its_registers,
        only_a_later_source_replaces,
        the_same_source_may_raise_the_version,
        the_difference_equals_a_recomputation,
        pages_of_the_list_visit_each_conversation_once,
        registers_only_move_forward,
    );

    /// A store that remembers nothing looks before it writes.
    #[tokio::test]
    async fn a_new_life_replaces_nothing_that_is_later() {
        let (engine, fresh) = (Engine::memory(), Fresh::new(1));
        let (owner, conversation) = (fresh.user(), fresh.conversation());
        let row = |offset| ConversationRow {
            owner,
            conversation,
            position: Position {
                seq: Seq(offset),
                prev: None,
            },
            last_id: MessageId::floor_of(at(offset)),
            version: at(offset),
            source: Version { epoch: 1, offset },
        };
        for offset in [9, 8] {
            let store = EmbeddedConversations::new(engine.clone());
            store.save(vec![row(offset)]).await.expect("saves");
        }
        let store = EmbeddedConversations::new(engine);
        let found = store.get(&[(owner, conversation)]).await.expect("reads");
        assert_eq!(found[0].map(|listed| listed.row), Some(row(9)));
    }
}
