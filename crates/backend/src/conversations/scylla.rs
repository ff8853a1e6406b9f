//! Conversation lists in ScyllaDB or Cassandra: table `conversation`, a partition per owner, in the
//! order of its conversations.
//!
//! A row is written at the time of its source, so that a zombie's row loses whatever its clock
//! says; of one source the larger stamp wins. If a later source has the smaller stamp (the writer
//! moved to a machine whose clock is behind), the row shows the smaller: the margin by which list
//! cursors look back covers it.
//!
//! The list difference reads an owner's partition page by page, about 100 bytes a row, and filters:
//! an order by version would cost a removal at each message, which leaves a tombstone here that
//! each login reads over. Each register is written alone, at the time of its own position.
//!
//! Table `hidden`: messages hidden by their owner, a partition per conversation, by the record that
//! hid them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use protocol::change::ListArrangement;
use protocol::conversation::{ConversationRow, ListEntry};
use protocol::history::Version;
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, MessageId, Seq, Timestamp, UserId};
use scylla::DeserializeRow;
use scylla::response::PagingState;

use super::{ConversationStore, ListRegisters};
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "conversations";

/// Rows per answer.
const PAGE: usize = 500;

/// Sorts before the first conversation of every owner.
const BEGINNING: (i8, i64) = (-1, 0);

/// Conversation lists in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaConversations {
    cql: SeamCql,
    insert: Statement,
    select: Statement,
    list: Statement,
    set_read: Statement,
    set_received: Statement,
    set_cleared: Statement,
    stamp: Statement,
    arrange: Statement,
    hide: Statement,
    set_hidden: Statement,
    select_hidden: Statement,
}

/// Row as read. All columns but registers are missing if only registers were written so far.
#[derive(DeserializeRow)]
struct ConversationColumns {
    kind: i8,
    other: i64,
    seq: Option<i64>,
    incoming: Option<i64>,
    rev: Option<i64>,
    last_id: Option<i64>,
    version: Option<i64>,
    ver: Option<i64>,
    read_seq: Option<i64>,
    received_seq: Option<i64>,
    cleared_seq: Option<i64>,
    cleared_incoming: Option<i64>,
    touched: Option<i64>,
    pinned: Option<bool>,
    muted_until: Option<i64>,
    hidden: Option<i64>,
}

const COLUMNS: &str = "kind, other, seq, incoming, rev, last_id, version, ver, read_seq, received_seq, \
    cleared_seq, cleared_incoming, touched, pinned, muted_until, hidden";

