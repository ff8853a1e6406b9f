//! Sources of answers: what a writer left in its stores, and a cache beside them.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::cache::{CacheKey, Entries, GroupEntry, UserEntry};
use crate::conversation::{ConversationRow, ListEntry, ListRegisters};
use crate::group::{GroupInfo, Member};
use crate::history::RowStatus;
use crate::message_row::{MessageRow, Owner};
use crate::reading::{
    self, Fact, Fill, LatestMessages, LatestNeed, Need, NoAnswer, PageNeed, ReadFacts, ReadOutcome,
    ReadQuestion, ReadRules, Slice, from_timeline,
};
use crate::writer::tests::NOON;
use crate::writer::tests::store::Store;
use crate::{
    ConversationId, GroupId, Placed, Refusal, Seq, UserId,
    frame::{HistoryRange, SyncAnswer, SyncQuery},
};

#[derive(Clone, Debug)]
enum Entry {
    User(UserEntry),
    Group(GroupEntry),
}

pub(super) struct Sources {
    pub(super) store: Store,
    entries: Entries<Entry>,
    pub(super) rules: ReadRules,
    /// Needs of all questions, in order.
    pub(super) needs: Vec<Need>,
}

type Tokens = BTreeMap<CacheKey, u64>;

impl Sources {
    pub(super) fn new(store: Store, page_max: usize) -> Sources {
        Sources {
            store,
            entries: Entries::default(),
            rules: ReadRules {
                page_max,
                page_bytes_max: 1 << 20,
                list_margin: std::time::Duration::from_secs(10),
            },
            needs: Vec::new(),
        }
    }

    pub(super) fn answer(
        &mut self,
        user: UserId,
        query: &SyncQuery,
    ) -> Result<SyncAnswer, Refusal> {
        self.answer_altered(user, query, |_| {})
    }

    /// Answers, with each fact altered before it is known. No need is named twice.
    pub(super) fn answer_altered(
        &mut self,
        user: UserId,
        query: &SyncQuery,
        alter: impl Fn(&mut Fact),
    ) -> Result<SyncAnswer, Refusal> {
        let question = ReadQuestion {
            user,
            query,
            started_at: NOON,
        };
        let (mut facts, mut tokens) = (ReadFacts::default(), Tokens::new());
        let mut answered_needs: Vec<Need> = Vec::new();
        loop {
            let ReadOutcome { answer, fills } = reading::answer(&question, &facts, &self.rules);
            match answer {
                Ok(answer) => {
                    for fill in fills {
                        self.fill(user, fill, &tokens);
                    }
                    return Ok(answer);
                }
                Err(NoAnswer::Refused(refusal)) => return Err(refusal),
                Err(NoAnswer::Stale) => {
                    facts = ReadFacts::without_user_entry(user);
                    tokens.remove(&CacheKey::User(user));
                    answered_needs.clear();
                }
                Err(NoAnswer::Missing(needs)) => {
                    assert!(!needs.is_empty());
                    for need in needs {
                        assert!(!answered_needs.contains(&need), "asked again: {need:?}");
                        let mut fact = self.fact(user, &need, &mut tokens);
                        alter(&mut fact);
                        answered_needs.push(need.clone());
                        self.needs.push(need.clone());
                        facts.add(need, fact);
                    }
                }
            }
        }
    }

    fn fill(&mut self, user: UserId, fill: Fill, tokens: &Tokens) {
        let (owner, coverage, entry) = match fill {
            Fill::User(entry) => (
                CacheKey::User(user),
                Default::default(),
                Entry::User(*entry),
            ),
            Fill::Group(group, entry) => {
                (CacheKey::Group(group), entry.reach(), Entry::Group(entry))
            }
            Fill::Timeline(..) => return,
        };
        if let Some(token) = tokens.get(&owner) {
            self.entries.fill(owner, *token, coverage, entry);
        }
    }

