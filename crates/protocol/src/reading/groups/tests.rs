use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::change::{ChangeRequest, MessageChange};
use crate::history::Version;
use crate::message::Content;
use crate::{
    DeviceId, GroupId, Message, Options, Position, Recipient, SendId, UserId, reading::dense_page,
};

const SETTINGS: GroupSettings = GroupSettings::CLOSED;

fn id(number: u64) -> MessageId {
    MessageId::new(i64::try_from(number).expect("small")).expect("positive")
}

fn placed(seq: u64) -> Placed {
    let group = GroupId::new(7).expect("positive");
    Placed {
        conversation: ConversationId::Group(group),
        position: Position {
            seq: Seq(seq),
            prev: (seq > 1).then(|| id(1000 + seq - 1)),
        },
        message: Message {
            id: id(1000 + seq),
            from: UserId::new(1).expect("positive"),
            to: Recipient::Group(group),
            accepted_at: Timestamp::ZERO,
            device: DeviceId::new("d").expect("short"),
            send_id: SendId::from_bytes([1; 16]),
            options: Options::CHAT,
            content: Content::text("x"),
        },
    }
}

fn head(seq: u64) -> Head {
    Head {
        seq: Seq(seq),
        last_id: Some(id(1000 + seq)),
        ..Head::default()
    }
}

fn member(role: Option<Role>, since_seq: u64) -> Member {
    let version = Version {
        epoch: 1,
        offset: 1,
    };
    Member::new(role, Seq(since_seq), version)
}

fn newest(cursor: Option<u64>) -> HistoryRange {
    HistoryRange::Backward {
        before: cursor.map(Seq),
    }
}

// proves S0-15: who came later may read what was before, where the group says so.
#[test]
fn late_members_read_from_where_the_group_allows() {
    let open = GroupSettings {
        open_history: true,
        ..SETTINGS
    };
    let readable_from =
        |settings, member| readable_after(settings, Some(&member)).map_err(|r| r.code);
    let late_member = member(Some(Role::Member), 40);
    assert_eq!(readable_from(SETTINGS, late_member), Ok(Seq(40)));
    assert_eq!(readable_from(open, late_member), Ok(Seq::ZERO));
    assert_eq!(readable_from(open, member(None, 40)), Err(Code::Forbidden));
    let no_member = readable_after(open, None).map_err(|r| r.code);
    assert_eq!(no_member, Err(Code::Forbidden));
}

#[test]
fn a_page_ends_where_its_reader_came() {
    let cut = |range: HistoryRange, seqs: &[u64], floor| {
        let range = range_behind(range, Seq(floor));
        let messages: Vec<Placed> = seqs.iter().copied().map(placed).collect();
        let page = dense_page(&messages, range, Seq(9)).expect("dense");
        let page = page_behind(page, range, Seq(floor));
        let seqs = page.messages.iter().map(|message| message.position.seq.0);
        (seqs.collect::<Vec<_>>(), page.more)
    };
    assert_eq!(cut(newest(None), &[9, 8, 7], 5), (vec![9, 8, 7], true));
    assert_eq!(cut(newest(None), &[9, 8, 7], 6), (vec![9, 8, 7], false));
    assert_eq!(cut(newest(None), &[9, 8, 7], 7), (vec![9, 8], false));
    assert_eq!(cut(newest(None), &[9, 8, 7], 9), (vec![], false));
    assert_eq!(cut(newest(Some(7)), &[6, 5], 6), (vec![], false));
    assert_eq!(cut(newest(Some(7)), &[6, 5], 0), (vec![6, 5], true));
    let forward = HistoryRange::Forward { after: Seq(2) };
    assert_eq!(cut(forward, &[7, 8], 6), (vec![7, 8], true));
    assert_eq!(cut(forward, &[3, 4], 0), (vec![3, 4], true));
    assert_eq!(cut(forward, &[], 9), (vec![], false));
}

#[test]
fn an_edit_of_what_may_not_be_read_says_nothing() {
    let ordered_change = |rev, seq, change| OrderedChange {
        rev,
        seq: Seq(seq),
        asked: ChangeRequest {
            id: id(rev),
            send_id: SendId::from_bytes([2; 16]),
            subject: id(1000 + seq),
            by: UserId::new(1).expect("positive"),
            at: Timestamp::ZERO,
            change,
        },
    };
    let edit = |rev, seq| ordered_change(rev, seq, MessageChange::Edit(Content::text("secret")));
    let mut changes = [
        edit(1, 4),
        edit(2, 5),
        ordered_change(3, 2, MessageChange::Recall),
    ];
    changes_behind(&mut changes, Seq(4));
    let expected = [
        ordered_change(1, 4, MessageChange::Edit(Content::text(""))),
        edit(2, 5),
        ordered_change(3, 2, MessageChange::Recall),
    ];
    assert_eq!(changes, expected);
}

fn reached_seqs(
    messages: &[u64],
    range: HistoryRange,
    last: u64,
    limit: usize,
) -> Option<Vec<u64>> {
    let messages = messages.iter().copied().map(placed).collect();
    let page = from_timeline(messages, range, &head(last), limit, 1000)?;
    Some(page.iter().map(|placed| placed.position.seq.0).collect())
}

