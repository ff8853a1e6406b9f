//! Columns of the specification, read as another program would.

use protocol::receipt::ReceiptKind::{Read, Received};
use scylla::DeserializeRow;
use scylla::client::session::Session;
use scylla::value::CqlVarint;

use super::*;
use crate::scylla::ScyllaConfig;
use crate::scylla::fixture::{config, cql, foreign_session, fresh};
use crate::scylla::messages::{columns, windows};
use crate::test_ids::content;

/// A user's copy as another program would read it.
#[derive(Debug, DeserializeRow)]
struct CopyColumns {
    uid1: i64,
    pk: i16,
    id: i64,
    uid2: i64,
    usid: i64,
    tm: i64,
    tm1: Option<i64>,
    tm2: Option<i64>,
    io: i8,
    st: Option<i8>,
    ct: i8,
    mt: i8,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    draf: Vec<u8>,
}

async fn row(session: &Session, owner: UserId, id: MessageId) -> CopyColumns {
    let keyspace = config().keyspace;
    let text = format!(
        "SELECT uid1, pk, id, uid2, usid, tm, tm1, tm2, io, st, ct, mt, pr, ref, draf FROM {keyspace}.pchat \
         WHERE uid1 = ? AND pk = ? AND id = ?"
    );
    let key = (owner.get(), windows::of(id), id.get());
    let answer = session.query_unpaged(text, key).await.expect("reads");
    let rows = answer.into_rows_result().expect("rows");
    rows.single_row().expect("a row")
}

// proves S0-51, S0-07 in part: each column as it was written, on both sides; the registers on the sender's alone. (Nobody
// speaks as the system, so that no row has ct 1.)
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn every_column_of_a_copy_holds_its_part_of_the_message() {
    let fresh = fresh();
    let talk = Talk::private(&fresh);
    let store = ScyllaMessages::new(cql().await);
    let session = foreign_session().await;
    let of_kind = |kind, encryption| Content {
        kind,
        encryption,
        ..content()
    };
    let cases = [
        (of_kind(0, 0), 0, 0),
        (of_kind(1, 2), 2, 1),
        (of_kind(1000, 0), 0, -1),
    ];
    for (seq, (content, ct, mt)) in (1..).zip(cases) {
        let id = MessageId::floor_of(at(seq));
        let mut rows = talk.rows(id, seq, seq);
        for row in &mut rows {
            row.placed.message.content = content.clone();
        }
        let bytes = *rows[0].placed.message.send_id.as_bytes();
        store.save(rows).await.expect("saves");
        for (kind, millis) in [(Received, 40), (Read, 50)] {
            let (owner, at) = (talk.from, at(millis));
            let write = StatusWrite {
                owner,
                id,
                kind,
                at,
            };
            store.set_status(vec![write]).await.expect("writes");
        }
        let (a, b) = (talk.from, talk.receiver());
        let sides = [(a, b, 0, Some((at(40), at(50), 2))), (b, a, 1, None)];
        for (owner, peer, io, registers) in sides {
            let row = row(&session, owner, id).await;
            assert_eq!((row.uid1, row.uid2), (owner.get(), peer.get()));
            assert_eq!((row.pk, row.id), (windows::of(id), id.get()));
            let usid = i64::from_be_bytes(bytes[8..].try_into().expect("eight"));
            assert_eq!((row.usid, row.tm), (usid, id.timestamp().millis()));
            assert_eq!((row.io, row.ct, row.mt), (io, ct, mt), "{row:?}");
            let millis = |time: protocol::Timestamp| time.millis();
            let expected = registers.map(|(tm1, tm2, st)| (millis(tm1), millis(tm2), st));
            let statuses = row.tm1.zip(row.tm2).zip(row.st);
            assert_eq!(statuses.map(|((tm1, tm2), st)| (tm1, tm2, st)), expected);
            assert_eq!(row.tm1.is_some(), expected.is_some());
            assert_eq!(columns::number(&row.pr), Some(content.key_print));
            let reference = content.reference.map_or(0, MessageId::get);
            assert_eq!(columns::number(&row.reference), Some(reference));
            assert_eq!(row.draf, content.data);
        }
    }
}

/// With writes one at a time, the check of the contract interrupts a call between any two.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_slow_server_has_the_senders_rows_first() {
    cql().await;
    let one_by_one = ScyllaConfig {
        in_flight_max: 1,
        call_in_flight_max: 1,
        ..config()
    };
    let store = ScyllaMessages::new(Cql::connect(&one_by_one).await.expect("connects"));
    contract::senders_row_is_written_first(&store, &fresh()).await;
}

/// A group's message as another program would read it.
#[derive(Debug, DeserializeRow)]
struct GroupColumns {
    pk: i16,
    gid: i64,
    uid: i64,
    id: i64,
    usid: i64,
    tm: i64,
    res: i8,
    st: i8,
    ct: i8,
    mt: i8,
    pr: CqlVarint,
    #[scylla(rename = "ref")]
    reference: CqlVarint,
    draf: Vec<u8>,
}

// proves S0-61a, S0-07 in part: each column as it was written. (Groups keep no receipts, and what members say is no
// broadcast: res, st and ct are 0.)
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn every_column_of_a_group_holds_its_part_of_the_message() {
    let fresh = fresh();
    let store = ScyllaMessages::new(cql().await);
    let talk = Talk::group(&fresh);
    let session = foreign_session().await;
    let keyspace = config().keyspace;
    let text = format!(
        "SELECT pk, gid, uid, id, usid, tm, res, st, ct, mt, pr, ref, draf FROM {keyspace}.gchat \
         WHERE gid = ? AND pk = ? AND id = ?"
    );
    for (seq, (kind, mt)) in (1..).zip([(0, 0), (1, 1), (1000, -1)]) {
        let mut row = talk.row(fresh.message(), seq, seq);
        row.placed.message.content.kind = kind;
        store.save(vec![row.clone()]).await.expect("saves");
        let message = &row.placed.message;
        let key = (
            talk.group_id().get(),
            windows::of(message.id),
            message.id.get(),
        );
        let answer = session.query_unpaged(text.as_str(), key).await;
        let rows = answer.expect("reads").into_rows_result().expect("rows");
        let row_columns: GroupColumns = rows.single_row().expect("a row");
        assert_eq!((row_columns.gid, row_columns.pk, row_columns.id), key);
        let usid = &message.send_id.as_bytes()[8..];
        let usid = i64::from_be_bytes(usid.try_into().expect("eight"));
        let tm = message.accepted_at.millis();
        assert_eq!(
            (row_columns.uid, row_columns.usid, row_columns.tm),
            (message.from.get(), usid, tm)
        );
        let small = (
            row_columns.res,
            row_columns.st,
            row_columns.ct,
            row_columns.mt,
        );
        assert_eq!(small, (0, 0, 0, mt));
        let key_print = columns::number(&row_columns.pr);
        assert_eq!(key_print, Some(message.content.key_print));
        let reference = message.content.reference.map_or(0, MessageId::get);
        assert_eq!(columns::number(&row_columns.reference), Some(reference));
        assert_eq!(row_columns.draf, message.content.data);
    }
}
