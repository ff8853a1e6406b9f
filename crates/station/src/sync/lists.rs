//! Lists: what changed, what is unread, how one conversation stands.

use backend::changes::Stretch;
use protocol::cached::{self, CachedUser};
use protocol::change::Marks;
use protocol::conversation::{Listed, ReadUpTo};
use protocol::frame::{ListPage, Summary, UnreadPage};
use protocol::history::PrivateRow;
use protocol::sync::{GroupListed, fitting, list_from, may_read};
use protocol::unread::Tally;
use protocol::{ConversationId, Refusal, Seq, Timestamp, UserId, unread};

use super::{Lookup, may_go_on};
use crate::cached::Slot;
use crate::deadline::within;

impl Lookup {
    /// Conversations that changed, each with its newest message (S4-02, S4-03). `version` is the time
    /// before the rows were read, so that what is written meanwhile comes with the next list: of those from copies, when
    /// these were read.
    pub(super) async fn list(
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
    pub(super) async fn all_unread(
        &self,
        owner: UserId,
        after: Option<ConversationId>,
    ) -> Result<UnreadPage, Refusal> {
        may_go_on(owner, after)?;
        let everything = Timestamp::ZERO;
        let rows = self.rows(owner, everything, everything, after).await?;
        let places = self.read_places(owner, &rows.private).await?;
        let unread = self.unread(&rows.private, &places).await?;
        let private = rows.private.iter().map(|listed| listed.row.conversation);
        let mut counts: Vec<_> = private.zip(unread).collect();
        counts.extend(self.groups.unread(owner, rows.groups).await?);
        let next = counts.last().map(|(last, _)| *last);
        counts.retain(|(_, unread)| *unread > 0);
        Ok(UnreadPage {
            counts,
            next: next.filter(|_| rows.more),
        })
    }

    /// How a conversation stands in the list, whether it is on it or not; `None` where the list never had it.
    pub(super) async fn row(
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
        let slot = self.cached.user(owner).await;
        let (rows, read) = self.rows_by(&slot, owner, since, from, after).await?;
        // Who was sent away meanwhile must not be shown what was said then.
        if !self.cached.is_still(owner, &slot).await {
            let silent = Slot::silent();
            let anew = self.rows_by(&silent, owner, since, from, after);
            return Ok(anew.await?.0);
        }
        if let Some(copy) = read {
            self.cached.keep_user(owner, &slot, &copy).await;
        }
        Ok(rows)
    }

    /// The same by a copy of its owner, or, where there is none, by the stores; then with what a copy would be, if all
    /// of it was read.
    async fn rows_by(
        &self,
        slot: &Slot<CachedUser>,
        owner: UserId,
        since: Timestamp,
        from: Timestamp,
        after: Option<ConversationId>,
    ) -> Result<(Rows, Option<CachedUser>), Refusal> {
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
        let mut read = None;
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
                read = Some(CachedUser {
                    at: began,
                    private_before: private.before,
                    groups,
                });
            }
        }
        Ok((rows, read))
    }

    async fn summaries(&self, owner: UserId, listed: Vec<Listed>) -> Result<Vec<Summary>, Refusal> {
        let keys: Vec<_> = listed
            .iter()
            .map(|listed| (owner, listed.row.last_id))
            .collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (newest, places) = tokio::try_join!(
            within(self.deadline, self.history.private(&keys)),
            self.read_places(owner, &listed),
        )?;
        let mut newest: Vec<_> = (newest.iter())
            .map(|row| row.as_ref().and_then(PrivateRow::placed))
            .collect();
        let shown = listed.iter().zip(&mut newest).map(|(listed, newest)| {
            let changed_to = cached::changed_to(listed.row.rev, listed.row.end.seq);
            Some((changed_to, newest.as_mut()?))
        });
        let (marks, unread) = tokio::try_join!(
            self.current.mark_each(shown.collect()),
            self.unread(&listed, &places),
        )?;
        let said = newest.into_iter().zip(marks);
        let rows = listed.into_iter().zip(unread).zip(said);
        Ok(rows
            .map(|((listed, unread), (newest, marks))| listed.summary(unread, newest, marks))
            .collect())
    }

    async fn group_summaries(
        &self,
        owner: UserId,
        rows: Vec<GroupListed>,
    ) -> Result<Vec<Summary>, Refusal> {
        let changed: Vec<Seq> = rows.iter().map(|row| row.changed_to).collect();
        let mut summaries = self.groups.summaries(owner, rows).await?;
        let newest = summaries.iter_mut().zip(changed);
        let newest = newest.map(|(summary, to)| Some((to, summary.newest.as_mut()?)));
        let marks = self.current.mark_each(newest.collect()).await?;
        for (summary, marks) in summaries.iter_mut().zip(marks) {
            summary.marks = marks;
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
            found.before = (found.before).max(cached::private_before(&rows, from));
            (found.rows).extend(rows.into_iter().filter(|listed| listed.is_told(since)));
            if is_last || found.rows.len() > self.page_max {
                found.more = found.rows.len() > self.page_max;
                found.rows.truncate(self.page_max);
                return Ok(found);
            }
        }
    }

    /// Up to where the owner has read each of these; `None`: to its end. One read, however many they are (S4-32).
    async fn read_places(
        &self,
        owner: UserId,
        listed: &[Listed],
    ) -> Result<Vec<Option<Tally>>, Refusal> {
        let asked: Vec<_> = (listed.iter())
            .filter_map(|listed| match listed.read_up_to() {
                ReadUpTo::Row(seq) => Some((owner, listed.row.conversation, seq)),
                ReadUpTo::End | ReadUpTo::Place(_) => None,
            })
            .collect();
        let tallies = match asked.is_empty() {
            true => Vec::new(),
            false => within(self.deadline, self.history.tallies(&asked)).await?,
        };
        let mut tallies = tallies.into_iter();
        let places = listed.iter().map(|listed| match listed.read_up_to() {
            ReadUpTo::End => None,
            ReadUpTo::Place(place) => Some(place),
            ReadUpTo::Row(_) => Some(tallies.next().flatten().unwrap_or_default()),
        });
        Ok(places.collect())
    }

    /// Behind what was read or cleared, whichever is further. One question where something was ever changed in any.
    async fn unread(
        &self,
        listed: &[Listed],
        places: &[Option<Tally>],
    ) -> Result<Vec<u64>, Refusal> {
        let bases = listed.iter().zip(places);
        let bases: Vec<Option<Tally>> = bases
            .map(|(listed, read)| Some(unread::base((*read)?, listed.cleared)))
            .collect();
        let stretches: Vec<Option<Stretch>> = (listed.iter().zip(&bases))
            .map(|(listed, base)| stretch(listed, (*base)?))
            .collect();
        let asked: Vec<Stretch> = stretches.iter().flatten().copied().collect();
        let recalled = match asked.is_empty() {
            true => Vec::new(),
            false => within(self.deadline, self.changes.recalled(&asked)).await?,
        };
        let mut recalled = recalled.into_iter();
        let counted = listed.iter().zip(bases).zip(stretches);
        let counted = counted.map(|((listed, base), stretch)| {
            let recalled = stretch.and_then(|_| recalled.next()).unwrap_or_default();
            base.map_or(0, |base| listed.unread(base, recalled))
        });
        Ok(counted.collect())
    }
}

/// Where recalls count among what is unread; nowhere where nothing was ever changed.
fn stretch(listed: &Listed, base: Tally) -> Option<Stretch> {
    let row = &listed.row;
    (row.rev > 0 && base.seq < row.end.seq).then_some(Stretch {
        conversation: row.conversation,
        after: base.seq,
        last: row.end.seq,
        until: row.source,
    })
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

fn summary_size(summary: &Summary) -> usize {
    let newest = summary.newest.as_ref();
    newest.map_or(0, |placed| placed.message.content.data.len())
        + summary.marks.as_ref().map_or(0, Marks::weight)
}
