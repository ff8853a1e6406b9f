//! Needs and facts: what an answer has to know, and what the sources said.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NoAnswer, PageKey, RecallRange};
use crate::cache::{self, GroupEntry, UserEntry};
use crate::change::{OrderedChange, Overlay};
use crate::conversation::{Head, ListEntry, ListRegisters};
use crate::group::{GroupInfo, Member};
use crate::history::RowStatus;
use crate::ledger::LedgerEntry;
use crate::message_row::{MessageRow, Owner};
use crate::unread::Tally;
use crate::{Code, ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp, UserId};

/// A page of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageNeed {
    pub conversation: ConversationId,
    pub key: PageKey,
    /// End of the conversation, read before the page.
    pub head: Head,
}

/// The end of a group, from the cache beside history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestNeed {
    pub group: GroupId,
    pub head: Head,
    pub count: usize,
}

/// End of a group, as far as the cache beside history can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatestMessages {
    pub newest: Option<Placed>,
    /// Authors of the newest messages, newest first.
    pub authors: Vec<UserId>,
}

impl From<Vec<Placed>> for LatestMessages {
    /// From messages, newest first.
    fn from(messages: Vec<Placed>) -> LatestMessages {
        LatestMessages {
            authors: messages
                .iter()
                .map(|message| message.message.from)
                .collect(),
            newest: messages.into_iter().next(),
        }
    }
}

/// Conversations of the user that changed at `from` or later, in order, after `cursor`: those that
/// a device with a list of version `list_version` has to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSlice {
    pub list_version: Timestamp,
    pub from: Timestamp,
    pub cursor: Option<ConversationId>,
    /// Conversations that are looked at.
    pub limit: usize,
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRows {
    pub rows: Vec<ListEntry>,
    /// None of the conversations looked at changed at this time or later.
    pub quiet_from: Timestamp,
    /// Last conversation that was looked at, unless it is the last of all.
    pub end: Option<ConversationId>,
}

impl ListSlice {
    /// Answer, from the first conversations of the slice: all of them, or `limit`.
    pub fn rows(&self, mut entries: Vec<ListEntry>) -> ListRows {
        let quiet_from = cache::private_before(&entries, self.from);
        let end = entries.last().map(|entry| entry.row.conversation);
        let end = end.filter(|_| entries.len() >= self.limit);
        entries.retain(|entry| entry.is_told(self.list_version));
        ListRows {
            rows: entries,
            quiet_from,
            end,
        }
    }
}

/// Rows of one owner in the order of a number, after `cursor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice<O, A> {
    pub owner: O,
    pub cursor: A,
    pub limit: usize,
}

/// Messages of a group by one author, after `base` up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRange {
    pub group: GroupId,
    pub base: Seq,
    pub last: Seq,
}

/// Messages from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayRange {
    pub conversation: ConversationId,
    pub first: Seq,
    pub last: Seq,
}

/// Needs with their answers, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct ReadFacts(Vec<(Need, Fact)>);

impl ReadFacts {
    /// Facts of a question that is asked anew because the cache entry of its user is stale.
    pub fn without_user_entry(user: UserId) -> ReadFacts {
        ReadFacts(vec![
            (Need::UserEntry(user), Fact::UserEntry(None)),
            (Need::Unchanged(user), Fact::Unchanged(true)),
        ])
    }

    pub fn add(&mut self, need: Need, fact: Fact) {
        self.0.push((need, fact));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All facts, for tests that alter one.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Need, &mut Fact)> {
        self.0.iter_mut().map(|(need, fact)| (&*need, fact))
    }

    /// The fact, and its place. Runs ask in one order, so it is likely to be at `guess`.
    fn find_fact(&self, need: &Need, guess: usize) -> Option<(usize, &Fact)> {
        if let Some((need_key, fact)) = self.0.get(guess)
            && need_key == need
        {
            return Some((guess, fact));
        }
        let index = self.0.iter().position(|(need_key, _)| need_key == need)?;
        Some((index, &self.0[index].1))
    }
}

/// Asks for facts, and notes those that are missing.
pub(super) struct FactLookup<'a> {
    facts: &'a ReadFacts,
    /// Place of the fact behind the last one.
    next: Cell<usize>,
    missing_needs: RefCell<Vec<Need>>,
}

impl<'a> FactLookup<'a> {
    pub(super) fn new(facts: &'a ReadFacts) -> FactLookup<'a> {
        FactLookup {
            facts,
            next: Cell::new(0),
            missing_needs: RefCell::default(),
        }
    }

    pub(super) fn into_missing(self) -> Vec<Need> {
        self.missing_needs.into_inner()
    }

    fn look_up(&self, need: &Need) -> Option<&'a Fact> {
        let (index, fact) = self.facts.find_fact(need, self.next.get())?;
        self.next.set(index + 1);
        Some(fact)
    }

    fn miss(&self, need: Need) -> NoAnswer {
        let mut missing_needs = self.missing_needs.borrow_mut();
        if !missing_needs.contains(&need) {
            missing_needs.push(need);
        }
        NoAnswer::Missing(Vec::new())
    }
}

/// A source answered another question, or too little.
fn answered_wrongly() -> NoAnswer {
    let text = "bug in this server: a store answered another query";
    NoAnswer::Refused(Refusal::new(Code::Unavailable, text))
}

