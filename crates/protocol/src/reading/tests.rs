//! Answers about whatever a writer leaves in its stores, with and without caches.

mod sources;

use proptest::prelude::*;

use self::sources::{Sources, conversation_rows};
use super::{
    CACHED_GROUPS_MAX, COUNTED_MAX, Fact, GROUPS_PER_READ, LATEST_MAX, Need, PINS_MAX, READERS_MAX,
};
use crate::change::{ChangeKind, MessageChange, OrderedChange};
use crate::frame::{HistoryPage, HistoryRange, ListPage, SyncAnswer, SyncQuery};
use crate::message_row::Owner;
use crate::writer::tests::log::{Act, Log, acts, group, user};
use crate::writer::tests::store::Store;
use crate::{Code, ConversationId, MessageId, Refusal, Seq, Timestamp, UserId};

fn conversations(owner: UserId) -> Vec<ConversationId> {
    let private = (1..=3)
        .map(user)
        .filter_map(|other| ConversationId::private(owner, other));
    let groups = (100..102).map(|number| ConversationId::Group(group(number)));
    private.chain(groups).collect()
}

fn store_with(acts: &[Act]) -> Store {
    let mut store = Store::new();
    store.write(&Log::of(acts).records());
    store
}

fn list(sources: &mut Sources, user: UserId) -> ListPage {
    let query = SyncQuery::List {
        since: Timestamp::ZERO,
        cursor: None,
    };
    match sources.answer(user, &query) {
        Ok(SyncAnswer::List(page)) => page,
        other => panic!("{other:?}"),
    }
}

fn history(
    sources: &mut Sources,
    user: UserId,
    conversation: ConversationId,
    range: HistoryRange,
    limit: u32,
) -> Result<HistoryPage, Refusal> {
    let query = SyncQuery::History {
        conversation,
        range,
        limit,
    };
    match sources.answer(user, &query)? {
        SyncAnswer::History(page) => Ok(page),
        other => panic!("{other:?}"),
    }
}

