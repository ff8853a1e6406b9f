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

/// Number of groups of a list whose heads and registers are read in one question.
pub const GROUPS_PER_READ: usize = 128;

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
    quiet_from: Timestamp,
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
        list_version: Timestamp,
        cursor: Option<ConversationId>,
    ) -> NeedResult<ListPage> {
        may_go_on(self.user, cursor)?;
        let from = list_from(list_version, self.rules.list_margin, self.started_at)?;
        let page = self.conversations(list_version, from, cursor)?;
        let is_unchanged = self.ask.unchanged(self.user);
        let summaries = self.summaries(&page.private, &page.groups);
        self.check_unchanged(is_unchanged)?;
        let mut conversations = summaries?;
        let fit = fitting(
            conversations.iter().map(summary_size),
            self.rules.page_bytes_max,
        );
        let more = page.more || fit < conversations.len();
        conversations.truncate(fit);
        Ok(ListPage {
            conversations,
            version: page.at.max(list_version).min(self.started_at),
            more,
        })
    }

    /// A page of unread counts. Only conversations that hold something unread are looked at more
    /// closely (S2-15).
    pub(super) fn all_unread(&self, cursor: Option<ConversationId>) -> NeedResult<UnreadPage> {
        may_go_on(self.user, cursor)?;
        let everything = Timestamp::ZERO;
        let page = self.conversations(everything, everything, cursor)?;
        let is_unchanged = self.ask.unchanged(self.user);
        let counts = self.unread_counts(&page);
        self.check_unchanged(is_unchanged)?;
        let counts = counts?;
        let private = page.private.iter().map(|entry| entry.row.conversation);
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
                let entries = self.ask.list_entries(vec![conversation])?;
                let entries: Vec<&ListEntry> = entries.iter().flatten().collect();
                self.summaries(&entries, &[])?
            }
        };
        Ok(summaries.pop())
    }

    /// A member removed meanwhile must not see messages from after the removal: since the heads were
    /// read, nothing may have happened to the entry that the answer is made from.
    fn check_unchanged(&self, is_unchanged: Result<&bool, NoAnswer>) -> NeedResult<()> {
        if *is_unchanged? {
            Ok(())
        } else {
            Err(NoAnswer::Stale)
        }
    }

    /// A page of a list, from behind `cursor` on: by the user's cache entry, or by the stores if
    /// there is none; then the entry is filled, if everything was read.
    fn conversations(
        &self,
        list_version: Timestamp,
        from: Timestamp,
        cursor: Option<ConversationId>,
    ) -> NeedResult<ConversationPage<'a>> {
        let entry = self.ask.user_entry(self.user)?.as_ref();
        let is_quiet = entry.is_some_and(|entry| entry.is_private_quiet(from));
        let (private, behind_group) = match cursor {
            Some(ConversationId::Group(group)) => (PrivatePage::none(from), Some(group)),
            Some(_) | None if is_quiet => (PrivatePage::none(from), None),
            Some(_) | None => (self.private_page(list_version, from, cursor)?, None),
        };
        let mut page = ConversationPage {
            private: private.rows,
            groups: Vec::new(),
            more: private.more,
            at: entry.map_or(self.started_at, |entry| entry.at),
        };
        if page.more {
            return Ok(page);
        }
        // One more than there is room for tells whether there are more.
        let room = self.rules.page_max - page.private.len();
        let groups = self.group_page(entry, list_version, from, behind_group, room + 1)?;
        page.more = groups.rows.len() > room;
        page.groups = groups.rows;
        page.groups.truncate(room);
        page.at = page.at.min(groups.at);
        if let (None, Some(groups)) = (cursor, groups.all) {
            self.fill(Fill::User(Box::new(UserEntry {
                at: self.started_at,
                private_before: private.quiet_from,
                groups,
            })));
        }
        Ok(page)
    }

    fn private_page(
        &self,
        list_version: Timestamp,
        from: Timestamp,
        mut cursor: Option<ConversationId>,
    ) -> NeedResult<PrivatePage<'a>> {
        let mut page = PrivatePage::none(from);
        // One more than a page tells whether there are more.
        let limit = self.rules.page_max + 1;
        loop {
            let slice = self.ask.list_slice(ListSlice {
                list_version,
                from,
                cursor,
                limit,
            })?;
            page.quiet_from = page.quiet_from.max(slice.quiet_from);
            page.rows.extend(&slice.rows);
            page.more = page.rows.len() > self.rules.page_max;
            if page.more || slice.end.is_none() {
                page.rows.truncate(self.rules.page_max);
                return Ok(page);
            }
            check_progress(cursor, slice.end)?;
            cursor = slice.end;
        }
    }

    /// Groups of the user that belong in a list difference: those behind `cursor`, at most `most`
    /// (S4-33).
    fn group_page(
        &self,
        entry: Option<&UserEntry>,
        list_version: Timestamp,
        from: Timestamp,
        mut cursor: Option<GroupId>,
        most: usize,
    ) -> NeedResult<GroupPage> {
        let mut page = GroupPage {
            rows: Vec::new(),
            at: self.started_at,
            all: None,
        };
        let mut all = (cursor.is_none() && entry.is_none()).then(BTreeMap::new);
        loop {
            let members = match entry {
                Some(entry) => members_behind(entry, cursor),
                None => {
                    let members = self.ask.memberships(Slice {
                        owner: self.user,
                        cursor,
                        limit: GROUPS_PER_READ,
                    })?;
                    self.with_registers(members)?
                }
            };
            let is_last = members.len() < GROUPS_PER_READ;
            let end = members.last().map(|(group, _)| *group);
            check_progress(cursor, end.filter(|_| !is_last))?;
            cursor = end;
            all = all.filter(|all| all.len() + members.len() <= CACHED_GROUPS_MAX);
            if let Some(all) = &mut all {
                all.extend(members.iter().copied());
            }
            let (rows, at) = self.with_heads(&members)?;
            page.at = page.at.min(at);
            let rows = rows.into_iter();
            (page.rows).extend(rows.filter(|row| row.key().is_told(list_version, from)));
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

    /// Cache entries of groups; those that are missing are read, and filled unless the group was
    /// dissolved.
    pub(super) fn entries(&self, groups: &[GroupId]) -> NeedResult<Vec<GroupEntry>> {
        let cached_entries = self.ask.group_entries(groups.to_vec())?;
        let missing_ids = groups
            .iter()
            .zip(cached_entries)
            .filter(|(_, entry)| entry.is_none());
        let missing_ids: Vec<GroupId> = missing_ids.map(|(group, _)| *group).collect();
        let heads = missing_ids
            .iter()
            .map(|group| ConversationId::Group(*group));
        let heads = self.ask.heads(heads.collect());
        let infos = self.ask.infos(missing_ids.clone());
        let (heads, infos) = (heads?, infos?);
        let read = heads.iter().zip(infos).map(|(head, info)| GroupEntry {
            is_dissolved: info.is_some_and(|info| info.is_dissolved),
            ..GroupEntry::read(self.started_at, *head, None)
        });
        let read: Vec<GroupEntry> = read.collect();
        for (group, entry) in missing_ids.into_iter().zip(&read) {
            if !entry.is_dissolved {
                self.fill(Fill::Group(group, *entry));
            }
        }
        let mut read = read.into_iter();
        let entries = cached_entries
            .iter()
            .map(|entry| entry.or_else(|| read.next()));
        Ok(entries.flatten().collect())
    }

    /// Each row with its newest message and unread count. One question a kind, however many rows
    /// there are (S4-32).
    fn summaries(
        &self,
        private: &[&'a ListEntry],
        groups: &[GroupListEntry],
    ) -> NeedResult<Vec<Summary>> {
        let row = |entry: &&ListEntry| (Owner::User(self.user), entry.row.last_id);
        let newest = self.ask.rows(private.iter().map(row).collect());
        let bases = self.private_bases(private);
        let latest = self.latest(groups, 1);
        let (newest, bases, latest) = (newest?, bases?, latest?);
        let unread = self.unread(private, &bases, groups, &latest);
        let group_messages = self.newest_group_messages(groups, &latest);
        let mut newest: Vec<Option<Placed>> = (newest.iter())
            .map(|row| row.as_ref().map(|row| row.placed.clone()))
            .collect();
        let ends = private.iter().map(|entry| {
            let row = &entry.row;
            cache::changed_to(row.rev, row.end.seq)
        });
        let ends: Vec<Seq> = ends.collect();
        let private_overlays = self.overlays(ends.iter().copied().zip(&newest));
        let mut group_messages = group_messages?;
        let group_ends = groups.iter().map(|row| row.changed_to);
        let group_ends: Vec<Seq> = group_ends.collect();
        let group_overlays = self.overlays(group_ends.iter().copied().zip(&group_messages));
        let (unread, private_overlays, group_overlays) =
            (unread?, private_overlays?, group_overlays?);
        let private = private.iter().zip(unread.private).zip(private_overlays);
        let mut summaries: Vec<Summary> = (private.zip(&mut newest))
            .map(|(((entry, unread), overlay), newest)| {
                let marks = show(newest, overlay);
                entry.summary(unread, newest.take(), marks)
            })
            .collect();
        let groups = groups.iter().zip(unread.groups).zip(group_overlays);
        summaries.extend((groups.zip(&mut group_messages)).map(
            |(((row, unread), overlay), newest)| Summary {
                unread,
                marks: show(newest, overlay),
                newest: newest.take(),
                ..row.summary()
            },
        ));
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
        let needs = groups.iter().filter(|row| count(row) > 0);
        let needs = needs.map(|row| LatestNeed {
            group: row.group,
            head: row.head,
            count: count(row),
        });
        let mut latest = self.ask.latest(needs.collect())?.iter();
        let each = groups.iter().map(|row| match count(row) {
            0 => None,
            _ => latest.next(),
        });
        Ok(each.collect())
    }

    /// Place up to which the user is done with each of these conversations: read or cleared,
    /// whichever is further; `None`: with all of it.
    fn private_bases(&self, entries: &[&ListEntry]) -> NeedResult<Vec<Option<Tally>>> {
        let requested_places = entries.iter().filter_map(|entry| match entry.read_up_to() {
            ReadBase::Row(seq) => Some((entry.row.conversation, seq)),
            ReadBase::End | ReadBase::Place(_) => None,
        });
        let mut tallies = self.ask.tallies(requested_places.collect())?.iter();
        let bases = entries.iter().map(|entry| {
            let read = match entry.read_up_to() {
                ReadBase::End => return None,
                ReadBase::Place(place) => place,
                ReadBase::Row(_) => tallies.next().copied().flatten().unwrap_or_default(),
            };
            Some(unread::base(read, entry.cleared))
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
        let range = |(entry, base): (&&ListEntry, &Option<Tally>)| private_range(entry, (*base)?);
        let private_ranges = private.iter().zip(bases).map(range);
        let ranges: Vec<Option<RecallRange>> = private_ranges
            .chain(groups.iter().map(group_range))
            .collect();
        let own = groups.iter().zip(latest).filter(|(row, latest)| {
            let is_in = row.member.role.is_some();
            is_in && row.missed() > authors(latest).len()
        });
        let own = own.map(|(row, _)| OwnRange {
            group: row.group,
            base: row.base(),
            last: row.head.seq,
        });
        let (recalls, own) = (
            self.ask
                .recalled(ranges.iter().flatten().copied().collect()),
            self.ask.own(own.collect()),
        );
        let (mut recalls, mut own) = (recalls?.iter(), own?.iter());
        let mut recalls = ranges.iter().map(|range| {
            let answer = range.and_then(|_| recalls.next());
            answer.cloned().unwrap_or_default()
        });
        let private_counts = (private.iter().zip(bases).zip(&mut recalls))
            .map(|((entry, base), recalls)| base.map_or(0, |base| entry.unread(base, recalls)))
            .collect();
        let group_counts = groups.iter().zip(latest).zip(recalls);
        let group_counts = group_counts.map(|((row, latest), recalls)| {
            if row.member.role.is_none() {
                return 0;
            }
            let authors = authors(latest);
            let own = if row.missed() <= authors.len() {
                let missed_authors = authors.iter().take(row.missed());
                missed_authors
                    .filter(|author| **author == self.user)
                    .count() as u64
            } else {
                own.next().copied().unwrap_or_default()
            };
            let other_recalls = recalls
                .into_iter()
                .filter(|(_, author)| *author != self.user);
            let recalls = other_recalls.map(|(seq, _)| seq).collect();
            in_group(row.head.seq, row.base(), own, &recalls)
        });
        Ok(UnreadCounts {
            private: private_counts,
            groups: group_counts.collect(),
        })
    }

    /// Newest message of each group, as far as the user may read it.
    fn newest_group_messages(
        &self,
        groups: &[GroupListEntry],
        latest: &[Option<&LatestMessages>],
    ) -> NeedResult<Vec<Option<Placed>>> {
        // Messages that came after the member did may be read; only if there are none, the group's
        // settings decide.
        let is_open = |row: &GroupListEntry| row.head.seq > row.member.since;
        let has_end = |row: &GroupListEntry| row.member.role.is_some() && row.head.seq > Seq::ZERO;
        let closed_groups = groups.iter().filter(|row| has_end(row) && !is_open(row));
        let members = self
            .ask
            .members(closed_groups.map(|row| row.group).collect());
        let unknown = groups.iter().zip(latest);
        let unknown =
            unknown.filter(|(row, latest)| has_end(row) && newest_message(latest).is_none());
        let unknown = unknown.filter_map(|(row, _)| Some((row, row.head.last_id?)));
        let unknown: Vec<(&GroupListEntry, MessageId)> = unknown.collect();
        let keys = unknown
            .iter()
            .map(|(row, id)| (Owner::Group(row.group), *id));
        let rows = self.ask.rows(keys.collect());
        let (mut members, rows) = (members?.iter(), rows?);
        let read = |row: &Option<MessageRow>| row.as_ref().map(|row| row.placed.clone());
        for ((row, _), message) in unknown.iter().zip(rows.iter().map(read)) {
            if let Some(message) = message {
                self.fill(Fill::Timeline(row.group, vec![message], row.head));
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
                    .is_some_and(|(info, member)| {
                        // The user may have left meanwhile.
                        let floor = readable_after(info.settings, Some(&member));
                        !info.is_dissolved && floor.is_ok_and(|floor| row.head.seq > floor)
                    });
            let newest = match newest_message(latest) {
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
        let places = messages.map(|(changed_to, message)| {
            let message = message.as_ref()?;
            let may_have = message.position.seq <= changed_to;
            may_have.then_some((message.conversation, message.position.seq))
        });
        let places: Vec<Option<(ConversationId, Seq)>> = places.collect();
        let requested_places = places.iter().flatten().copied();
        let mut overlays = self.ask.overlays(requested_places.collect())?.iter();
        let each = places
            .iter()
            .map(|place| place.and_then(|_| overlays.next()));
        Ok(each.collect())
    }
}

/// Refuses to go on if the answer did not get beyond `cursor`: it would be asked for ever.
fn check_progress<K: Ord>(cursor: Option<K>, end: Option<K>) -> NeedResult<()> {
    match end {
        Some(end) if cursor.is_some_and(|cursor| end <= cursor) => {
            let text = "bug in this server: a list makes no progress";
            Err(NoAnswer::Refused(Refusal::new(Code::Unavailable, text)))
        }
        Some(_) | None => Ok(()),
    }
}

fn authors<'l>(latest: &Option<&'l LatestMessages>) -> &'l [UserId] {
    latest.map_or(&[], |latest| &latest.authors)
}

fn newest_message<'l>(latest: &Option<&'l LatestMessages>) -> Option<&'l Placed> {
    (*latest)?.newest.as_ref()
}

impl PrivatePage<'_> {
    fn none(from: Timestamp) -> PrivatePage<'static> {
        PrivatePage {
            rows: Vec::new(),
            more: false,
            quiet_from: from,
        }
    }
}

/// As a page of memberships, from a cache entry.
fn members_behind(entry: &UserEntry, cursor: Option<GroupId>) -> Vec<(GroupId, MemberEntry)> {
    let lower_bound = cursor.map_or(Bound::Unbounded, Bound::Excluded);
    let groups = entry.groups.range((lower_bound, Bound::Unbounded));
    let page = groups.take(GROUPS_PER_READ);
    page.map(|(group, member)| (*group, *member)).collect()
}

/// Range in which recalls count against unread messages; `None` if nothing was ever changed.
fn private_range(entry: &ListEntry, base: Tally) -> Option<RecallRange> {
    let row = &entry.row;
    (row.rev > 0 && base.seq < row.end.seq).then_some(RecallRange {
        conversation: row.conversation,
        base: base.seq,
        last: row.end.seq,
        last_version: row.source,
    })
}

/// As [`private_range`], in a group.
fn group_range(row: &GroupListEntry) -> Option<RecallRange> {
    let (head, base) = (&row.head, row.base());
    let may_have = row.member.role.is_some() && base < row.changed_to && base < head.seq;
    may_have.then_some(RecallRange {
        conversation: ConversationId::Group(row.group),
        base,
        last: head.seq,
        last_version: head.version,
    })
}

fn show(newest: &mut Option<Placed>, overlay: Option<&Overlay>) -> Option<MessageMarks> {
    overlay?.show(newest.as_mut()?)
}

fn summary_size(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    newest.map_or(0, |newest_message| {
        newest_message.message.content.data.len()
    }) + summary.marks.as_ref().map_or(0, MessageMarks::weight)
}
