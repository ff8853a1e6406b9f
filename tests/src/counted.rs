//! The stores that history and lists lie in, with a count of what is read of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use backend::Result;
use backend::changes::{ChangeStore, Stretch};
use backend::conversations::{ConversationStore, Registers};
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::heads::HeadStore;
use backend::history::{HistoryStore, StatusWrite};
use protocol::change::{Altered, Arranged, ChangeRow, Changed};
use protocol::conversation::{ConversationRow, Head, Listed};
use protocol::frame::HistoryRange;
use protocol::group::{GroupRow, Member, Settings};
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus, Version};
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, MessageId, SendId, Seq, Timestamp, UserId};
use server::compose::Seams;

/// Questions that were asked; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Reads(Arc<AtomicUsize>);

impl Reads {
    /// Since the last time that this was asked.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }

    /// Counts in all of them from now on.
    pub fn of(&self, mut seams: Seams) -> Seams {
        seams.history = self.around(seams.history);
        seams.heads = self.around(seams.heads);
        seams.conversations = self.around(seams.conversations);
        seams.changes = self.around(seams.changes);
        seams.groups = self.around(seams.groups);
        seams.group_history = self.around(seams.group_history);
        seams
    }

    fn around<T: ?Sized>(&self, inner: Arc<T>) -> Arc<Counted<T>> {
        let reads = self.clone();
        Arc::new(Counted { inner, reads })
    }
}

struct Counted<T: ?Sized> {
    inner: Arc<T>,
    reads: Reads,
}

impl<T: ?Sized> Counted<T> {
    fn read(&self) {
        self.reads.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl HeadStore for Counted<dyn HeadStore> {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>> {
        self.read();
        self.inner.load(conversations).await
    }

    async fn save(&self, heads: Vec<(ConversationId, Head)>) -> Result<()> {
        self.inner.save(heads).await
    }
}

#[async_trait]
impl ConversationStore for Counted<dyn ConversationStore> {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        self.inner.save(rows).await
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<Listed>>> {
        self.read();
        self.inner.get(keys).await
    }

    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Registers>> {
        self.read();
        self.inner.registers(keys).await
    }

    async fn changed(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.read();
        self.inner.changed(owner, since, after, limit).await
    }

    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.set_read(reads, at).await
    }

    async fn set_received(&self, received: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        self.inner.set_received(received).await
    }

    async fn arrange(
        &self,
        arranged: Vec<(UserId, ConversationId, Version, Arranged)>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.arrange(arranged, at).await
    }

    async fn set_cleared(
        &self,
        cleared: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.set_cleared(cleared, at).await
    }

    async fn hide(
        &self,
        hidden: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.inner.hide(hidden, at).await
    }

    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>> {
        self.read();
        self.inner.hidden(owner, conversation, after, limit).await
    }

    async fn touch(&self, touched: Vec<(UserId, ConversationId)>, at: Timestamp) -> Result<()> {
        self.inner.touch(touched, at).await
    }
}

#[async_trait]
impl GroupStore for Counted<dyn GroupStore> {
    async fn save(
        &self,
        group: GroupId,
        settings: Option<(Settings, Version)>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()> {
        self.inner.save(group, settings, members).await
    }

    async fn settings(&self, group: GroupId) -> Result<Option<(Settings, Version)>> {
        self.read();
        self.inner.settings(group).await
    }

    async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.read();
        self.inner.members(group, after, limit).await
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(Settings, Member)>>> {
        self.read();
        self.inner.members_of(keys).await
    }

    async fn present(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.read();
        self.inner.present(group, after, limit).await
    }

    async fn groups_of(
        &self,
        user: UserId,
        after: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>> {
        self.read();
        self.inner.groups_of(user, after, limit).await
    }
}

#[async_trait]
impl GroupHistoryStore for Counted<dyn GroupHistoryStore> {
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()> {
        self.inner.save(rows).await
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        self.read();
        self.inner.rows(keys).await
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        self.read();
        self.inner.find(group, range, order, limit).await
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        self.read();
        self.inner.conversation(group, range, limit).await
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        self.read();
        self.inner.ids(group, seqs).await
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>> {
        self.read();
        self.inner.find_send(from, group, send_id, since).await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.read();
        self.inner.sent_as(send_id).await
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> Result<u64> {
        self.read();
        self.inner.own_between(group, user, after, last).await
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()> {
        self.inner.delete(group, ids).await
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>> {
        self.read();
        self.inner.deleted(group, ids).await
    }
}

#[async_trait]
impl HistoryStore for Counted<dyn HistoryStore> {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()> {
        self.inner.save_private(rows).await
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>> {
        self.read();
        self.inner.private(keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>> {
        self.read();
        self.inner.places(keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.read();
        self.inner.find_private(owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.read();
        self.inner
            .conversation(owner, conversation, range, limit)
            .await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<Tally>>> {
        self.read();
        self.inner.tallies(places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>> {
        self.read();
        self.inner
            .find_send(from, conversation, send_id, since)
            .await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.read();
        self.inner.sent_as(send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.inner.set_status(writes).await
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.read();
        self.inner.status(keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        self.inner.delete(keys).await
    }
}

#[async_trait]
impl ChangeStore for Counted<dyn ChangeStore> {
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()> {
        self.inner.save(changes).await
    }

    async fn since(
        &self,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Changed>> {
        self.read();
        self.inner.since(conversation, after, limit).await
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        last: u64,
    ) -> Result<Option<Changed>> {
        self.read();
        self.inner.of_record(conversation, record, last).await
    }

    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, Changed)>> {
        self.read();
        self.inner.find_send(conversation, by, send_id, last).await
    }

    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Altered>> {
        self.read();
        self.inner.altered(conversation, first, last).await
    }

    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Altered>> {
        self.read();
        self.inner.altered_each(places).await
    }

    async fn recalled(&self, stretches: &[Stretch]) -> Result<Vec<BTreeMap<Seq, UserId>>> {
        self.read();
        self.inner.recalled(stretches).await
    }
}
