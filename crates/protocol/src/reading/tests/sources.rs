//! Sources of answers: what a writer left in its stores, and a cache beside them.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::cache::{CacheKey, Entries, GroupEntry, UserEntry};
use crate::conversation::{ConversationRow, ListEntry, ListRegisters};
use crate::group::{GroupSettings, Member};
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
    pub(super) asked: Vec<Need>,
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
            asked: Vec::new(),
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
            began: NOON,
        };
        let (mut facts, mut tokens) = (ReadFacts::default(), Tokens::new());
        let mut known: Vec<Need> = Vec::new();
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
                    known.clear();
                }
                Err(NoAnswer::Missing(needs)) => {
                    assert!(!needs.is_empty());
                    for need in needs {
                        assert!(!known.contains(&need), "asked again: {need:?}");
                        let mut fact = self.fact(user, &need, &mut tokens);
                        alter(&mut fact);
                        known.push(need.clone());
                        self.asked.push(need.clone());
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
                Fact::Unchanged(tokens.get(&owner).is_none_or(|before| *before == token))
            }
            need => stored(&self.store, user, need),
        }
    }
}

fn member(store: &Store, group: GroupId, user: UserId) -> Option<(GroupSettings, Member)> {
    let (settings, members) = store.groups.get(&group)?;
    Some((settings.as_ref()?.0, *members.get(&user)?))
}

fn present(store: &Store, group: GroupId) -> Vec<(UserId, Member)> {
    let members = store.groups.get(&group).map(|(_, members)| members);
    let present = members.into_iter().flatten();
    let present = present.filter(|(_, member)| member.role.is_some());
    present.map(|(user, member)| (*user, *member)).collect()
}

fn registers(store: &Store, user: UserId, of: ConversationId) -> ListRegisters {
    let hidden = (store.hidden.keys()).filter(|(owner, at, _)| (*owner, *at) == (user, of));
    ListRegisters {
        cleared: store.cleared.get(&(user, of)).copied().unwrap_or_default(),
        arranged: (store.arranged.get(&(user, of))).map_or_else(Default::default, |(_, to)| *to),
        hidden: hidden.map(|(.., mark)| *mark).max().unwrap_or_default(),
        ..ListRegisters::default()
    }
}

fn listed(store: &Store, row: &ConversationRow) -> ListEntry {
    let of = registers(store, row.owner, row.conversation);
    ListEntry {
        row: *row,
        read_seq: of.read_seq,
        received_seq: of.received_seq,
        cleared: of.cleared,
        touched: of.touched,
        arranged: of.arranged,
        hidden: of.hidden,
    }
}

/// Rows of a conversation, as a user reads them, by seq.
pub(super) fn rows_of(
    store: &Store,
    user: UserId,
    of: ConversationId,
) -> BTreeMap<Seq, &MessageRow> {
    let rows = store
        .rows
        .values()
        .filter(|row| row.placed.conversation == of);
    let rows = rows.filter(|row| row.owner == Owner::of(of, user));
    rows.map(|row| (row.seq(), row)).collect()
}

/// End of a group, as a cache beside history would have it.
fn latest(store: &Store, user: UserId, asked: &LatestNeed) -> Option<Vec<Placed>> {
    let rows = rows_of(store, user, ConversationId::Group(asked.group));
    let newest = rows.values().rev().map(|row| row.placed.clone());
    let range = HistoryRange::Backward { before: None };
    from_timeline(
        newest.collect(),
        range,
        &asked.head,
        asked.count,
        usize::MAX,
    )
}

fn page(store: &Store, user: UserId, asked: &PageNeed) -> Vec<Placed> {
    let rows = rows_of(store, user, asked.conversation);
    let rows = rows.range(asked.key.first..=asked.key.last);
    let mut messages: Vec<Placed> = rows.map(|(_, row)| row.placed.clone()).collect();
    if !asked.key.is_forward {
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
        Need::Heads(of) => {
            let head = |of| store.heads.get(of).copied().unwrap_or_default();
            Fact::Heads(of.iter().map(head).collect())
        }
        Need::Members(groups) => Fact::Members(
            groups
                .iter()
                .map(|group| member(store, *group, user))
                .collect(),
        ),
        Need::Populated(group) => Fact::Populated(Ok(!present(store, *group).is_empty())),
        Need::Present(Slice { of, after, limit }) => {
            let present = present(store, *of).into_iter();
            let present = present.filter(|(user, _)| Some(*user) > *after);
            Fact::Present(present.take(*limit).collect())
        }
        Need::Memberships(Slice { of, after, limit }) => {
            let groups = store
                .groups
                .iter()
                .filter(|(group, _)| Some(**group) > *after);
            let mine = groups.filter_map(|(group, (_, members))| Some((*group, *members.get(of)?)));
            Fact::Memberships(mine.take(*limit).collect())
        }
        Need::Registers(keys) => Fact::Registers(
            keys.iter()
                .map(|(user, of)| registers(store, *user, *of))
                .collect(),
        ),
        Need::ListSlice(slice) => {
            let rows = store.list_rows.values().filter(|row| row.owner == user);
            let rows = rows.filter(|row| Some(row.conversation) > slice.after);
            let rows = rows.map(|row| listed(store, row));
            let rows = rows.filter(|listed| listed.version() >= slice.from);
            Fact::ListSlice(slice.rows(rows.take(slice.limit).collect()))
        }
        Need::ListEntries(of) => {
            let row = |of: &ConversationId| Some(listed(store, store.list_rows.get(&(user, *of))?));
            Fact::ListEntries(of.iter().map(row).collect())
        }
        Need::Hidden(Slice { of, after, limit }) => {
            let hidden = store
                .hidden
                .range((user, *of, after + 1)..=(user, *of, u64::MAX));
            let hidden = hidden.map(|((.., mark), seq)| (*mark, *seq));
            Fact::Hidden(hidden.take(*limit).collect())
        }
        Need::LastReceived(_) => Fact::LastReceived(None),
        _ => return None,
    })
}

