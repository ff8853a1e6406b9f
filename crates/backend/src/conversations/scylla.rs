//! Conversation lists in ScyllaDB or Cassandra: table `conversation`, a partition for each owner, in the order
//! of its conversations.
//!
//! A row is written at the time of its source, so that a zombie's loses whatever its clock says; of one
//! source the larger stamp counts. Where a later source has the smaller stamp (the writer moved to a machine
//! whose clock is behind), the row shows the smaller: the margin by which list cursors look back covers it.
//!
//! The difference reads an owner's partition page by page, about 100 bytes a row, and picks: an order by
//! version would cost a removal at each message, which here stays behind as a tombstone that each login reads
//! over. The registers are written alone, and each position is the time of its write.

use std::collections::BTreeMap;

use async_trait::async_trait;
use protocol::conversation::ConversationRow;
use protocol::{ConversationId, GroupId, MessageId, Position, Seq, Timestamp, UserId};
use scylla::DeserializeRow;
use scylla::response::PagingState;

use super::{ConversationStore, Listed};
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "conversations";

/// Rows in one answer.
const PAGE: usize = 500;

/// Before the first conversation of every owner.
const BEGINNING: (i8, i64) = (-1, 0);

/// Conversation lists in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaConversations {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
    list: Statement,
    read: Statement,
    received: Statement,
}

/// A row as it was read. Where only registers were written so far, the rest is missing.
#[derive(DeserializeRow)]
struct Stored {
    kind: i8,
    other: i64,
    seq: Option<i64>,
    prev: Option<i64>,
    last_id: Option<i64>,
    version: Option<i64>,
    ver: Option<i64>,
    read_seq: Option<i64>,
    received_seq: Option<i64>,
}

const COLUMNS: &str = "kind, other, seq, prev, last_id, version, ver, read_seq, received_seq";

impl ScyllaConversations {
    pub fn new(cql: Cql) -> ScyllaConversations {
        let register = |columns: &str| {
            Statement::new(format!(
                "UPDATE conversation USING TIMESTAMP ? SET {columns} WHERE uid = ? AND kind = ? AND other = ?"
            ))
        };
        ScyllaConversations {
            cql: cql.at(SEAM),
            insert: Statement::new(
                "INSERT INTO conversation (uid, kind, other, seq, prev, last_id, version, ver) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            select: Statement::new(format!(
                "SELECT {COLUMNS} FROM conversation WHERE uid = ? AND kind = ? AND other = ?"
            )),
            list: Statement::new(format!(
                "SELECT {COLUMNS} FROM conversation WHERE uid = ? AND (kind, other) > (?, ?)"
            )),
            read: register("read_seq = ?, received_seq = ?"),
            received: register("received_seq = ?"),
        }
    }

    async fn write(&self, row: ConversationRow) -> Result<()> {
        let (kind, other) = key(row.owner, row.conversation)?;
        let seq = write_time::of_seq(SEAM, row.position.seq)?.unwrap_or(0);
        let prev = row.position.prev.map_or(0, MessageId::get);
        let (last_id, version) = (row.last_id.get(), row.version.millis());
        let ver = write_time::of_version(SEAM, row.source)?;
        let owner = row.owner.get();
        let values = (owner, kind, other, seq, prev, last_id, version, ver, ver);
        self.cql.write(&self.insert, values).await
    }

    async fn one(&self, owner: UserId, conversation: ConversationId) -> Result<Option<Listed>> {
        let (kind, other) = key(owner, conversation)?;
        let rows: Vec<Stored> = self
            .cql
            .rows(&self.select, (owner.get(), kind, other))
            .await?;
        rows.into_iter()
            .next()
            .map_or(Ok(None), |row| row.listed(owner))
    }
}

impl Stored {
    /// `None` for a row that was never written; `Corrupt` for one that means nothing.
    fn listed(self, owner: UserId) -> Result<Option<Listed>> {
        if self.ver.is_none() {
            return Ok(None);
        }
        let (kind, other) = (self.kind, self.other);
        let listed = self.whole(owner).ok_or_else(|| {
            let text =
                format!("the row ({kind}, {other}) of {owner} has columns that mean nothing");
            Error::corrupt(SEAM, text)
        })?;
        Ok(Some(listed))
    }

