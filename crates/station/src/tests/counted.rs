//! Stores of groups that count what they are asked, and can fall silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use backend::group_history::{EmbeddedGroupHistory, GroupHistoryStore};
use backend::groups::{EmbeddedGroups, GroupStore};
use protocol::frame::HistoryRange;
use protocol::group::{GroupRow, Member, Settings};
use protocol::history::{IdRange, Order, Version};
use protocol::{GroupId, MessageId, SendId, Seq, UserId};
use tokio::sync::Notify;

pub(super) struct CountedHistory {
    store: EmbeddedGroupHistory,
    reads: AtomicUsize,
    /// While set, pages wait until they may go on.
    pub(super) held: AtomicBool,
    pub(super) go_on: Notify,
}

impl CountedHistory {
    pub(super) fn over(store: EmbeddedGroupHistory) -> Arc<CountedHistory> {
        Arc::new(CountedHistory {
            store,
            reads: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            go_on: Notify::new(),
        })
    }

    /// Questions since the last time that this was asked.
    pub(super) fn reads(&self) -> usize {
        self.reads.swap(0, Ordering::Relaxed)
    }

    fn read(&self) -> &EmbeddedGroupHistory {
        self.reads.fetch_add(1, Ordering::Relaxed);
        &self.store
    }
}

#[async_trait]
impl GroupHistoryStore for CountedHistory {
    async fn save(&self, rows: Vec<GroupRow>) -> backend::Result<()> {
        self.store.save(rows).await
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> backend::Result<Vec<Option<GroupRow>>> {
        self.read().rows(keys).await
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> backend::Result<Vec<GroupRow>> {
        self.read().find(group, range, order, limit).await
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> backend::Result<Vec<GroupRow>> {
        if self.held.load(Ordering::Relaxed) {
            self.go_on.notified().await;
        }
        self.read().conversation(group, range, limit).await
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> backend::Result<Vec<Option<MessageId>>> {
        self.read().ids(group, seqs).await
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> backend::Result<Option<GroupRow>> {
        self.read().find_send(from, group, send_id, since).await
    }

    async fn sent_as(&self, send_id: SendId) -> backend::Result<Vec<(UserId, MessageId)>> {
        self.read().sent_as(send_id).await
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> backend::Result<u64> {
        self.read().own_between(group, user, after, last).await
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> backend::Result<()> {
        self.store.delete(group, ids).await
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> backend::Result<Vec<bool>> {
        self.read().deleted(group, ids).await
    }
}

pub(super) struct CountedGroups {
    store: EmbeddedGroups,
    /// Questions who is in.
    asked: AtomicUsize,
    silent: AtomicBool,
}

impl CountedGroups {
    pub(super) fn over(store: EmbeddedGroups) -> Arc<CountedGroups> {
        Arc::new(CountedGroups {
            store,
            asked: AtomicUsize::new(0),
            silent: AtomicBool::new(false),
        })
    }

    /// Questions since the last time that this was asked.
    pub(super) fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }

    pub(super) fn fall_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    async fn reach(&self) -> &EmbeddedGroups {
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        &self.store
    }
}

#[async_trait]
impl GroupStore for CountedGroups {
    async fn save(
        &self,
        group: GroupId,
        settings: Option<(Settings, Version)>,
        members: Vec<(UserId, Member)>,
    ) -> backend::Result<()> {
        self.store.save(group, settings, members).await
    }

    async fn settings(&self, group: GroupId) -> backend::Result<Option<(Settings, Version)>> {
        self.reach().await.settings(group).await
    }

    async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> backend::Result<Vec<(UserId, Member)>> {
        self.reach().await.members(group, after, limit).await
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> backend::Result<Vec<Option<(Settings, Member)>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.reach().await.members_of(keys).await
    }

    async fn present(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> backend::Result<Vec<(UserId, Member)>> {
        self.reach().await.present(group, after, limit).await
    }

    async fn groups_of(
        &self,
        user: UserId,
        after: Option<GroupId>,
        limit: usize,
    ) -> backend::Result<Vec<(GroupId, Member)>> {
        self.reach().await.groups_of(user, after, limit).await
    }
}
