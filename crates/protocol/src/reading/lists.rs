//! Lists: changed conversations, unread counts, and single rows.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{
    Fill, GroupListEntry, LatestMessages, LatestNeed, ListSlice, NeedResult, NoAnswer, OwnRange,
    Reading, RecallRange, Slice, fitting, list_from, may_go_on, may_read, readable_after,
};
use crate::cache::{self, GroupEntry, MemberEntry, UserEntry};
use crate::change::{MessageMarks, Overlay};
use crate::conversation::{ListEntry, ReadBase};
use crate::frame::{ListPage, Summary, UnreadPage};
use crate::group::Member;
use crate::message_row::{MessageRow, Owner};
use crate::unread::{self, Tally, in_group};
use crate::{Code, ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp, UserId};

/// Groups of a list whose heads and registers are read in one question.
pub const GROUPS_TOGETHER: usize = 128;

/// Limit of groups in one user's cache entry; users in more are answered from the stores.
pub const CACHED_GROUPS_MAX: usize = 1000;

/// Messages from the end of a group that the cache beside history is asked for.
pub const LATEST_MAX: usize = 100;

/// A page of a list: private conversations come before groups.
struct ConversationPage<'a> {
    private: Vec<&'a ListEntry>,
    groups: Vec<GroupListEntry>,
    more: bool,
    /// The rows are as of this time, or later.
    at: Timestamp,
}

/// Private conversations of a list.
struct PrivatePage<'a> {
    rows: Vec<&'a ListEntry>,
    more: bool,
    /// None of the conversations looked at changed at this time or later.
    before: Timestamp,
}

/// Groups that belong in a list.
struct GroupPage {
    rows: Vec<GroupListEntry>,
    /// The rows are as of this time, or later.
    at: Timestamp,
    /// All groups of the user, if all were read, and fit into a cache entry.
    all: Option<BTreeMap<GroupId, MemberEntry>>,
}

/// Unread counts, in the order of the conversations.
struct UnreadCounts {
    private: Vec<u64>,
    groups: Vec<u64>,
}

impl<'a> Reading<'a> {
    /// Changed conversations, each with its newest message (S4-02, S4-03). Its version is the time
    /// before the rows were read, so that later writes come with the next list; for rows from the
    /// cache, the time at which the entries were read. It is never ahead of the clock.
    pub(super) fn list(
        &self,
        since: Timestamp,
        after: Option<ConversationId>,
    ) -> NeedResult<ListPage> {
        may_go_on(self.user, after)?;
        let from = list_from(since, self.rules.list_margin, self.began)?;
        let page = self.conversations(since, from, after)?;
        let unchanged = self.ask.unchanged(self.user);
        let summaries = self.summaries(&page.private, &page.groups);
        self.check_unchanged(unchanged)?;
        let mut conversations = summaries?;
        let fit = fitting(
            conversations.iter().map(summary_size),
            self.rules.page_bytes_max,
        );
        let more = page.more || fit < conversations.len();
        conversations.truncate(fit);
        Ok(ListPage {
            conversations,
            version: page.at.max(since).min(self.began),
            more,
        })
    }

    /// A page of unread counts. Only conversations that hold something unread are looked at more
    /// closely (S2-15).
    pub(super) fn all_unread(&self, after: Option<ConversationId>) -> NeedResult<UnreadPage> {
        may_go_on(self.user, after)?;
        let everything = Timestamp::ZERO;
        let page = self.conversations(everything, everything, after)?;
        let unchanged = self.ask.unchanged(self.user);
        let counts = self.unread_counts(&page);
        self.check_unchanged(unchanged)?;
        let counts = counts?;
        let private = page.private.iter().map(|listed| listed.row.conversation);
        let groups = page
            .groups
            .iter()
            .map(|row| ConversationId::Group(row.group));
        let private = private.zip(counts.private);
        let mut counts: Vec<_> = private.chain(groups.zip(counts.groups)).collect();
        let next = counts.last().map(|(last, _)| *last);
        counts.retain(|(_, unread)| *unread > 0);
        Ok(UnreadPage {
            counts,
            next: next.filter(|_| page.more),
        })
    }

