//! Registers of rows: receipts and deletions.

use protocol::history::RowStatus;
use protocol::receipt::{ReceiptKind, StatusWrite};

use super::*;
use crate::test_ids::at;

async fn status(store: &dyn MessageStore, owner: UserId, id: MessageId) -> RowStatus {
    store.status(&[(owner, id)]).await.expect("reads")[0]
}

async fn write_receipt(
    store: &dyn MessageStore,
    owner: UserId,
    id: MessageId,
    kind: ReceiptKind,
    millis: u64,
) -> bool {
    let write = StatusWrite {
        owner,
        id,
        kind,
        at: at(millis),
    };
    store.set_status(vec![write]).await.expect("writes")[0]
}

/// Several records of one batch may ask for the same row.
pub(crate) async fn duplicate_keys_get_duplicate_answers(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::private(fresh);
    let ids = talk.say(store, 1..=2).await;
    write_receipt(store, talk.from, ids[0], ReceiptKind::Read, 5).await;
    let keys = [ids[0], ids[1], ids[0], ids[0]].map(|id| (talk.from, id));
    let owners = keys.map(|(user, id)| (Owner::User(user), id));
    let rows = store.rows(&owners).await.expect("reads");
    assert!(rows[0].is_some() && rows[1].is_some());
    assert_eq!((&rows[2], &rows[3]), (&rows[0], &rows[0]));
    let places = store.places(&keys).await.expect("reads");
    assert_eq!((places[2], places[3]), (places[0], places[0]));
    let statuses = store.status(&keys).await.expect("reads");
    assert_eq!((statuses[2], statuses[3]), (statuses[0], statuses[0]));
    assert_ne!(statuses[0], statuses[1]);
}

// proves S0-54, S0-55, S0-56: each receipt has a register of its own on the sender's row; the receiver's row does not
// change.
// proves S4-13: an update answers what it changed; its other four parts stand in the contract of conversations.
pub(crate) async fn receipts_only_move_forward(store: &dyn MessageStore, fresh: &TestIds) {
    use ReceiptKind::{Read, Received};
    let talk = Talk::private(fresh);
    let ids = talk.say(store, 1..=3).await;
    let (a, id) = (talk.from, ids[0]);
    assert!(write_receipt(store, a, id, Received, 10).await);
    assert!(!write_receipt(store, a, id, Received, 5).await);
    assert_eq!(status(store, a, id).await.delivered_at, Some(at(10)));
    assert_eq!(status(store, a, id).await.read_at, None);
    assert!(write_receipt(store, a, id, Read, 20).await);
    assert!(!write_receipt(store, a, id, Read, 15).await);
    assert!(!write_receipt(store, a, id, Received, 12).await);
    let receipts = status(store, a, id).await;
    assert_eq!(receipts.read_at, Some(at(20)));
    assert!(receipts.delivered_at.is_some());

    // Read first implies received; a later receipt undoes nothing. Both in one call.
    let writes = [Read, Received].map(|kind| StatusWrite {
        owner: a,
        id: ids[1],
        kind,
        at: at(30),
    });
    let results = store.set_status(writes.to_vec()).await.expect("writes");
    assert_eq!(results, [true, false]);
    let read = status(store, a, ids[1]).await;
    assert_eq!(
        (read.delivered_at, read.read_at),
        (Some(at(30)), Some(at(30)))
    );

    let receiver_status = status(store, talk.receiver(), id).await;
    assert_eq!(receiver_status, RowStatus::default());

    // Each receipt has a time of its own.
    let writes = [(Received, 40), (Read, 50)].map(|(kind, millis)| StatusWrite {
        owner: a,
        id: ids[2],
        kind,
        at: at(millis),
    });
    let results = store.set_status(writes.to_vec()).await.expect("writes");
    assert_eq!(results, [true, true]);
    let receipts = status(store, a, ids[2]).await;
    let times = (receipts.delivered_at, receipts.read_at);
    assert_eq!(times, (Some(at(40)), Some(at(50))));
}

// proves S0-57 in part: deleted on both sides, and neither a receipt nor a repeat clears it.
pub(crate) async fn a_private_message_is_deleted_for_good(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::private(fresh);
    let id = fresh.message();
    let rows = talk.rows(id, 1, 1);
    store.save(rows.clone()).await.expect("saves");
    let receiver_key = [(talk.receivers(), id)];
    store.delete(&receiver_key).await.expect("deletes");
    write_receipt(store, talk.from, id, ReceiptKind::Read, 10).await;
    store.save(rows).await.expect("saves");
    store.delete(&receiver_key).await.expect("deletes");
    for owner in [talk.from, talk.receiver()] {
        assert!(status(store, owner, id).await.deleted, "{owner}");
    }
    let keys = [
        talk.writers(),
        talk.receivers(),
        talk.elsewhere().receivers(),
    ];
    let flags = store.deleted(&keys.map(|owner| (owner, id))).await;
    assert_eq!(flags.expect("reads"), [true, true, false]);
}

// proves S0-61e in part: deleted is for good, whatever is written again, before or after.
pub(crate) async fn a_message_of_a_group_is_deleted_for_good(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::group(fresh);
    let owner = talk.writers();
    let ids = talk.say(store, 1..=3).await;
    store.delete(&[(owner, ids[0])]).await.expect("deletes");
    let unwritten = talk.row(fresh.message(), 4, 4);
    let early = [(owner, unwritten.id()), (owner, ids[0])];
    store.delete(&early).await.expect("deletes");
    assert_eq!(store.rows(&early[..1]).await.expect("reads"), [None]);
    let rewrite = talk.row(ids[0], 1, 9);
    let late = vec![rewrite.clone(), unwritten];
    store.save(late).await.expect("saves");

    let queries = [(owner, ids[0]), (owner, ids[1]), early[0], early[1]];
    let flags = store.deleted(&queries).await.expect("reads");
    assert_eq!(flags, [true, false, true, true]);
    let other_group = talk.elsewhere().writers();
    let keys: Vec<_> = ids.iter().map(|id| (other_group, *id)).collect();
    let flags = store.deleted(&keys).await.expect("reads");
    assert_eq!(flags, [false; 3]);
    // The row stays: readers decide what to show.
    let rows = store.rows(&queries[..1]).await.expect("reads");
    assert_eq!(rows, [Some(rewrite)]);
}

/// A rewrite of a row, as by a redelivery, leaves its registers.
pub(crate) async fn a_row_written_again_keeps_its_status(
    store: &dyn MessageStore,
    fresh: &TestIds,
) {
    let talk = Talk::private(fresh);
    let id = fresh.message();
    let mut rows = talk.rows(id, 1, 1);
    store.save(rows.clone()).await.expect("saves");
    write_receipt(store, talk.from, id, ReceiptKind::Received, 10).await;
    for row in &mut rows {
        row.version = version(2);
    }
    store.save(rows).await.expect("saves");
    let status = status(store, talk.from, id).await;
    assert_eq!(status.delivered_at, Some(at(10)));
}
