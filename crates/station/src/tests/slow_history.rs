//! History that writes statuses and does not answer, or is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use backend::history::{EmbeddedHistory, HistoryStore, StatusWrite};
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus};
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

use super::world::one_less;

pub(super) struct SlowHistory {
    store: EmbeddedHistory,
    /// Writes of statuses that are done and never answered, from the next one on.
    pub(super) answers_lost: AtomicUsize,
    /// Nothing is written.
    pub(super) is_away: AtomicBool,
    /// Statuses that were written.
    pub(super) writes: AtomicUsize,
}

impl SlowHistory {
    pub(super) fn over(store: EmbeddedHistory) -> Arc<SlowHistory> {
        Arc::new(SlowHistory {
            store,
            answers_lost: AtomicUsize::new(0),
            is_away: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl HistoryStore for SlowHistory {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> backend::Result<()> {
        self.store.save_private(rows).await
    }

    async fn private(
        &self,
        keys: &[(UserId, MessageId)],
    ) -> backend::Result<Vec<Option<PrivateRow>>> {
        self.store.private(keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> backend::Result<Vec<Option<Place>>> {
        self.store.places(keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> backend::Result<Vec<PrivateRow>> {
        self.store.find_private(owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> backend::Result<Vec<PrivateRow>> {
        let rows = self.store.conversation(owner, conversation, range, limit);
        rows.await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> backend::Result<Vec<Option<Tally>>> {
        self.store.tallies(places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> backend::Result<Option<PrivateRow>> {
        let row = self.store.find_send(from, conversation, send_id, since);
        row.await
    }

    async fn sent_as(&self, send_id: SendId) -> backend::Result<Vec<(UserId, MessageId)>> {
        self.store.sent_as(send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> backend::Result<Vec<bool>> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(backend::Error::unavailable("history", "away"));
        }
        let answer = self.store.set_status(writes).await;
        self.writes.fetch_add(1, Ordering::Relaxed);
        if one_less(&self.answers_lost) {
            std::future::pending::<()>().await;
        }
        answer
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> backend::Result<Vec<RowStatus>> {
        self.store.status(keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> backend::Result<()> {
        self.store.delete(keys).await
    }
}