    /// Row of a conversation, even if it is not in the list now; `None` if it never was.
    pub(super) fn row(&self, conversation: ConversationId) -> NeedResult<Option<Summary>> {
        let mut summaries = match conversation {
            ConversationId::Group(group) => {
                let Some((_, member)) = self.ask.members(vec![group])?[0] else {
                    return Ok(None);
                };
                let members = self.with_registers(&[(group, member)])?;
                self.summaries(&[], &self.with_heads(&members)?.0)?
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                may_read(self.user, conversation)?;
                let listed = self.ask.list_entries(vec![conversation])?;
                let listed: Vec<&ListEntry> = listed.iter().flatten().collect();
                self.summaries(&listed, &[])?
            }
        };
        Ok(summaries.pop())
    }

    /// A member removed meanwhile must not see messages from after the removal: since the heads were
    /// read, nothing may have happened to the entry that the answer is made from.
    fn check_unchanged(&self, unchanged: Result<&bool, NoAnswer>) -> NeedResult<()> {
        match unchanged? {
            true => Ok(()),
            false => Err(NoAnswer::Stale),
        }
    }

    /// A page of a list, from behind `after` on: by the user's cache entry, or by the stores if
    /// there is none; then the entry is filled, if everything was read.
    fn conversations(
        &self,
        since: Timestamp,
        from: Timestamp,
        after: Option<ConversationId>,
    ) -> NeedResult<ConversationPage<'a>> {
        let entry = self.ask.user_entry(self.user)?.as_ref();
        let is_quiet = entry.is_some_and(|entry| entry.is_private_quiet(from));
        let (private, behind_group) = match after {
            Some(ConversationId::Group(group)) => (PrivatePage::none(from), Some(group)),
            Some(_) | None if is_quiet => (PrivatePage::none(from), None),
            Some(_) | None => (self.private_page(since, from, after)?, None),
        };
        let mut page = ConversationPage {
            private: private.rows,
            groups: Vec::new(),
            more: private.more,
            at: entry.map_or(self.began, |entry| entry.at),
        };
        if page.more {
            return Ok(page);
        }
        // One more than there is room for tells whether there are more.
        let room = self.rules.page_max - page.private.len();
        let groups = self.group_page(entry, since, from, behind_group, room + 1)?;
        page.more = groups.rows.len() > room;
        page.groups = groups.rows;
        page.groups.truncate(room);
        page.at = page.at.min(groups.at);
        if let (None, Some(groups)) = (after, groups.all) {
            self.fill(Fill::User(Box::new(UserEntry {
                at: self.began,
                private_before: private.before,
                groups,
            })));
        }
        Ok(page)
    }

    fn private_page(
        &self,
        since: Timestamp,
        from: Timestamp,
        mut after: Option<ConversationId>,
    ) -> NeedResult<PrivatePage<'a>> {
        let mut page = PrivatePage::none(from);
        // One more than a page tells whether there are more.
        let limit = self.rules.page_max + 1;
        loop {
            let slice = self.ask.list_slice(ListSlice {
                since,
                from,
                after,
                limit,
            })?;
            page.before = page.before.max(slice.before);
            page.rows.extend(&slice.rows);
            page.more = page.rows.len() > self.rules.page_max;
            if page.more || slice.end.is_none() {
                page.rows.truncate(self.rules.page_max);
                return Ok(page);
            }
            check_progress(after, slice.end)?;
            after = slice.end;
        }
    }

    /// Groups of the user that belong in a list difference, from behind `after` on, `most` at most
    /// (S4-33).
    fn group_page(
        &self,
        entry: Option<&UserEntry>,
        since: Timestamp,
        from: Timestamp,
        mut after: Option<GroupId>,
        most: usize,
    ) -> NeedResult<GroupPage> {
        let mut page = GroupPage {
            rows: Vec::new(),
            at: self.began,
            all: None,
        };
        let mut all = (after.is_none() && entry.is_none()).then(BTreeMap::new);
        loop {
            let members = match entry {
                Some(entry) => members_behind(entry, after),
                None => {
                    let members = self.ask.memberships(Slice {
                        of: self.user,
                        after,
                        limit: GROUPS_TOGETHER,
                    })?;
                    self.with_registers(members)?
                }
            };
            let is_last = members.len() < GROUPS_TOGETHER;
            let end = members.last().map(|(group, _)| *group);
            check_progress(after, end.filter(|_| !is_last))?;
            after = end;
            all = all.filter(|all| all.len() + members.len() <= CACHED_GROUPS_MAX);
            if let Some(all) = &mut all {
                all.extend(members.iter().copied());
            }
            let (rows, at) = self.with_heads(&members)?;
            page.at = page.at.min(at);
            let rows = rows.into_iter();
            (page.rows).extend(rows.filter(|row| row.key().is_told(since, from)));
            if is_last {
                page.all = all.take();
            }
            if is_last || page.rows.len() >= most {
                page.rows.truncate(most);
                return Ok(page);
            }
        }
    }

    fn with_registers(
        &self,
        groups: &[(GroupId, Member)],
    ) -> NeedResult<Vec<(GroupId, MemberEntry)>> {
        let key = |(group, _): &(GroupId, Member)| (self.user, ConversationId::Group(*group));
        let registers = self.ask.registers(groups.iter().map(key).collect())?;
        let groups = groups.iter().zip(registers);
        Ok(groups
            .map(|(&(group, member), &registers)| (group, MemberEntry { member, registers }))
            .collect())
    }

    /// Adds the heads, which are as of the returned time, or later.
    fn with_heads(
        &self,
        groups: &[(GroupId, MemberEntry)],
    ) -> NeedResult<(Vec<GroupListEntry>, Timestamp)> {
        let ids: Vec<GroupId> = groups.iter().map(|(group, _)| *group).collect();
        let entries = self.entries(&ids)?;
        let oldest = entries.iter().map(|entry| entry.at).min();
        let rows = groups.iter().zip(&entries);
        let rows = rows.map(|((group, member), entry)| member.listed(*group, entry));
        Ok((rows.collect(), oldest.unwrap_or(Timestamp::MAX)))
    }

    /// Cache entries of groups; those that are missing are read, and filled.
    pub(super) fn entries(&self, groups: &[GroupId]) -> NeedResult<Vec<GroupEntry>> {
        let known = self.ask.group_entries(groups.to_vec())?;
        let missing = groups
            .iter()
            .zip(known)
            .filter(|(_, entry)| entry.is_none());
        let missing: Vec<GroupId> = missing.map(|(group, _)| *group).collect();
        let heads = missing.iter().map(|group| ConversationId::Group(*group));
        let heads = self.ask.heads(heads.collect())?;
        let read = heads
            .iter()
            .map(|head| GroupEntry::read(self.began, *head, None));
        let read: Vec<GroupEntry> = read.collect();
        for (group, entry) in missing.into_iter().zip(&read) {
            self.fill(Fill::Group(group, *entry));
        }
        let mut read = read.into_iter();
        let entries = known.iter().map(|known| known.or_else(|| read.next()));
        Ok(entries.flatten().collect())
    }

    /// Each row with its newest message and unread count. One question a kind, however many rows
    /// there are (S4-32).
    fn summaries(
        &self,
        private: &[&'a ListEntry],
        groups: &[GroupListEntry],
    ) -> NeedResult<Vec<Summary>> {
        let row = |listed: &&ListEntry| (Owner::User(self.user), listed.row.last_id);
        let newest = self.ask.rows(private.iter().map(row).collect());
        let bases = self.private_bases(private);
        let latest = self.latest(groups, 1);
        let (newest, bases, latest) = (newest?, bases?, latest?);
        let unread = self.unread(private, &bases, groups, &latest);
        let of_groups = self.newest_of_groups(groups, &latest);
        let mut newest: Vec<Option<Placed>> = (newest.iter())
            .map(|row| row.as_ref().map(|row| row.placed.clone()))
            .collect();
        let ends = private.iter().map(|listed| {
            let row = &listed.row;
            cache::changed_to(row.rev, row.end.seq)
        });
        let ends: Vec<Seq> = ends.collect();
        let of_private = self.overlays(ends.iter().copied().zip(&newest));
        let mut of_groups = of_groups?;
        let group_ends = groups.iter().map(|row| row.changed_to);
        let group_ends: Vec<Seq> = group_ends.collect();
        let of_group = self.overlays(group_ends.iter().copied().zip(&of_groups));
        let (unread, of_private, of_group) = (unread?, of_private?, of_group?);
        let private = private.iter().zip(unread.private).zip(of_private);
        let mut summaries: Vec<Summary> = (private.zip(&mut newest))
            .map(|(((listed, unread), overlay), newest)| {
                let marks = show(newest, overlay);
                listed.summary(unread, newest.take(), marks)
            })
            .collect();
        let groups = groups.iter().zip(unread.groups).zip(of_group);
        summaries.extend(
            (groups.zip(&mut of_groups)).map(|(((row, unread), overlay), newest)| Summary {
                unread,
                marks: show(newest, overlay),
                newest: newest.take(),
                ..row.summary()
            }),
        );
        Ok(summaries)
    }

    fn unread_counts(&self, page: &ConversationPage<'a>) -> NeedResult<UnreadCounts> {
        let (bases, latest) = (
            self.private_bases(&page.private),
            self.latest(&page.groups, 0),
        );
        self.unread(&page.private, &bases?, &page.groups, &latest?)
    }

    /// End of each group from the cache beside history, as many messages as the user missed and at
    /// least `least`; `None` for a group that the user is not in.
    fn latest(
        &self,
        groups: &[GroupListEntry],
        least: usize,
    ) -> NeedResult<Vec<Option<&'a LatestMessages>>> {
        let count = |row: &GroupListEntry| match row.member.role {
            Some(_) if row.head.seq > Seq::ZERO => row.missed().max(least).min(LATEST_MAX),
            Some(_) | None => 0,
        };
        let asked = groups.iter().filter(|row| count(row) > 0);
        let asked = asked.map(|row| LatestNeed {
            group: row.group,
            head: row.head,
            count: count(row),
        });
        let mut latest = self.ask.latest(asked.collect())?.iter();
        let each = groups.iter().map(|row| match count(row) {
            0 => None,
            _ => latest.next(),
        });
        Ok(each.collect())
    }

    /// Place up to which the user is done with each of these conversations: read or cleared,
    /// whichever is further; `None`: with all of it.
    fn private_bases(&self, listed: &[&ListEntry]) -> NeedResult<Vec<Option<Tally>>> {
        let asked = listed
            .iter()
            .filter_map(|listed| match listed.read_up_to() {
                ReadBase::Row(seq) => Some((listed.row.conversation, seq)),
                ReadBase::End | ReadBase::Place(_) => None,
            });
        let mut tallies = self.ask.tallies(asked.collect())?.iter();
        let bases = listed.iter().map(|listed| {
            let read = match listed.read_up_to() {
                ReadBase::End => return None,
                ReadBase::Place(place) => place,
                ReadBase::Row(_) => tallies.next().copied().flatten().unwrap_or_default(),
            };
            Some(unread::base(read, listed.cleared))
        });
        Ok(bases.collect())
    }

    /// Unread counts: messages of others behind the base that nobody recalled.
    fn unread(
        &self,
        private: &[&ListEntry],
        bases: &[Option<Tally>],
        groups: &[GroupListEntry],
        latest: &[Option<&LatestMessages>],
    ) -> NeedResult<UnreadCounts> {
        let range = |(listed, base): (&&ListEntry, &Option<Tally>)| private_range(listed, (*base)?);
        let of_private = private.iter().zip(bases).map(range);
        let ranges: Vec<Option<RecallRange>> =
            of_private.chain(groups.iter().map(group_range)).collect();
        let own = groups.iter().zip(latest).filter(|(row, latest)| {
            let is_in = row.member.role.is_some();
            is_in && row.missed() > authors(latest).len()
        });
        let own = own.map(|(row, _)| OwnRange {
            group: row.group,
            after: row.base(),
            last: row.head.seq,
        });
        let (recalled, own) = (
            self.ask
                .recalled(ranges.iter().flatten().copied().collect()),
            self.ask.own(own.collect()),
        );
        let (mut recalled, mut own) = (recalled?.iter(), own?.iter());
        let mut recalled = ranges.iter().map(|range| {
            let answer = range.and_then(|_| recalled.next());
            answer.cloned().unwrap_or_default()
        });
        let of_private = (private.iter().zip(bases).zip(&mut recalled))
            .map(|((listed, base), recalled)| base.map_or(0, |base| listed.unread(base, recalled)))
            .collect();
        let of_groups = groups.iter().zip(latest).zip(recalled);
        let of_groups = of_groups.map(|((row, latest), recalled)| {
            if row.member.role.is_none() {
                return 0;
            }
            let authors = authors(latest);
            let own = match row.missed() <= authors.len() {
                true => {
                    let behind = authors.iter().take(row.missed());
                    behind.filter(|author| **author == self.user).count() as u64
                }
                false => own.next().copied().unwrap_or_default(),
            };
            let of_others = recalled
                .into_iter()
                .filter(|(_, author)| *author != self.user);
            let recalled = of_others.map(|(seq, _)| seq).collect();
            in_group(row.head.seq, row.base(), own, &recalled)
        });
        Ok(UnreadCounts {
            private: of_private,
            groups: of_groups.collect(),
        })
    }

    /// Newest message of each group, as far as the user may read it.
    fn newest_of_groups(
        &self,
        groups: &[GroupListEntry],
        latest: &[Option<&LatestMessages>],
    ) -> NeedResult<Vec<Option<Placed>>> {
        // Messages that came after the member did may be read; only if there are none, the group's
        // settings decide.
        let is_open = |row: &GroupListEntry| row.head.seq > row.member.since;
        let has_end = |row: &GroupListEntry| row.member.role.is_some() && row.head.seq > Seq::ZERO;
        let closed = groups.iter().filter(|row| has_end(row) && !is_open(row));
        let members = self.ask.members(closed.map(|row| row.group).collect());
        let unknown = groups.iter().zip(latest);
        let unknown = unknown.filter(|(row, latest)| has_end(row) && newest_of(latest).is_none());
        let unknown = unknown.filter_map(|(row, _)| Some((row, row.head.last_id?)));
        let unknown: Vec<(&GroupListEntry, MessageId)> = unknown.collect();
        let keys = unknown
            .iter()
            .map(|(row, id)| (Owner::Group(row.group), *id));
        let rows = self.ask.rows(keys.collect());
        let (mut members, rows) = (members?.iter(), rows?);
        let read = |row: &Option<MessageRow>| row.as_ref().map(|row| row.placed.clone());
        for ((row, _), placed) in unknown.iter().zip(rows.iter().map(read)) {
            if let Some(placed) = placed {
                self.fill(Fill::Timeline(row.group, vec![placed], row.head));
            }
        }
        let mut rows = rows.iter().map(read);
        let newest = groups.iter().zip(latest).map(|(row, latest)| {
            if !has_end(row) {
                return None;
            }
            let may_read = is_open(row)
                || members
                    .next()
                    .copied()
                    .flatten()
                    .is_some_and(|(settings, member)| {
                        // The user may have left meanwhile.
                        readable_after(settings, Some(&member))
                            .is_ok_and(|floor| row.head.seq > floor)
                    });
            let newest = match newest_of(latest) {
                Some(newest) => Some(newest.clone()),
                None => row.head.last_id.and_then(|_| rows.next()).flatten(),
            };
            newest.filter(|_| may_read)
        });
        Ok(newest.collect())
    }

    /// Overlays of messages of different conversations, each with the place behind which nothing
    /// was ever changed.
    fn overlays<'m>(
        &self,
        messages: impl Iterator<Item = (Seq, &'m Option<Placed>)>,
    ) -> NeedResult<Vec<Option<&'a Overlay>>> {
        let places = messages.map(|(changed_to, placed)| {
            let placed = placed.as_ref()?;
            let may_have = placed.position.seq <= changed_to;
            may_have.then_some((placed.conversation, placed.position.seq))
        });
        let places: Vec<Option<(ConversationId, Seq)>> = places.collect();
        let asked = places.iter().flatten().copied();
        let mut overlays = self.ask.overlays(asked.collect())?.iter();
        let each = places
            .iter()
            .map(|place| place.and_then(|_| overlays.next()));
        Ok(each.collect())
    }
}

