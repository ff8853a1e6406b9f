//! Contract of every store of conversation lists. Each check uses users of its own.

use protocol::change::ListArrangement;
use protocol::conversation::{ConversationRow, ListEntry};
use protocol::history::Version;
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, Seq, Timestamp, UserId};

use super::{ConversationStore, ListRegisters};
use crate::clock::{Entropy, SeededEntropy};
use crate::test_ids::{TestIds, at};

const MAX_ENTRIES: usize = 10_000;

fn row(
    fresh: &TestIds,
    owner: UserId,
    conversation: ConversationId,
    offset: u64,
) -> ConversationRow {
    ConversationRow {
        owner,
        conversation,
        end: tally(offset + 1),
        rev: offset * 2,
        last_id: fresh.message(),
        version: at(offset),
        source: Version { epoch: 1, offset },
    }
}

/// Tally at `seq` if every second message is incoming.
fn tally(seq: u64) -> Tally {
    Tally {
        seq: Seq(seq),
        incoming: seq / 2,
    }
}

fn private(owner: UserId, peer: UserId) -> ConversationId {
    ConversationId::private(owner, peer).expect("two users")
}

async fn save(store: &dyn ConversationStore, row: ConversationRow) {
    store.save(vec![row]).await.expect("saves");
}

async fn get(store: &dyn ConversationStore, row: &ConversationRow) -> Option<ListEntry> {
    let key = (row.owner, row.conversation);
    let entries = store.get(&[key, key]).await.expect("reads");
    assert_eq!(
        entries[0], entries[1],
        "what is asked twice is answered twice"
    );
    entries[0]
}

async fn changed(
    store: &dyn ConversationStore,
    owner: UserId,
    min_version: Timestamp,
) -> Vec<ListEntry> {
    let entries = store.changed(owner, min_version, None, MAX_ENTRIES).await;
    entries.expect("reads")
}

// proves S4-11
pub(super) async fn a_row_comes_back_with_its_registers(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let (owner, peer) = (fresh.user(), fresh.user());
    let row = row(fresh, owner, private(owner, peer), 7);
    assert_eq!(get(store, &row).await, None);
    // Registers may precede their row; they make no row.
    let read = (owner, row.conversation, Seq(3));
    store.set_read(vec![read], at(4)).await.expect("writes");
    assert_eq!(get(store, &row).await, None);
    assert_eq!(changed(store, owner, Timestamp::ZERO).await, []);
    save(store, row).await;
    let entry = ListEntry {
        row,
        read_seq: Seq(3),
        received_seq: Seq(3),
        cleared: Tally::default(),
        touched: at(4),
        arranged: ListArrangement::default(),
        hidden: 0,
    };
    assert_eq!(get(store, &row).await, Some(entry));
    assert_eq!(changed(store, owner, Timestamp::ZERO).await, [entry]);
    assert_eq!(changed(store, peer, Timestamp::ZERO).await, []);
}

// proves S4-13 in part: put where nothing is, replaced only where it matches.
/// Holds within one call and across calls.
pub(super) async fn only_a_later_source_replaces(store: &dyn ConversationStore, fresh: &TestIds) {
    let owner = fresh.user();
    let conversation = private(owner, fresh.user());
    let [early, late] = [4, 5].map(|offset| row(fresh, owner, conversation, offset));
    store.save(vec![late, early]).await.expect("saves");
    assert_eq!(get(store, &late).await.map(|l| l.row), Some(late));
    // A zombie writes late, stamped by its own clock.
    let zombie = ConversationRow {
        version: at(99),
        ..early
    };
    save(store, zombie).await;
    assert_eq!(get(store, &late).await.map(|l| l.row), Some(late));
    let new_log = ConversationRow {
        source: Version {
            epoch: 2,
            offset: 0,
        },
        version: at(6),
        ..early
    };
    save(store, new_log).await;
    assert_eq!(get(store, &late).await.map(|l| l.row), Some(new_log));
}

/// A redelivery stamps anew, so that a list cursor that has moved on meanwhile still meets the row.
pub(super) async fn the_same_source_may_raise_the_version(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let first = row(fresh, owner, private(owner, fresh.user()), 4);
    save(store, first).await;
    let restamp = ConversationRow {
        version: at(50),
        ..first
    };
    save(store, restamp).await;
    assert_eq!(changed(store, owner, at(50)).await.len(), 1);
    assert_eq!(changed(store, owner, at(51)).await, []);
}