/// Place behind which a user may read; `None` for a user who may not.
fn floor(store: &Store, user: UserId, conversation: ConversationId) -> Option<Seq> {
    let ConversationId::Group(group) = conversation else {
        return Some(Seq::ZERO);
    };
    let (info, members) = store.groups.get(&group)?;
    members.get(&user)?.readable_after(info.as_ref()?.settings)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // proves S0-20 in part, S2-01 in part: page by page, in either direction, a user reads each message that they may
    // read once, as it is now, and nothing else.
    #[test]
    fn pages_add_up_to_the_conversation(acts in acts(), reader in 1..=3i64, limit in 1..6u32, forward: bool) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        for conversation in conversations(reader) {
            let Some(floor) = floor(&sources.store, reader, conversation) else {
                let all = HistoryRange::Forward { after: Seq::ZERO };
                let result = history(&mut sources, reader, conversation, all, limit).map_err(|refusal| refusal.code);
                prop_assert!(matches!(result, Err(Code::Forbidden | Code::NotFound)), "{result:?}");
                continue;
            };
            let mut range = if forward { HistoryRange::Forward { after: Seq::ZERO } } else { HistoryRange::Backward { before: None } };
            let mut messages = Vec::new();
            loop {
                let page = history(&mut sources, reader, conversation, range, limit).expect("readable");
                prop_assert!(page.messages.len() <= limit as usize);
                let last = page.messages.last().map(|message| message.position.seq);
                for message in page.messages {
                    let marks = page.marks.get(&message.position.seq).cloned();
                    messages.push((message, marks));
                }
                let Some(last) = last.filter(|_| page.more) else {
                    prop_assert!(!page.more);
                    break;
                };
                range = if forward { HistoryRange::Forward { after: last } } else { HistoryRange::Backward { before: Some(last) } };
            }
            if !forward {
                messages.reverse();
            }
            let rows = conversation_rows(&sources.store, reader, conversation);
            let rows = rows.into_iter().filter(|(seq, _)| *seq > floor);
            let expected = rows.map(|(seq, row)| {
                let mut message = row.placed.clone();
                let overlay = sources.store.overlays.get(&(conversation, seq));
                let marks = overlay.and_then(|overlay| overlay.show(&mut message));
                (message, marks)
            });
            prop_assert_eq!(messages, expected.collect::<Vec<_>>());
        }
    }

    // proves S4-35 in part: the unread number of each row is that of counting.
    #[test]
    fn a_list_counts_what_is_unread(acts in acts(), reader in 1..=3i64) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        let page = list(&mut sources, reader);
        for summary in &page.conversations {
            let conversation = summary.conversation;
            let store = &sources.store;
            let cleared_tally = store.clears.get(&(reader, conversation)).copied().unwrap_or_default();
            let member_since = match conversation {
                ConversationId::Group(group) => store.groups[&group].1[&reader].since,
                _ => Seq::ZERO,
            };
            let rows = conversation_rows(store, reader, conversation);
            let unread = rows.into_iter().filter(|(seq, row)| {
                let overlay = store.overlays.get(&(conversation, *seq));
                let is_recalled = overlay.is_some_and(|overlay| overlay.recalled.is_some());
                *seq > cleared_tally.seq.max(member_since) && row.author() != reader && !is_recalled
            });
            prop_assert_eq!(summary.unread, unread.count() as u64, "{}", conversation);
        }
        // The same numbers without the list.
        let counts = match sources.answer(reader, &SyncQuery::Unread { after: None }) {
            Ok(SyncAnswer::Unread(page)) => page.counts,
            other => panic!("{other:?}"),
        };
        let unread_rows = page.conversations.iter().filter(|summary| summary.unread > 0);
        let unread_rows = unread_rows.map(|summary| (summary.conversation, summary.unread));
        prop_assert_eq!(counts, unread_rows.collect::<Vec<_>>());
    }

    // proves S2-23 in part: changes, hidden messages and messages by id are told page by page, each once and in order.
    #[test]
    fn pages_of_numbers_add_up(acts in acts(), reader in 1..=3i64, limit in 1..4u32) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        for conversation in conversations(reader) {
            let (mut revs, mut cursor) = (Vec::new(), 0);
            let mut is_over = floor(&sources.store, reader, conversation).is_none();
            while !is_over {
                let query = SyncQuery::Changes { conversation, after: cursor, limit };
                let Ok(SyncAnswer::Changes(page)) = sources.answer(reader, &query) else {
                    panic!("no changes of {conversation}");
                };
                revs.extend(page.changes.iter().map(|change| change.rev));
                cursor = revs.last().copied().unwrap_or_default();
                is_over = !page.more;
            }
            let stored_keys = sources.store.changes.keys().filter(|(other, _)| *other == conversation);
            if floor(&sources.store, reader, conversation).is_some() {
                prop_assert_eq!(revs, stored_keys.map(|(_, rev)| *rev).collect::<Vec<_>>());
            }
            let (mut seqs, mut cursor) = (Vec::new(), 0);
            loop {
                let query = SyncQuery::Hidden { conversation, after: cursor, limit };
                let Ok(SyncAnswer::Hidden(page)) = sources.answer(reader, &query) else {
                    panic!("no hidden messages of {conversation}");
                };
                seqs.extend(page.seqs);
                cursor = page.last;
                if !page.more {
                    break;
                }
            }
            let hidden_marks = sources.store.hide_marks.iter();
            let hidden_marks = hidden_marks.filter(|((owner, other, _), _)| (*owner, *other) == (reader, conversation));
            prop_assert_eq!(seqs, hidden_marks.map(|(_, seq)| *seq).collect::<Vec<_>>());
        }
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let Ok(SyncAnswer::Missed(page)) = sources.answer(reader, &SyncQuery::Missed { after: cursor, limit }) else {
                panic!("no messages by id");
            };
            ids.extend(page.messages.iter().map(|message| message.message.id));
            cursor = ids.last().copied();
            if !page.more {
                break;
            }
        }
        let rows = sources.store.rows.keys().filter(|(owner, _)| *owner == Owner::User(reader));
        prop_assert_eq!(ids, rows.map(|(_, id)| *id).collect::<Vec<_>>());
    }

    // Page by page, each pinned message that the user may read comes once, newest first, as it is now; recalled ones do
    // not.
    #[test]
    fn pins_add_up_to_the_marks(acts in acts(), reader in 1..=3i64, limit in 1..4u32) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        for conversation in conversations(reader) {
            let (mut pins, mut cursor) = (Vec::new(), None);
            let query = SyncQuery::Pins { conversation, before: cursor, limit };
            let Some(floor) = floor(&sources.store, reader, conversation) else {
                let result = sources.answer(reader, &query).map_err(|refusal| refusal.code);
                prop_assert!(matches!(result, Err(Code::Forbidden | Code::NotFound)), "{result:?}");
                continue;
            };
            loop {
                let page = match sources.answer(reader, &SyncQuery::Pins { conversation, before: cursor, limit }) {
                    Ok(SyncAnswer::Pins(page)) => page,
                    other => panic!("{other:?}"),
                };
                prop_assert!(page.messages.len() <= limit as usize);
                prop_assert_eq!(page.messages.len(), page.marks.len());
                let head = sources.store.heads.get(&conversation).copied().unwrap_or_default();
                prop_assert_eq!(page.rev, head.rev);
                pins.extend(page.messages.into_iter().map(|message| {
                    let marks = page.marks[&message.position.seq].clone();
                    (message, marks)
                }));
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => break,
                }
            }
            let all = HistoryRange::Backward { before: None };
            let page = history(&mut sources, reader, conversation, all, 100).expect("readable");
            let pinned_messages = page.messages.into_iter().filter_map(|message| {
                let marks = page.marks.get(&message.position.seq)?;
                let is_pinned = marks.pinned.is_some() && message.position.seq > floor;
                is_pinned.then(|| (message, marks.clone()))
            });
            prop_assert_eq!(pins, pinned_messages.collect::<Vec<_>>());
        }
    }

    // proves S0-20 in part: all changes in their order, and of edits the text, unless the message was recalled since or
    // is from before the reader's time.
    #[test]
    fn changes_say_nothing_that_was_recalled(acts in acts(), reader in 1..=3i64) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        for conversation in conversations(reader) {
            let Some(floor) = floor(&sources.store, reader, conversation) else {
                continue;
            };
            let page = match sources.answer(reader, &SyncQuery::Changes { conversation, after: 0, limit: 100 }) {
                Ok(SyncAnswer::Changes(page)) => page,
                other => panic!("{other:?}"),
            };
            let expected = sources.store.changes.range((conversation, 0)..=(conversation, u64::MAX));
            let expected: Vec<_> = expected.map(|(_, row)| row.changed.clone()).collect();
            prop_assert_eq!(page.changes.len(), expected.len());
            for (change, mut expected) in page.changes.into_iter().zip(expected) {
                let overlay = &sources.store.overlays[&(conversation, expected.seq)];
                if overlay.recalled.is_some() || expected.seq <= floor {
                    prop_assert_eq!(change.asked.change.content_size(), 0);
                    expected.blank();
                }
                prop_assert_eq!(change, expected);
            }
        }
    }

    /// Entries of the cache are answers of the stores: as long as nothing changes, they change no answer.
    #[test]
    fn entries_of_the_cache_change_no_answer(acts in acts(), reader in 1..=3i64) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        let first_list = list(&mut sources, reader);
        let all = HistoryRange::Forward { after: Seq::ZERO };
        let pages = |sources: &mut Sources| {
            let conversations = conversations(reader).into_iter();
            let pages = conversations.map(|conversation| history(sources, reader, conversation, all, 0).ok());
            pages.collect::<Vec<_>>()
        };
        let first_pages = pages(&mut sources);
        sources.needs.clear();
        let second_list = list(&mut sources, reader);
        prop_assert_eq!(&second_list.conversations, &first_list.conversations);
        prop_assert_eq!(pages(&mut sources), first_pages);
        let is_stored = |need: &Need| matches!(need, Need::Memberships(_) | Need::Registers(_));
        prop_assert!(!sources.needs.iter().any(is_stored), "{:?}", sources.needs);
    }

    /// A page of one row at a time is the same list.
    #[test]
    fn small_pages_of_a_list_add_up(acts in acts(), reader in 1..=3i64, page_max in 1..4usize) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        let whole = list(&mut sources, reader);
        // Without the entries that the whole list filled.
        let mut sources = Sources::new(sources.store, page_max);
        let (mut rows, mut cursor) = (Vec::new(), None);
        loop {
            let start = Timestamp::ZERO;
            let page = match sources.answer(reader, &SyncQuery::List { since: start, cursor }) {
                Ok(SyncAnswer::List(page)) => page,
                other => panic!("{other:?}"),
            };
            prop_assert!(page.conversations.len() <= page_max);
            rows.extend(page.conversations);
            cursor = rows.last().map(|row| row.conversation);
            if !page.more {
                break;
            }
        }
        prop_assert_eq!(rows, whole.conversations);
    }

    /// A row that a store cannot read now is a hole, and a hole is no answer.
    #[test]
    fn a_hole_is_no_answer(acts in acts(), reader in 1..=3i64, hole in any::<prop::sample::Index>()) {
        let reader = user(reader);
        let mut sources = Sources::new(store_with(&acts), 100);
        for conversation in conversations(reader) {
            let query = SyncQuery::History {
                conversation,
                range: HistoryRange::Forward { after: Seq::ZERO },
                limit: 0,
            };
            let Ok(SyncAnswer::History(page)) = sources.answer(reader, &query) else {
                continue;
            };
            if page.messages.is_empty() {
                continue;
            }
            let hole = hole.index(page.messages.len());
            let is_last = hole + 1 == page.messages.len();
            let answer = sources.answer_altered(reader, &query, |fact| {
                if let Fact::Page(page) = fact {
                    let mut messages = page.to_vec();
                    messages.remove(hole);
                    *page = messages.into();
                }
            });
            match answer {
                // The last ones are asked for with the next page.
                Ok(SyncAnswer::History(page)) if is_last && hole > 0 => prop_assert!(page.more),
                Ok(answer) => prop_assert!(false, "{answer:?}"),
                Err(refusal) => prop_assert_eq!(refusal.code, Code::Unavailable),
            }
        }
    }
}

