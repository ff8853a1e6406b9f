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
use super::{FillTokens, MAX_CONCURRENT_READS, Reader};
use crate::membership::is_populated;
use crate::stores::within;

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
        let to_key = |conversation: &ConversationId| (user, *conversation);
        Ok(match need {
            Need::UserEntry(user) => Fact::UserEntry(self.user_entry(*user, tokens).await),
            Need::Unchanged(user) => Fact::Unchanged(self.is_unchanged(*user, tokens).await),
            Need::GroupEntries(groups) => {
                Fact::GroupEntries(self.group_entries(groups, tokens).await)
            }
            Need::Page(page) => Fact::Page(self.page(user, page).await?),
            Need::Latest(needs) => {
                let latest: Vec<_> = needs.iter().map(|need| self.latest(need)).collect();
                Fact::Latest(
                    stream::iter(latest)
                        .buffered(MAX_CONCURRENT_READS)
                        .collect()
                        .await,
                )
            }
            Need::Heads(conversations) => {
                let heads = self.store(stores.heads.load(conversations)).await?;
                Fact::Heads(heads.into_iter().map(Option::unwrap_or_default).collect())
            }
            Need::Infos(groups) => Fact::Infos(self.store(stores.groups.infos(groups)).await?),
            Need::Members(groups) => {
                let keys: Vec<_> = groups.iter().map(|group| (*group, user)).collect();
                Fact::Members(self.store(stores.groups.members_of(&keys)).await?)
            }
            Need::Populated(group) => {
                let answer = is_populated(&*stores.groups, *group);
                Fact::Populated(within(self.door_deadline, answer).await)
            }
            Need::Memberships(Slice {
                owner,
                cursor,
                limit,
            }) => {
                let groups = stores.groups.groups_of(*owner, *cursor, *limit);
                Fact::Memberships(self.store(groups).await?)
            }
            Need::Present(Slice {
                owner: group,
                cursor,
                limit,
            }) => {
                let present = stores.groups.present(*group, *cursor, *limit);
                Fact::Present(self.store(present).await?)
            }
            Need::Registers(keys) => {
                Fact::Registers(self.store(stores.conversations.registers(keys)).await?)
            }
            Need::ListSlice(slice) => {
                let (from, cursor, limit) = (slice.from, slice.cursor, slice.limit);
                let rows = stores.conversations.changed(user, from, cursor, limit);
                Fact::ListSlice(slice.rows(self.store(rows).await?))
            }
            Need::ListEntries(conversations) => {
                let keys: Vec<_> = conversations.iter().map(to_key).collect();
                Fact::ListEntries(self.store(stores.conversations.get(&keys)).await?)
            }
            Need::Hidden(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => {
                let rows = stores
                    .conversations
                    .hidden(user, *conversation, *cursor, *limit);
                Fact::Hidden(self.store(rows).await?)
            }
            Need::Changes(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => Fact::Changes(
                self.store(stores.changes.since(*conversation, *cursor, *limit))
                    .await?,
            ),
            Need::Pins(Slice {
                owner: conversation,
                cursor,
                limit,
            }) => Fact::Pins(
                self.store(stores.changes.pins(*conversation, *cursor, *limit))
                    .await?,
            ),
            Need::Recalled(ranges) => {
                Fact::Recalled(self.store(stores.changes.recalled(ranges)).await?)
            }
            Need::Overlays(places) => {
                Fact::Overlays(self.store(stores.changes.altered_each(places)).await?)
            }
            Need::OverlayRanges(ranges) => Fact::OverlayRanges(self.overlays(ranges).await?),
            Need::Rows(keys) => Fact::Rows(self.store(stores.messages.rows(keys)).await?),
            Need::Tallies(places) => {
                let place = |(conversation, seq): &(ConversationId, Seq)| {
                    (Owner::User(user), *conversation, *seq)
                };
                let places: Vec<_> = places.iter().map(place).collect();
                let rows = self.store(stores.messages.at(&places)).await?;
                Fact::Tallies(rows.into_iter().map(|row| Some(row?.1)).collect())
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
                    tracing::debug!(?refusal, "no answer to a status lookup");
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

    async fn store<T>(&self, call: impl Future<Output = StoreResult<T>>) -> Result<T, Refusal> {
        within(self.deadline, call).await
    }

    async fn user_entry(&self, user: UserId, tokens: &FillTokens) -> Option<UserEntry> {
        let slot = self.list_cache.user(user).await;
        let token = slot.token.map(|token| (CacheKey::User(user), token));
        tokens.lock().extend(token);
        slot.entry
    }

    async fn is_unchanged(&self, user: UserId, tokens: &FillTokens) -> bool {
        let token = tokens.lock().get(&CacheKey::User(user)).cloned();
        self.list_cache.is_unchanged(user, token.as_ref()).await
    }

    async fn group_entries(
        &self,
        groups: &[GroupId],
        tokens: &FillTokens,
    ) -> Vec<Option<GroupEntry>> {
        let slots = self.list_cache.groups(groups).await;
        let mut tokens = tokens.lock();
        let entries = groups.iter().zip(slots).map(|(group, slot)| {
            let token = slot.token.map(|token| (CacheKey::Group(*group), token));
            tokens.extend(token);
            slot.entry
        });
        entries.collect()
    }

    /// A page from process memory, then for groups from the cache beside history, then from history
    /// (S2-25).
    async fn page(&self, user: UserId, need: &PageNeed) -> Result<Arc<[Placed]>, Refusal> {
        let PageNeed {
            conversation,
            key: part,
            ref head,
        } = *need;
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
            let messages = self.stored_page(user, need).await?;
            if let ConversationId::Group(group) = conversation {
                self.timeline.store_newest(group, &messages, head).await;
            }
            Ok(messages)
        };
        self.pages.page(key, read).await
    }

    async fn stored_page(&self, user: UserId, need: &PageNeed) -> Result<Vec<Placed>, Refusal> {
        let (range, count) = (need.key.range(), need.key.count());
        let owner = Owner::of(need.conversation, user);
        let _permit = self.limits.read(user)?;
        let rows = (self.backends.messages).page(owner, need.conversation, range, count);
        let rows = self.store(rows).await?;
        Ok(rows.into_iter().map(|row| row.placed).collect())
    }

    async fn latest(&self, need: &LatestNeed) -> LatestMessages {
        let latest = self.timeline.newest(need.group, &need.head, need.count);
        latest.await.unwrap_or_default().into()
    }

    async fn feed(
        &self,
        slice: &Slice<UserId, Option<MessageId>>,
    ) -> Result<Vec<MessageRow>, Refusal> {
        let range = IdRange {
            after_id: slice.cursor,
            ..IdRange::default()
        };
        let _permit = self.limits.read(slice.owner)?;
        let (messages, owner) = (&self.backends.messages, Owner::User(slice.owner));
        self.store(messages.find(owner, range, Order::Forward, slice.limit))
            .await
    }

    async fn ids(
        &self,
        user: UserId,
        group: GroupId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<MessageId>>, Refusal> {
        let _permit = self.limits.read(user)?;
        let place = |seq: &Seq| (Owner::Group(group), ConversationId::Group(group), *seq);
        let places: Vec<_> = seqs.iter().map(place).collect();
        let rows = self.store(self.backends.messages.at(&places)).await?;
        Ok(rows.into_iter().map(|row| Some(row?.0)).collect())
    }
}

/// One answer for each of `count` keys, or the refusal for all of them.
fn each<T>(answers: Result<Vec<T>, Refusal>, count: usize) -> Vec<Result<T, Refusal>> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(refusal) => (0..count).map(|_| Err(refusal.clone())).collect(),
    }
}
