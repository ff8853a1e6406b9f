//! Answers to the questions of devices, from caches and stores; no answer may have a hole.
//!
//! ```text
//!  loop {                             facts: needs, each with its answer
//!      answer(question, facts, rules)
//!          Missing    => ask the sources, side by side; add what they say to the facts
//!          Stale      => begin anew, without the cache entry of the user
//!          Refused    => that is the answer
//!          an answer  => fill the caches, send it
//!  }
//! ```
//!
//! [`answer`] is a pure function. It runs again with more facts, and asks again for all that it needs: what was answered
//! is found by its need. A need whose answer depends on another one is named only once that is there: the head before
//! the member, and before the rows; a group's cache entry before the user's; after the heads, that nothing happened to the
//! user's entry.
//!
//! | source | holds | believed | overruled by |
//! | --- | --- | --- | --- |
//! | memory of a station | messages at places, as sent | for minutes: a place never changes | never used for heads and marks |
//! | cache beside history | newest messages of a group | as far as they link up to the head's last message | a gap, another message at the head |
//! | cache of entries | head, settings, memberships, registers | [`crate::cache::is_valid`] | a client that knows more; another entry since |
//! | stores | all | rows after the head | a head that is ahead of the rows: ask again |

mod access;
mod groups;
mod lists;
mod members;
mod needs;
mod page_key;
mod pages;
mod pins;
mod rules;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

pub use self::access::{not_a_member, present_member, stranger};
pub use self::groups::{
    GroupListEntry, GroupListKey, changes_behind, from_timeline, page_behind, range_behind,
    readable_after,
};
pub use self::lists::{CACHED_GROUPS_MAX, GROUPS_PER_READ, LATEST_MAX};
pub use self::members::{COUNTED_MAX, READERS_MAX};
use self::needs::FactLookup;
pub use self::needs::{
    Fact, LatestMessages, LatestNeed, ListRows, ListSlice, Need, OverlayRange, OwnRange, PageNeed,
    ReadFacts, Slice,
};
pub use self::page_key::PageKey;
pub use self::pins::PINS_MAX;
pub use self::rules::{
    DensePage, check_cursor, check_rev, dense_changes, dense_page, fitting, list_from, may_go_on,
    may_read, page_limit,
};
use crate::cache::{GroupEntry, UserEntry};
use crate::conversation::Head;
use crate::frame::{SyncAnswer, SyncQuery};
use crate::history::Version;
use crate::{ConversationId, GroupId, Placed, Refusal, Seq, Timestamp, UserId};

/// Question of a device.
#[derive(Clone, Copy, Debug)]
pub struct ReadQuestion<'a> {
    pub user: UserId,
    pub query: &'a SyncQuery,
    /// Time before anything was read.
    pub started_at: Timestamp,
}

/// Time that the conversation list looks back before a client's version: more than twice the bound
/// on clock differences and the time of a write. Stations and carriers keep the same.
pub const LIST_MARGIN: Duration = Duration::from_secs(10);

/// Bounds of an answer.
#[derive(Clone, Copy, Debug)]
pub struct ReadRules {
    /// Rows of a page.
    pub page_max: usize,
    /// Bytes of content in a page.
    pub page_bytes_max: usize,
    /// Time by which rows may land later than their stamps.
    pub list_margin: Duration,
}

/// Messages after `base` up to `last`, as left by records up to `last_version`: a head or row of
/// that record counts the recalls of those records and nothing later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecallRange {
    pub conversation: ConversationId,
    pub base: Seq,
    pub last: Seq,
    pub last_version: Version,
}

/// Something that was read from a store because a cache lacked it. A lost fill is made good by the
/// next reader.
#[derive(Clone, Debug)]
pub enum Fill {
    User(Box<UserEntry>),
    Group(GroupId, GroupEntry),
    /// Messages of a group that ends at this head, for the cache beside history.
    Timeline(GroupId, Vec<Placed>, Head),
}

/// Outcome of a run, and entries to be filled once no other run follows. Also a question that fails
/// fills what it has read, or the next one would begin without it.
#[derive(Clone, Debug)]
#[must_use]
pub struct ReadOutcome<T = SyncAnswer> {
    pub answer: Result<T, NoAnswer>,
    pub fills: Vec<Fill>,
}

