//! Step after step back: what a device asks when it comes back. Lists, history and statuses are read
//! from the stores of record; nothing is answered that could have a hole.

use std::sync::Arc;
use std::time::Duration;

use api::station::SyncCall;
use backend::clock::Clock;
use backend::conversations::{ConversationStore, Listed};
use backend::heads::HeadStore;
use backend::history::HistoryStore;
use protocol::frame::{
    HistoryPage, HistoryRange, ListPage, MessageStatus, Summary, SyncAnswer, SyncPage, SyncQuery,
};
use protocol::history::{Direction, PrivateRow};
use protocol::sync::{check_cursor, dense_page, fitting, list_from, may_read, page_limit};
use protocol::{ConversationId, MessageId, Refusal, Seq, Timestamp, UserId};

use crate::deadline::within;

/// Answers sync questions.
pub(crate) struct Lookup {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) heads: Arc<dyn HeadStore>,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    pub(crate) page_max: usize,
    pub(crate) page_bytes_max: usize,
    pub(crate) list_margin: Duration,
}

impl Lookup {
    pub(crate) async fn answer(&self, call: SyncCall) -> Result<SyncPage, Refusal> {
        let user = call.user;
        let answer = match call.request.query {
            SyncQuery::List { since, after } => {
                SyncAnswer::List(self.list(user, since, after).await?)
            }
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => {
                let limit = page_limit(limit, self.page_max);
                SyncAnswer::History(self.history(user, conversation, range, limit).await?)
            }
            SyncQuery::Status { ids } => SyncAnswer::Status(self.status(user, &ids).await?),
        };
        Ok(SyncPage {
            request: call.request.request,
            answer,
        })
    }

    /// Conversations that changed, each with its newest message (S4-02, S4-03). `version` is the time
    /// before the rows were read, so that what is written meanwhile comes with the next list.
    async fn list(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
    ) -> Result<ListPage, Refusal> {
        if let Some(after) = after {
            may_read(owner, after)?;
        }
        let version = self.clock.now();
        let from = list_from(since, self.list_margin, version)?;
        // One more than a page tells whether there are more.
        let asked = self
            .conversations
            .changed(owner, from, after, self.page_max + 1);
        let mut listed = within(self.deadline, asked).await?;
        let more = listed.len() > self.page_max;
        listed.truncate(self.page_max);
        let keys: Vec<_> = listed
            .iter()
            .map(|listed| (owner, listed.row.last_id))
            .collect();
        let newest = within(self.deadline, self.history.private(&keys)).await?;
        let sizes = newest.iter().map(|row| row.as_ref().map_or(0, row_size));
        let fit = fitting(sizes, self.page_bytes_max);
        let more = more || fit < listed.len();
        let fitting = listed.into_iter().zip(newest).take(fit);
        Ok(ListPage {
            conversations: fitting.map(summary).collect(),
            version,
            more,
        })
    }

    /// A dense page of one conversation, for its two sides only.
    async fn history(
        &self,
        user: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<HistoryPage, Refusal> {
        may_read(user, conversation)?;
        // The head first, the rows after it: rows are written before the head moves.
        let last = self.last_seq(conversation).await?;
        check_cursor(range, last)?;
        let asked = self.history.conversation(user, conversation, range, limit);
        let mut rows = within(self.deadline, asked).await?;
        rows.truncate(fitting(rows.iter().map(row_size), self.page_bytes_max));
        let messages = rows.iter().filter_map(PrivateRow::placed).collect();
        let page = dense_page(messages, range, last)?;
        Ok(HistoryPage {
            conversation,
            messages: page.messages,
            last_seq: page.last_seq,
            more: page.more,
        })
    }

    async fn last_seq(&self, conversation: ConversationId) -> Result<Seq, Refusal> {
        let heads = within(self.deadline, self.heads.load(&[conversation])).await?;
        let head = heads.into_iter().next().flatten();
        Ok(head.map_or(Seq::ZERO, |head| head.seq))
    }

    /// How far the user's own messages have come; others are left out of the answer.
    async fn status(&self, user: UserId, ids: &[MessageId]) -> Result<Vec<MessageStatus>, Refusal> {
        let keys: Vec<_> = ids.iter().map(|&id| (user, id)).collect();
        let (rows, statuses) = tokio::try_join!(
            within(self.deadline, self.history.private(&keys)),
            within(self.deadline, self.history.status(&keys)),
        )?;
        Ok(rows
            .into_iter()
            .zip(statuses)
            .filter_map(|(row, status)| {
                let own = row.filter(|row| row.direction == Direction::Out)?;
                Some(MessageStatus {
                    id: own.id,
                    delivered_at: status.delivered_at,
                    read_at: status.read_at,
                })
            })
            .collect())
    }
}

fn row_size(row: &PrivateRow) -> usize {
    row.content.data.len()
}

fn summary((listed, newest): (Listed, Option<PrivateRow>)) -> Summary {
    Summary {
        conversation: listed.row.conversation,
        seq: listed.row.position.seq,
        read_seq: listed.read_seq,
        version: listed.row.version,
        newest: newest.as_ref().and_then(PrivateRow::placed),
    }
}
