//! Step after step back: what a device asks when it comes back. It is read from copies beside the stores of record, or
//! from these; nothing is answered that could have a hole.

mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::SyncCall;
use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::history::HistoryStore;
use backend::ledger::LedgerStore;
use protocol::cached;
use protocol::change::{Change, Changed, Marks};
use protocol::conversation::Head;
use protocol::frame::{
    ChangePage, HiddenPage, HistoryPage, HistoryRange, MessageStatus, SyncAnswer, SyncPage,
    SyncQuery,
};
use protocol::history::{Direction, PrivateRow, RowStatus};
use protocol::ledger;
use protocol::sync::{
    Part, changes_behind, check_cursor, check_rev, dense_changes, dense_page, fitting, may_read,
    page_behind, page_limit, range_behind,
};
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq, UserId};

use crate::cached::Cached;
use crate::current::Current;
use crate::deadline::within;
use crate::groups::{Groups, Standing};
use crate::heads::Heads;
use crate::limits::Limits;
use crate::missed::Missed;
use crate::pages::{Key, Pages};

/// Of a message that is older and that the ledger says nothing of, the ledger says nothing any more.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Answers sync questions.
pub(crate) struct Lookup {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) heads: Heads,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) current: Current,
    pub(crate) groups: Groups,
    pub(crate) limits: Arc<Limits>,
    pub(crate) cached: Cached,
    pub(crate) pages: Pages,
    pub(crate) missed: Missed,
    pub(crate) ledger: Arc<dyn LedgerStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) deadline: Duration,
    pub(crate) page_max: usize,
    pub(crate) page_bytes_max: usize,
    pub(crate) list_margin: Duration,
}

