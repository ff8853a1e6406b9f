//! The parts that only groups use, with a failpoint after each of their effects.

use std::time::Duration;

use async_trait::async_trait;
use backend::Result;
use backend::cache::{Cache, Copy, Found};
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::timeline::{Entry, Timeline};
use protocol::cached::{Outdated, Owner};
use protocol::frame::HistoryRange;
use protocol::group::{GroupRow, Member, Settings};
use protocol::history::{IdRange, Order, Version};
use protocol::{GroupId, MessageId, SendId, Seq, UserId};

use super::seams::Watched;

#[async_trait]
impl GroupStore for Watched<dyn GroupStore> {
    async fn save(
        &self,
        group: GroupId,
        settings: Option<(Settings, Version)>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()> {
        let saved = self.inner.save(group, settings, members).await;
        self.passed("groups.save", saved)
    }

    async fn settings(&self, group: GroupId) -> Result<Option<(Settings, Version)>> {
        self.inner.settings(group).await
    }

    async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.inner.members(group, after, limit).await
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(Settings, Member)>>> {
        self.inner.members_of(keys).await
    }

    async fn present(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.inner.present(group, after, limit).await
    }

    async fn groups_of(
        &self,
        user: UserId,
        after: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>> {
        self.inner.groups_of(user, after, limit).await
    }
}

#[async_trait]
impl GroupHistoryStore for Watched<dyn GroupHistoryStore> {
    async fn save(&self, rows: Vec<GroupRow>) -> Result<()> {
        self.passed("group_history.save", self.inner.save(rows).await)
    }

    async fn rows(&self, keys: &[(GroupId, MessageId)]) -> Result<Vec<Option<GroupRow>>> {
        self.inner.rows(keys).await
    }

    async fn find(
        &self,
        group: GroupId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        self.inner.find(group, range, order, limit).await
    }

    async fn conversation(
        &self,
        group: GroupId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<GroupRow>> {
        self.inner.conversation(group, range, limit).await
    }

    async fn ids(&self, group: GroupId, seqs: &[Seq]) -> Result<Vec<Option<MessageId>>> {
        self.inner.ids(group, seqs).await
    }

    async fn find_send(
        &self,
        from: UserId,
        group: GroupId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<GroupRow>> {
        self.inner.find_send(from, group, send_id, since).await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.inner.sent_as(send_id).await
    }

    async fn own_between(
        &self,
        group: GroupId,
        user: UserId,
        after: Seq,
        last: Seq,
    ) -> Result<u64> {
        self.inner.own_between(group, user, after, last).await
    }

    async fn delete(&self, group: GroupId, ids: &[MessageId]) -> Result<()> {
        self.inner.delete(group, ids).await
    }

    async fn deleted(&self, group: GroupId, ids: &[MessageId]) -> Result<Vec<bool>> {
        self.inner.deleted(group, ids).await
    }
}

#[async_trait]
impl Timeline for Watched<dyn Timeline> {
    async fn push(&self, group: GroupId, entries: Vec<Entry>) -> Result<()> {
        self.passed("timeline.push", self.inner.push(group, entries).await)
    }

    async fn latest(&self, group: GroupId, offset: usize, count: usize) -> Result<Vec<Entry>> {
        self.inner.latest(group, offset, count).await
    }

    async fn count(&self, group: GroupId, most: usize) -> Result<usize> {
        self.inner.count(group, most).await
    }

    async fn forget(&self, group: GroupId) -> Result<()> {
        self.inner.forget(group).await
    }
}

#[async_trait]
impl Cache for Watched<dyn Cache> {
    fn keep_for(&self) -> Duration {
        self.inner.keep_for()
    }

    async fn find(&self, owners: &[Owner]) -> Vec<Result<Found>> {
        self.inner.find(owners).await
    }

    async fn keep(&self, copies: Vec<Copy>) -> Vec<Result<bool>> {
        let kept = self.inner.keep(copies).await;
        if kept.iter().all(|kept| matches!(kept, Ok(true))) {
            self.passed("cache.keep", Ok(())).ok();
        }
        kept
    }

    async fn forget(&self, outdated: &[Outdated]) -> Vec<Result<()>> {
        let forgotten = self.inner.forget(outdated).await;
        if forgotten.iter().all(Result::is_ok) {
            self.passed("cache.forget", Ok(())).ok();
        }
        forgotten
    }
}