    fn fact(&mut self, user: UserId, need: &Need, tokens: &mut Tokens) -> Fact {
        match need {
            Need::UserEntry(user) => {
                let owner = CacheKey::User(*user);
                let (token, entry) = self.entries.look_up(owner);
                tokens.insert(owner, token);
                Fact::UserEntry(match entry {
                    Some(Entry::User(entry)) => Some(entry.clone()),
                    Some(Entry::Group(_)) | None => None,
                })
            }
            Need::GroupEntries(groups) => {
                let entries = groups.iter().map(|group| {
                    let owner = CacheKey::Group(*group);
                    let (token, entry) = self.entries.look_up(owner);
                    tokens.insert(owner, token);
                    match entry {
                        Some(Entry::Group(entry)) => Some(*entry),
                        Some(Entry::User(_)) | None => None,
                    }
                });
                Fact::GroupEntries(entries.collect())
            }
            Need::Unchanged(user) => {
                let owner = CacheKey::User(*user);
                let token = self.entries.look_up(owner).0;
                Fact::Unchanged(
                    tokens
                        .get(&owner)
                        .is_none_or(|old_token| *old_token == token),
                )
            }
            need => stored(&self.store, user, need),
        }
    }
}

fn member(store: &Store, group: GroupId, user: UserId) -> Option<(GroupInfo, Member)> {
    let (info, members) = store.groups.get(&group)?;
    Some(((*info)?, *members.get(&user)?))
}

fn present(store: &Store, group: GroupId) -> Vec<(UserId, Member)> {
    let members = store.groups.get(&group).map(|(_, members)| members);
    let present = members.into_iter().flatten();
    let present = present.filter(|(_, member)| member.role.is_some());
    present.map(|(user, member)| (*user, *member)).collect()
}

fn registers(store: &Store, user: UserId, conversation: ConversationId) -> ListRegisters {
    let hidden_keys =
        (store.hide_marks.keys()).filter(|(owner, at, _)| (*owner, *at) == (user, conversation));
    ListRegisters {
        cleared: store
            .clears
            .get(&(user, conversation))
            .copied()
            .unwrap_or_default(),
        arranged: (store.arrangements.get(&(user, conversation)))
            .map_or_else(Default::default, |(_, to)| *to),
        hidden: hidden_keys
            .map(|(.., mark)| *mark)
            .max()
            .unwrap_or_default(),
        ..ListRegisters::default()
    }
}

fn list_entry(store: &Store, row: &ConversationRow) -> ListEntry {
    let registers = registers(store, row.owner, row.conversation);
    ListEntry {
        row: *row,
        read_seq: registers.read_seq,
        received_seq: registers.received_seq,
        cleared: registers.cleared,
        touched: registers.touched,
        arranged: registers.arranged,
        hidden: registers.hidden,
    }
}

/// Rows of a conversation, as a user reads them, by seq.
pub(super) fn conversation_rows(
    store: &Store,
    user: UserId,
    conversation: ConversationId,
) -> BTreeMap<Seq, &MessageRow> {
    let rows = store
        .rows
        .values()
        .filter(|row| row.placed.conversation == conversation);
    let rows = rows.filter(|row| row.owner == Owner::of(conversation, user));
    rows.map(|row| (row.seq(), row)).collect()
}

/// End of a group, as a cache beside history would have it.
fn latest(store: &Store, user: UserId, need: &LatestNeed) -> Option<Vec<Placed>> {
    let rows = conversation_rows(store, user, ConversationId::Group(need.group));
    let newest = rows.values().rev().map(|row| row.placed.clone());
    let range = HistoryRange::Backward { before: None };
    from_timeline(newest.collect(), range, &need.head, need.count, usize::MAX)
}

