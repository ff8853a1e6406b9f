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

#[derive(Debug, DeserializeRow)]
struct Columns {
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

async fn row(session: &Session, owner: UserId, id: MessageId) -> Columns {
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
async fn every_column_holds_its_part_of_the_message() {
    let talk = Talk::new(&fresh());
    let store = ScyllaHistory::new(cql().await);
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
        let mut rows = talk.rows(id, seq, seq, "");
        for row in &mut rows {
            row.content = content.clone();
        }
        let bytes = *rows[0].send_id.as_bytes();
        store.save_private(rows).await.expect("saves");
        for (kind, millis) in [(Received, 40), (Read, 50)] {
            let (owner, at) = (talk.a, at(millis));
            let write = StatusWrite {
                owner,
                id,
                kind,
                at,
            };
            store.set_status(vec![write]).await.expect("writes");
        }
        let sides = [
            (talk.a, talk.b, 0, Some((at(40), at(50), 2))),
            (talk.b, talk.a, 1, None),
        ];
        for (owner, peer, io, registers) in sides {
            let row = row(&session, owner, id).await;
            assert_eq!((row.uid1, row.uid2), (owner.get(), peer.get()));
            assert_eq!((row.pk, row.id), (windows::of(id), id.get()));
            let usid = i64::from_be_bytes(bytes[8..].try_into().expect("eight"));
            assert_eq!((row.usid, row.tm), (usid, id.timestamp().millis()));
            assert_eq!((row.io, row.ct, row.mt), (io, ct, mt), "{row:?}");
            let millis = |time: protocol::Timestamp| time.millis();
            let expected = registers.map(|(tm1, tm2, st)| (millis(tm1), millis(tm2), st));
            let found = row.tm1.zip(row.tm2).zip(row.st);
            assert_eq!(found.map(|((tm1, tm2), st)| (tm1, tm2, st)), expected);
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
    let store = ScyllaHistory::new(Cql::connect(&one_by_one).await.expect("connects"));
    contract::a_receiver_has_nothing_that_its_sender_has_not(&store, &fresh()).await;
}
