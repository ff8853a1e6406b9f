//! Messages in ScyllaDB or Cassandra.

mod groups;
mod private;

use async_trait::async_trait;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, RowStatus};
use protocol::message_row::{MessageRow, Owner, StoredPlace};
use protocol::reading::OwnRange;
use protocol::receipt::StatusWrite;
use protocol::unread::Tally;
use protocol::writer::SendKey;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

use self::groups::GroupTables;
use self::private::PrivateTables;
use super::{MessageStore, SEAM, owners};
use crate::Result;
use crate::scylla::{Cql, SeamCql};

/// Messages in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaMessages {
    cql: SeamCql,
    private: PrivateTables,
    groups: GroupTables,
}

impl ScyllaMessages {
    pub fn new(cql: Cql) -> ScyllaMessages {
        ScyllaMessages {
            cql: cql.at(SEAM),
            private: PrivateTables::new(),
            groups: GroupTables::new(),
        }
    }
}

#[async_trait]
impl MessageStore for ScyllaMessages {
    async fn save(&self, rows: Vec<MessageRow>) -> Result<()> {
        let (copies, messages) = owners::rows(rows)?;
        let (user_result, group_result) = tokio::join!(
            self.private.save(&self.cql, &copies),
            self.groups.save(&self.cql, &messages),
        );
        user_result.and(group_result)
    }

    async fn rows(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<Option<MessageRow>>> {
        let halves = owners::keys(keys);
        let (user_rows, group_rows) = tokio::try_join!(
            self.private.rows(&self.cql, &halves.user_items),
            self.groups.rows(&self.cql, &halves.group_items),
        )?;
        Ok(halves.merge(user_rows, group_rows))
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<StoredPlace>>> {
        self.private.places(&self.cql, keys).await
    }

    async fn find(
        &self,
        owner: Owner,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let cql = &self.cql;
        match owner {
            Owner::User(user) => self.private.find(cql, user, range, order, limit).await,
            Owner::Group(group) => self.groups.find(cql, group, range, order, limit).await,
        }
    }

    async fn page(
        &self,
        owner: Owner,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        let cql = &self.cql;
        match owner {
            Owner::User(user) => {
                let page = self.private.page(cql, user, conversation, range, limit);
                page.await
            }
            Owner::Group(group) if conversation == ConversationId::Group(group) => {
                self.groups.page(cql, group, range, limit).await
            }
            Owner::Group(_) => Ok(Vec::new()),
        }
    }

    async fn at(
        &self,
        places: &[(Owner, ConversationId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let halves = owners::places(places);
        let (user_tallies, group_tallies) = tokio::try_join!(
            self.private.at(&self.cql, &halves.user_items),
            self.groups.at(&self.cql, &halves.group_items),
        )?;
        Ok(halves.merge(user_tallies, group_tallies))
    }

    async fn find_sends(&self, keys: &[SendKey]) -> Result<Vec<Option<MessageRow>>> {
        let halves = owners::sends(keys);
        let (user_rows, group_rows) = tokio::try_join!(
            self.private.find_sends(&self.cql, &halves.user_items),
            self.groups.find_sends(&self.cql, &halves.group_items),
        )?;
        Ok(halves.merge(user_rows, group_rows))
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        let (mut senders, group_senders) = tokio::try_join!(
            self.private.sent_as(&self.cql, send_id),
            self.groups.sent_as(&self.cql, send_id),
        )?;
        senders.extend(group_senders);
        Ok(senders)
    }

    async fn own_between(&self, user: UserId, ranges: &[OwnRange]) -> Result<Vec<u64>> {
        let own = ranges
            .iter()
            .map(|range| self.groups.own_between(&self.cql, user, range));
        self.cql.all(own.collect()).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.private.statuses.advance(&self.cql, writes).await
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.private.statuses.read(&self.cql, keys).await
    }

    async fn delete(&self, keys: &[(Owner, MessageId)]) -> Result<()> {
        let halves = owners::keys(keys);
        let (user_result, group_result) = tokio::join!(
            self.private.delete(&self.cql, &halves.user_items),
            self.groups.delete(&self.cql, &halves.group_items),
        );
        user_result.and(group_result)
    }

    async fn deleted(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<bool>> {
        let halves = owners::keys(keys);
        let (user_flags, group_flags) = tokio::try_join!(
            self.private.statuses.read(&self.cql, &halves.user_items),
            self.groups.deleted(&self.cql, &halves.group_items),
        )?;
        let user_flags = user_flags.iter().map(|status| status.deleted).collect();
        Ok(halves.merge(user_flags, group_flags))
    }
}

#[cfg(test)]
mod tests;