// proves S4-28: the union of both, each conversation once.
/// After any sequence of messages and of what the owner did, the difference equals a scan of all rows for either.
pub(super) async fn the_difference_equals_a_recomputation(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let mut conversations: Vec<_> = (0..12).map(|_| private(owner, fresh.user())).collect();
    let group = GroupId::new(owner.get()).expect("positive");
    conversations.extend([ConversationId::Group(group), ConversationId::System(owner)]);
    conversations.sort();
    let chance = SeededEntropy::new(3);
    let pick = |n: usize| (chance.next() % n as u64) as usize;
    for offset in 0..60 {
        let conversation = conversations[pick(conversations.len())];
        save(store, row(fresh, owner, conversation, offset)).await;
        if pick(3) == 0 {
            let conversation = conversations[pick(conversations.len())];
            let read = vec![(owner, conversation, Seq(offset))];
            store.set_read(read, at(offset)).await.expect("writes");
        }
    }
    let keys: Vec<_> = conversations.iter().map(|&c| (owner, c)).collect();
    let all = store.get(&keys).await.expect("reads");
    for _ in 0..100 {
        let min_version = at(pick(62) as u64);
        let cursor = [None, Some(conversations[pick(conversations.len())])][pick(2)];
        let limit = pick(16);
        let expected: Vec<_> = all
            .iter()
            .flatten()
            .filter(|entry| entry.row.version >= min_version || entry.touched >= min_version)
            .filter(|entry| cursor.is_none_or(|cursor| entry.row.conversation > cursor))
            .take(limit)
            .copied()
            .collect();
        let result = store.changed(owner, min_version, cursor, limit).await;
        assert_eq!(
            result.expect("reads"),
            expected,
            "{min_version} {cursor:?} {limit}"
        );
    }
}

// proves S4-13 in part: in the order of a field.
pub(super) async fn pages_of_the_list_visit_each_conversation_once(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let rows: Vec<_> = (0..600)
        .map(|offset| row(fresh, owner, private(owner, fresh.user()), offset))
        .collect();
    store.save(rows.clone()).await.expect("saves");
    let mut expected: Vec<_> = rows.iter().map(|row| row.conversation).collect();
    expected.sort();
    let (mut conversations, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.changed(owner, Timestamp::ZERO, cursor, 90).await;
        let page = page.expect("reads");
        if page.is_empty() {
            break;
        }
        conversations.extend(page.iter().map(|entry| entry.row.conversation));
        cursor = conversations.last().copied();
    }
    assert_eq!(conversations, expected);
    // Few changed conversations among many.
    let few = changed(store, owner, at(598)).await;
    assert_eq!(few.len(), 2);
}

pub(super) async fn registers_only_move_forward(store: &dyn ConversationStore, fresh: &TestIds) {
    let owner = fresh.user();
    let row = row(fresh, owner, private(owner, fresh.user()), 9);
    save(store, row).await;
    let at_seq = |seq| (owner, row.conversation, Seq(seq));
    let registers = async || {
        let entry = get(store, &row).await.expect("a row");
        (entry.read_seq.0, entry.received_seq.0)
    };
    let set_received = async |seqs: &[u64]| {
        let moves = seqs.iter().map(|&seq| at_seq(seq)).collect();
        store.set_received(moves).await.expect("writes");
    };
    set_received(&[5, 4]).await;
    assert_eq!(registers().await, (0, 5));
    store
        .set_read(vec![at_seq(3)], at(1))
        .await
        .expect("writes");
    assert_eq!(registers().await, (3, 5));
    store
        .set_read(vec![at_seq(8), at_seq(2)], at(1))
        .await
        .expect("writes");
    assert_eq!(registers().await, (8, 8));
    set_received(&[6]).await;
    store
        .set_read(vec![at_seq(1)], at(1))
        .await
        .expect("writes");
    assert_eq!(registers().await, (8, 8));
    let clear_to = |seq| (owner, row.conversation, tally(seq));
    for (moves, expected) in [(vec![clear_to(7), clear_to(4)], 7), (vec![clear_to(6)], 7)] {
        store.set_cleared(moves, at(1)).await.expect("writes");
        let entry = get(store, &row).await.expect("a row");
        assert_eq!(entry.cleared, tally(expected));
    }
    // A rewrite of the row leaves the registers.
    save(store, row).await;
    assert_eq!(registers().await, (8, 8));
    assert_eq!(get(store, &row).await.expect("a row").cleared, tally(7));
}

