//! Writes that arrive late, again, or in another order.

use protocol::receipt::ReceiptKind::{Read, Received};
use scylla::client::session_builder::SessionBuilder;

use super::*;
use crate::Kind;
use crate::scylla::fixture::{config, cql, fresh};
use crate::scylla::messages::windows;

async fn status(store: &ScyllaMessages, owner: UserId, id: MessageId) -> RowStatus {
    store.status(&[(owner, id)]).await.expect("reads")[0]
}

/// Another process without memory writes an earlier record.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_zombie_replaces_nothing_that_is_later() {
    let fresh = fresh();
    for talk in Talk::each(&fresh) {
        let good = ScyllaMessages::new(cql().await);
        let id = say_at(&good, &talk, 9, 9).await;
        let zombie = ScyllaMessages::new(cql().await);
        // Content of the zombie sorts after the stored content.
        let late = rows(&talk, id, (5, 5), "zombie");
        zombie.save(late).await.expect("saves");
        let keys = [(talk.writers(), id), (talk.receivers(), id)];
        let result = good.rows(&keys).await;
        for row in result.expect("reads") {
            let row = row.expect("a row");
            assert_eq!((row.seq(), row.version.offset), (Seq(9), 9));
            assert_eq!(row.placed.message.content, Content::text("hello"));
        }
        // A zombie that claims the position for another message loses as well.
        let other = MessageId::floor_of(at(7));
        let claim = rows(&talk, other, (9, 6), "zombie");
        zombie.save(claim).await.expect("saves");
        let page = page(&good, &talk, forward(8), 9).await;
        let ids: Vec<_> = page.expect("reads").iter().map(MessageRow::id).collect();
        assert_eq!(ids, [id]);
    }
}

/// Another process without memory writes an earlier record, and undoes no deletion.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_zombie_of_a_group_brings_no_deleted_message_back() {
    let fresh = fresh();
    let talk = Talk::group(&fresh);
    let good = ScyllaMessages::new(cql().await);
    let standing = talk.rows(fresh.message(), 9, 9);
    let keys = [(talk.writers(), standing[0].id())];
    good.save(standing.clone()).await.expect("saves");
    good.delete(&keys).await.expect("deletes");
    let zombie = ScyllaMessages::new(cql().await);
    let late = rows(&talk, keys[0].1, (9, 5), "\u{fff} larger in every byte");
    zombie.save(late).await.expect("saves");
    let result = good.rows(&keys).await.expect("reads");
    assert_eq!(result, [Some(standing[0].clone())]);
    assert_eq!(good.deleted(&keys).await.expect("reads"), [true]);
}

/// Two writers that both saw an empty register write in either order: the register keeps the larger
/// value, and the column of the specification the stage.
// proves S0-51 in part
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn registers_grow_whatever_the_order() {
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    let store = ScyllaMessages::new(cql().await);
    let id = say_at(&store, &talk, 9, 9).await;
    let receipts = [(Read, 40), (Received, 30), (Read, 20), (Received, 10)];
    for (kind, millis) in receipts {
        // State after a write that was decided before any of the others.
        let new_status = match kind {
            Received => RowStatus {
                delivered_at: Some(at(millis)),
                ..RowStatus::default()
            },
            Read => RowStatus {
                delivered_at: Some(at(millis)),
                read_at: Some(at(millis)),
                deleted: false,
            },
        };
        let mut moves = Vec::new();
        let (key, old_status) = ((talk.from, id), RowStatus::default());
        store
            .private
            .statuses
            .moves(&mut moves, key, old_status, new_status)
            .expect("fits");
        store.cql.write_together(moves).await.expect("writes");
        let status = status(&store, talk.from, id).await;
        assert_eq!(status.read_at, Some(at(40)));
        assert_eq!(status.delivered_at, Some(at(40)));
        assert_eq!(stage(talk.from, id).await, 2);
    }
}

async fn stage(owner: UserId, id: MessageId) -> i8 {
    let config = config();
    let session = SessionBuilder::new().known_nodes(&config.contact_points);
    let session = session.build().await.expect("connects");
    let keyspace = config.keyspace;
    let text = format!("SELECT st FROM {keyspace}.pchat WHERE uid1 = ? AND pk = ? AND id = ?");
    let key = (owner.get(), windows::of(id), id.get());
    let answer = session.query_unpaged(text, key).await.expect("reads");
    let rows = answer.into_rows_result().expect("rows");
    rows.single_row::<(i8,)>().expect("a row").0
}

/// A redelivery, even by a later record, restores nothing.
// proves S0-57 in part
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_rewrite_brings_no_deleted_message_back() {
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    let store = ScyllaMessages::new(cql().await);
    let id = say_at(&store, &talk, 9, 9).await;
    let keys = [(talk.writers(), id)];
    store.delete(&keys).await.expect("deletes");
    for offset in [9, 8, 10, 1 << 41] {
        let store = ScyllaMessages::new(cql().await);
        let rewrite = rows(&talk, id, (9, offset), "hello");
        store.save(rewrite).await.expect("saves");
        let write = StatusWrite {
            owner: talk.from,
            id,
            kind: Read,
            at: at(offset),
        };
        store.set_status(vec![write]).await.expect("writes");
        for owner in [talk.from, talk.receiver()] {
            assert!(status(&store, owner, id).await.deleted, "{owner} {offset}");
        }
    }
}

/// A register alone makes no row, and a later row finds it.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_receipt_before_its_row_makes_no_row() {
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    let store = ScyllaMessages::new(cql().await);
    let ids: Vec<_> = (1..=3).map(|n| MessageId::floor_of(at(n))).collect();
    let writes = ids.iter().map(|&id| StatusWrite {
        owner: talk.from,
        id,
        kind: Received,
        at: at(50),
    });
    let results = store.set_status(writes.collect()).await.expect("writes");
    assert_eq!(results, [true; 3]);
    let row = store.rows(&[(talk.writers(), ids[1])]).await;
    assert_eq!(row.expect("reads"), [None]);
    let place = store.places(&[(talk.from, ids[1])]).await;
    assert_eq!(place.expect("reads"), [None]);
    say_at(&store, &talk, 3, 3).await;
    let status = status(&store, talk.from, ids[2]).await;
    assert_eq!(status.delivered_at, Some(at(50)));
    // Registers without a row do not fill a page of one.
    let page = store
        .find(talk.writers(), IdRange::default(), Order::Forward, 1)
        .await;
    let found_ids: Vec<_> = page.expect("reads").iter().map(MessageRow::id).collect();
    assert_eq!(found_ids, ids[2..]);
}

/// A call with a value too large for its column is refused whole, and writes nothing.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn oversized_rows_are_refused_whole() {
    let fresh = fresh();
    let store = ScyllaMessages::new(cql().await);
    for talk in Talk::each(&fresh) {
        let id = MessageId::floor_of(at(5));
        let good = || rows(&talk, id, (1, 1), "hello");
        let (mut large, mut unplaced) = (good(), good());
        if let (Some(large), Some(unplaced)) = (large.last_mut(), unplaced.last_mut()) {
            large.placed.message.content.data = vec![0; 2 << 20].into();
            unplaced.placed.position.seq = Seq::ZERO;
        }
        for rows in [large, unplaced, rows(&talk, id, (1, u64::MAX), "hello")] {
            let error = store.save(rows).await.expect_err("refused");
            assert_eq!(error.kind, Kind::Conflict);
        }
        let result = store.rows(&[(talk.writers(), id)]).await;
        assert_eq!(result.expect("reads"), [None]);
    }
}