/// A pin whose row cannot be read is a hole, unless its place is behind the head: the row comes.
/// Also where the recall is on a later page.
#[test]
fn edits_of_a_recalled_message_are_blank() {
    let change = |subject, kind| Act::change(1, 2, subject, kind);
    let acts = [
        Act::say(1, 2),
        Act::say(1, 2),
        change(0, ChangeKind::Edit),
        change(1, ChangeKind::Edit),
        change(0, ChangeKind::Recall),
    ];
    let mut sources = Sources::new(store_with(&acts), 100);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    for limit in [2, 3] {
        let cursor = 0;
        let query = SyncQuery::Changes {
            conversation,
            after: cursor,
            limit,
        };
        let page = match sources.answer(user(2), &query) {
            Ok(SyncAnswer::Changes(page)) => page,
            other => panic!("{other:?}"),
        };
        let sizes = page.changes.iter();
        let sizes: Vec<_> = sizes.map(|row| row.asked.change.content_size()).collect();
        assert_eq!(sizes[..2], [0, "edited".len()]);
    }
}

/// A change that died, and one of a kind that this station does not know, keep their places: pages go on behind them,
/// say nothing of them, and show all others.
#[test]
fn places_without_an_effect_are_no_holes() {
    let edit = || Act::change(1, 2, 0, ChangeKind::Edit);
    let acts = [
        Act::say(1, 2),
        edit(),
        Act::react(2, 1, true),
        Act::react(1, 2, true),
    ];
    let acts = [
        &acts[..],
        &[Act::react(2, 1, false), Act::react(1, 2, false)],
    ]
    .concat();
    let mut store = store_with(&acts);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    for row in store.changes.values_mut() {
        match row.changed.rev {
            2 => row.changed.asked.change = MessageChange::Unknown,
            3 | 5 => row.changed = OrderedChange::died(row.changed.rev, &row.changed.asked),
            _ => {}
        }
    }
    let mut sources = Sources::new(store, 100);
    let mut page = |cursor, limit| {
        let query = SyncQuery::Changes {
            conversation,
            after: cursor,
            limit,
        };
        match sources.answer(user(2), &query) {
            Ok(SyncAnswer::Changes(page)) => page,
            other => panic!("{other:?}"),
        }
    };
    for (cursor, expected, more) in [(0, [1, 2], true), (1, [2, 3], true), (3, [4, 5], false)] {
        let page = page(cursor, 2);
        let revs = page.changes.iter().map(|change| change.rev);
        assert_eq!(revs.collect::<Vec<_>>(), expected);
        assert_eq!((page.more, page.last_rev), (more, 5), "{cursor}");
    }
    let effects = page(0, 9).changes.into_iter();
    let effects = effects.filter(|change| change.asked.change.has_effect());
    let effects: Vec<_> = effects.map(|change| change.rev).collect();
    assert_eq!(effects, [1, 4]);
    assert_eq!(page(4, 9).changes[0].asked.change.content_size(), 0);
}

