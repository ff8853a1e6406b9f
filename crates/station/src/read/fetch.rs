//! Sources of answers: a call, or a few, for each need.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::Result as StoreResult;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use protocol::cache::{CacheKey, GroupEntry, UserEntry};
use protocol::change::Overlay;
use protocol::history::{IdRange, Order};
use protocol::message_row::{MessageRow, Owner};
use protocol::reading::{Fact, LatestMessages, LatestNeed, Need, OverlayRange, PageNeed, Slice};
use protocol::{ConversationId, GroupId, MessageId, Placed, Refusal, Seq, UserId};

use super::page_cache::Key;
use super::{FillTokens, Reader, TOGETHER};
use crate::deadline::within;

impl Reader {
    /// Answers a need of `user`. A store that fails refuses the question, unless the fact has a
    /// place for the refusal.
    pub(super) async fn fetch(
        &self,
        user: UserId,
        need: &Need,
        tokens: &FillTokens,
    ) -> Result<Fact, Refusal> {
        let stores = &self.backends;
        let of_user = |of: &ConversationId| (user, *of);
        Ok(match need {
            Need::UserEntry(user) => Fact::UserEntry(self.user_entry(*user, tokens).await),
            Need::Unchanged(user) => Fact::Unchanged(self.is_unchanged(*user, tokens).await),
            Need::GroupEntries(of) => Fact::GroupEntries(self.group_entries(of, tokens).await),
            Need::Page(page) => Fact::Page(self.page(user, page).await?),
            Need::Latest(of) => {
                let latest: Vec<_> = of.iter().map(|need| self.latest(need)).collect();
                Fact::Latest(stream::iter(latest).buffered(TOGETHER).collect().await)
            }
            Need::Heads(of) => {
                let heads = self.store(stores.heads.load(of)).await?;
                Fact::Heads(heads.into_iter().map(Option::unwrap_or_default).collect())
            }
            Need::Members(groups) => {
                let keys: Vec<_> = groups.iter().map(|group| (*group, user)).collect();
                Fact::Members(self.store(stores.groups.members_of(&keys)).await?)
            }
            Need::Populated(group) => {
                let somebody = stores.groups.present(*group, None, 1);
                let somebody = within(self.door_deadline, somebody).await;
                Fact::Populated(somebody.map(|somebody| !somebody.is_empty()))
            }
            Need::Memberships(Slice { of, after, limit }) => {
                let groups = stores.groups.groups_of(*of, *after, *limit);
                Fact::Memberships(self.store(groups).await?)
            }
            Need::Present(Slice { of, after, limit }) => {
                let present = stores.groups.present(*of, *after, *limit);
                Fact::Present(self.store(present).await?)
            }
            Need::Registers(keys) => {
                Fact::Registers(self.store(stores.conversations.registers(keys)).await?)
            }
            Need::ListSlice(slice) => {
                let (from, after, limit) = (slice.from, slice.after, slice.limit);
                let changed = stores.conversations.changed(user, from, after, limit);
                Fact::ListSlice(slice.rows(self.store(changed).await?))
            }
            Need::ListEntries(of) => {
                let keys: Vec<_> = of.iter().map(of_user).collect();
                Fact::ListEntries(self.store(stores.conversations.get(&keys)).await?)
            }
            Need::Hidden(Slice { of, after, limit }) => {
                let hidden = stores.conversations.hidden(user, *of, *after, *limit);
                Fact::Hidden(self.store(hidden).await?)
            }
            Need::Changes(Slice { of, after, limit }) => Fact::Changes(
                self.store(stores.changes.since(*of, *after, *limit))
                    .await?,
            ),
            Need::Pins(Slice { of, after, limit }) => {
                Fact::Pins(self.store(stores.changes.pins(*of, *after, *limit)).await?)
            }
            Need::Recalled(ranges) => {
                Fact::Recalled(self.store(stores.changes.recalled(ranges)).await?)
            }
            Need::Overlays(places) => {
                Fact::Overlays(self.store(stores.changes.altered_each(places)).await?)
            }
            Need::OverlayRanges(ranges) => Fact::OverlayRanges(self.overlays(ranges).await?),
            Need::Rows(keys) => Fact::Rows(self.store(stores.messages.rows(keys)).await?),
            Need::Tallies(places) => {
                let place = |(of, seq): &(ConversationId, Seq)| (Owner::User(user), *of, *seq);
                let places: Vec<_> = places.iter().map(place).collect();
                let found = self.store(stores.messages.at(&places)).await?;
                Fact::Tallies(found.into_iter().map(|at| Some(at?.1)).collect())
            }
            Need::Own(ranges) => Fact::Own(
                self.store(stores.messages.own_between(user, ranges))
                    .await?,
            ),
            Need::Feed(slice) => Fact::Feed(self.feed(slice).await?),
            Need::LastReceived(user) => {
                Fact::LastReceived(self.store(stores.mailbox.received(*user)).await?)
            }
            Need::Ids((group, places)) => Fact::Ids(self.ids(user, *group, places).await?),
            Need::Statuses(ids) => {
                let keys: Vec<_> = ids.iter().map(|id| (user, *id)).collect();
                let statuses = self.store(stores.messages.status(&keys)).await;
                if let Err(refusal) = &statuses {
                    tracing::debug!(?refusal, "statuses without an answer");
                }
                Fact::Statuses(each(statuses, ids.len()))
            }
            Need::Traces(ids) => {
                let traces = self.store(stores.ledger.trace(ids)).await;
                Fact::Traces(each(traces, ids.len()))
            }
        })
    }