/// Refuses to go on behind `after` if the answer did not get further: it would be asked for ever.
fn check_progress<K: Ord>(after: Option<K>, end: Option<K>) -> NeedResult<()> {
    match end {
        Some(end) if after.is_some_and(|after| end <= after) => {
            let text = "a list does not get on: a fault of this server";
            Err(NoAnswer::Refused(Refusal::new(Code::Unavailable, text)))
        }
        Some(_) | None => Ok(()),
    }
}

fn authors<'l>(latest: &Option<&'l LatestMessages>) -> &'l [UserId] {
    latest.map_or(&[], |latest| &latest.authors)
}

fn newest_of<'l>(latest: &Option<&'l LatestMessages>) -> Option<&'l Placed> {
    (*latest)?.newest.as_ref()
}

impl PrivatePage<'_> {
    fn none(from: Timestamp) -> PrivatePage<'static> {
        PrivatePage {
            rows: Vec::new(),
            more: false,
            before: from,
        }
    }
}

/// As a page of memberships, from a cache entry.
fn members_behind(entry: &UserEntry, after: Option<GroupId>) -> Vec<(GroupId, MemberEntry)> {
    let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
    let groups = entry.groups.range((behind, Bound::Unbounded));
    let page = groups.take(GROUPS_TOGETHER);
    page.map(|(group, member)| (*group, *member)).collect()
}

/// Range in which recalls count against unread messages; `None` if nothing was ever changed.
fn private_range(listed: &ListEntry, base: Tally) -> Option<RecallRange> {
    let row = &listed.row;
    (row.rev > 0 && base.seq < row.end.seq).then_some(RecallRange {
        conversation: row.conversation,
        after: base.seq,
        last: row.end.seq,
        until: row.source,
    })
}

/// As [`private_range`], in a group.
fn group_range(row: &GroupListEntry) -> Option<RecallRange> {
    let (head, base) = (&row.head, row.base());
    let may_have = row.member.role.is_some() && base < row.changed_to && base < head.seq;
    may_have.then_some(RecallRange {
        conversation: ConversationId::Group(row.group),
        after: base,
        last: head.seq,
        until: head.version,
    })
}

fn show(newest: &mut Option<Placed>, overlay: Option<&Overlay>) -> Option<MessageMarks> {
    overlay?.show(newest.as_mut()?)
}

fn summary_size(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    newest.map_or(0, |placed| placed.message.content.data.len())
        + summary.marks.as_ref().map_or(0, MessageMarks::weight)
}