#[test]
fn a_pin_without_a_row_is_a_hole_only_up_to_the_head() {
    let pin = ChangeKind::Pin { on: true };
    let acts = [Act::say(1, 2), Act::say(1, 2), Act::change(1, 2, 0, pin)];
    let mut sources = Sources::new(store_with(&acts), 100);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let head = sources.store.heads[&conversation];
    let query = SyncQuery::Pins {
        conversation,
        before: None,
        limit: 0,
    };
    let mut with_pin = |seq: Seq| {
        sources.answer_altered(user(1), &query, |fact| {
            if let Fact::Pins(pins) = fact {
                let id = MessageId::new(i64::MAX).expect("positive");
                pins.insert(0, (seq, id));
            }
        })
    };
    let Ok(SyncAnswer::Pins(page)) = with_pin(head.seq.next()) else {
        panic!("a page")
    };
    let seqs = page.messages.iter().map(|message| message.position.seq);
    assert_eq!(seqs.collect::<Vec<_>>(), [Seq(1)]);
    assert_eq!((page.rev, page.next), (head.rev, None));
    let hole = with_pin(head.seq).map_err(|refusal| refusal.code);
    assert_eq!(hole, Err(Code::Unavailable));
}

/// A page of pins is small, whatever its reader asks for.
#[test]
fn a_page_of_pins_is_small() {
    let count = PINS_MAX + 1;
    let pin = |subject| Act::change(1, 2, subject, ChangeKind::Pin { on: true });
    let says = (0..count).map(|_| Act::say(1, 2));
    let acts: Vec<Act> = says.chain((0..count).map(pin)).collect();
    let mut sources = Sources::new(store_with(&acts), 100);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    for limit in [0, u32::MAX] {
        let query = SyncQuery::Pins {
            conversation,
            before: None,
            limit,
        };
        let Ok(SyncAnswer::Pins(page)) = sources.answer(user(1), &query) else {
            panic!("a page")
        };
        assert_eq!((page.messages.len(), page.next), (PINS_MAX, Some(Seq(2))));
    }
}

