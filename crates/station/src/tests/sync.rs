//! Answers to a device that comes back.

use std::time::Duration;

use api::station::SyncCall;
use api::v1;
use protocol::frame::{
    HistoryPage, HistoryRange, ListPage, MessageStatus, SyncAnswer, SyncPage, SyncQuery,
    SyncRequest,
};
use protocol::group::Role;
use protocol::receipt::ReceiptKind;
use protocol::{Code, ConversationId, MessageId, Placed, Seq, Timestamp};

use super::groups::{CLOSED, of};
use super::receipts::receipt_item;
use super::world::*;
use crate::Config;

/// More than the time by which a list looks back.
const MARGIN: Duration = Duration::from_secs(11);

impl World {
    pub(super) async fn ask(&self, number: i64, query: SyncQuery) -> Result<SyncAnswer, Code> {
        let call = SyncCall {
            user: user(number),
            session: session(number),
            request: SyncRequest { request: 9, query },
            ticket: None,
        };
        let answer = self.client.clone().sync(v1::SyncCall::from(&call)).await;
        let page = answer.map_err(|status| refusal_code(&status))?.into_inner();
        let page = SyncPage::try_from(page).expect("whole");
        assert_eq!(page.request, 9);
        Ok(page.answer)
    }

    pub(super) async fn list(
        &self,
        number: i64,
        lower_bound: Timestamp,
        cursor: Option<ConversationId>,
    ) -> ListPage {
        match self
            .ask(
                number,
                SyncQuery::List {
                    since: lower_bound,
                    cursor,
                },
            )
            .await
        {
            Ok(SyncAnswer::List(page)) => page,
            other => panic!("not a list: {other:?}"),
        }
    }

    pub(super) async fn history(
        &self,
        number: i64,
        conversation: ConversationId,
        range: HistoryRange,
        limit: u32,
    ) -> Result<HistoryPage, Code> {
        let query = SyncQuery::History {
            conversation,
            range,
            limit,
        };
        match self.ask(number, query).await? {
            SyncAnswer::History(page) => Ok(page),
            other => panic!("not history: {other:?}"),
        }
    }

    pub(super) async fn ask_status(&self, number: i64, ids: &[MessageId]) -> Vec<MessageStatus> {
        match self
            .ask(number, SyncQuery::Status { ids: ids.to_vec() })
            .await
        {
            Ok(SyncAnswer::Status(statuses)) => statuses,
            other => panic!("not statuses: {other:?}"),
        }
    }
}

fn seqs(page: &HistoryPage) -> Vec<u64> {
    page.messages.iter().map(|m| m.position.seq.0).collect()
}

// proves S4-02 in part, S4-08, S4-12, S4-16:
// the difference is found by version, each entry with its newest.
#[tokio::test(start_paused = true)]
async fn the_list_holds_what_changed_with_its_newest_message() {
    let world = world().await;
    world.place(1, 2, 1, "old").await;
    world.place(2, 1, 2, "newer").await;
    world.place(3, 1, 1, "other").await;
    let page = world.list(1, Timestamp::ZERO, None).await;
    assert!(!page.more);
    let newest: Vec<_> = page
        .conversations
        .iter()
        .map(|c| {
            (
                c.conversation,
                c.seq,
                message_text(&c.newest.as_ref().expect("there").message),
            )
        })
        .collect();
    assert_eq!(
        newest,
        [
            (between(1, 2), Seq(2), "newer".to_owned()),
            (between(1, 3), Seq(1), "other".to_owned())
        ]
    );
    tokio::time::advance(Duration::from_secs(60)).await;
    let quiet = world.list(1, world.backends.clock.now(), None).await;
    assert_eq!(quiet.conversations, []);

    world.place(1, 2, 3, "now").await;
    let difference = world.list(1, quiet.version, None).await;
    let difference: Vec<_> = difference
        .conversations
        .iter()
        .map(|c| c.conversation)
        .collect();
    assert_eq!(difference, [between(1, 2)]);
}

