use bytes::Bytes;
use proptest::prelude::*;
use protocol::change::{ChangeKind, ChangeOf};
use protocol::message::Content;
use protocol::receipt::ReceiptStatus;
use protocol::{
    Code, ConversationId, MessageId, Options, Recipient, Refusal, SendId, Seq, Timestamp, UserId,
};

use super::*;
use crate::core::{ConversationProgress, Cursor, FollowedRow, OutboxRow};

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn device() -> DeviceId {
    DeviceId::new("phone").expect("short")
}

fn open(state: &StorePath) -> Result<Store, StoreError> {
    Store::open(state, Platform::Ios, &device(), Durability::Disk)
}

fn conversation(peer: i64) -> ConversationId {
    ConversationId::private(user(1), user(peer + 1)).expect("two users")
}

fn changes() -> impl Strategy<Value = Change> {
    let order = 1..6u64;
    let send_id = |order: u64| SendId::from_bytes([order as u8; 16]);
    let id = |number: i64| MessageId::new(number).expect("positive");
    let outbox = (
        order.clone(),
        any::<(bool, i32, i32, i32, i64, Vec<u8>)>(),
        any::<Option<i64>>(),
    );
    prop_oneof![
        any::<u64>().prop_map(Change::Marker),
        (
            1..5i64,
            proptest::collection::vec((1..40u64, 0..9u64), 1..5)
        )
            .prop_map(move |(peer, came)| {
                let mut ranges = protocol::loaded_ranges::LoadedRanges::default();
                for (first, more) in came {
                    ranges.add(Seq(first)..=Seq(first + more));
                }
                Change::Loaded(conversation(peer), ranges)
            }),
        (1..5i64, proptest::collection::vec(1..40u64, 1..5)).prop_map(move |(peer, seqs)| {
            Change::Hidden(conversation(peer), seqs.into_iter().map(Seq).collect())
        }),
        (1..5i64, 1..40u64)
            .prop_map(move |(peer, end)| { Change::HiddenUpTo(conversation(peer), Seq(end)) }),
        (0..i64::MAX).prop_map(|at| Change::ListVersion(Timestamp::from_millis(at))),
        (1..5i64, any::<[u32; 4]>(), any::<bool>()).prop_map(move |(peer, n, was_read)| {
            let progress = ConversationProgress {
                cursor: Cursor {
                    seq: Seq(n[0].into()),
                    id: was_read.then(|| id(i64::from(n[1]) + 1)),
                    at: Timestamp::from_millis(n[2].into()),
                },
                known_seq: Seq(n[3].into()),
                read: was_read.then(|| (Seq(n[1].into()), id(7))),
                read_acked: Seq(n[2].into()),
                rev: n[1].into(),
                hide_number: n[0].into(),
                hidden_known: n[2].into(),
            };
            Change::Conversation(conversation(peer), progress)
        }),
        outbox.prop_map(move |(order, (group, kind, a, b, key, data), failure)| {
            Change::Outbox(OutboxRow {
                order,
                send_id: send_id(order),
                to: if group {
                    Recipient::Group(protocol::GroupId::new(9).expect("positive"))
                } else {
                    Recipient::User(user(2))
                },
                options: Options::CHAT,
                content: Content {
                    kind,
                    data: Bytes::from(data),
                    priority: a,
                    reference: failure.map(|_| id(3)),
                    encryption: b,
                    sub_kind: a,
                    key_print: key,
                    change: group.then(|| {
                        Box::new(ChangeOf {
                            subject: Some(id(4)),
                            kind: ChangeKind::Edit,
                        })
                    }),
                },
                created_at: Timestamp::from_millis(key),
                refusal: failure.map(|_| Refusal::new(Code::Unavailable, "later")),
            })
        }),
        (order.clone(), any::<Option<u32>>()).prop_map(move |(order, seq)| {
            Change::Followed(FollowedRow {
                order,
                send_id: send_id(order),
                conversation: conversation(1),
                id: id(order as i64),
                seq: seq.map(|seq| Seq(seq.into())),
                status: seq.map_or(ReceiptStatus::Sent, |_| ReceiptStatus::Read),
            })
        }),
        order.prop_map(|order| Change::Forget { order }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // The file yields the value, whatever is written.
    #[test]
    fn the_file_is_the_value(batches in prop::collection::vec(prop::collection::vec(changes(), 0..6), 0..6)) {
        let mut store = open(&StorePath::Memory).expect("in memory");
        let mut snapshot = Snapshot::default();
        for batch in batches {
            store.write(&batch).expect("written");
            batch.into_iter().for_each(|change| snapshot.apply(change));
            prop_assert_eq!(&store.load().expect("readable"), &snapshot);
        }
    }
}

#[test]
fn written_state_survives_reopening() {
    let folder = tempfile::tempdir().expect("folder");
    let state = StorePath::Path(folder.path().join("new/phone.db"));
    let account = Account {
        cluster: u64::MAX,
        user: user(1),
    };
    let mut store = open(&state).expect("new");
    let changes = [Change::Account(account), Change::Marker(u64::MAX - 1)];
    store.write(&changes).expect("written");
    drop(store);
    let snapshot = open(&state).expect("there").load().expect("readable");
    assert_eq!(
        (snapshot.account, snapshot.marker),
        (Some(account), Some(u64::MAX - 1))
    );
}

#[test]
fn a_file_is_for_one_at_a_time_and_for_one_device() {
    let folder = tempfile::tempdir().expect("folder");
    let state = StorePath::Path(folder.path().join("phone.db"));
    let first = open(&state).expect("new");
    assert!(matches!(open(&state), Err(StoreError::Locked(_))));
    drop(first);
    let other = Store::open(&state, Platform::Web, &device(), Durability::Disk);
    let text = other.expect_err("another platform").to_string();
    assert!(
        text.contains("ios/phone") && text.contains("web/phone"),
        "{text}"
    );
    assert!(open(&state).is_ok());
}

#[test]
fn accounts_are_kept_apart_and_found_again() {
    let first_account = Account {
        cluster: 1,
        user: user(1),
    };
    let second_account = Account {
        cluster: 2,
        user: user(1),
    };
    let mut store = open(&StorePath::Memory).expect("in memory");
    let changes = [
        Change::Account(first_account),
        Change::Conversation(conversation(1), ConversationProgress::default()),
    ];
    store.write(&changes).expect("written");
    let snapshot = store.switch(second_account).expect("switched");
    assert_eq!(snapshot.account, Some(second_account));
    assert!(snapshot.conversations.is_empty());
    let snapshot = store.switch(first_account).expect("switched back");
    assert_eq!(snapshot.conversations.len(), 1);
}

// Unsent messages move with their user, in order, behind those that wait there; another user gets
// none.
#[test]
fn an_outbox_moves_with_its_user() {
    let account = |cluster, number| Account {
        cluster,
        user: user(number),
    };
    let send_id = |name: u8| SendId::from_bytes([name; 16]);
    let row = |order: u64, name: u8| {
        Change::Outbox(OutboxRow {
            order,
            send_id: send_id(name),
            to: Recipient::User(user(2)),
            options: Options::CHAT,
            content: Content::text("x"),
            created_at: Timestamp::ZERO,
            refusal: None,
        })
    };
    let mut store = open(&StorePath::Memory).expect("in memory");
    store
        .write(&[Change::Account(account(1, 1)), row(3, 1), row(4, 2)])
        .expect("written");
    let snapshot = store.switch(account(1, 9)).expect("switched");
    assert!(snapshot.outbox.is_empty(), "another user's");
    store.switch(account(1, 1)).expect("switched back");
    let names = |snapshot: &Snapshot| -> Vec<SendId> {
        let rows = snapshot.outbox.values();
        rows.map(|row| row.send_id).collect()
    };
    let snapshot = store.switch(account(2, 1)).expect("switched");
    assert_eq!(names(&snapshot), [send_id(1), send_id(2)]);
    store.write(&[row(9, 3)]).expect("written");
    let snapshot = store.switch(account(1, 1)).expect("switched back");
    assert_eq!(names(&snapshot), [send_id(1), send_id(2), send_id(3)]);
    store.write(&[row(20, 4)]).expect("written");
    let snapshot = store.switch(account(2, 1)).expect("switched");
    let all = [send_id(1), send_id(2), send_id(3), send_id(4)];
    assert_eq!(names(&snapshot), all);
    let snapshot = store.switch(account(1, 1)).expect("switched back");
    assert_eq!(names(&snapshot), all);
    assert!(
        store
            .switch(account(2, 9))
            .expect("switched")
            .outbox
            .is_empty()
    );
}