/// Something happened to the entry that the answer is made from: it is made anew, without one.
#[test]
fn an_entry_that_changed_meanwhile_is_not_believed() {
    let mut sources = Sources::new(store_with(&[Act::create(1, 100), Act::say_in(1, 100)]), 100);
    let first = list(&mut sources, user(2));
    sources.needs.clear();
    let start = Timestamp::ZERO;
    let query = SyncQuery::List {
        since: start,
        cursor: None,
    };
    let is_first = std::cell::Cell::new(true);
    let answer = sources.answer_altered(user(2), &query, |fact| {
        if let Fact::Unchanged(is_unchanged) = fact {
            *is_unchanged = !is_first.replace(false);
        }
    });
    let Ok(SyncAnswer::List(page)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(page.conversations, first.conversations);
    let is_membership = |need: &&Need| matches!(need, Need::Memberships(_));
    assert_eq!(sources.needs.iter().filter(is_membership).count(), 1);
}

/// A store of statuses that is away leads to less on a page, and to no answer about them.
#[test]
fn statuses_that_nobody_answers_fail_only_who_asks_for_them() {
    let mut sources = Sources::new(store_with(&[Act::say(1, 2)]), 100);
    let fail_statuses = |fact: &mut Fact| {
        if let Fact::Statuses(statuses) = fact {
            let refusal = Refusal::new(Code::Unavailable, "away");
            statuses
                .iter_mut()
                .for_each(|status| *status = Err(refusal.clone()));
        }
    };
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let page = SyncQuery::History {
        conversation,
        range: HistoryRange::Forward { after: Seq::ZERO },
        limit: 0,
    };
    let Ok(SyncAnswer::History(full_page)) = sources.answer(user(1), &page) else {
        panic!("a page")
    };
    assert_eq!(full_page.statuses.len(), 1);
    let Ok(SyncAnswer::History(page)) = sources.answer_altered(user(1), &page, fail_statuses)
    else {
        panic!("a page")
    };
    assert!(page.statuses.is_empty());
    let ids = page.messages.iter().map(|message| message.message.id);
    let status = SyncQuery::Status { ids: ids.collect() };
    let result = sources.answer_altered(user(1), &status, fail_statuses);
    assert_eq!(
        result.map_err(|refusal| refusal.code),
        Err(Code::Unavailable)
    );
}

/// An answer to another question, or too short a one, is a fault and not an answer.
#[test]
fn an_answer_of_the_wrong_kind_is_no_answer() {
    let mut sources = Sources::new(store_with(&[Act::say(1, 2)]), 100);
    let row = SyncQuery::Row {
        conversation: ConversationId::private(user(1), user(2)).expect("two"),
    };
    for wrong in [Fact::Unchanged(true), Fact::Rows(Vec::new())] {
        let answer = sources.answer_altered(user(1), &row, |fact| {
            if matches!(fact, Fact::Rows(_)) {
                *fact = wrong.clone();
            }
        });
        assert_eq!(
            answer.map_err(|refusal| refusal.code),
            Err(Code::Unavailable)
        );
    }
}

/// More groups than are read at once, and more than a cache entry holds.
#[test]
fn many_groups_are_listed_page_by_page() {
    for count in [200, CACHED_GROUPS_MAX as i64 + 1] {
        let acts = (0..count).map(|number| Act::create(1, 100 + number));
        let mut sources = Sources::new(store_with(&acts.collect::<Vec<_>>()), 60);
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let start = Timestamp::ZERO;
            let answer = sources.answer(
                user(1),
                &SyncQuery::List {
                    since: start,
                    cursor,
                },
            );
            let Ok(SyncAnswer::List(page)) = answer else {
                panic!("{answer:?}")
            };
            ids.extend(page.conversations.iter().map(|row| row.conversation));
            cursor = ids.last().copied();
            if !page.more {
                break;
            }
        }
        let all = (0..count).map(|number| ConversationId::Group(group(100 + number)));
        assert_eq!(ids, all.collect::<Vec<_>>());
    }
}