// proves S4-03: one message each, the newest that is there, also where a newer one of another conversation or group lies
// beside it; none of a group in which the user may read nothing.
#[tokio::test(start_paused = true)]
async fn each_row_of_a_list_carries_its_newest_message_and_no_other() {
    let world = world().await;
    let mut expected = Vec::new();
    for peer in 2..=4 {
        for seq in 1..=peer as u64 {
            let newest = world.place(peer, 1, seq, &format!("{seq} of {peer}")).await;
            expected.retain(|(conversation, _)| *conversation != newest.conversation);
            expected.push((newest.conversation, Some(newest)));
        }
    }
    world.create_group(7, CLOSED, &[2]).await;
    world.say(7, 2, "before").await;
    world.set_role(7, CLOSED, 1, Some(Role::Member)).await;
    world.create_group(8, CLOSED, &[1, 2]).await;
    world.create_group(9, CLOSED, &[1, 2]).await;
    world.say(9, 2, "older").await;
    let newest = world.say(9, 2, "newer").await;
    expected.extend([(of(7), None), (of(8), None), (of(9), Some(newest))]);
    let page = world.list(1, Timestamp::ZERO, None).await;
    let rows = page.conversations.into_iter();
    let newest_messages: Vec<_> = rows.map(|row| (row.conversation, row.newest)).collect();
    assert_eq!(newest_messages, expected);
}

// proves S4-04 in part, S4-34 in part: the list is the server's, and no device is asked for anything of its own.
#[tokio::test(start_paused = true)]
async fn the_list_is_the_same_for_all_devices_and_comes_in_pages() {
    let world = world_with(Config {
        page_max: 3,
        ..Config::default()
    })
    .await;
    for peer in 2..=9 {
        world.place(1, peer, 1, "hi").await;
    }
    let (mut cursor, mut conversations, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = world.list(1, Timestamp::ZERO, cursor).await;
        pages += 1;
        assert!(page.conversations.len() <= 3);
        conversations.extend(page.conversations.iter().map(|c| c.conversation));
        cursor = conversations.last().copied();
        if !page.more {
            break;
        }
    }
    let all: Vec<_> = (2..=9).map(|peer| between(1, peer)).collect();
    assert_eq!((conversations, pages), (all, 3));
}

// proves S3-49; S4 Pitfall C: a version that the server has not reached is answered by a reset, none by all.
#[tokio::test(start_paused = true)]
async fn change_just_before_the_version_comes_again() {
    let world = world().await;
    world.place(1, 2, 1, "late").await;
    tokio::time::advance(Duration::from_secs(5)).await;
    let page = world.list(1, world.backends.clock.now(), None).await;
    assert_eq!(page.conversations.len(), 1, "within the margin of 10 s");
    tokio::time::advance(Duration::from_millis(5_001)).await;
    let page = world.list(1, world.backends.clock.now(), None).await;
    assert_eq!(page.conversations, [], "behind it");
    let everything = world.list(1, Timestamp::ZERO, None).await;
    assert_eq!(everything.conversations.len(), 1);
    let reset = SyncQuery::List {
        since: world.backends.clock.now() + Duration::from_millis(5_001),
        cursor: None,
    };
    assert_eq!(world.ask(1, reset).await, Err(Code::Reset));
}

// The device got its list from a server whose clock was ahead: it misses nothing that came meanwhile, and gets no
// version that the server has not reached.
#[tokio::test(start_paused = true)]
async fn a_version_ahead_of_the_clock_misses_no_conversation() {
    let world = world().await;
    world.place(1, 2, 1, "a new friend").await;
    let now = world.backends.clock.now();
    for lead in [1, 4_999, 5_000] {
        let version = now + Duration::from_millis(lead);
        let page = world.list(1, version, None).await;
        assert_eq!(page.conversations.len(), 1, "{lead} ms ahead");
        assert!(page.version <= now, "{lead} ms ahead");
    }
    for lead in [5_001, 300_000, 600_000] {
        let reset = SyncQuery::List {
            since: now + Duration::from_millis(lead),
            cursor: None,
        };
        assert_eq!(
            world.ask(1, reset).await,
            Err(Code::Reset),
            "{lead} ms ahead"
        );
    }
}

