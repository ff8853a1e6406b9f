//! Messages in the embedded store.

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
use super::{MessageStore, owners};
use crate::Result;
use crate::embedded::Engine;

/// Messages in the embedded store. One instance per store: it remembers its writes.
pub struct EmbeddedMessages {
    private: PrivateTables,
    groups: GroupTables,
}

impl EmbeddedMessages {
    pub fn new(engine: Engine) -> EmbeddedMessages {
        EmbeddedMessages {
            private: PrivateTables::new(engine.clone()),
            groups: GroupTables::new(engine),
        }
    }
}

#[async_trait]
impl MessageStore for EmbeddedMessages {
    async fn save(&self, rows: Vec<MessageRow>) -> Result<()> {
        let (copies, messages) = owners::rows(rows)?;
        let (user_result, group_result) = (self.private.save(copies), self.groups.save(messages));
        user_result.and(group_result)
    }

    async fn rows(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<Option<MessageRow>>> {
        let halves = owners::keys(keys);
        let user_rows = self.private.rows(&halves.user_items)?;
        let group_rows = self.groups.rows(&halves.group_items)?;
        Ok(halves.merge(user_rows, group_rows))
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<StoredPlace>>> {
        self.private.places(keys)
    }

    async fn find(
        &self,
        owner: Owner,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        match owner {
            Owner::User(user) => self.private.find(user, range, order, limit),
            Owner::Group(group) => self.groups.find(group, range, order, limit),
        }
    }

    async fn page(
        &self,
        owner: Owner,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<MessageRow>> {
        match owner {
            Owner::User(user) => self.private.page(user, conversation, range, limit),
            Owner::Group(group) if conversation == ConversationId::Group(group) => {
                self.groups.page(group, range, limit)
            }
            Owner::Group(_) => Ok(Vec::new()),
        }
    }

    async fn at(
        &self,
        places: &[(Owner, ConversationId, Seq)],
    ) -> Result<Vec<Option<(MessageId, Tally)>>> {
        let halves = owners::places(places);
        let user_tallies = self.private.at(&halves.user_items)?;
        let group_tallies = self.groups.at(&halves.group_items)?;
        Ok(halves.merge(user_tallies, group_tallies))
    }

    async fn find_sends(&self, keys: &[SendKey]) -> Result<Vec<Option<MessageRow>>> {
        let halves = owners::sends(keys);
        let user_rows = self.private.find_sends(&halves.user_items)?;
        let group_rows = self.groups.find_sends(&halves.group_items)?;
        Ok(halves.merge(user_rows, group_rows))
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        let mut senders = self.private.sent_as(send_id)?;
        senders.extend(self.groups.sent_as(send_id)?);
        Ok(senders)
    }

    async fn own_between(&self, user: UserId, ranges: &[OwnRange]) -> Result<Vec<u64>> {
        let own = ranges.iter();
        own.map(|range| self.groups.own_between(user, range))
            .collect()
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.private.set_status(writes)
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.private.status(keys)
    }

    async fn delete(&self, keys: &[(Owner, MessageId)]) -> Result<()> {
        let halves = owners::keys(keys);
        let user_result = self.private.delete(&halves.user_items);
        let group_result = self.groups.delete(&halves.group_items);
        user_result.and(group_result)
    }

    async fn deleted(&self, keys: &[(Owner, MessageId)]) -> Result<Vec<bool>> {
        let halves = owners::keys(keys);
        let user_flags = self.private.status(&halves.user_items)?;
        let user_flags = user_flags.iter().map(|status| status.deleted).collect();
        let group_flags = self.groups.deleted(&halves.group_items)?;
        Ok(halves.merge(user_flags, group_flags))
    }
}

#[cfg(test)]
mod tests;