/// A source that answers what was asked before would be asked for ever.
#[test]
fn a_list_that_does_not_get_on_is_refused() {
    let mut sources = Sources::new(store_with(&[Act::say(1, 2), Act::say(1, 3)]), 1);
    let query = SyncQuery::List {
        since: Timestamp::ZERO,
        cursor: None,
    };
    let end = ConversationId::private(user(1), user(2));
    let answer = sources.answer_altered(user(1), &query, |fact| {
        if let Fact::ListSlice(slice) = fact {
            slice.rows.clear();
            slice.end = end;
        }
    });
    assert_eq!(
        answer.map_err(|refusal| refusal.code),
        Err(Code::Unavailable)
    );
}

/// A group as its members ask for it.
#[test]
fn members_readers_and_counts_are_for_members() {
    let mut sources = Sources::new(store_with(&[Act::create(1, 100), Act::say_in(2, 100)]), 2);
    let (known_group, other_group) = (group(100), group(101));
    let members = |group, cursor| SyncQuery::Members {
        group,
        after: cursor,
        limit: 0,
    };
    let Ok(SyncAnswer::Members(page)) = sources.answer(user(2), &members(known_group, None)) else {
        panic!("members")
    };
    assert_eq!((page.members.len(), page.more), (2, true));
    let last = page.members.last().map(|(user, _)| *user);
    let Ok(SyncAnswer::Members(page)) = sources.answer(user(2), &members(known_group, last)) else {
        panic!("members")
    };
    assert_eq!((page.members.len(), page.more), (1, false));
    let refusal_code = |sources: &mut Sources, reader, group| {
        let answer = sources.answer(user(reader), &members(group, None));
        answer.map_err(|refusal| refusal.code)
    };
    assert_eq!(
        refusal_code(&mut sources, 9, known_group),
        Err(Code::Forbidden)
    );
    assert_eq!(
        refusal_code(&mut sources, 1, other_group),
        Err(Code::NotFound)
    );
    let count_since = |group, start| SyncQuery::CountSince {
        group,
        since: start,
    };
    let Ok(SyncAnswer::CountSince(count)) =
        sources.answer(user(1), &count_since(known_group, Timestamp::ZERO))
    else {
        panic!("a count")
    };
    assert!(!count.more);
    assert!(count.count > 0);
    let result = sources.answer(user(1), &count_since(known_group, Timestamp::MAX));
    assert!(
        matches!(result, Ok(SyncAnswer::CountSince(count)) if count.count == 0),
        "{result:?}"
    );
}

#[test]
fn numbers_of_the_rules_are_these() {
    assert_eq!(
        (GROUPS_PER_READ, CACHED_GROUPS_MAX, LATEST_MAX),
        (128, 1000, 100)
    );
    assert_eq!((COUNTED_MAX, READERS_MAX, PINS_MAX), (1000, 500, 20));
}