    fn whole(self, owner: UserId) -> Option<Listed> {
        let register = |stored: Option<i64>| u64::try_from(stored.unwrap_or(0)).ok().map(Seq);
        let prev = match self.prev? {
            0 => None,
            id => Some(MessageId::new(id).ok()?),
        };
        Some(Listed {
            row: ConversationRow {
                owner,
                conversation: conversation(owner, self.kind, self.other)?,
                position: Position {
                    seq: Seq(u64::try_from(self.seq?).ok()?),
                    prev,
                },
                last_id: MessageId::new(self.last_id?).ok()?,
                version: Timestamp::from_millis(self.version?),
                source: write_time::version_of(self.ver?)?,
            },
            read_seq: register(self.read_seq)?,
            received_seq: register(self.received_seq)?,
        })
    }
}

#[async_trait]
impl ConversationStore for ScyllaConversations {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        // A busy conversation has many rows in one call, and only the last is written.
        let mut last: BTreeMap<(UserId, ConversationId), ConversationRow> = BTreeMap::new();
        for row in rows {
            let standing = last.entry((row.owner, row.conversation)).or_insert(row);
            if (standing.source, standing.version) < (row.source, row.version) {
                *standing = row;
            }
        }
        let writes = last.into_values().map(|row| self.write(row));
        self.cql.all(writes.collect()).await.map(drop)
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<Listed>>> {
        let reads = keys
            .iter()
            .map(|&(owner, conversation)| self.one(owner, conversation));
        self.cql.all(reads.collect()).await
    }

    async fn changed(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        let (kind, other) = match after {
            Some(conversation) => key(owner, conversation)?,
            None => BEGINNING,
        };
        let bounds = (owner.get(), kind, other);
        let mut found = Vec::new();
        let mut from = Some(PagingState::start()).filter(|_| limit > 0);
        while let Some(start) = from.take() {
            let page = self.cql.page(&self.list, bounds, start, PAGE);
            let (rows, next): (Vec<Stored>, _) = page.await?;
            for row in rows {
                let listed = row.listed(owner)?;
                found.extend(listed.filter(|listed| listed.row.version >= since));
            }
            found.truncate(limit);
            from = next.filter(|_| found.len() < limit);
        }
        Ok(found)
    }

    async fn set_read(&self, reads: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        let mut writes = Vec::with_capacity(reads.len());
        for ((owner, conversation), seq) in furthest(reads) {
            let (kind, other) = key(owner, conversation)?;
            if let Some(seq) = write_time::of_seq(SEAM, seq)? {
                let values = (seq, seq, seq, owner.get(), kind, other);
                writes.push(self.cql.write(&self.read, values));
            }
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn set_received(&self, received: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        let mut writes = Vec::with_capacity(received.len());
        for ((owner, conversation), seq) in furthest(received) {
            let (kind, other) = key(owner, conversation)?;
            if let Some(seq) = write_time::of_seq(SEAM, seq)? {
                let values = (seq, seq, owner.get(), kind, other);
                writes.push(self.cql.write(&self.received, values));
            }
        }
        self.cql.all(writes).await.map(drop)
    }
}

fn furthest(moves: Vec<(UserId, ConversationId, Seq)>) -> BTreeMap<(UserId, ConversationId), Seq> {
    let mut furthest = BTreeMap::new();
    for (owner, conversation, seq) in moves {
        let standing = furthest.entry((owner, conversation)).or_insert(seq);
        *standing = seq.max(*standing);
    }
    furthest
}

/// Rows of an owner sort as its conversations do.
fn key(owner: UserId, conversation: ConversationId) -> Result<(i8, i64)> {
    match conversation {
        ConversationId::Private { .. } => match conversation.peer_of(owner) {
            Some(peer) => Ok((0, peer.get())),
            None => Err(Error::conflict(SEAM, "a private conversation of others")),
        },
        ConversationId::Group(group) => Ok((1, group.get())),
        ConversationId::System(user) => Ok((2, user.get())),
    }
}

fn conversation(owner: UserId, kind: i8, other: i64) -> Option<ConversationId> {
    match kind {
        0 => ConversationId::private(owner, UserId::new(other).ok()?),
        1 => GroupId::new(other).ok().map(ConversationId::Group),
        2 => UserId::new(other).ok().map(ConversationId::System),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