/// Facts about messages.
fn stored_messages(store: &Store, user: UserId, need: &Need) -> Option<Fact> {
    Some(match need {
        Need::Latest(asked) => {
            let latest = asked
                .iter()
                .map(|asked| latest(store, user, asked).unwrap_or_default());
            Fact::Latest(latest.map(LatestMessages::from).collect())
        }
        Need::Page(asked) => Fact::Page(page(store, user, asked).into()),
        Need::Rows(keys) => Fact::Rows(
            keys.iter()
                .map(|key| store.rows.get(key).cloned())
                .collect(),
        ),
        Need::Tallies(places) => {
            let tally = |(of, seq): &(ConversationId, Seq)| {
                let row = rows_of(store, user, *of).get(seq).copied()?;
                Some(row.tally())
            };
            Fact::Tallies(places.iter().map(tally).collect())
        }
        Need::Recalled(ranges) => {
            let recalled = ranges.iter().map(|range| {
                let of = range.conversation;
                let overlays = store
                    .overlays
                    .range((of, range.after.next())..=(of, range.last));
                let recalled = overlays.filter(|(_, overlay)| {
                    let register = overlay.recalled.as_ref();
                    register.is_some_and(|register| register.version <= range.until)
                });
                let rows = rows_of(store, user, of);
                let author = |seq: &Seq| rows.get(seq).map(|row| row.author());
                recalled
                    .filter_map(|((_, seq), _)| Some((*seq, author(seq)?)))
                    .collect()
            });
            Fact::Recalled(recalled.collect())
        }
        Need::Own(ranges) => {
            let own = ranges.iter().map(|range| {
                let rows = rows_of(store, user, ConversationId::Group(range.group));
                let rows = rows.range((Bound::Excluded(range.after), Bound::Included(range.last)));
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
                let of = range.conversation;
                let overlays = store.overlays.range((of, range.first)..=(of, range.last));
                overlays
                    .map(|((_, seq), overlay)| (*seq, overlay.clone()))
                    .collect()
            });
            Fact::OverlayRanges(overlays.collect())
        }
        Need::Changes(Slice { of, after, limit }) => {
            let changes = store.changes.range((*of, after + 1)..=(*of, u64::MAX));
            let changes = changes.map(|(_, row)| row.changed.clone());
            Fact::Changes(changes.take(*limit).collect())
        }
        Need::Pins(Slice { of, after, limit }) => {
            let before = store.overlays.range((*of, Seq::ZERO)..(*of, *after)).rev();
            let pins = before.filter(|(_, overlay)| overlay.pin().is_some());
            let rows = rows_of(store, user, *of);
            let pins = pins.filter_map(|((_, seq), _)| Some((*seq, rows.get(seq)?.id())));
            Fact::Pins(pins.take(*limit).collect())
        }
        Need::Feed(Slice { of, after, limit }) => {
            let rows = store.rows.values();
            let rows = rows.filter(|row| row.owner == Owner::User(*of) && Some(row.id()) > *after);
            let mut rows: Vec<MessageRow> = rows.cloned().collect();
            rows.sort_by_key(MessageRow::id);
            rows.truncate(*limit);
            Fact::Feed(rows)
        }
        Need::Ids((group, places)) => {
            let rows = rows_of(store, user, ConversationId::Group(*group));
            Fact::Ids(
                places
                    .iter()
                    .map(|seq| rows.get(seq).map(|row| row.id()))
                    .collect(),
            )
        }
        Need::Statuses(ids) => {
            let delivered = RowStatus {
                delivered_at: Some(NOON),
                ..RowStatus::default()
            };
            Fact::Statuses(ids.iter().map(|_| Ok(delivered)).collect())
        }
        Need::Traces(ids) => Fact::Traces(ids.iter().map(|_| Ok(Vec::new())).collect()),
        _ => return None,
    })
}
