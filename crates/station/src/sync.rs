//! Step after step back: what a device asks when it comes back. It is read from copies beside the stores of record, or
//! from these; nothing is answered that could have a hole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::station::SyncCall;
use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::history::HistoryStore;
use futures_util::future::try_join_all;
use protocol::cached::{self, CachedUser};
use protocol::change::{Change, Changed, Marks};
use protocol::conversation::{Head, Listed, ReadUpTo};
use protocol::frame::{
    ChangePage, HiddenPage, HistoryPage, HistoryRange, ListPage, MessageStatus, Summary,
    SyncAnswer, SyncPage, SyncQuery, UnreadPage,
};
use protocol::history::{Direction, PrivateRow};
use protocol::sync::{
    GroupListed, Part, changes_behind, check_cursor, check_rev, dense_changes, dense_page, fitting,
    list_from, may_read, page_behind, page_limit, range_behind,
};
use protocol::{ConversationId, MessageId, Placed, Refusal, Seq, Timestamp, UserId, unread};

use crate::cached::{Cached, Slot};
use crate::current::Current;
use crate::deadline::within;
use crate::groups::{Groups, Standing};
use crate::heads::Heads;
use crate::missed::Missed;
use crate::pages::{Key, Pages};

/// Answers sync questions.
pub(crate) struct Lookup {
    pub(crate) history: Arc<dyn HistoryStore>,
    pub(crate) heads: Heads,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) current: Current,
    pub(crate) groups: Groups,
    pub(crate) cached: Cached,
    pub(crate) pages: Pages,
    pub(crate) missed: Missed,
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

    /// Conversations that changed, each with its newest message (S4-02, S4-03). `version` is the time
    /// before the rows were read, so that what is written meanwhile comes with the next list: of those from copies, when
    /// these were read.
    async fn list(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
    ) -> Result<ListPage, Refusal> {
        may_go_on(owner, after)?;
        let version = self.clock.now();
        let from = list_from(since, self.list_margin, version)?;
        let Rows {
            private,
            groups,
            mut more,
            at,
        } = self.rows(owner, since, from, after).await?;
        let version = version.min(at).max(since);
        let mut conversations = self.summaries(owner, private).await?;
        conversations.extend(self.group_summaries(owner, groups).await?);
        let fit = fitting(conversations.iter().map(summary_size), self.page_bytes_max);
        more |= fit < conversations.len();
        conversations.truncate(fit);
        Ok(ListPage {
            conversations,
            version,
            more,
        })
    }

    /// A page of what is unread where: only conversations that hold something unread are looked at more closely
    /// (S2-15).
    async fn all_unread(
        &self,
        owner: UserId,
        after: Option<ConversationId>,
    ) -> Result<UnreadPage, Refusal> {
        may_go_on(owner, after)?;
        let everything = Timestamp::ZERO;
        let rows = self.rows(owner, everything, everything, after).await?;
        let counted = rows.private.iter().map(|listed| async {
            let unread = self.unread(owner, listed).await?;
            Ok((listed.row.conversation, unread))
        });
        let mut counts = try_join_all(counted).await?;
        counts.extend(self.groups.unread(owner, rows.groups).await?);
        let next = counts.last().map(|(last, _)| *last);
        counts.retain(|(_, unread)| *unread > 0);
        Ok(UnreadPage {
            counts,
            next: next.filter(|_| rows.more),
        })
    }

    /// How a conversation stands in the list, whether it is on it or not; `None` where the list never had it.
    async fn row(
        &self,
        owner: UserId,
        conversation: ConversationId,
    ) -> Result<Option<Summary>, Refusal> {
        let mut found = match conversation {
            ConversationId::Group(group) => {
                let row = self.groups.row(owner, group).await?;
                self.group_summaries(owner, row).await?
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                may_read(owner, conversation)?;
                let asked = [(owner, conversation)];
                let rows = within(self.deadline, self.conversations.get(&asked)).await?;
                let rows = rows.into_iter().flatten().collect();
                self.summaries(owner, rows).await?
            }
        };
        Ok(found.pop())
    }

    /// A page of a list, from behind `after` on.
    async fn rows(
        &self,
        owner: UserId,
        since: Timestamp,
        from: Timestamp,
        after: Option<ConversationId>,
    ) -> Result<Rows, Refusal> {
        let mut slot = self.cached.user(owner).await;
        if slot.copy.is_some() {
            let rows = self.rows_by(&slot, owner, since, from, after).await?;
            // Who was sent away meanwhile must not be shown what was said then.
            if self.cached.is_still(owner, &slot).await {
                return Ok(rows);
            }
            slot = Slot::silent();
        }
        self.rows_by(&slot, owner, since, from, after).await
    }

    /// The same by a copy of its owner, or, where there is none, by the stores, which fills it.
    async fn rows_by(
        &self,
        slot: &Slot<CachedUser>,
        owner: UserId,
        since: Timestamp,
        from: Timestamp,
        after: Option<ConversationId>,
    ) -> Result<Rows, Refusal> {
        let began = self.clock.now();
        let copy = slot.copy.as_ref();
        let is_quiet = copy.is_some_and(|copy| copy.is_private_quiet(from));
        let (private, behind_group) = match after {
            Some(ConversationId::Group(group)) => (Private::none(from), Some(group)),
            Some(_) | None if is_quiet => (Private::none(from), None),
            Some(_) | None => (self.listed(owner, since, from, after).await?, None),
        };
        let mut rows = Rows {
            private: private.rows,
            groups: Vec::new(),
            more: private.more,
            at: copy.map_or(began, |copy| copy.at),
        };
        if !rows.more {
            // One more than there is room for tells whether there are more.
            let room = self.page_max - rows.private.len();
            let told = (self.groups).told(owner, copy, since, from, behind_group, room + 1);
            let told = told.await?;
            rows.groups = told.rows;
            rows.more = rows.groups.len() > room;
            rows.groups.truncate(room);
            rows.at = rows.at.min(told.at);
            if let (None, None, Some(groups)) = (after, copy, told.all) {
                let copy = CachedUser {
                    at: began,
                    private_before: private.before,
                    groups,
                };
                self.cached.keep_user(owner, slot, &copy).await;
            }
        }
        Ok(rows)
    }

    async fn summaries(&self, owner: UserId, listed: Vec<Listed>) -> Result<Vec<Summary>, Refusal> {
        let keys: Vec<_> = listed
            .iter()
            .map(|listed| (owner, listed.row.last_id))
            .collect();
        let newest = match keys.is_empty() {
            true => Vec::new(),
            false => within(self.deadline, self.history.private(&keys)).await?,
        };
        let summaries = (listed.into_iter().zip(newest))
            .map(|(listed, newest)| self.summary(owner, listed, newest));
        try_join_all(summaries).await
    }

    async fn group_summaries(
        &self,
        owner: UserId,
        rows: Vec<GroupListed>,
    ) -> Result<Vec<Summary>, Refusal> {
        let changed: Vec<Seq> = rows.iter().map(|row| row.changed_to).collect();
        let mut summaries = self.groups.summaries(owner, rows).await?;
        for (summary, changed_to) in summaries.iter_mut().zip(changed) {
            summary.marks = self.mark_newest(changed_to, &mut summary.newest).await?;
        }
        Ok(summaries)
    }

    /// Of those with one other user.
    async fn listed(
        &self,
        owner: UserId,
        since: Timestamp,
        from: Timestamp,
        mut after: Option<ConversationId>,
    ) -> Result<Private, Refusal> {
        let mut found = Private::none(from);
        loop {
            // One more than a page tells whether there are more.
            let most = self.page_max + 1;
            let asked = self.conversations.changed(owner, from, after, most);
            let rows = within(self.deadline, asked).await?;
            let is_last = rows.len() < most;
            after = rows.last().map(|listed| listed.row.conversation);
            let newest = rows.iter().map(Listed::version).max();
            let behind = newest.map(|newest| newest + Duration::from_millis(1));
            found.before = found.before.max(behind.unwrap_or(from));
            (found.rows).extend(rows.into_iter().filter(|listed| listed.is_told(since)));
            if is_last || found.rows.len() > self.page_max {
                found.more = found.rows.len() > self.page_max;
                found.rows.truncate(self.page_max);
                return Ok(found);
            }
        }
    }

    async fn summary(
        &self,
        owner: UserId,
        listed: Listed,
        newest: Option<PrivateRow>,
    ) -> Result<Summary, Refusal> {
        let mut newest = newest.as_ref().and_then(PrivateRow::placed);
        let changed_to = cached::changed_to(listed.row.rev, listed.row.end.seq);
        let marks = self.mark_newest(changed_to, &mut newest).await?;
        let unread = self.unread(owner, &listed).await?;
        Ok(listed.summary(unread, newest, marks))
    }

    /// Makes of the newest message what it is now.
    async fn mark_newest(
        &self,
        changed_to: Seq,
        newest: &mut Option<Placed>,
    ) -> Result<Option<Marks>, Refusal> {
        let Some(newest) = newest else {
            return Ok(None);
        };
        let conversation = newest.conversation;
        let marks = self
            .current
            .mark(conversation, changed_to, vec![newest])
            .await?;
        Ok(marks.into_values().next())
    }

    /// Behind what was read or cleared, whichever is further. One read where something is unread, one more where
    /// something was ever changed.
    async fn unread(&self, owner: UserId, listed: &Listed) -> Result<u64, Refusal> {
        let Listed { row, cleared, .. } = listed;
        let (conversation, end) = (row.conversation, row.end);
        let read = match listed.read_up_to() {
            ReadUpTo::End => return Ok(0),
            ReadUpTo::Place(place) => place,
            ReadUpTo::Row(seq) => {
                let asked = [(owner, conversation, seq)];
                let tallies = within(self.deadline, self.history.tallies(&asked)).await?;
                tallies.into_iter().next().flatten().unwrap_or_default()
            }
        };
        let base = unread::base(read, *cleared);
        let recalled = match row.rev > 0 && base.seq < end.seq {
            true => {
                let asked = self.changes.recalled(conversation, base.seq, end.seq);
                within(self.deadline, asked).await?
            }
            false => BTreeMap::new(),
        };
        Ok(listed.unread(base, recalled))
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
        let is_behind = |head: &Head| check_rev(after, head.rev).is_err();
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
        let messages = page.messages.iter_mut().collect();
        let mut marks = self
            .current
            .mark(conversation, changed_to, messages)
            .await?;
        let sizes = (page.messages.iter()).map(|placed| shown_size(placed, &marks));
        let fit = fitting(sizes, self.page_bytes_max);
        if fit < page.messages.len() {
            for placed in page.messages.drain(fit..) {
                marks.remove(&placed.position.seq);
            }
            page.more = true;
        }
        Ok(HistoryPage {
            conversation,
            messages: page.messages,
            marks,
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
        let read = async {
            match conversation {
                ConversationId::Group(group) => self.groups.messages(group, part, head).await,
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
        let rows = (self.history).conversation(owner, conversation, range, count);
        let rows = within(self.deadline, rows).await?;
        Ok(rows.iter().filter_map(PrivateRow::placed).collect())
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

/// A page of a list: those with one other user come before groups.
struct Rows {
    private: Vec<Listed>,
    groups: Vec<GroupListed>,
    more: bool,
    /// They are as at this time, or later.
    at: Timestamp,
}

/// Those of a list that are with one other user.
struct Private {
    rows: Vec<Listed>,
    more: bool,
    /// Of those that were looked at, none changed at this time or later.
    before: Timestamp,
}

impl Private {
    fn none(from: Timestamp) -> Private {
        Private {
            rows: Vec::new(),
            more: false,
            before: from,
        }
    }
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

fn summary_size(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    newest.map_or(0, |placed| placed.message.content.data.len())
        + summary.marks.as_ref().map_or(0, Marks::weight)
}