/// No answer yet, or none at all.
#[derive(Clone, Debug, PartialEq)]
pub enum NoAnswer {
    /// To be asked first, all side by side.
    Missing(Vec<Need>),
    /// The user's cache entry changed while it was used: begin anew with
    /// [`ReadFacts::without_user_entry`].
    Stale,
    Refused(Refusal),
}

impl From<Refusal> for NoAnswer {
    fn from(refusal: Refusal) -> NoAnswer {
        NoAnswer::Refused(refusal)
    }
}

type NeedResult<T> = Result<T, NoAnswer>;

/// Answers a question, or says what is missing, stale or refused.
pub fn answer(question: &ReadQuestion<'_>, facts: &ReadFacts, rules: &ReadRules) -> ReadOutcome {
    let reading = Reading::new(question.user, question.started_at, facts, rules);
    let answer = reading.answer(question.query);
    reading.complete(answer)
}

/// Applies changes to messages for `user`, whatever conversations they are of. Returns the places of those that
/// changed; leaves the messages alone unless it has an answer.
pub fn apply_changes(
    messages: &mut [Placed],
    user: UserId,
    started_at: Timestamp,
    facts: &ReadFacts,
    rules: &ReadRules,
) -> ReadOutcome<BTreeSet<(ConversationId, Seq)>> {
    let reading = Reading::new(user, started_at, facts, rules);
    let changed_places = reading.apply_changes(messages);
    reading.complete(changed_places)
}

/// A question on its way to an answer.
struct Reading<'a> {
    user: UserId,
    started_at: Timestamp,
    rules: &'a ReadRules,
    ask: FactLookup<'a>,
    fills: RefCell<Vec<Fill>>,
}

impl<'a> Reading<'a> {
    fn new(
        user: UserId,
        started_at: Timestamp,
        facts: &'a ReadFacts,
        rules: &'a ReadRules,
    ) -> Reading<'a> {
        Reading {
            user,
            started_at,
            rules,
            ask: FactLookup::new(facts),
            fills: RefCell::default(),
        }
    }

    fn fill(&self, fill: Fill) {
        self.fills.borrow_mut().push(fill);
    }

    fn complete<T>(self, answer: NeedResult<T>) -> ReadOutcome<T> {
        let missing_needs = self.ask.into_missing();
        ReadOutcome {
            answer: answer.map_err(|why| match why {
                NoAnswer::Missing(_) => NoAnswer::Missing(missing_needs),
                end @ (NoAnswer::Stale | NoAnswer::Refused(_)) => end,
            }),
            fills: self.fills.into_inner(),
        }
    }

    fn answer(&self, query: &SyncQuery) -> NeedResult<SyncAnswer> {
        Ok(match *query {
            SyncQuery::List {
                since,
                cursor: after,
            } => SyncAnswer::List(self.list(since, after)?),
            SyncQuery::Row { conversation } => {
                SyncAnswer::Row(self.row(conversation)?.map(Box::new))
            }
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => SyncAnswer::History(self.history(conversation, range, limit)?),
            SyncQuery::Status { ref ids } => SyncAnswer::Status(self.status(ids)?),
            SyncQuery::Members {
                group,
                after,
                limit,
            } => SyncAnswer::Members(self.members(group, after, limit)?),
            SyncQuery::Readers { group, seq } => SyncAnswer::Readers(self.readers(group, seq)?),
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => SyncAnswer::Changes(self.changes(conversation, after, limit)?),
            SyncQuery::Missed { after, limit } => SyncAnswer::Missed(self.missed(after, limit)?),
            SyncQuery::Unread { after } => SyncAnswer::Unread(self.all_unread(after)?),
            SyncQuery::CountSince { group, since } => {
                SyncAnswer::CountSince(self.count_since(group, since)?)
            }
            SyncQuery::Hidden {
                conversation,
                after,
                limit,
            } => SyncAnswer::Hidden(self.hidden(conversation, after, limit)?),
            SyncQuery::Pins {
                conversation,
                before,
                limit,
            } => SyncAnswer::Pins(self.pins(conversation, before, limit)?),
        })
    }
}

#[cfg(test)]
mod tests;
