//! Groups, as their members ask for them: pages, unread counts, rows of the list, who is in and who has read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use backend::changes::{ChangeStore, Stretch};
use backend::conversations::ConversationStore;
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use protocol::cached::{CachedGroup, CachedMember, CachedUser};
use protocol::conversation::Head;
use protocol::frame::{CountSince, HistoryRange, MemberPage, Summary};
use protocol::group::{GroupRow as MessageRow, Member};
use protocol::sync::{GroupListed, Part, readable_after};
use protocol::unread::in_group;
use protocol::{Code, ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp, UserId};

use crate::cached::Cached;
use crate::deadline::within;
use crate::heads::Heads;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::recent::{LATEST, Recent};

/// Groups of a list whose heads and registers are read in one question.
const ROWS_TOGETHER: usize = 128;

/// Rows of a list that are looked at more closely at a time.
const SUMMARIES_TOGETHER: usize = 16;

/// Messages that are counted at once.
const COUNTED_MAX: u64 = 1000;

/// The largest group whose readers are told one by one.
const READERS_MAX: usize = 500;

/// Answers questions about groups.
pub(crate) struct Groups {
    pub(crate) membership: Arc<Membership>,
    pub(crate) groups: Arc<dyn GroupStore>,
    pub(crate) history: Arc<dyn GroupHistoryStore>,
    pub(crate) recent: Recent,
    pub(crate) cached: Cached,
    pub(crate) heads: Heads,
    pub(crate) conversations: Arc<dyn ConversationStore>,
    pub(crate) changes: Arc<dyn ChangeStore>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) deadline: Duration,
}

/// Where somebody stands in a conversation.
pub(crate) struct Standing {
    /// They may read what lies behind.
    pub(crate) floor: Seq,
    pub(crate) head: Head,
    /// No message behind this place was ever changed.
    pub(crate) changed_to: Seq,
}

impl Standing {
    fn new(floor: Seq, copy: &CachedGroup) -> Standing {
        Standing {
            floor,
            head: copy.head,
            changed_to: copy.changed_to,
        }
    }
}

/// Groups that belong into a list.
pub(crate) struct Told {
    pub(crate) rows: Vec<GroupListed>,
    /// They are as at this time, or later.
    pub(crate) at: Timestamp,
    /// All groups of the user, where all were looked at.
    pub(crate) all: Option<BTreeMap<GroupId, CachedMember>>,
}

impl Groups {
    /// From behind which place on `user` may read a group, and where it ends. `is_behind`: nobody could be shown
    /// that it ended there; then it is not believed of a copy.
    pub(crate) async fn standing(
        &self,
        user: UserId,
        group: GroupId,
        is_behind: impl Fn(&Head) -> bool,
    ) -> Result<Standing, Refusal> {
        let at = self.cached.now();
        let (of_user, of_group) = self.cached.member(user, group).await;
        let known = || {
            let copy = of_group.copy?;
            let floor = of_user.copy.as_ref()?.readable_after(group, &copy)?;
            (!is_behind(&copy.head)).then(|| Standing::new(floor, &copy))
        };
        if let Some(known) = known() {
            return Ok(known);
        }
        // The head first: who is in then may know where it ended.
        let head = self.heads.read_one(ConversationId::Group(group)).await?;
        let (settings, member) = self.membership.of(user, group).await?;
        let floor = readable_after(settings, Some(&member))?;
        let copy = CachedGroup::read(at, head, Some(settings));
        let is_good = |copy: &CachedGroup| copy.settings.is_some() && !is_behind(&copy.head);
        if !of_group.copy.as_ref().is_some_and(is_good) {
            let kept = std::iter::once((group, of_group, copy));
            self.cached.keep_groups(kept).await;
        }
        Ok(Standing::new(floor, &copy))
    }

    /// From behind which place on `user` may read a group.
    pub(crate) async fn readable_after(
        &self,
        user: UserId,
        group: GroupId,
    ) -> Result<Seq, Refusal> {
        let (settings, member) = self.membership.of(user, group).await?;
        readable_after(settings, Some(&member))
    }

