//! Messages of groups in ScyllaDB or Cassandra.
//!
//! | table | partition | row | holds |
//! | --- | --- | --- | --- |
//! | `gchat` | group, 28-day window of the id | id | the row, and a flag once it is deleted |
//! | `gchat_bucket` | group | window | windows with rows of the group |
//! | `gchat_seq` | group, block of positions | seq | id |
//! | `gchat_block` | group | block | blocks with positions of the group |
//! | `gchat_own` | group, sender, block of positions | seq | id: counts if in `gchat_seq`, too |
//! | `gchat_own_block` | group, sender | block | blocks with positions of the sender |
//! | `gchat_send` | send_id | sender, group, id | |
//!
//! A message costs four small writes and the row, whatever the size of the group. Writing takes
//! three steps; the redelivery repeats whatever was interrupted:
//!
//! ```text
//! 1 windows                  every row lies in a known window
//! 2 rows, send_ids, own      in any order
//! 3 positions                upward in each group: a reader sees no false hole, no position
//!                            without its row, and none that its sender does not count
//! ```

mod deletions;
mod key;
mod own;
mod row;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::group::GroupRow;
use protocol::history::{IdRange, Order};
use protocol::{GroupId, MessageId, SendId, Seq, UserId};

use self::deletions::Deletions;
use self::key::{Group, Member};
use self::own::Own;
use self::row::{NewRow, StoredRow};
use super::GroupHistoryStore;
use crate::Result;
use crate::scylla::messages::{Owner, PositionEntries, Positions, Rows, Sends, StoredSend};
use crate::scylla::{Cql, SeamCql};

const SEAM: &str = "group history";

/// Messages of groups in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaGroupHistory {
    cql: SeamCql,
    rows: Rows<StoredRow>,
    deletions: Deletions,
    positions: Positions<Group>,
    own: Own,
    sends: Sends,
}

impl ScyllaGroupHistory {
    pub fn new(cql: Cql) -> ScyllaGroupHistory {
        ScyllaGroupHistory {
            cql: cql.at(SEAM),
            rows: Rows::new(),
            deletions: Deletions::new(),
            positions: Positions::new(),
            own: Own::new(),
            sends: Sends::new("gchat_send", "uid", "gid"),
        }
    }
}

impl Owner for GroupId {
    const COLUMN: &'static str = "gid";
    const ROWS: &'static str = "gchat";
    const WINDOWS: &'static str = "gchat_bucket";

    fn number(self) -> i64 {
        self.get()
    }
}

#[async_trait]
impl GroupHistoryStore for ScyllaGroupHistory {
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()> {
        let new = rows.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        let positions = PositionEntries::of(new.iter().map(NewRow::in_group));
        let own = PositionEntries::of(new.iter().map(NewRow::of_member));
        let sent = rows.iter().map(|row| StoredSend {
            send_id: row.send_id,
            from: row.from,
            to: row.group.get(),
            id: row.id,
        });
        let cql = &self.cql;
        let keys = rows.iter().map(|row| (row.group, row.id));
        self.rows.open(cql, keys).await?;
        tokio::try_join!(
            self.rows.save(cql, &new),
            self.sends.save(cql, sent),
            self.own.save(cql, own),
        )?;
        self.positions.save(cql, positions).await
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        self.rows.whole(&self.cql, keys).await
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let rows = &self.rows;
        rows.find(&self.cql, group, range, order, limit).await
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        let key = Group { gid: group.get() };
        let places = self.positions.page(&self.cql, key, range, limit).await?;
        self.rows.standing(&self.cql, group, key, &places).await
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        let key = Group { gid: group.get() };
        let places: Vec<_> = seqs.iter().map(|&seq| (key, seq)).collect();
        self.positions.ids(&self.cql, &places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>> {
        let since = StoredSend {
            send_id,
            from,
            to: group.get(),
            id: since,
        };
        let ids = self.sends.find(&self.cql, since).await?;
        let keys: Vec<_> = ids.into_iter().map(|id| (group, id)).collect();
        let rows = self.rows.whole(&self.cql, &keys).await?;
        let mut rows = rows.into_iter().flatten();
        Ok(rows.find(|row| row.from == from && row.send_id == send_id))
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.sends.all(&self.cql, send_id).await
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> Result<u64> {
        let number = |seq: Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        let range = number(after).saturating_add(1)..=number(last);
        if range.is_empty() {
            return Ok(0);
        }
        let member = Member {
            gid: group.get(),
            uid: user.get(),
        };
        let own = self.own.count(&self.cql, &self.positions, member, range);
        own.await
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()> {
        self.deletions.write(&self.cql, group, ids).await
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>> {
        self.deletions.of(&self.cql, group, ids).await
    }
}

#[cfg(test)]
mod tests;