    async fn overlays(
        &self,
        ranges: &[OverlayRange],
    ) -> Result<Vec<BTreeMap<Seq, Overlay>>, Refusal> {
        let changes = &self.backends.changes;
        let overlays = ranges.iter().map(|range| {
            let overlays = changes.altered(range.conversation, range.first, range.last);
            self.store(overlays)
        });
        try_join_all(overlays).await
    }

    async fn store<T>(&self, asked: impl Future<Output = StoreResult<T>>) -> Result<T, Refusal> {
        within(self.deadline, asked).await
    }

    async fn user_entry(&self, user: UserId, tokens: &FillTokens) -> Option<UserEntry> {
        let slot = self.cached.user(user).await;
        let token = slot.token.map(|token| (CacheKey::User(user), token));
        tokens.lock().extend(token);
        slot.copy
    }

    async fn is_unchanged(&self, user: UserId, tokens: &FillTokens) -> bool {
        let token = tokens.lock().get(&CacheKey::User(user)).cloned();
        self.cached.is_unchanged(user, token.as_ref()).await
    }

    async fn group_entries(
        &self,
        groups: &[GroupId],
        tokens: &FillTokens,
    ) -> Vec<Option<GroupEntry>> {
        let slots = self.cached.groups(groups).await;
        let mut tokens = tokens.lock();
        let entries = groups.iter().zip(slots).map(|(group, slot)| {
            let token = slot.token.map(|token| (CacheKey::Group(*group), token));
            tokens.extend(token);
            slot.copy
        });
        entries.collect()
    }

    /// A page from process memory, then for groups from the cache beside history, then from history
    /// (S2-25).
    async fn page(&self, user: UserId, asked: &PageNeed) -> Result<Arc<[Placed]>, Refusal> {
        let PageNeed {
            conversation,
            key: part,
            ref head,
        } = *asked;
        let is_group = matches!(conversation, ConversationId::Group(_));
        let key = Key {
            owner: (!is_group).then_some(user),
            conversation,
            part,
        };
        let read = || async move {
            if let ConversationId::Group(group) = conversation
                && let Some(messages) = self.timeline.page(group, part, head).await
            {
                return Ok(messages);
            }
            let messages = self.stored_page(user, asked).await?;
            if let ConversationId::Group(group) = conversation {
                self.timeline.keep(group, &messages, head).await;
            }
            Ok(messages)
        };
        self.pages.page(key, read).await
    }

    async fn stored_page(&self, user: UserId, asked: &PageNeed) -> Result<Vec<Placed>, Refusal> {
        let (range, count) = (asked.key.range(), asked.key.count());
        let owner = Owner::of(asked.conversation, user);
        let _read = self.limits.read(user)?;
        let rows = (self.backends.messages).page(owner, asked.conversation, range, count);
        let rows = self.store(rows).await?;
        Ok(rows.into_iter().map(|row| row.placed).collect())
    }

    async fn latest(&self, asked: &LatestNeed) -> LatestMessages {
        let latest = self.timeline.newest(asked.group, &asked.head, asked.count);
        latest.await.unwrap_or_default().into()
    }

    async fn feed(
        &self,
        asked: &Slice<UserId, Option<MessageId>>,
    ) -> Result<Vec<MessageRow>, Refusal> {
        let range = IdRange {
            after: asked.after,
            ..IdRange::default()
        };
        let _read = self.limits.read(asked.of)?;
        let (messages, owner) = (&self.backends.messages, Owner::User(asked.of));
        self.store(messages.find(owner, range, Order::Forward, asked.limit))
            .await
    }

    async fn ids(
        &self,
        user: UserId,
        group: GroupId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<MessageId>>, Refusal> {
        let _read = self.limits.read(user)?;
        let place = |seq: &Seq| (Owner::Group(group), ConversationId::Group(group), *seq);
        let places: Vec<_> = seqs.iter().map(place).collect();
        let found = self.store(self.backends.messages.at(&places)).await?;
        Ok(found.into_iter().map(|at| Some(at?.0)).collect())
    }
}

/// One answer for each of `count` keys, or the refusal for all of them.
fn each<T>(answers: Result<Vec<T>, Refusal>, count: usize) -> Vec<Result<T, Refusal>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(refusal) => (0..count).map(|_| Err(refusal.clone())).collect(),
    }
}