fn page(store: &Store, user: UserId, need: &PageNeed) -> Vec<Placed> {
    let rows = conversation_rows(store, user, need.conversation);
    let rows = rows.range(need.key.first..=need.key.last);
    let mut messages: Vec<Placed> = rows.map(|(_, row)| row.placed.clone()).collect();
    if !need.key.is_forward {
        messages.reverse();
    }
    messages
}

fn stored(store: &Store, user: UserId, need: &Need) -> Fact {
    let fact = stored_list(store, user, need);
    let fact = fact.or_else(|| stored_messages(store, user, need));
    fact.unwrap_or_else(|| panic!("the cache answers {need:?}"))
}

/// Facts about conversations, their members and lists.
fn stored_list(store: &Store, user: UserId, need: &Need) -> Option<Fact> {
    Some(match need {
        Need::Infos(groups) => {
            let info = |group| store.groups.get(group).and_then(|(info, _)| *info);
            Fact::Infos(groups.iter().map(info).collect())
        }
        Need::Heads(conversations) => {
            let head = |conversation| store.heads.get(conversation).copied().unwrap_or_default();
            Fact::Heads(conversations.iter().map(head).collect())
        }
        Need::Members(groups) => Fact::Members(
            groups
                .iter()
                .map(|group| member(store, *group, user))
                .collect(),
        ),
        Need::Populated(group) => Fact::Populated(Ok(!present(store, *group).is_empty())),
        Need::Present(Slice {
            owner,
            cursor,
            limit,
        }) => {
            let present = present(store, *owner).into_iter();
            let present = present.filter(|(user, _)| Some(*user) > *cursor);
            Fact::Present(present.take(*limit).collect())
        }
        Need::Memberships(Slice {
            owner,
            cursor,
            limit,
        }) => {
            let groups = store
                .groups
                .iter()
                .filter(|(group, _)| Some(**group) > *cursor);
            let mine =
                groups.filter_map(|(group, (_, members))| Some((*group, *members.get(owner)?)));
            Fact::Memberships(mine.take(*limit).collect())
        }
        Need::Registers(keys) => Fact::Registers(
            keys.iter()
                .map(|(user, conversation)| registers(store, *user, *conversation))
                .collect(),
        ),
        Need::ListSlice(slice) => {
            let rows = store.list_rows.values().filter(|row| row.owner == user);
            let rows = rows.filter(|row| Some(row.conversation) > slice.cursor);
            let rows = rows.map(|row| list_entry(store, row));
            let rows = rows.filter(|entry| entry.version() >= slice.from);
            Fact::ListSlice(slice.rows(rows.take(slice.limit).collect()))
        }
        Need::ListEntries(conversations) => {
            let row = |conversation: &ConversationId| {
                Some(list_entry(
                    store,
                    store.list_rows.get(&(user, *conversation))?,
                ))
            };
            Fact::ListEntries(conversations.iter().map(row).collect())
        }
        Need::Hidden(Slice {
            owner: conversation,
            cursor,
            limit,
        }) => {
            let hidden_rows = store
                .hide_marks
                .range((user, *conversation, cursor + 1)..=(user, *conversation, u64::MAX));
            let hidden_rows = hidden_rows.map(|((.., mark), seq)| (*mark, *seq));
            Fact::Hidden(hidden_rows.take(*limit).collect())
        }
        Need::LastReceived(_) => Fact::LastReceived(None),
        _ => return None,
    })
}