// proves S0-20 in part, S0-21: 1000 messages forward, in bounded pages, to the end of the list.
#[tokio::test(start_paused = true)]
async fn a_day_of_messages_is_loaded_forward_in_bounded_pages() {
    let world = world().await;
    for seq in 1..=1000 {
        world.place(1, 2, seq, "x").await;
    }
    let (mut cursor, mut loaded_seqs, mut pages) = (Seq(0), Vec::new(), 0);
    loop {
        let range = HistoryRange::Forward { after: cursor };
        let page = world.history(2, between(1, 2), range, 0).await;
        let page = page.expect("a page");
        pages += 1;
        assert_eq!(page.last_seq, Seq(1000));
        loaded_seqs.extend(seqs(&page));
        cursor = Seq(*loaded_seqs.last().expect("rows"));
        if !page.more {
            break;
        }
    }
    assert_eq!(loaded_seqs, (1..=1000).collect::<Vec<_>>());
    assert_eq!(pages, 10);
}

// proves S3-19: what lies behind the device's own cursor is not sent again, and nothing else is left out because it was read.
// proves S3 Pitfall D: another device of the same user, which has not got it, gets it all the same.
#[tokio::test(start_paused = true)]
async fn read_messages_are_synced_only_to_other_devices() {
    let world = world().await;
    let mut entries = Vec::new();
    for seq in 1..=5 {
        entries.push(world.place(1, 2, seq, "x").await);
    }
    let entries: Vec<&Placed> = entries.iter().collect();
    let read = receipt_item(2, ReceiptKind::Read, &entries);
    world.acknowledge(&[read]).await;
    tokio::time::advance(MARGIN).await;
    let first_list = world.list(2, Timestamp::ZERO, None).await;
    tokio::time::advance(MARGIN).await;

    let difference = world.list(2, first_list.version, None).await;
    assert_eq!(difference.conversations, [], "nothing is new");
    let seqs_after = async |seq| {
        let range = HistoryRange::Forward { after: Seq(seq) };
        let page = world.history(2, between(1, 2), range, 10).await;
        seqs(&page.expect("a page"))
    };
    for (cursor, expected) in [(5, vec![]), (4, vec![5]), (2, vec![3, 4, 5])] {
        assert_eq!(seqs_after(cursor).await, expected, "behind {cursor}");
    }

    let [row] = &first_list.conversations[..] else {
        panic!("one conversation: {first_list:?}");
    };
    assert_eq!((row.seq, row.unread), (Seq(5), 0), "read on all devices");
    assert_eq!(seqs_after(0).await, [1, 2, 3, 4, 5]);
}

// Two stations with clocks apart: a message accepted in the same millisecond, or under a smaller id,
// comes to its place after a device has read past it. The cursor is the place, so nothing is skipped.
// proves S3-45, S3-46, S3-47, S3-48, S3 Pitfall A
#[tokio::test(start_paused = true)]
async fn a_message_that_comes_late_under_a_smaller_id_is_not_skipped() {
    let world = world().await;
    let floor = MessageId::floor_of(BEGIN).get();
    let at_place = |seq: u64, id: i64| {
        let mut entry = world.placed(1, 2, seq, "x");
        entry.message.id = MessageId::new(floor + id).expect("positive");
        entry.message.accepted_at = BEGIN;
        entry
    };
    let page_after = async |seq| {
        let range = HistoryRange::Forward { after: Seq(seq) };
        let page = world.history(2, between(1, 2), range, 10).await;
        let messages = page.expect("a page").messages.into_iter();
        messages
            .map(|m| (m.position.seq.0, m.message.id.get() - floor))
            .collect::<Vec<_>>()
    };
    world.save_message(&at_place(1, 101)).await;
    world.save_message(&at_place(2, 102)).await;
    assert_eq!(page_after(0).await, [(1, 101), (2, 102)]);
    tokio::time::advance(Duration::from_millis(500)).await;
    world.save_message(&at_place(3, 103)).await;
    world.save_message(&at_place(4, 7)).await;
    assert_eq!(page_after(2).await, [(3, 103), (4, 7)]);
    // The counterpart: a cursor of ids skips a late message.
    let by_id = MessageId::new(floor + 102).expect("positive");
    let by_id = world.missed(2, Some(by_id)).await.expect("a page");
    let by_id = by_id.messages.iter().map(|m| m.message.id.get() - floor);
    assert_eq!(by_id.collect::<Vec<_>>(), [103]);
}