/// The needs: name, key, answer. `each` has one answer a key, in the order of the keys.
macro_rules! needs {
    (
        one { $($(#[$one_doc:meta])* $One:ident($one_key:ty) => $one_answer:ty, $one:ident;)* }
        each { $($(#[$each_doc:meta])* $Each:ident($each_key:ty) => $each_answer:ty, $each:ident;)* }
    ) => {
        /// Something that an answer has to know. The user is the one who asks.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Need {
            $($(#[$one_doc])* $One($one_key),)*
            $($(#[$each_doc])* $Each(Vec<$each_key>),)*
        }

        /// Answer to the [`Need`] of the same name.
        #[derive(Clone, Debug)]
        pub enum Fact {
            $($One($one_answer),)*
            $($Each(Vec<$each_answer>),)*
        }

        impl<'a> FactLookup<'a> {
            $(pub(super) fn $one(&self, key: $one_key) -> Result<&'a $one_answer, NoAnswer> {
                let need = Need::$One(key);
                match self.look_up(&need) {
                    Some(Fact::$One(answer)) => Ok(answer),
                    Some(_) => Err(answered_wrongly()),
                    None => Err(self.miss(need)),
                }
            })*

            $(pub(super) fn $each(&self, keys: Vec<$each_key>) -> Result<&'a [$each_answer], NoAnswer> {
                let count = keys.len();
                if count == 0 {
                    return Ok(&[]);
                }
                let need = Need::$Each(keys);
                match self.look_up(&need) {
                    Some(Fact::$Each(answers)) if answers.len() == count => Ok(answers),
                    Some(_) => Err(answered_wrongly()),
                    None => Err(self.miss(need)),
                }
            })*
        }
    };
}

needs! {
    one {
        /// The user's cache entry, if it is valid.
        UserEntry(UserId) => Option<UserEntry>, user_entry;
        /// Whether nothing happened to the user's cache entry since it was looked up. An entry that was not answered,
        /// then and now, counts as unchanged.
        Unchanged(UserId) => bool, unchanged;
        /// Messages at these places, in the order of the key, as they were sent; fewer where some cannot be read.
        Page(PageNeed) => Arc<[Placed]>, page;
        ListSlice(ListSlice) => ListRows, list_slice;
        /// Groups of the user, past and present, in order of group.
        Memberships(Slice<UserId, Option<GroupId>>) => Vec<(GroupId, Member)>, memberships;
        /// Changes of a conversation, in order.
        Changes(Slice<ConversationId, u64>) => Vec<OrderedChange>, changes;
        /// Messages that the user hid, with the mark of each, in order.
        Hidden(Slice<ConversationId, u64>) => Vec<(u64, Seq)>, hidden;
        /// Pinned messages before the place `cursor`, newest first.
        Pins(Slice<ConversationId, Seq>) => Vec<(Seq, MessageId)>, pins;
        /// Private messages of the user in order of id.
        Feed(Slice<UserId, Option<MessageId>>) => Vec<MessageRow>, feed;
        /// Last message that the user is known to have received.
        LastReceived(UserId) => Option<MessageId>, last_received;
        /// Present members, in order of user.
        Present(Slice<GroupId, Option<UserId>>) => Vec<(UserId, Member)>, present;
        /// Whether the group has a member. A source that is away does not fail the answer.
        Populated(GroupId) => Result<bool, Refusal>, populated;
        /// Ids of the messages at these places; `None` where there is none.
        Ids((GroupId, Vec<Seq>)) => Vec<Option<MessageId>>, ids;
    }
    each {
        /// Cache entries of groups, if valid.
        GroupEntries(GroupId) => Option<GroupEntry>, group_entries;
        /// Heads from the store; the default for a conversation without messages.
        Heads(ConversationId) => Head, heads;
        /// Groups without their members; `None` if there is no such group.
        Infos(GroupId) => Option<GroupInfo>, infos;
        /// The user's membership, past or present, with the group; `None` for a user of whom it knows nothing.
        Members(GroupId) => Option<(GroupInfo, Member)>, members;
        Registers((UserId, ConversationId)) => ListRegisters, registers;
        /// The user's row of a conversation, on the list or not.
        ListEntries(ConversationId) => Option<ListEntry>, list_entries;
        /// At most `count` messages; none where the cache beside history cannot tell.
        Latest(LatestNeed) => LatestMessages, latest;
        Rows((Owner, MessageId)) => Option<MessageRow>, rows;
        /// The user's tally at a place.
        Tallies((ConversationId, Seq)) => Option<Tally>, tallies;
        /// Recalled messages with their authors.
        Recalled(RecallRange) => BTreeMap<Seq, UserId>, recalled;
        /// Number of the user's own messages.
        Own(OwnRange) => u64, own;
        Overlays((ConversationId, Seq)) => Overlay, overlays;
        /// Overlays of the messages that changed.
        OverlayRanges(OverlayRange) => BTreeMap<Seq, Overlay>, overlay_ranges;
        /// Registers of the user's own messages. A source that is away does not fail every answer.
        Statuses(MessageId) => Result<RowStatus, Refusal>, statuses;
        /// Ledger of a message, as `Statuses`.
        Traces(MessageId) => Result<Vec<LedgerEntry>, Refusal>, traces;
    }
}