/// The order of the log decides, whatever the clocks say.
pub(super) async fn the_later_record_arranges(store: &dyn ConversationStore, fresh: &TestIds) {
    let owner = fresh.user();
    let row = row(fresh, owner, private(owner, fresh.user()), 9);
    save(store, row).await;
    let version = |offset| Version { epoch: 1, offset };
    let pin = ListArrangement {
        pinned: true,
        muted_until: Some(at(77)),
    };
    let arrange = async |offset, arrangement, now| {
        let moves = vec![(owner, row.conversation, version(offset), arrangement)];
        store.arrange(moves, at(now)).await.expect("writes");
        get(store, &row).await.expect("a row")
    };
    assert_eq!(arrange(5, pin, 20).await.arranged, pin);
    assert_eq!(
        arrange(4, ListArrangement::default(), 21).await.arranged,
        pin
    );
    let entry = arrange(6, ListArrangement::default(), 22).await;
    assert_eq!(
        (entry.arranged, entry.touched),
        (ListArrangement::default(), at(22))
    );
}

/// Other devices of the owner learn of a read or a clear without any message.
pub(super) async fn touched_conversations_are_in_the_difference(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let rows = [5, 6].map(|offset| row(fresh, owner, private(owner, fresh.user()), offset));
    for row in rows {
        save(store, row).await;
    }
    assert_eq!(changed(store, owner, at(20)).await, []);
    let [read, cleared] = rows.map(|row| row.conversation);
    let changes = async || {
        let changes = changed(store, owner, at(20)).await;
        let changes = changes
            .iter()
            .map(|entry| (entry.row.conversation, entry.touched));
        changes.collect::<Vec<_>>()
    };
    let moves = vec![(owner, read, Seq(2))];
    store.set_read(moves, at(25)).await.expect("writes");
    assert_eq!(changes().await, [(read, at(25))]);
    let moves = vec![(owner, cleared, tally(2))];
    store.set_cleared(moves, at(30)).await.expect("writes");
    let mut expected = vec![(read, at(25)), (cleared, at(30))];
    expected.sort();
    assert_eq!(changes().await, expected);
}

// proves S4-13 in part (one part is updated, the others stay), S4-15 in part, S4-26, S4-27
/// A message moves the row's version and no register; an action of the owner moves `touched` and
/// not the row. The two stay distinct, and the list finds either.
pub(super) async fn a_message_touches_nothing_that_the_owner_did(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let first = row(fresh, owner, private(owner, fresh.user()), 3);
    save(store, first).await;
    let versions = async || {
        let entry = get(store, &first).await.expect("a row");
        (entry.row.version, entry.touched)
    };
    assert_eq!(versions().await, (at(3), Timestamp::ZERO));
    let read = vec![(owner, first.conversation, Seq(2))];
    store.set_read(read, at(10)).await.expect("writes");
    assert_eq!(versions().await, (at(3), at(10)));
    let next = row(fresh, owner, first.conversation, 20);
    save(store, next).await;
    assert_eq!(versions().await, (at(20), at(10)));
    for (min_version, is_listed) in [(at(10), true), (at(20), true), (at(21), false)] {
        assert_eq!(
            changed(store, owner, min_version).await.len() == 1,
            is_listed
        );
    }
    let moves = vec![(owner, first.conversation, tally(2))];
    store.set_cleared(moves, at(30)).await.expect("writes");
    assert_eq!(versions().await, (at(20), at(30)));
    assert_eq!(changed(store, owner, at(21)).await.len(), 1);
}

/// Registers of a group come back although no row of it is ever written.
pub(super) async fn registers_stand_without_a_row(store: &dyn ConversationStore, fresh: &TestIds) {
    let owner = fresh.user();
    let group = ConversationId::Group(GroupId::new(owner.get()).expect("positive"));
    let other = private(owner, fresh.user());
    let pin = ListArrangement {
        pinned: true,
        muted_until: None,
    };
    let version = Version {
        epoch: 1,
        offset: 1,
    };
    let result = store.set_read(vec![(owner, group, Seq(4))], at(3)).await;
    result.expect("writes");
    let result = store.set_received(vec![(owner, group, Seq(6))]).await;
    result.expect("writes");
    let result = store.set_cleared(vec![(owner, group, tally(2))], at(5));
    result.await.expect("writes");
    let moves = vec![(owner, group, version, pin)];
    store.arrange(moves, at(7)).await.expect("writes");
    let registers = ListRegisters {
        read_seq: Seq(4),
        received_seq: Seq(6),
        cleared: tally(2),
        touched: at(7),
        arranged: pin,
        hidden: 0,
    };
    let keys = [(owner, other), (owner, group)];
    let rows = store.registers(&keys).await.expect("reads");
    assert_eq!(rows, [ListRegisters::default(), registers]);
    assert_eq!(changed(store, owner, Timestamp::ZERO).await, []);

    for now in [9, 8] {
        let result = store.touch(vec![(owner, group)], at(now)).await;
        result.expect("writes");
    }
    let rows = store.registers(&keys[1..]).await.expect("reads");
    let expected = ListRegisters {
        touched: at(9),
        ..registers
    };
    assert_eq!(rows, [expected]);
}