/// Hidden messages read at a time in the search for one.
const HIDDEN_PAGE: i32 = 1000;

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
                "INSERT INTO conversation (uid, kind, other, seq, incoming, rev, last_id, version, ver) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            select: Statement::new(format!(
                "SELECT {COLUMNS} FROM conversation WHERE uid = ? AND kind = ? AND other = ?"
            )),
            list: Statement::new(format!(
                "SELECT {COLUMNS} FROM conversation WHERE uid = ? AND (kind, other) > (?, ?)"
            )),
            set_read: register("read_seq = ?, received_seq = ?"),
            set_received: register("received_seq = ?"),
            set_cleared: register("cleared_seq = ?, cleared_incoming = ?"),
            stamp: register("touched = ?"),
            arrange: register("pinned = ?, muted_until = ?"),
            hide: Statement::new(
                "INSERT INTO hidden (uid, kind, other, ver, seq) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            set_hidden: register("hidden = ?"),
            select_hidden: Statement::new(
                "SELECT ver, seq FROM hidden WHERE uid = ? AND kind = ? AND other = ? AND ver > ? LIMIT ?",
            ),
        }
    }

    async fn write(&self, row: ConversationRow) -> Result<()> {
        let (kind, other) = key(row.owner, row.conversation)?;
        let seq = write_time::from_seq(SEAM, row.end.seq)?.unwrap_or(0);
        let (incoming_count, rev) = (row.end.incoming as i64, row.rev as i64);
        let (last_id, version) = (row.last_id.get(), row.version.millis());
        let ver = write_time::from_version(SEAM, row.source)?;
        let owner = row.owner.get();
        let values = (
            owner,
            kind,
            other,
            seq,
            incoming_count,
            rev,
            last_id,
            version,
            ver,
            ver,
        );
        self.cql.write(&self.insert, values).await
    }

    /// Writes the register before the stamp: a reader that sees the stamp sees the register.
    async fn write_stamped(
        &self,
        register: impl Future<Output = Result<()>>,
        (owner, kind, other): (UserId, i8, i64),
        at: Timestamp,
    ) -> Result<()> {
        register.await?;
        let at = write_time::from_time(SEAM, at)?;
        let values = (at, at, owner.get(), kind, other);
        self.cql.write(&self.stamp, values).await
    }

    async fn select_row(
        &self,
        owner: UserId,
        conversation: ConversationId,
    ) -> Result<Option<ConversationColumns>> {
        let (kind, other) = key(owner, conversation)?;
        let key = (owner.get(), kind, other);
        let rows: Vec<ConversationColumns> = self.cql.rows(&self.select, key).await?;
        Ok(rows.into_iter().next())
    }

    async fn one(&self, owner: UserId, conversation: ConversationId) -> Result<Option<ListEntry>> {
        match self.select_row(owner, conversation).await? {
            Some(row) => row.into_entry(owner),
            None => Ok(None),
        }
    }

    async fn first_mark(
        &self,
        owner: UserId,
        conversation: ConversationId,
        seq: Seq,
    ) -> Result<Option<u64>> {
        let (kind, other) = key(owner, conversation)?;
        let mut cursor = 0;
        // One partition, with a row for each message that this user hid there.
        loop {
            let values = (owner.get(), kind, other, cursor, HIDDEN_PAGE);
            let rows: Vec<(i64, i64)> = self.cql.rows(&self.select_hidden, values).await?;
            let first = rows
                .iter()
                .find(|(_, hidden_seq)| *hidden_seq == seq.0 as i64);
            if let Some((ver, _)) = first {
                return Ok(Some(*ver as u64));
            }
            match rows.last() {
                Some((ver, _)) if rows.len() == HIDDEN_PAGE as usize => cursor = *ver,
                Some(_) | None => return Ok(None),
            }
        }
    }

    async fn read_registers(
        &self,
        owner: UserId,
        conversation: ConversationId,
    ) -> Result<ListRegisters> {
        let Some(row) = self.select_row(owner, conversation).await? else {
            return Ok(ListRegisters::default());
        };
        row.registers().ok_or_else(|| {
            let text = format!("invalid registers of {owner} in {conversation}");
            Error::corrupt(SEAM, text)
        })
    }
}

impl ConversationColumns {
    /// `None` for a row that was never written, `Corrupt` for one that makes no sense.
    fn into_entry(self, owner: UserId) -> Result<Option<ListEntry>> {
        if self.ver.is_none() {
            return Ok(None);
        }
        let (kind, other) = (self.kind, self.other);
        let entry = self.build_entry(owner).ok_or_else(|| {
            let text = format!("the row ({kind}, {other}) of {owner} has invalid columns");
            Error::corrupt(SEAM, text)
        })?;
        Ok(Some(entry))
    }