    /// Messages of a group that ends at `head`: those beside history where they reach it. That they are dense is for
    /// the caller to prove.
    pub(crate) async fn messages(
        &self,
        user: UserId,
        group: GroupId,
        part: Part,
        head: &Head,
    ) -> Result<Vec<Placed>, Refusal> {
        match self.recent.page(group, part, head).await {
            Some(messages) => Ok(messages),
            None => self.read_history(user, group, part, head).await,
        }
    }

    async fn read_history(
        &self,
        user: UserId,
        group: GroupId,
        part: Part,
        head: &Head,
    ) -> Result<Vec<Placed>, Refusal> {
        let read = self.limits.read(user)?;
        let rows = (self.history).conversation(group, part.range(), part.count());
        let rows = within(self.deadline, rows).await?;
        drop(read);
        let messages: Vec<Placed> = rows.iter().map(MessageRow::placed).collect();
        self.recent.keep(group, &messages, head).await;
        Ok(messages)
    }

    /// Groups of the user's that belong into a list difference, from behind `after` on, `most` at most (S4-33). `copy`:
    /// what is known of the user.
    pub(crate) async fn told(
        &self,
        user: UserId,
        copy: Option<&CachedUser>,
        since: Timestamp,
        from: Timestamp,
        mut after: Option<GroupId>,
        most: usize,
    ) -> Result<Told, Refusal> {
        let mut told = Told {
            rows: Vec::new(),
            at: self.cached.now(),
            all: None,
        };
        let mut all = after.is_none().then(BTreeMap::new);
        loop {
            let page = match copy {
                Some(copy) => page_of(copy, after),
                None => self.page(user, after).await?,
            };
            let is_last = page.len() < ROWS_TOGETHER;
            after = page.last().map(|(group, _)| *group);
            if let Some(all) = &mut all {
                all.extend(page.iter().copied());
            }
            let (rows, at) = self.listed(page).await?;
            told.at = told.at.min(at);
            let rows = rows.into_iter();
            (told.rows).extend(rows.filter(|row| row.standing().is_told(since, from)));
            if is_last {
                told.all = all.take();
            }
            if is_last || told.rows.len() >= most {
                told.rows.truncate(most);
                return Ok(told);
            }
        }
    }

    async fn page(
        &self,
        user: UserId,
        after: Option<GroupId>,
    ) -> Result<Vec<(GroupId, CachedMember)>, Refusal> {
        let page = self.groups.groups_of(user, after, ROWS_TOGETHER);
        let page = within(self.deadline, page).await?;
        self.with_registers(user, page).await
    }

    /// A group as it stands in the user's list; none for who never was in it.
    pub(crate) async fn row(
        &self,
        user: UserId,
        group: GroupId,
    ) -> Result<Vec<GroupListed>, Refusal> {
        let asked = [(group, user)];
        let members = self.groups.members_of(&asked);
        let members = within(self.deadline, members).await?;
        let members = members.into_iter().flatten();
        let page = members.map(|(_, member)| (group, member)).collect();
        let page = self.with_registers(user, page).await?;
        Ok(self.listed(page).await?.0)
    }