// proves S0-22 in part, S0-23, S3-35: backward from the newest, page after page, down to what the device has.
#[tokio::test(start_paused = true)]
async fn history_is_loaded_backward_from_the_newest() {
    let world = world().await;
    for seq in 1..=7 {
        let (from, to) = if seq % 2 == 0 { (1, 2) } else { (2, 1) };
        world.place(from, to, seq, "x").await;
    }
    let newest = HistoryRange::Backward { before: None };
    let page = world.history(1, between(1, 2), newest, 3).await;
    let page = page.expect("a page");
    assert_eq!((seqs(&page), page.more), (vec![7, 6, 5], true));
    let older = HistoryRange::Backward {
        before: Some(Seq(5)),
    };
    let page = world.history(1, between(1, 2), older, 100).await;
    let page = page.expect("a page");
    assert_eq!((seqs(&page), page.more), (vec![4, 3, 2, 1], false));
}

// reliability section 5 row 5: nobody reads another's conversation.
#[tokio::test(start_paused = true)]
async fn history_is_for_its_two_sides_and_within_its_bounds() {
    let world = world().await;
    world.place(1, 2, 1, "secret").await;
    let all = HistoryRange::Forward { after: Seq(0) };
    let stranger = world.history(3, between(1, 2), all, 10).await;
    assert_eq!(stranger, Err(Code::Forbidden));
    // Nor does the user's own list go on after it.
    let list = SyncQuery::List {
        since: Timestamp::ZERO,
        cursor: Some(between(1, 2)),
    };
    assert_eq!(world.ask(3, list).await, Err(Code::Forbidden));
    let empty = world.history(3, between(3, 4), all, 10).await;
    let empty = empty.expect("a page");
    assert_eq!(
        (seqs(&empty), empty.last_seq, empty.more),
        (vec![], Seq(0), false)
    );
    let past_end = HistoryRange::Forward { after: Seq(2) };
    let reset = world.history(1, between(1, 2), past_end, 10).await;
    assert_eq!(reset, Err(Code::Reset));
}

#[tokio::test(start_paused = true)]
async fn a_page_of_large_messages_ends_before_the_limit_of_bytes() {
    let world = world_with(Config {
        page_bytes_max: 100,
        ..Config::default()
    })
    .await;
    let large = "x".repeat(60);
    for seq in 1..=3 {
        world.place(1, 2, seq, &large).await;
    }
    let all = HistoryRange::Forward { after: Seq(0) };
    let page = world.history(1, between(1, 2), all, 10).await;
    let page = page.expect("a page");
    assert_eq!((seqs(&page), page.more), (vec![1], true));
}

#[tokio::test(start_paused = true)]
async fn the_status_is_for_the_sender_only() {
    let world = world().await;
    let entry = world.place(1, 2, 1, "hello").await;
    let unknown = MessageId::new(5).expect("positive");
    let own = world.ask_status(1, &[entry.message.id, unknown]).await;
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].delivered_at, own[0].read_at), (None, None));
    assert_eq!(world.ask_status(2, &[entry.message.id]).await, []);
    assert_eq!(world.ask_status(3, &[entry.message.id]).await, []);
}