#[test]
fn the_newest_answer_what_they_reach() {
    let cached_seqs = [9, 8, 7, 6];
    assert_eq!(
        reached_seqs(&cached_seqs, newest(None), 9, 3),
        Some(vec![9, 8, 7])
    );
    assert_eq!(
        reached_seqs(&cached_seqs, newest(None), 8, 3),
        Some(vec![8, 7, 6])
    );
    assert_eq!(
        reached_seqs(&cached_seqs, newest(None), 10, 3),
        None,
        "it lags"
    );
    assert_eq!(
        reached_seqs(&cached_seqs, newest(Some(8)), 9, 2),
        Some(vec![7, 6])
    );
    assert_eq!(
        reached_seqs(&cached_seqs, newest(Some(8)), 9, 3),
        None,
        "too few"
    );
    assert_eq!(reached_seqs(&cached_seqs, newest(Some(6)), 9, 9), None);
    assert_eq!(
        reached_seqs(&cached_seqs, newest(Some(1)), 9, 9),
        Some(vec![])
    );
    assert_eq!(reached_seqs(&[], newest(None), 0, 9), Some(vec![]));
    let forward_from = |seq| HistoryRange::Forward { after: Seq(seq) };
    assert_eq!(
        reached_seqs(&cached_seqs, forward_from(6), 9, 2),
        Some(vec![7, 8])
    );
    assert_eq!(reached_seqs(&cached_seqs, forward_from(4), 9, 2), None);
    assert_eq!(
        reached_seqs(&cached_seqs, forward_from(9), 9, 2),
        Some(vec![])
    );
    assert_eq!(
        reached_seqs(&[9, 8, 6], newest(None), 9, 2),
        Some(vec![9, 8])
    );
    assert_eq!(reached_seqs(&[9, 8, 6], newest(None), 9, 3), None);
    assert_eq!(reached_seqs(&[2, 1], newest(None), 2, 9), Some(vec![2, 1]));
    assert_eq!(
        reached_seqs(&cached_seqs, forward_from(7), 9, 9),
        Some(vec![8, 9])
    );
    let large = cached_seqs.iter().copied().map(placed).collect();
    let page = from_timeline(large, newest(None), &head(9), 9, 4);
    assert_eq!(
        page.map(|page| page.len()),
        Some(4),
        "as much as a page takes"
    );
}

/// An overtaken writer may have put other messages there.
#[test]
fn unlinked_messages_are_not_believed() {
    let mut other_end = placed(9);
    other_end.message.id = id(77);
    let messages = vec![other_end, placed(8)];
    assert_eq!(
        from_timeline(messages, newest(None), &head(9), 2, 1000),
        None
    );
    let mut other = placed(8);
    other.message.id = id(78);
    let messages = vec![placed(9), other, placed(7)];
    let page = |limit| from_timeline(messages.clone(), newest(None), &head(9), limit, 1000);
    assert_eq!(page(1), Some(vec![placed(9)]));
    assert_eq!(page(2), None);
}

#[derive(Clone, Copy, Debug)]
enum GroupStep {
    Say,
    Come,
    Leave,
    Read,
    Ask,
}

fn step() -> impl Strategy<Value = GroupStep> {
    let steps = [
        GroupStep::Say,
        GroupStep::Come,
        GroupStep::Leave,
        GroupStep::Read,
        GroupStep::Ask,
    ];
    (0..steps.len()).prop_map(move |index| steps[index])
}

proptest! {
    // proves S4-33, S4-07 in part: what changes for a member without a row of theirs being written is found all the same, and
    // a group where nothing happens is not told twice.
    #[test]
    fn a_device_learns_of_a_group_what_there_is(steps in vec(step(), 0..80)) {
        let at = Timestamp::from_millis;
        let mut row = GroupListKey {
            role: None,
            end: Seq::ZERO,
            stamp: Timestamp::ZERO,
            touched_at: Timestamp::ZERO,
            cleared_tally: Tally::default(),
        };
        let (mut read_seq, mut known_state, mut asked_at) = (0, None, Timestamp::ZERO);
        for (now, step) in (1..).zip(steps) {
            match step {
                GroupStep::Say => (row.end, row.stamp) = (row.end.next(), at(now)),
                GroupStep::Come if row.role.is_none() => {
                    (row.role, row.touched_at) = (Some(Role::Member), at(now));
                }
                // The carrier touches the row of a user who joins or leaves.
                GroupStep::Leave => (row.role, row.touched_at) = (None, at(now)),
                GroupStep::Read => (read_seq, row.touched_at) = (row.end.0, at(now)),
                GroupStep::Come | GroupStep::Ask => {}
            }
            if matches!(step, GroupStep::Ask) {
                let is_told = row.is_told(asked_at, asked_at);
                let current_state = row.role.map(|_| (row.end, read_seq));
                if is_told {
                    known_state = current_state;
                }
                prop_assert_eq!(known_state, current_state);
                let was_quiet = row.stamp.max(row.touched_at) < asked_at;
                prop_assert!(!(was_quiet && asked_at > Timestamp::ZERO && is_told));
                asked_at = at(now);
            }
        }
    }
}

/// Not how long it is, nor when something was last said in it.
#[test]
fn a_row_of_a_former_member_tells_nothing_of_the_group() {
    let row = |role, stamp| {
        let entry = GroupListEntry {
            group: GroupId::new(7).expect("positive"),
            member: member(role, 3),
            head: Head {
                stamp: Timestamp::from_millis(stamp),
                rev: stamp as u64,
                ..head(stamp as u64)
            },
            changed_to: Seq::ZERO,
            read_seq: Seq::ZERO,
            cleared_tally: Tally::default(),
            touched_at: Timestamp::from_millis(5),
            arrangement: ListArrangement::default(),
            hide_mark: 0,
        };
        entry.summary()
    };
    assert_eq!(row(None, 10), row(None, 20));
    let member = Some(Role::Member);
    assert_ne!(row(member, 10), row(member, 20));
}