impl Lookup {
    pub(crate) async fn answer(&self, call: SyncCall) -> Result<SyncPage, Refusal> {
        let user = call.user;
        self.limits.question(user)?;
        let answer = match call.request.query {
            SyncQuery::List { since, after } => {
                SyncAnswer::List(self.list(user, since, after).await?)
            }
            SyncQuery::Row { conversation } => {
                let row = self.row(user, conversation).await?;
                SyncAnswer::Row(row.map(Box::new))
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
            SyncQuery::Members {
                group,
                after,
                limit,
            } => {
                let limit = page_limit(limit, self.page_max);
                SyncAnswer::Members(self.groups.members(user, group, after, limit).await?)
            }
            SyncQuery::Readers { group, seq } => {
                SyncAnswer::Readers(self.groups.readers(user, group, seq).await?)
            }
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => {
                let limit = page_limit(limit, self.page_max);
                SyncAnswer::Changes(self.changes(user, conversation, after, limit).await?)
            }
            SyncQuery::Missed { after, limit } => {
                let limit = page_limit(limit, self.page_max);
                SyncAnswer::Missed(self.missed.page(user, after, limit).await?)
            }
            SyncQuery::Unread { after } => SyncAnswer::Unread(self.all_unread(user, after).await?),
            SyncQuery::CountSince { group, since } => SyncAnswer::CountSince(
                self.groups
                    .count_since(user, group, since.min(self.clock.now()))
                    .await?,
            ),
            SyncQuery::Hidden {
                conversation,
                after,
                limit,
            } => {
                let limit = page_limit(limit, self.page_max);
                SyncAnswer::Hidden(self.hidden(user, conversation, after, limit).await?)
            }
        };
        Ok(SyncPage {
            request: call.request.request,
            answer,
        })
    }

    /// What the owner hid in a conversation; of a group that they left, too.
    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<HiddenPage, Refusal> {
        may_go_on(owner, Some(conversation))?;
        // One more than a page tells whether there are more.
        let hidden = (self.conversations).hidden(owner, conversation, after, limit + 1);
        let mut hidden = within(self.deadline, hidden).await?;
        let more = hidden.len() > limit;
        hidden.truncate(limit);
        Ok(HiddenPage {
            last: hidden.last().map_or(after, |(mark, _)| *mark),
            seqs: hidden.into_iter().map(|(_, seq)| seq).collect(),
            more,
        })
    }

    /// Changes in their order, for those who may read what they change.
    async fn changes(
        &self,
        user: UserId,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<ChangePage, Refusal> {
        // Nobody asks who does not know of more.
        let is_behind = |head: &Head| after >= head.rev;
        // The head first, as for history.
        let Standing { floor, head, .. } = self.standing(user, conversation, is_behind).await?;
        let last_rev = head.rev;
        check_rev(after, last_rev)?;
        let asked = self.changes.since(conversation, after, limit);
        let mut changes = within(self.deadline, asked).await?;
        // Behind the head nothing stands for good yet.
        changes.retain(|change| change.rev <= last_rev);
        let sizes = changes.iter().map(change_size);
        changes.truncate(fitting(sizes, self.page_bytes_max));
        let more = dense_changes(conversation, &changes, after, last_rev)?;
        changes_behind(&mut changes, floor);
        Ok(ChangePage {
            conversation,
            changes,
            last_rev,
            more,
        })
    }

    /// A dense page of one conversation, for its two sides or for the members of its group.
    async fn history(
        &self,
        user: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<HistoryPage, Refusal> {
        // The head first, the rows after it: rows are written before the head moves.
        let is_behind = |head: &Head| check_cursor(range, head.seq).is_err();
        let Standing {
            floor,
            head,
            changed_to,
        } = self.standing(user, conversation, is_behind).await?;
        check_cursor(range, head.seq)?;
        let range = range_behind(range, floor);
        let messages = match Part::of(range, head.seq, limit) {
            Some(part) => self.messages(user, conversation, part, &head).await?,
            None => Vec::new(),
        };
        let page = dense_page(messages, range, head.seq)?;
        let mut page = page_behind(page, range, floor);
        let own = own_messages(user, conversation, &page.messages);
        let messages = page.messages.iter_mut().collect();
        let (marks, mut statuses) = tokio::join!(
            self.current.mark(conversation, changed_to, messages),
            self.own_statuses(user, own)
        );
        let mut marks = marks?;
        for (seq, _) in marks.iter().filter(|(_, marks)| marks.recalled.is_some()) {
            statuses.entry(*seq).or_default().deleted = true;
        }
        let sizes = (page.messages.iter()).map(|placed| shown_size(placed, &marks));
        let fit = fitting(sizes, self.page_bytes_max);
        if fit < page.messages.len() {
            for placed in page.messages.drain(fit..) {
                marks.remove(&placed.position.seq);
                statuses.remove(&placed.position.seq);
            }
            page.more = true;
        }
        Ok(HistoryPage {
            conversation,
            messages: page.messages,
            marks,
            statuses,
            rev: head.rev,
            last_seq: page.last_seq,
            more: page.more,
        })
    }

    /// From behind which place on `user` may read a conversation, and where it ends. `is_behind`: see
    /// [`Groups::standing`].
    async fn standing(
        &self,
        user: UserId,
        conversation: ConversationId,
        is_behind: impl Fn(&Head) -> bool,
    ) -> Result<Standing, Refusal> {
        match conversation {
            ConversationId::Group(group) => self.groups.standing(user, group, is_behind).await,
            ConversationId::Private { .. } | ConversationId::System(_) => {
                may_read(user, conversation)?;
                let head = self.heads.read_one(conversation).await?;
                Ok(Standing {
                    floor: Seq::ZERO,
                    head,
                    changed_to: cached::changed_to(head.rev, head.seq),
                })
            }
        }
    }

    /// Process memory, then for groups what lies beside history, then history (S2-25).
    async fn messages(
        &self,
        user: UserId,
        conversation: ConversationId,
        part: Part,
        head: &Head,
    ) -> Result<Vec<Placed>, Refusal> {
        let is_group = matches!(conversation, ConversationId::Group(_));
        let key = Key {
            owner: (!is_group).then_some(user),
            conversation,
            part,
        };
        let read = || async move {
            match conversation {
                ConversationId::Group(group) => self.groups.messages(user, group, part, head).await,
                ConversationId::Private { .. } | ConversationId::System(_) => {
                    self.private_messages(user, conversation, part).await
                }
            }
        };
        self.pages.page(key, read).await
    }

    async fn private_messages(
        &self,
        owner: UserId,
        conversation: ConversationId,
        part: Part,
    ) -> Result<Vec<Placed>, Refusal> {
        let (range, count) = (part.range(), part.count());
        let read = self.limits.read(owner)?;
        let rows = (self.history).conversation(owner, conversation, range, count);
        let rows = within(self.deadline, rows).await?;
        drop(read);
        Ok(rows.iter().filter_map(PrivateRow::placed).collect())
    }

    /// The registers of these messages of the user's. The page does not wait for a store that is away: it says of them
    /// that they were sent, as long as nobody can be asked.
    async fn own_statuses(
        &self,
        user: UserId,
        own: Vec<(Seq, MessageId)>,
    ) -> BTreeMap<Seq, RowStatus> {
        if own.is_empty() {
            return BTreeMap::new();
        }
        let keys: Vec<_> = own.iter().map(|&(_, id)| (user, id)).collect();
        let statuses = within(self.deadline, self.history.status(&keys)).await;
        let moved = |status: &RowStatus| *status != RowStatus::default();
        match statuses {
            Ok(statuses) => (own.into_iter().zip(statuses))
                .filter(|(_, status)| moved(status))
                .map(|((seq, _), status)| (seq, status))
                .collect(),
            Err(refusal) => {
                tracing::debug!(?refusal, "a page without the statuses of its messages");
                BTreeMap::new()
            }
        }
    }

    /// How far the user's own messages have come; others are left out of the answer.
    async fn status(&self, user: UserId, ids: &[MessageId]) -> Result<Vec<MessageStatus>, Refusal> {
        let keys: Vec<_> = ids.iter().map(|&id| (user, id)).collect();
        let (rows, statuses) = tokio::try_join!(
            within(self.deadline, self.history.private(&keys)),
            within(self.deadline, self.history.status(&keys)),
        )?;
        let own = rows.into_iter().zip(statuses);
        let own: Vec<(PrivateRow, RowStatus)> = own
            .filter_map(|(row, status)| Some((row?, status)))
            .filter(|(row, _)| row.direction == Direction::Out)
            .collect();
        let read = own.iter().filter(|(_, status)| status.read_at.is_some());
        let read: Vec<_> = read.map(|(row, _)| (row.id, row.peer)).collect();
        let finished = self.finished(&read).await;
        Ok(own
            .into_iter()
            .map(|(row, status)| MessageStatus {
                id: row.id,
                delivered_at: status.delivered_at,
                read_at: status.read_at,
                is_finished: finished.contains(&row.id),
            })
            .collect())
    }

    /// Those of messages that were read which every platform of their receiver has. Of those that the ledger has long
    /// forgotten nothing is owed; where it cannot be asked, none is known to be.
    async fn finished(&self, read: &[(MessageId, UserId)]) -> BTreeSet<MessageId> {
        let ids: Vec<_> = read.iter().map(|(id, _)| *id).collect();
        let entries = match ids.is_empty() {
            true => Vec::new(),
            false => {
                let entries = within(self.deadline, self.ledger.trace(&ids)).await;
                entries.unwrap_or_default()
            }
        };
        let is_old = |id: MessageId| id.timestamp() + FORGOTTEN < self.clock.now();
        let finished = read.iter().zip(entries);
        finished
            .filter(|((id, peer), entries)| match entries.is_empty() {
                true => is_old(*id),
                false => ledger::has_ended_for(*peer, entries),
            })
            .map(|((id, _), _)| *id)
            .collect()
    }
}

/// Those of a page that `user` sent to a peer. Messages of groups have no such registers (S0-61b).
fn own_messages(
    user: UserId,
    conversation: ConversationId,
    page: &[Placed],
) -> Vec<(Seq, MessageId)> {
    if matches!(conversation, ConversationId::Group(_)) {
        return Vec::new();
    }
    let own = page.iter().filter(|placed| placed.message.from == user);
    own.map(|placed| (placed.position.seq, placed.message.id))
        .collect()
}

/// A list goes on after what is on it.
fn may_go_on(owner: UserId, after: Option<ConversationId>) -> Result<(), Refusal> {
    match after {
        Some(ConversationId::Group(_)) | None => Ok(()),
        Some(after) => may_read(owner, after),
    }
}

fn change_size(changed: &Changed) -> usize {
    match &changed.asked.change {
        Change::Edit(content) => content.data.len(),
        Change::Recall | Change::React { .. } => 0,
    }
}

/// A message of a page as it goes out: it may have grown since.
fn shown_size(placed: &Placed, marks: &BTreeMap<Seq, Marks>) -> usize {
    let marks = marks.get(&placed.position.seq);
    placed.message.content.data.len() + marks.map_or(0, Marks::weight)
}