    fn registers(&self) -> Option<ListRegisters> {
        let number = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).ok();
        Some(ListRegisters {
            read_seq: number(self.read_seq).map(Seq)?,
            received_seq: number(self.received_seq).map(Seq)?,
            cleared: Tally {
                seq: number(self.cleared_seq).map(Seq)?,
                incoming: number(self.cleared_incoming)?,
            },
            touched: Timestamp::from_millis(self.touched.unwrap_or(0)),
            arranged: ListArrangement {
                pinned: self.pinned.unwrap_or(false),
                muted_until: (self.muted_until.filter(|millis| *millis != 0))
                    .map(Timestamp::from_millis),
            },
            hidden: number(self.hidden)?,
        })
    }

    fn build_entry(self, owner: UserId) -> Option<ListEntry> {
        let registers = self.registers()?;
        // Rows from before migration 7 have neither.
        let number = |value: Option<i64>| u64::try_from(value.unwrap_or(0)).ok();
        Some(ListEntry {
            row: ConversationRow {
                owner,
                conversation: conversation(owner, self.kind, self.other)?,
                end: Tally {
                    seq: Seq(u64::try_from(self.seq?).ok()?),
                    incoming: number(self.incoming)?,
                },
                rev: number(self.rev)?,
                last_id: MessageId::new(self.last_id?).ok()?,
                version: Timestamp::from_millis(self.version?),
                source: write_time::to_version(self.ver?)?,
            },
            read_seq: registers.read_seq,
            received_seq: registers.received_seq,
            cleared: registers.cleared,
            touched: registers.touched,
            arranged: registers.arranged,
            hidden: registers.hidden,
        })
    }
}

#[async_trait]
impl ConversationStore for ScyllaConversations {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        // A busy conversation has many rows in one call; only the last is written.
        let mut last: BTreeMap<(UserId, ConversationId), ConversationRow> = BTreeMap::new();
        for row in rows {
            let latest = last.entry((row.owner, row.conversation)).or_insert(row);
            if (latest.source, latest.version) < (row.source, row.version) {
                *latest = row;
            }
        }
        let writes = last.into_values().map(|row| self.write(row));
        self.cql.all(writes.collect()).await.map(drop)
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<ListEntry>>> {
        let reads = keys
            .iter()
            .map(|&(owner, conversation)| self.one(owner, conversation));
        self.cql.all(reads.collect()).await
    }

    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<ListRegisters>> {
        let reads = keys
            .iter()
            .map(|&(owner, conversation)| self.read_registers(owner, conversation));
        self.cql.all(reads.collect()).await
    }

