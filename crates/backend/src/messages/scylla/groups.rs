//! Messages of groups.
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

use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order};
use protocol::message_row::MessageRow;
use protocol::reading::OwnRange;
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{GroupId, MessageId, SendId, Seq, UserId};

use self::deletions::Deletions;
use self::key::{Group, Member};
use self::own::OwnMessages;
use self::row::{NewRow, StoredRow};
use crate::Result;
use crate::messages::owners::GroupMessage;
use crate::scylla::SeamCql;
use crate::scylla::messages::{Owner, PositionEntries, Positions, Rows, Sends, StoredSend};

pub(super) struct GroupTables {
    rows: Rows<StoredRow>,
    deletions: Deletions,
    positions: Positions<Group>,
    own: OwnMessages,
    sends: Sends,
}

impl Owner for GroupId {
    const COLUMN: &'static str = "gid";
    const ROWS: &'static str = "gchat";
    const WINDOWS: &'static str = "gchat_bucket";

    fn number(self) -> i64 {
        self.get()
    }
}

impl GroupTables {
    pub(super) fn new() -> GroupTables {
        GroupTables {
            rows: Rows::new(),
            deletions: Deletions::new(),
            positions: Positions::new(),
            own: OwnMessages::new(),
            sends: Sends::new("gchat_send", "uid", "gid"),
        }
    }

    pub(super) async fn save(&self, cql: &SeamCql, messages: &[GroupMessage]) -> Result<()> {
        let new = messages
            .iter()
            .map(NewRow::of)
            .collect::<Result<Vec<_>>>()?;
        let positions = PositionEntries::of(new.iter().map(NewRow::group_entry));
        let own = PositionEntries::of(new.iter().map(NewRow::member_entry));
        let sends = messages
            .iter()
            .map(|GroupMessage { group, row }| StoredSend {
                send_id: row.placed.message.send_id,
                from: row.author(),
                to: group.get(),
                id: row.id(),
            });
        let keys = messages
            .iter()
            .map(|message| (message.group, message.row.id()));
        self.rows.open(cql, keys).await?;
        tokio::try_join!(
            self.rows.save(cql, &new),
            self.sends.save(cql, sends),
            self.own.save(cql, own),
        )?;
        self.positions.save(cql, positions).await
    }

    pub(super) async fn rows(
        &self,
        cql: &SeamCql,
        keys: &[(GroupId, MessageId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        self.rows.whole(cql, keys).await
    }

    /// Rows by id.
    pub(super) async fn find(
        &self,
        cql: &SeamCql,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        self.rows.find(cql, group, range, order, limit).await
    }

    /// Conversation by position.
    pub(super) async fn page(
        &self,
        cql: &SeamCql,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let key = Group { gid: group.get() };
        let places = self.positions.page(cql, key, range, limit).await?;
        self.rows.standing(cql, group, key, &places).await
    }

    /// Ids at these positions, each with its position as a tally.
    pub(super) async fn at(
        &self,
        cql: &SeamCql,
        places: &[(GroupId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let keys = places.iter().map(|&(group, seq)| {
            let key = Group { gid: group.get() };
            (key, seq)
        });
        let keys: Vec<_> = keys.collect();
        let ids = self.positions.ids(cql, &keys).await?;
        let ids = places.iter().zip(ids);
        let tally = |seq| Tally { seq, incoming: 0 };
        Ok(ids.map(|(&(_, seq), id)| Some((id?, tally(seq)))).collect())
    }

    pub(super) async fn find_sends(
        &self,
        cql: &SeamCql,
        sends: &[(SendKey, GroupId)],
    ) -> Result<Vec<Option<MessageRow>>> {
        let queries = sends.iter().map(|(key, group)| StoredSend {
            send_id: key.send_id,
            from: key.from,
            to: group.get(),
            id: key.min_id,
        });
        let ids = self.sends.find(cql, queries).await?;
        let lookups = sends.iter().zip(&ids);
        let keys: Vec<_> = lookups
            .flat_map(|((_, group), ids)| ids.iter().map(move |id| (*group, *id)))
            .collect();
        let mut rows = self.rows.whole(cql, &keys).await?.into_iter();
        let first = |((key, _), ids): (&(SendKey, GroupId), &Vec<MessageId>)| {
            let rows: Vec<_> = rows.by_ref().take(ids.len()).collect();
            let mut candidates = rows.into_iter().flatten();
            candidates.find(|row| {
                let message = &row.placed.message;
                (message.from, message.send_id) == (key.from, key.send_id)
            })
        };
        Ok(sends.iter().zip(&ids).map(first).collect())
    }

    pub(super) async fn sent_as(
        &self,
        cql: &SeamCql,
        send_id: SendId,
    ) -> Result<Vec<(UserId, MessageId)>> {
        self.sends.all(cql, send_id).await
    }

    pub(super) async fn own_between(
        &self,
        cql: &SeamCql,
        user: UserId,
        OwnRange {
            group,
            base: after,
            last,
        }: &OwnRange,
    ) -> Result<u64> {
        let number = |seq: &Seq| i64::try_from(seq.0).unwrap_or(i64::MAX);
        let range = number(after).saturating_add(1)..=number(last);
        if range.is_empty() {
            return Ok(0);
        }
        let member = Member {
            gid: group.get(),
            uid: user.get(),
        };
        self.own.count(cql, &self.positions, member, range).await
    }

    pub(super) async fn delete(&self, cql: &SeamCql, keys: &[(GroupId, MessageId)]) -> Result<()> {
        self.deletions.write(cql, keys).await
    }

    pub(super) async fn deleted(
        &self,
        cql: &SeamCql,
        keys: &[(GroupId, MessageId)],
    ) -> Result<Vec<bool>> {
        self.deletions.of(cql, keys).await
    }
}
