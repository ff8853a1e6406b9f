//! Writes that arrive late, again, or in another order.

use protocol::receipt::ReceiptKind::{Read, Received};
use scylla::client::session_builder::SessionBuilder;

use super::*;
use crate::Kind;
use crate::scylla::fixture::{config, cql, fresh};
use crate::scylla::messages::windows;

async fn status(store: &ScyllaHistory, owner: UserId, id: MessageId) -> RowStatus {
    store.status(&[(owner, id)]).await.expect("reads")[0]
}

/// Another process without memory writes an earlier record.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_zombie_replaces_nothing_that_is_later() {
    let talk = Talk::new(&fresh());
    let good = ScyllaHistory::new(cql().await);
    let id = talk.say(&good, 9, 9).await;
    let zombie = ScyllaHistory::new(cql().await);
    // Content of the zombie sorts after the stored content.
    let late = talk.rows(id, 5, 5, "zombie");
    zombie.save_private(late).await.expect("saves");
    let found = good.private(&[(talk.a, id), (talk.b, id)]).await;
    for row in found.expect("reads") {
        let row = row.expect("a row");
        assert_eq!((row.seq, row.version.offset), (Seq(9), 9));
        assert_eq!(row.content, Content::text("hello"));
    }
    // A zombie that claims the position for another message loses as well.
    let other = MessageId::floor_of(at(7));
    let claim = talk.rows(other, 9, 6, "zombie");
    zombie.save_private(claim).await.expect("saves");
    let range = protocol::frame::HistoryRange::Forward { after: Seq(8) };
    let page = good
        .conversation(talk.b, talk.conversation(), range, 9)
        .await;
    let ids: Vec<_> = page.expect("reads").iter().map(|row| row.id).collect();
    assert_eq!(ids, [id]);
}

/// Two writers that both saw an empty register write in either order: the register keeps the larger
/// value, and the column of the specification the stage.
// proves S0-51 in part
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn registers_grow_whatever_the_order() {
    let talk = Talk::new(&fresh());
    let store = ScyllaHistory::new(cql().await);
    let id = talk.say(&store, 9, 9).await;
    let receipts = [(Read, 40), (Received, 30), (Read, 20), (Received, 10)];
    for (kind, millis) in receipts {
        // State after a write that was decided before any of the others.
        let after = match kind {
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
        let (key, before) = ((talk.a, id), RowStatus::default());
        store
            .statuses
            .moves(&mut moves, key, before, after)
            .expect("fits");
        store.cql.write_together(moves).await.expect("writes");
        let status = status(&store, talk.a, id).await;
        assert_eq!(status.read_at, Some(at(40)));
        assert_eq!(status.delivered_at, Some(at(40)));
        assert_eq!(stage(talk.a, id).await, 2);
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
    let talk = Talk::new(&fresh());
    let store = ScyllaHistory::new(cql().await);
    let id = talk.say(&store, 9, 9).await;
    store.delete(&[(talk.a, id)]).await.expect("deletes");
    for offset in [9, 8, 10, 1 << 41] {
        let store = ScyllaHistory::new(cql().await);
        let again = talk.rows(id, 9, offset, "hello");
        store.save_private(again).await.expect("saves");
        let write = StatusWrite {
            owner: talk.a,
            id,
            kind: Read,
            at: at(offset),
        };
        store.set_status(vec![write]).await.expect("writes");
        for owner in [talk.a, talk.b] {
            assert!(status(&store, owner, id).await.deleted, "{owner} {offset}");
        }
    }
}

/// A register alone makes no row, and a later row finds it.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_receipt_before_its_row_makes_no_row() {
    let talk = Talk::new(&fresh());
    let store = ScyllaHistory::new(cql().await);
    let ids: Vec<_> = (1..=3).map(|n| MessageId::floor_of(at(n))).collect();
    let writes = ids.iter().map(|&id| StatusWrite {
        owner: talk.a,
        id,
        kind: Received,
        at: at(50),
    });
    let advanced = store.set_status(writes.collect()).await.expect("writes");
    assert_eq!(advanced, [true; 3]);
    let key = [(talk.a, ids[1])];
    assert_eq!(store.private(&key).await.expect("reads"), [None]);
    assert_eq!(store.places(&key).await.expect("reads"), [None]);
    talk.say(&store, 3, 3).await;
    assert_eq!(
        status(&store, talk.a, ids[2]).await.delivered_at,
        Some(at(50))
    );
    // Registers without a row do not fill a page of one.
    let page = store
        .find_private(talk.a, IdRange::default(), Order::Forward, 1)
        .await;
    let found: Vec<_> = page.expect("reads").iter().map(|row| row.id).collect();
    assert_eq!(found, ids[2..]);
}

/// A call with a value too large for its column is refused whole, and writes nothing.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn what_does_not_fit_is_refused_whole() {
    let talk = Talk::new(&fresh());
    let store = ScyllaHistory::new(cql().await);
    let id = MessageId::floor_of(at(5));
    let mut large = talk.rows(id, 1, 1, "hello");
    large[1].content.data = vec![0; 2 << 20].into();
    let mut nowhere = talk.rows(id, 1, 1, "hello");
    nowhere[1].seq = Seq::ZERO;
    for rows in [large, nowhere, talk.rows(id, 1, u64::MAX, "hello")] {
        let error = store.save_private(rows).await.expect_err("refused");
        assert_eq!(error.kind, Kind::Conflict);
    }
    assert_eq!(store.private(&[(talk.a, id)]).await.expect("reads"), [None]);
}