    async fn with_registers(
        &self,
        user: UserId,
        groups: Vec<(GroupId, Member)>,
    ) -> Result<Vec<(GroupId, CachedMember)>, Refusal> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let key = |(group, _): &(GroupId, Member)| (user, ConversationId::Group(*group));
        let keys: Vec<_> = groups.iter().map(key).collect();
        let registers = self.conversations.registers(&keys);
        let registers = within(self.deadline, registers).await?;
        let groups = groups.into_iter().zip(registers);
        Ok(groups
            .map(|((group, member), registers)| (group, CachedMember { member, registers }))
            .collect())
    }

    /// With their heads, which are as at the time that is answered, or later.
    async fn listed(
        &self,
        groups: Vec<(GroupId, CachedMember)>,
    ) -> Result<(Vec<GroupListed>, Timestamp), Refusal> {
        let ids: Vec<GroupId> = groups.iter().map(|(group, _)| *group).collect();
        let copies = self.heads.groups(&ids).await?;
        let oldest = copies.iter().map(|copy| copy.at).min();
        let rows = groups.into_iter().zip(&copies);
        let rows = rows.map(|((group, member), copy)| member.listed(group, copy));
        Ok((rows.collect(), oldest.unwrap_or(Timestamp::MAX)))
    }

    /// Each row with its newest message and what is unread; as they were sent, without marks.
    pub(crate) async fn summaries(
        &self,
        user: UserId,
        rows: Vec<GroupListed>,
    ) -> Result<Vec<Summary>, Refusal> {
        stream::iter(rows)
            .map(|row| self.summary(user, row))
            .buffered(SUMMARIES_TOGETHER)
            .try_collect()
            .await
    }

    async fn summary(&self, user: UserId, row: GroupListed) -> Result<Summary, Refusal> {
        if row.member.role.is_none() {
            return Ok(row.summary());
        }
        let recent = self.latest(&row, row.missed().clamp(1, LATEST)).await;
        let unread = self.unread_behind(user, &row, &recent).await?;
        let newest = match self.may_read_end(user, &row).await? {
            true => self.newest(&row, recent).await?,
            false => None,
        };
        Ok(Summary {
            unread,
            newest,
            ..row.summary()
        })
    }

    /// What is unread in each of these groups.
    pub(crate) async fn unread(
        &self,
        user: UserId,
        rows: Vec<GroupListed>,
    ) -> Result<Vec<(ConversationId, u64)>, Refusal> {
        stream::iter(rows)
            .map(|row| async move {
                let unread = match row.member.role {
                    Some(_) if row.missed() > 0 => {
                        let recent = self.latest(&row, row.missed().min(LATEST)).await;
                        self.unread_behind(user, &row, &recent).await?
                    }
                    Some(_) | None => 0,
                };
                Ok((ConversationId::Group(row.group), unread))
            })
            .buffered(SUMMARIES_TOGETHER)
            .try_collect()
            .await
    }

    /// So many of the newest from beside history, or none.
    async fn latest(&self, row: &GroupListed, count: usize) -> Vec<Placed> {
        let newest = HistoryRange::Backward { before: None };
        let recent = match Part::of(newest, row.head.seq, count) {
            Some(part) => self.recent.page(row.group, part, &row.head).await,
            None => None,
        };
        recent.unwrap_or_default()
    }

    /// Messages of others that nobody recalled, behind what was read; `recent` are the newest, if they are known.
    async fn unread_behind(
        &self,
        user: UserId,
        row: &GroupListed,
        recent: &[Placed],
    ) -> Result<u64, Refusal> {
        let (group, head, base, missed) = (row.group, &row.head, row.base(), row.missed());
        let own = match missed <= recent.len() {
            true => {
                let behind = recent.iter().take(missed);
                behind.filter(|placed| placed.message.from == user).count() as u64
            }
            false => {
                let own = self.history.own_between(group, user, base, head.seq);
                within(self.deadline, own).await?
            }
        };
        let recalled = match base < row.changed_to {
            true => {
                let stretch = Stretch {
                    conversation: ConversationId::Group(group),
                    after: base,
                    last: head.seq,
                    until: head.version,
                };
                let recalled = [stretch];
                let recalled = self.changes.recalled(&recalled);
                let mut recalled = within(self.deadline, recalled).await?;
                recalled.pop().unwrap_or_default()
            }
            false => BTreeMap::new(),
        };
        let of_others = recalled.into_iter().filter(|(_, author)| *author != user);
        let recalled = of_others.map(|(seq, _)| seq).collect();
        Ok(in_group(head.seq, base, own, &recalled))
    }

    /// How many messages of a group were accepted after a time (S2-09, S2-10): of those that the user may read, and
    /// among the newest [`COUNTED_MAX`]. Only their places are read.
    pub(crate) async fn count_since(
        &self,
        user: UserId,
        group: GroupId,
        since: Timestamp,
    ) -> Result<CountSince, Refusal> {
        let floor = self.readable_after(user, group).await?;
        let end = self.heads.read_one(ConversationId::Group(group)).await?.seq;
        let first = floor.0.max(end.0.saturating_sub(COUNTED_MAX)) + 1;
        let places: Vec<Seq> = (first..=end.0).map(Seq).collect();
        let read = self.limits.read(user)?;
        let ids = within(self.deadline, self.history.ids(group, &places)).await?;
        drop(read);
        let earliest = MessageId::floor_of(since + Duration::from_millis(1));
        let count = ids.iter().flatten().filter(|id| **id >= earliest).count();
        let is_cut = first > floor.0 + 1;
        Ok(CountSince {
            count: count as u64,
            more: is_cut && count == places.len(),
        })
    }

    /// What came after they did they may read; only where nothing did, the group says it.
    async fn may_read_end(&self, user: UserId, row: &GroupListed) -> Result<bool, Refusal> {
        if row.head.seq > row.member.since {
            return Ok(true);
        }
        if row.head.seq == Seq::ZERO {
            return Ok(false);
        }
        let floor = self.readable_after(user, row.group).await;
        match floor {
            Ok(floor) => Ok(row.head.seq > floor),
            // They left meanwhile.
            Err(refusal) if !refusal.code.retryable() => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    async fn newest(
        &self,
        row: &GroupListed,
        recent: Vec<Placed>,
    ) -> Result<Option<Placed>, Refusal> {
        if let Some(newest) = recent.into_iter().next() {
            return Ok(Some(newest));
        }
        let Some(id) = row.head.last_id else {
            return Ok(None);
        };
        let key = [(row.group, id)];
        let found = within(self.deadline, self.history.rows(&key)).await?;
        let newest = found.into_iter().flatten().next();
        let newest = newest.map(|row| row.placed());
        self.recent
            .keep(row.group, newest.as_slice(), &row.head)
            .await;
        Ok(newest)
    }

    /// Who is in, for those who are.
    pub(crate) async fn members(
        &self,
        user: UserId,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<MemberPage, Refusal> {
        let (settings, _) = self.membership.of(user, group).await?;
        // One more than a page tells whether there are more.
        let present = self.groups.present(group, after, limit + 1);
        let mut present = within(self.deadline, present).await?;
        let more = present.len() > limit;
        present.truncate(limit);
        let members = present.into_iter();
        Ok(MemberPage {
            settings,
            members: members
                .filter_map(|(user, member)| Some((user, member.role?)))
                .collect(),
            more,
        })
    }

    /// Who of those who are in has read up to `seq`.
    pub(crate) async fn readers(
        &self,
        user: UserId,
        group: GroupId,
        seq: Seq,
    ) -> Result<Vec<UserId>, Refusal> {
        self.membership.of(user, group).await?;
        let present = self.groups.present(group, None, READERS_MAX + 1);
        let present = within(self.deadline, present).await?;
        if present.len() > READERS_MAX {
            let text = format!("readers are told of groups of {READERS_MAX} at most");
            return Err(Refusal::new(Code::Unsupported, text));
        }
        let of = ConversationId::Group(group);
        let keys: Vec<_> = present.into_iter().map(|(user, _)| (user, of)).collect();
        let registers = self.conversations.registers(&keys);
        let registers = within(self.deadline, registers).await?;
        let readers = keys.into_iter().zip(registers);
        Ok(readers
            .filter(|(_, registers)| registers.read_seq >= seq)
            .map(|((user, _), _)| user)
            .collect())
    }
}

/// As [`Groups::page`], from a copy.
fn page_of(copy: &CachedUser, after: Option<GroupId>) -> Vec<(GroupId, CachedMember)> {
    let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
    let groups = copy.groups.range((behind, Bound::Unbounded));
    let page = groups.take(ROWS_TOGETHER);
    page.map(|(group, member)| (*group, *member)).collect()
}