/// Facts about messages.
fn stored_messages(store: &Store, user: UserId, need: &Need) -> Option<Fact> {
    Some(match need {
        Need::Latest(needs) => {
            let latest = needs
                .iter()
                .map(|need| latest(store, user, need).unwrap_or_default());
            Fact::Latest(latest.map(LatestMessages::from).collect())
        }
        Need::Page(page_need) => Fact::Page(page(store, user, page_need).into()),
        Need::Rows(keys) => Fact::Rows(
            keys.iter()
                .map(|key| store.rows.get(key).cloned())
                .collect(),
        ),
        Need::Tallies(places) => {
            let tally = |(conversation, seq): &(ConversationId, Seq)| {
                let row = conversation_rows(store, user, *conversation)
                    .get(seq)
                    .copied()?;
                Some(row.tally())
            };
            Fact::Tallies(places.iter().map(tally).collect())
        }
        Need::Recalled(ranges) => {
            let recalls = ranges.iter().map(|range| {
                let conversation = range.conversation;
                let overlays = store
                    .overlays
                    .range((conversation, range.base.next())..=(conversation, range.last));
                let recalls = overlays.filter(|(_, overlay)| {
                    let register = overlay.recalled.as_ref();
                    register.is_some_and(|register| register.version <= range.last_version)
                });
                let rows = conversation_rows(store, user, conversation);
                let author = |seq: &Seq| rows.get(seq).map(|row| row.author());
                recalls
                    .filter_map(|((_, seq), _)| Some((*seq, author(seq)?)))
                    .collect()
            });
            Fact::Recalled(recalls.collect())
        }
        Need::Own(ranges) => {
            let own = ranges.iter().map(|range| {
                let rows = conversation_rows(store, user, ConversationId::Group(range.group));
                let rows = rows.range((Bound::Excluded(range.base), Bound::Included(range.last)));
                rows.filter(|(_, row)| row.author() == user).count() as u64
            });
            Fact::Own(own.collect())
        }
        Need::Overlays(places) => {
            let overlay = |place| store.overlays.get(place).cloned().unwrap_or_default();
            Fact::Overlays(places.iter().map(overlay).collect())
        }
        Need::OverlayRanges(ranges) => {
            let overlays = ranges.iter().map(|range| {
                let conversation = range.conversation;
                let overlays = store
                    .overlays
                    .range((conversation, range.first)..=(conversation, range.last));
                overlays
                    .map(|((_, seq), overlay)| (*seq, overlay.clone()))
                    .collect()
            });
            Fact::OverlayRanges(overlays.collect())
        }
        Need::Changes(Slice {
            owner: conversation,
            cursor,
            limit,
        }) => {
            let changes = store
                .changes
                .range((*conversation, cursor + 1)..=(*conversation, u64::MAX));
            let changes = changes.map(|(_, row)| row.changed.clone());
            Fact::Changes(changes.take(*limit).collect())
        }
        Need::Pins(Slice {
            owner: conversation,
            cursor,
            limit,
        }) => {
            let overlays = store
                .overlays
                .range((*conversation, Seq::ZERO)..(*conversation, *cursor))
                .rev();
            let pins = overlays.filter(|(_, overlay)| overlay.pin().is_some());
            let rows = conversation_rows(store, user, *conversation);
            let pins = pins.filter_map(|((_, seq), _)| Some((*seq, rows.get(seq)?.id())));
            Fact::Pins(pins.take(*limit).collect())
        }
        Need::Feed(Slice {
            owner,
            cursor,
            limit,
        }) => {
            let rows = store.rows.values();
            let rows =
                rows.filter(|row| row.owner == Owner::User(*owner) && Some(row.id()) > *cursor);
            let mut rows: Vec<MessageRow> = rows.cloned().collect();
            rows.sort_by_key(MessageRow::id);
            rows.truncate(*limit);
            Fact::Feed(rows)
        }
        Need::Ids((group, places)) => {
            let rows = conversation_rows(store, user, ConversationId::Group(*group));
            Fact::Ids(
                places
                    .iter()
                    .map(|seq| rows.get(seq).map(|row| row.id()))
                    .collect(),
            )
        }
        Need::Statuses(ids) => {
            let status = RowStatus {
                delivered_at: Some(NOON),
                ..RowStatus::default()
            };
            Fact::Statuses(ids.iter().map(|_| Ok(status)).collect())
        }
        Need::Traces(ids) => Fact::Traces(ids.iter().map(|_| Ok(Vec::new())).collect()),
        _ => return None,
    })
}
