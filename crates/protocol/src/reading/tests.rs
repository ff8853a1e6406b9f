//! Answers about whatever a writer leaves in its stores, with and without caches.

mod sources;

use proptest::prelude::*;

use self::sources::{Sources, rows_of};
use super::{
    CACHED_GROUPS_MAX, COUNTED_MAX, Fact, GROUPS_TOGETHER, LATEST_MAX, Need, PINS_MAX, READERS_MAX,
};
use crate::change::{ChangeKind, MessageChange, OrderedChange};
use crate::frame::{HistoryPage, HistoryRange, ListPage, SyncAnswer, SyncQuery};
use crate::message_row::Owner;
use crate::writer::tests::log::{Act, Log, acts, group, user};
use crate::writer::tests::store::Store;
use crate::{Code, ConversationId, MessageId, Refusal, Seq, Timestamp, UserId};

fn conversations(of: UserId) -> Vec<ConversationId> {
    let private = (1..=3)
        .map(user)
        .filter_map(|other| ConversationId::private(of, other));
    let groups = (100..102).map(|number| ConversationId::Group(group(number)));
    private.chain(groups).collect()
}

fn written(acts: &[Act]) -> Store {
    let mut store = Store::new();
    store.write(&Log::of(acts).records());
    store
}

fn list(sources: &mut Sources, user: UserId) -> ListPage {
    let query = SyncQuery::List {
        since: Timestamp::ZERO,
        after: None,
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
fn floor(store: &Store, user: UserId, of: ConversationId) -> Option<Seq> {
    let ConversationId::Group(group) = of else {
        return Some(Seq::ZERO);
    };
    let (settings, members) = store.groups.get(&group)?;
    members.get(&user)?.readable_after((*settings)?.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // proves S0-20 in part, S2-01 in part: page by page, in either direction, a user reads each message that they may
    // read once, as it is now, and nothing else.
    #[test]
    fn pages_add_up_to_the_conversation(acts in acts(), who in 1..=3i64, limit in 1..6u32, forward: bool) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        for of in conversations(who) {
            let Some(floor) = floor(&sources.store, who, of) else {
                let all = HistoryRange::Forward { after: Seq::ZERO };
                let refused = history(&mut sources, who, of, all, limit).map_err(|refusal| refusal.code);
                prop_assert!(matches!(refused, Err(Code::Forbidden | Code::NotFound)), "{refused:?}");
                continue;
            };
            let mut range = match forward {
                true => HistoryRange::Forward { after: Seq::ZERO },
                false => HistoryRange::Backward { before: None },
            };
            let mut messages = Vec::new();
            loop {
                let page = history(&mut sources, who, of, range, limit).expect("readable");
                prop_assert!(page.messages.len() <= limit as usize);
                let last = page.messages.last().map(|placed| placed.position.seq);
                for placed in page.messages {
                    let marks = page.marks.get(&placed.position.seq).cloned();
                    messages.push((placed, marks));
                }
                let Some(last) = last.filter(|_| page.more) else {
                    prop_assert!(!page.more);
                    break;
                };
                range = match forward {
                    true => HistoryRange::Forward { after: last },
                    false => HistoryRange::Backward { before: Some(last) },
                };
            }
            if !forward {
                messages.reverse();
            }
            let rows = rows_of(&sources.store, who, of);
            let rows = rows.into_iter().filter(|(seq, _)| *seq > floor);
            let expected = rows.map(|(seq, row)| {
                let mut placed = row.placed.clone();
                let overlay = sources.store.overlays.get(&(of, seq));
                let marks = overlay.and_then(|overlay| overlay.show(&mut placed));
                (placed, marks)
            });
            prop_assert_eq!(messages, expected.collect::<Vec<_>>());
        }
    }

    // proves S4-35 in part: the unread number of each row is that of counting.
    #[test]
    fn a_list_counts_what_is_unread(acts in acts(), who in 1..=3i64) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        let page = list(&mut sources, who);
        for summary in &page.conversations {
            let of = summary.conversation;
            let store = &sources.store;
            let cleared = store.cleared.get(&(who, of)).copied().unwrap_or_default();
            let since = match of {
                ConversationId::Group(group) => store.groups[&group].1[&who].since,
                _ => Seq::ZERO,
            };
            let rows = rows_of(store, who, of);
            let unread = rows.into_iter().filter(|(seq, row)| {
                let overlay = store.overlays.get(&(of, *seq));
                let is_recalled = overlay.is_some_and(|overlay| overlay.recalled.is_some());
                *seq > cleared.seq.max(since) && row.author() != who && !is_recalled
            });
            prop_assert_eq!(summary.unread, unread.count() as u64, "{}", of);
        }
        // The same numbers without the list.
        let counts = match sources.answer(who, &SyncQuery::Unread { after: None }) {
            Ok(SyncAnswer::Unread(page)) => page.counts,
            other => panic!("{other:?}"),
        };
        let listed = page.conversations.iter().filter(|summary| summary.unread > 0);
        let listed = listed.map(|summary| (summary.conversation, summary.unread));
        prop_assert_eq!(counts, listed.collect::<Vec<_>>());
    }

    // proves S2-23 in part: changes, hidden messages and messages by id are told page by page, each once and in order.
    #[test]
    fn pages_of_numbers_add_up(acts in acts(), who in 1..=3i64, limit in 1..4u32) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        for conversation in conversations(who) {
            let (mut revs, mut after) = (Vec::new(), 0);
            let mut is_over = floor(&sources.store, who, conversation).is_none();
            while !is_over {
                let query = SyncQuery::Changes { conversation, after, limit };
                let Ok(SyncAnswer::Changes(page)) = sources.answer(who, &query) else {
                    panic!("no changes of {conversation}");
                };
                revs.extend(page.changes.iter().map(|changed| changed.rev));
                after = revs.last().copied().unwrap_or_default();
                is_over = !page.more;
            }
            let stored = sources.store.changes.keys().filter(|(of, _)| *of == conversation);
            if floor(&sources.store, who, conversation).is_some() {
                prop_assert_eq!(revs, stored.map(|(_, rev)| *rev).collect::<Vec<_>>());
            }
            let (mut seqs, mut after) = (Vec::new(), 0);
            loop {
                let query = SyncQuery::Hidden { conversation, after, limit };
                let Ok(SyncAnswer::Hidden(page)) = sources.answer(who, &query) else {
                    panic!("no hidden messages of {conversation}");
                };
                seqs.extend(page.seqs);
                after = page.last;
                if !page.more {
                    break;
                }
            }
            let hidden = sources.store.hidden.iter();
            let hidden = hidden.filter(|((owner, of, _), _)| (*owner, *of) == (who, conversation));
            prop_assert_eq!(seqs, hidden.map(|(_, seq)| *seq).collect::<Vec<_>>());
        }
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let Ok(SyncAnswer::Missed(page)) = sources.answer(who, &SyncQuery::Missed { after, limit }) else {
                panic!("no messages by id");
            };
            ids.extend(page.messages.iter().map(|placed| placed.message.id));
            after = ids.last().copied();
            if !page.more {
                break;
            }
        }
        let rows = sources.store.rows.keys().filter(|(owner, _)| *owner == Owner::User(who));
        prop_assert_eq!(ids, rows.map(|(_, id)| *id).collect::<Vec<_>>());
    }

    // Page by page, each pinned message that the user may read comes once, newest first, as it is now; recalled ones do
    // not.
    #[test]
    fn pins_add_up_to_the_marks(acts in acts(), who in 1..=3i64, limit in 1..4u32) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        for conversation in conversations(who) {
            let (mut pins, mut before) = (Vec::new(), None);
            let of = SyncQuery::Pins { conversation, before, limit };
            let Some(floor) = floor(&sources.store, who, conversation) else {
                let refused = sources.answer(who, &of).map_err(|refusal| refusal.code);
                prop_assert!(matches!(refused, Err(Code::Forbidden | Code::NotFound)), "{refused:?}");
                continue;
            };
            loop {
                let page = match sources.answer(who, &SyncQuery::Pins { conversation, before, limit }) {
                    Ok(SyncAnswer::Pins(page)) => page,
                    other => panic!("{other:?}"),
                };
                prop_assert!(page.messages.len() <= limit as usize);
                prop_assert_eq!(page.messages.len(), page.marks.len());
                let head = sources.store.heads.get(&conversation).copied().unwrap_or_default();
                prop_assert_eq!(page.rev, head.rev);
                pins.extend(page.messages.into_iter().map(|placed| {
                    let marks = page.marks[&placed.position.seq].clone();
                    (placed, marks)
                }));
                match page.next {
                    Some(next) => before = Some(next),
                    None => break,
                }
            }
            let all = HistoryRange::Backward { before: None };
            let page = history(&mut sources, who, conversation, all, 100).expect("readable");
            let pinned = page.messages.into_iter().filter_map(|placed| {
                let marks = page.marks.get(&placed.position.seq)?;
                let is_pinned = marks.pinned.is_some() && placed.position.seq > floor;
                is_pinned.then(|| (placed, marks.clone()))
            });
            prop_assert_eq!(pins, pinned.collect::<Vec<_>>());
        }
    }

    // proves S0-20 in part: all changes in their order, and of edits the text, unless the message was recalled since or
    // is from before the reader's time.
    #[test]
    fn changes_say_nothing_that_was_recalled(acts in acts(), who in 1..=3i64) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        for conversation in conversations(who) {
            let Some(floor) = floor(&sources.store, who, conversation) else {
                continue;
            };
            let page = match sources.answer(who, &SyncQuery::Changes { conversation, after: 0, limit: 100 }) {
                Ok(SyncAnswer::Changes(page)) => page,
                other => panic!("{other:?}"),
            };
            let stored = sources.store.changes.range((conversation, 0)..=(conversation, u64::MAX));
            let stored: Vec<_> = stored.map(|(_, row)| row.changed.clone()).collect();
            prop_assert_eq!(page.changes.len(), stored.len());
            for (shown, mut stored) in page.changes.into_iter().zip(stored) {
                let overlay = &sources.store.overlays[&(conversation, stored.seq)];
                if overlay.recalled.is_some() || stored.seq <= floor {
                    prop_assert_eq!(shown.asked.change.content_size(), 0);
                    stored.blank();
                }
                prop_assert_eq!(shown, stored);
            }
        }
    }

    /// Entries of the cache are answers of the stores: as long as nothing changes, they change no answer.
    #[test]
    fn entries_of_the_cache_change_no_answer(acts in acts(), who in 1..=3i64) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        let before = list(&mut sources, who);
        let all = HistoryRange::Forward { after: Seq::ZERO };
        let pages = |sources: &mut Sources| {
            let conversations = conversations(who).into_iter();
            let pages = conversations.map(|of| history(sources, who, of, all, 0).ok());
            pages.collect::<Vec<_>>()
        };
        let read = pages(&mut sources);
        sources.asked.clear();
        let again = list(&mut sources, who);
        prop_assert_eq!(&again.conversations, &before.conversations);
        prop_assert_eq!(pages(&mut sources), read);
        let is_stored = |need: &Need| matches!(need, Need::Memberships(_) | Need::Registers(_));
        prop_assert!(!sources.asked.iter().any(is_stored), "{:?}", sources.asked);
    }

    /// A page of one row at a time is the same list.
    #[test]
    fn small_pages_of_a_list_add_up(acts in acts(), who in 1..=3i64, page_max in 1..4usize) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        let whole = list(&mut sources, who);
        // Without the entries that the whole list filled.
        let mut sources = Sources::new(sources.store, page_max);
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let since = Timestamp::ZERO;
            let page = match sources.answer(who, &SyncQuery::List { since, after }) {
                Ok(SyncAnswer::List(page)) => page,
                other => panic!("{other:?}"),
            };
            prop_assert!(page.conversations.len() <= page_max);
            rows.extend(page.conversations);
            after = rows.last().map(|row| row.conversation);
            if !page.more {
                break;
            }
        }
        prop_assert_eq!(rows, whole.conversations);
    }

    /// A row that a store cannot read now is a hole, and a hole is no answer.
    #[test]
    fn a_hole_is_no_answer(acts in acts(), who in 1..=3i64, hole in any::<prop::sample::Index>()) {
        let who = user(who);
        let mut sources = Sources::new(written(&acts), 100);
        for conversation in conversations(who) {
            let query = SyncQuery::History {
                conversation,
                range: HistoryRange::Forward { after: Seq::ZERO },
                limit: 0,
            };
            let Ok(SyncAnswer::History(page)) = sources.answer(who, &query) else {
                continue;
            };
            if page.messages.is_empty() {
                continue;
            }
            let hole = hole.index(page.messages.len());
            let is_last = hole + 1 == page.messages.len();
            let answer = sources.answer_altered(who, &query, |fact| {
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
    let mut sources = Sources::new(written(&acts), 100);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    for limit in [2, 3] {
        let after = 0;
        let query = SyncQuery::Changes {
            conversation,
            after,
            limit,
        };
        let page = match sources.answer(user(2), &query) {
            Ok(SyncAnswer::Changes(page)) => page,
            other => panic!("{other:?}"),
        };
        let sizes = page.changes.iter();
        let sizes: Vec<_> = sizes
            .map(|changed| changed.asked.change.content_size())
            .collect();
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
    let mut store = written(&acts);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    for row in store.changes.values_mut() {
        match row.changed.rev {
            2 => row.changed.asked.change = MessageChange::Unknown,
            3 | 5 => row.changed = OrderedChange::died(row.changed.rev, &row.changed.asked),
            _ => {}
        }
    }
    let mut sources = Sources::new(store, 100);
    let mut page = |after, limit| {
        let query = SyncQuery::Changes {
            conversation,
            after,
            limit,
        };
        match sources.answer(user(2), &query) {
            Ok(SyncAnswer::Changes(page)) => page,
            other => panic!("{other:?}"),
        }
    };
    for (after, expected, more) in [(0, [1, 2], true), (1, [2, 3], true), (3, [4, 5], false)] {
        let page = page(after, 2);
        let revs = page.changes.iter().map(|changed| changed.rev);
        assert_eq!(revs.collect::<Vec<_>>(), expected);
        assert_eq!((page.more, page.last_rev), (more, 5), "{after}");
    }
    let effects = page(0, 9).changes.into_iter();
    let effects = effects.filter(|changed| changed.asked.change.has_effect());
    let effects: Vec<_> = effects.map(|changed| changed.rev).collect();
    assert_eq!(effects, [1, 4]);
    assert_eq!(page(4, 9).changes[0].asked.change.content_size(), 0);
}

#[test]
fn a_pin_without_a_row_is_a_hole_only_up_to_the_head() {
    let pin = ChangeKind::Pin { on: true };
    let acts = [Act::say(1, 2), Act::say(1, 2), Act::change(1, 2, 0, pin)];
    let mut sources = Sources::new(written(&acts), 100);
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
    let seqs = page.messages.iter().map(|placed| placed.position.seq);
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
    let mut sources = Sources::new(written(&acts), 100);
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
    let mut sources = Sources::new(written(&[Act::create(1, 100), Act::say_in(1, 100)]), 100);
    let first = list(&mut sources, user(2));
    sources.asked.clear();
    let since = Timestamp::ZERO;
    let query = SyncQuery::List { since, after: None };
    let is_first = std::cell::Cell::new(true);
    let answer = sources.answer_altered(user(2), &query, |fact| {
        if let Fact::Unchanged(unchanged) = fact {
            *unchanged = !is_first.replace(false);
        }
    });
    let Ok(SyncAnswer::List(again)) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(again.conversations, first.conversations);
    let stored = |need: &&Need| matches!(need, Need::Memberships(_));
    assert_eq!(sources.asked.iter().filter(stored).count(), 1);
}

/// A store of statuses that is away leads to less on a page, and to no answer about them.
#[test]
fn statuses_that_nobody_answers_fail_only_who_asks_for_them() {
    let mut sources = Sources::new(written(&[Act::say(1, 2)]), 100);
    let away = |fact: &mut Fact| {
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
    let Ok(SyncAnswer::History(before)) = sources.answer(user(1), &page) else {
        panic!("a page")
    };
    assert_eq!(before.statuses.len(), 1);
    let Ok(SyncAnswer::History(page)) = sources.answer_altered(user(1), &page, away) else {
        panic!("a page")
    };
    assert!(page.statuses.is_empty());
    let ids = page.messages.iter().map(|placed| placed.message.id);
    let status = SyncQuery::Status { ids: ids.collect() };
    let refused = sources.answer_altered(user(1), &status, away);
    assert_eq!(
        refused.map_err(|refusal| refusal.code),
        Err(Code::Unavailable)
    );
}

/// An answer to another question, or too short a one, is a fault and not an answer.
#[test]
fn an_answer_of_the_wrong_kind_is_no_answer() {
    let mut sources = Sources::new(written(&[Act::say(1, 2)]), 100);
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
        let mut sources = Sources::new(written(&acts.collect::<Vec<_>>()), 60);
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let since = Timestamp::ZERO;
            let answer = sources.answer(user(1), &SyncQuery::List { since, after });
            let Ok(SyncAnswer::List(page)) = answer else {
                panic!("{answer:?}")
            };
            listed.extend(page.conversations.iter().map(|row| row.conversation));
            after = listed.last().copied();
            if !page.more {
                break;
            }
        }
        let all = (0..count).map(|number| ConversationId::Group(group(100 + number)));
        assert_eq!(listed, all.collect::<Vec<_>>());
    }
}

/// A source that answers what was asked before would be asked for ever.
#[test]
fn a_list_that_does_not_get_on_is_refused() {
    let mut sources = Sources::new(written(&[Act::say(1, 2), Act::say(1, 3)]), 1);
    let query = SyncQuery::List {
        since: Timestamp::ZERO,
        after: None,
    };
    let stuck = ConversationId::private(user(1), user(2));
    let answer = sources.answer_altered(user(1), &query, |fact| {
        if let Fact::ListSlice(slice) = fact {
            slice.rows.clear();
            slice.end = stuck;
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
    let mut sources = Sources::new(written(&[Act::create(1, 100), Act::say_in(2, 100)]), 2);
    let (here, elsewhere) = (group(100), group(101));
    let members = |group, after| SyncQuery::Members {
        group,
        after,
        limit: 0,
    };
    let Ok(SyncAnswer::Members(page)) = sources.answer(user(2), &members(here, None)) else {
        panic!("members")
    };
    assert_eq!((page.members.len(), page.more), (2, true));
    let last = page.members.last().map(|(user, _)| *user);
    let Ok(SyncAnswer::Members(page)) = sources.answer(user(2), &members(here, last)) else {
        panic!("members")
    };
    assert_eq!((page.members.len(), page.more), (1, false));
    let refused = |sources: &mut Sources, who, group| {
        let answer = sources.answer(user(who), &members(group, None));
        answer.map_err(|refusal| refusal.code)
    };
    assert_eq!(refused(&mut sources, 9, here), Err(Code::Forbidden));
    assert_eq!(refused(&mut sources, 1, elsewhere), Err(Code::NotFound));
    let since = |group, since| SyncQuery::CountSince { group, since };
    let Ok(SyncAnswer::CountSince(count)) = sources.answer(user(1), &since(here, Timestamp::ZERO))
    else {
        panic!("a count")
    };
    assert!(!count.more);
    assert!(count.count > 0);
    let later = sources.answer(user(1), &since(here, Timestamp::MAX));
    assert!(
        matches!(later, Ok(SyncAnswer::CountSince(count)) if count.count == 0),
        "{later:?}"
    );
}

#[test]
fn numbers_of_the_rules_are_these() {
    assert_eq!(
        (GROUPS_TOGETHER, CACHED_GROUPS_MAX, LATEST_MAX),
        (128, 1000, 100)
    );
    assert_eq!((COUNTED_MAX, READERS_MAX, PINS_MAX), (1000, 500, 20));
}