    async fn changed(
        &self,
        owner: UserId,
        min_version: Timestamp,
        cursor: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<ListEntry>> {
        let (kind, other) = match cursor {
            Some(conversation) => key(owner, conversation)?,
            None => BEGINNING,
        };
        let bounds = (owner.get(), kind, other);
        let mut entries = Vec::new();
        let mut from = Some(PagingState::start()).filter(|_| limit > 0);
        while let Some(start) = from.take() {
            let page = self.cql.page(&self.list, bounds, start, PAGE);
            let (rows, next): (Vec<ConversationColumns>, _) = page.await?;
            for row in rows {
                let entry = row.into_entry(owner)?;
                entries.extend(entry.filter(|entry| entry.version() >= min_version));
            }
            entries.truncate(limit);
            from = next.filter(|_| entries.len() < limit);
        }
        Ok(entries)
    }

    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut writes = Vec::with_capacity(reads.len());
        for ((owner, conversation), seq) in furthest(reads) {
            let (kind, other) = key(owner, conversation)?;
            if let Some(seq) = write_time::from_seq(SEAM, seq)? {
                let values = (seq, seq, seq, owner.get(), kind, other);
                let write = self.cql.write(&self.set_read, values);
                writes.push(self.write_stamped(write, (owner, kind, other), at));
            }
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn set_received(&self, moves: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        let mut writes = Vec::with_capacity(moves.len());
        for ((owner, conversation), seq) in furthest(moves) {
            let (kind, other) = key(owner, conversation)?;
            if let Some(seq) = write_time::from_seq(SEAM, seq)? {
                let values = (seq, seq, owner.get(), kind, other);
                writes.push(self.cql.write(&self.set_received, values));
            }
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn arrange(
        &self,
        arrangement: Vec<(UserId, ConversationId, Version, ListArrangement)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut writes = Vec::with_capacity(arrangement.len());
        for (owner, conversation, version, arrangement) in arrangement {
            let (kind, other) = key(owner, conversation)?;
            let ver = write_time::from_version(SEAM, version)?;
            let muted_until = arrangement.muted_until.map_or(0, Timestamp::millis);
            let values = (
                ver,
                arrangement.pinned,
                muted_until,
                owner.get(),
                kind,
                other,
            );
            let write = self.cql.write(&self.arrange, values);
            writes.push(self.write_stamped(write, (owner, kind, other), at));
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn set_cleared(
        &self,
        moves: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut writes = Vec::with_capacity(moves.len());
        for ((owner, conversation), to) in furthest(moves) {
            let (kind, other) = key(owner, conversation)?;
            if let Some(seq) = write_time::from_seq(SEAM, to.seq)? {
                let incoming_count = to.incoming as i64;
                let values = (seq, seq, incoming_count, owner.get(), kind, other);
                let write = self.cql.write(&self.set_cleared, values);
                writes.push(self.write_stamped(write, (owner, kind, other), at));
            }
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn hide(
        &self,
        messages: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut rows: BTreeMap<_, BTreeMap<i64, Seq>> = BTreeMap::new();
        let mut moves = Vec::with_capacity(messages.len());
        for (owner, conversation, version, seq) in messages {
            let (kind, other) = key(owner, conversation)?;
            let ver = write_time::from_version(SEAM, version)?;
            let marks = rows.entry((owner, kind, other)).or_default();
            marks.insert(ver, seq);
            moves.push((owner, conversation, ver));
        }
        // In order: a reader that finds one row finds all rows before it.
        let rows = rows.into_iter().map(async |((owner, kind, other), rows)| {
            for (ver, seq) in rows {
                let values = (owner.get(), kind, other, ver, seq.0 as i64, ver);
                self.cql.write(&self.hide, values).await?;
            }
            Ok(())
        });
        self.cql.all(rows.collect()).await?;
        // The register goes last: a reader that sees it finds all rows up to it.
        let mut writes = Vec::with_capacity(moves.len());
        for ((owner, conversation), ver) in furthest(moves) {
            let (kind, other) = key(owner, conversation)?;
            let values = (ver, ver, owner.get(), kind, other);
            let write = self.cql.write(&self.set_hidden, values);
            writes.push(self.write_stamped(write, (owner, kind, other), at));
        }
        self.cql.all(writes).await.map(drop)
    }

    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        cursor: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>> {
        let (kind, other) = key(owner, conversation)?;
        let cursor = i64::try_from(cursor).unwrap_or(i64::MAX);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (owner.get(), kind, other, cursor, limit);
        let rows: Vec<(i64, i64)> = self.cql.rows(&self.select_hidden, values).await?;
        let rows = rows.into_iter();
        Ok(rows
            .map(|(ver, seq)| (ver as u64, Seq(seq as u64)))
            .collect())
    }

    async fn first_hidden(
        &self,
        keys: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<u64>>> {
        let reads = keys
            .iter()
            .map(|&(owner, conversation, seq)| self.first_mark(owner, conversation, seq));
        self.cql.all(reads.collect()).await
    }

    async fn touch(
        &self,
        conversations: Vec<(UserId, ConversationId)>,
        at: Timestamp,
    ) -> Result<()> {
        let mut writes = Vec::with_capacity(conversations.len());
        for (owner, conversation) in conversations {
            let (kind, other) = key(owner, conversation)?;
            let nothing = std::future::ready(Ok(()));
            writes.push(self.write_stamped(nothing, (owner, kind, other), at));
        }
        self.cql.all(writes).await.map(drop)
    }
}

fn furthest<T: Ord + Copy>(
    moves: Vec<(UserId, ConversationId, T)>,
) -> BTreeMap<(UserId, ConversationId), T> {
    let mut furthest = BTreeMap::new();
    for (owner, conversation, to) in moves {
        let latest = furthest.entry((owner, conversation)).or_insert(to);
        *latest = to.max(*latest);
    }
    furthest
}

/// Key of a row. Rows of an owner sort as the conversations do.
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