/// Each hidden message comes once, by the record that hid it, page after page, and is found by its
/// place; the register holds the last mark, also without a row.
pub(super) async fn hidden_messages_come_back_in_record_order(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let peer = fresh.user();
    let group = ConversationId::Group(GroupId::new(owner.get()).expect("positive"));
    let talk = private(owner, peer);
    let version = |offset| Version { epoch: 2, offset };
    let mark = |offset| version(offset).mark();
    let hide = async |conversation, offsets: &[(u64, u64)], now| {
        let rows = offsets.iter();
        let rows = rows.map(|&(offset, seq)| (owner, conversation, version(offset), Seq(seq)));
        store.hide(rows.collect(), at(now)).await.expect("writes");
    };
    let list_hidden = async |user, conversation, after_mark, limit| {
        let rows = store.hidden(user, conversation, after_mark, limit).await;
        rows.expect("reads")
    };
    assert_eq!(list_hidden(owner, talk, 0, 9).await, []);
    hide(talk, &[(4, 70), (6, 3)], 20).await;
    hide(group, &[(5, 1)], 21).await;
    // A record is redelivered, also after a later one.
    hide(talk, &[(9, 8)], 22).await;
    hide(talk, &[(6, 3)], 19).await;
    let all = [(mark(4), Seq(70)), (mark(6), Seq(3)), (mark(9), Seq(8))];
    assert_eq!(list_hidden(owner, talk, 0, 9).await, all);
    assert_eq!(list_hidden(owner, talk, 0, 2).await, all[..2]);
    assert_eq!(list_hidden(owner, talk, mark(6), 9).await, all[2..]);
    assert_eq!(list_hidden(owner, talk, u64::MAX, 9).await, []);
    assert_eq!(list_hidden(owner, group, 0, 9).await, [(mark(5), Seq(1))]);
    assert_eq!(list_hidden(peer, talk, 0, 9).await, []);
    let queries = [
        (owner, talk, Seq(3)),
        (owner, talk, Seq(70)),
        (owner, talk, Seq(4)),
        (owner, group, Seq(1)),
        (owner, group, Seq(3)),
        (peer, talk, Seq(3)),
    ];
    let first = store.first_hidden(&queries).await.expect("reads");
    let marks = [
        Some(mark(6)),
        Some(mark(4)),
        None,
        Some(mark(5)),
        None,
        None,
    ];
    assert_eq!(first, marks);
    let keys = [(owner, talk), (owner, group), (peer, talk)];
    let registers = store.registers(&keys).await.expect("reads");
    let registers = registers.iter().map(|entry| (entry.hidden, entry.touched));
    assert_eq!(
        registers.collect::<Vec<_>>(),
        [(mark(9), at(22)), (mark(5), at(21)), (0, Timestamp::ZERO)]
    );
    let new_row = row(fresh, owner, talk, 3);
    save(store, new_row).await;
    let entries = changed(store, owner, at(22)).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].hidden, mark(9));
}

/// Also among many that were hidden, and where two records hid it.
pub(super) async fn the_first_record_that_hid_a_message_is_found(
    store: &dyn ConversationStore,
    fresh: &TestIds,
) {
    let owner = fresh.user();
    let talk = private(owner, fresh.user());
    let version = |offset| Version { epoch: 1, offset };
    let hides = (1..=600).map(|number| (owner, talk, version(number), Seq(number)));
    store.hide(hides.collect(), at(20)).await.expect("writes");
    let repeat = vec![(owner, talk, version(601), Seq(599))];
    store.hide(repeat, at(21)).await.expect("writes");
    let keys = [599, 600, 601].map(|seq| (owner, talk, Seq(seq)));
    let first = store.first_hidden(&keys).await.expect("reads");
    let mark = |offset| Some(version(offset).mark());
    assert_eq!(first, [mark(599), mark(600), None]);
    assert_eq!(store.first_hidden(&[]).await.expect("reads"), []);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_row_comes_back_with_its_registers,
            only_a_later_source_replaces,
            the_same_source_may_raise_the_version,
            the_difference_equals_a_recomputation,
            pages_of_the_list_visit_each_conversation_once,
            registers_only_move_forward,
            touched_conversations_are_in_the_difference,
            the_later_record_arranges,
            registers_stand_without_a_row,
            hidden_messages_come_back_in_record_order,
            the_first_record_that_hid_a_message_is_found,
            a_message_touches_nothing_that_the_owner_did,
        );
    };
}
pub(crate) use checks;
