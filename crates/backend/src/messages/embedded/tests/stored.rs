//! Stored forms of the releases before: their stores open with this one, and ours with them.

use protocol::history::{Direction, Version};
use protocol::message::Message;
use protocol::{DeviceId, GroupId, Options, Placed, Recipient, Timestamp};
use serde::Serialize;

use super::*;
use crate::embedded::value::encode;
use crate::messages::SEAM;

/// A user's copy, under its owner and id.
#[derive(Serialize)]
struct PrivateBefore {
    version: Version,
    peer: UserId,
    direction: Direction,
    accepted_at: Timestamp,
    seq: Seq,
    incoming: u64,
    prev: Option<MessageId>,
    send_id: SendId,
    device: DeviceId,
    options: Options,
    content: Content,
}

/// A group's message, under its group and id.
#[derive(Serialize)]
struct GroupBefore {
    version: Version,
    from: UserId,
    accepted_at: Timestamp,
    seq: Seq,
    prev: Option<MessageId>,
    send_id: SendId,
    device: DeviceId,
    options: Options,
    content: Content,
}

/// Entry of a group's index.
#[derive(Serialize)]
struct IndexBefore {
    version: Version,
    id: MessageId,
}

type Entries = Vec<(Table, Vec<u8>, Vec<u8>)>;

fn bytes(number: i64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    encode(SEAM, value).expect("encodes").to_vec()
}

/// Send_ids begin at their end in a key.
fn reversed(message: &Message) -> Vec<u8> {
    message.send_id.as_bytes().iter().rev().copied().collect()
}

fn private_before(from: UserId, to: UserId, rows: &[MessageRow]) -> Entries {
    let message = &rows[0].placed.message;
    let position = rows[0].placed.position;
    let id = bytes(message.id.get());
    let copy = |row: &MessageRow, peer, direction| PrivateBefore {
        version: row.version,
        peer,
        direction,
        accepted_at: message.accepted_at,
        seq: position.seq,
        incoming: row.side.expect("a user's copy").incoming_count,
        prev: position.prev,
        send_id: message.send_id,
        device: message.device.clone(),
        options: message.options,
        content: message.content.clone(),
    };
    let (low, high) = (from.min(to), from.max(to));
    // One byte holds the position.
    let place = vec![1, position.seq.0 as u8];
    let side = |user: UserId| [bytes(user.get()), id.clone()].concat();
    let out = encoded(&copy(&rows[0], to, Direction::Out));
    let inbound = encoded(&copy(&rows[1], from, Direction::In));
    let index = [bytes(low.get()), bytes(high.get()), place].concat();
    let send = [reversed(message), bytes(from.get())].concat();
    vec![
        (Table::Private, side(from), out),
        (Table::Private, side(to), inbound),
        (Table::PrivateIndex, index, id.clone()),
        (Table::PrivateSend, send, id),
    ]
}

fn group_before(group: GroupId, row: &MessageRow) -> Entries {
    let Placed {
        message, position, ..
    } = &row.placed;
    let (group, from, id) = (
        bytes(group.get()),
        bytes(message.from.get()),
        bytes(message.id.get()),
    );
    let seq = position.seq.0.to_be_bytes().to_vec();
    let value = encoded(&GroupBefore {
        version: row.version,
        from: message.from,
        accepted_at: message.accepted_at,
        seq: position.seq,
        prev: position.prev,
        send_id: message.send_id,
        device: message.device.clone(),
        options: message.options,
        content: message.content.clone(),
    });
    let entry = encoded(&IndexBefore {
        version: row.version,
        id: message.id,
    });
    let own = [group.clone(), from.clone(), seq.clone()].concat();
    let send = [reversed(message), from, group.clone(), id.clone()].concat();
    vec![
        (Table::Group, [group.clone(), id].concat(), value),
        (Table::GroupIndex, [group, seq].concat(), entry),
        (Table::GroupOwn, own, encoded(&message.id)),
        (Table::GroupSend, send, Vec::new()),
    ]
}

/// All that the store has of messages.
fn contents(engine: &Engine) -> Entries {
    let tables = [
        Table::Private,
        Table::PrivateIndex,
        Table::PrivateSend,
        Table::PrivateStatus,
        Table::Group,
        Table::GroupIndex,
        Table::GroupOwn,
        Table::GroupSend,
        Table::GroupStatus,
    ];
    let of_table = |table| {
        let rows = engine.prefix(table, &[], ScanOrder::Forward, 100);
        let rows = rows.expect("reads").into_iter();
        rows.map(move |(key, value)| (table, key.to_vec(), value.to_vec()))
    };
    tables.into_iter().flat_map(of_table).collect()
}

fn sorted(mut entries: Entries) -> Entries {
    entries.sort();
    entries
}

/// Writes entries as a release before did, and reads `rows` from them in every way; then writes
/// `rows`, and finds the same entries.
async fn have_the_same_form(rows: Vec<MessageRow>, old_entries: Entries) {
    let engine = Engine::memory();
    let mut batch = WriteBatch::new();
    for (table, key, value) in old_entries.clone() {
        batch.put(table, key, value);
    }
    engine.write(batch).expect("writes");
    let store = EmbeddedMessages::new(engine);
    for row in &rows {
        let Placed {
            message,
            conversation,
            position,
        } = &row.placed;
        let result = store.rows(&[(row.owner, row.id())]).await;
        assert_eq!(result.expect("reads"), [Some(row.clone())]);
        let range = HistoryRange::Backward { before: None };
        let page = store.page(row.owner, *conversation, range, 9).await;
        assert_eq!(page.expect("reads"), std::slice::from_ref(row));
        let at = store.at(&[(row.owner, *conversation, position.seq)]).await;
        assert_eq!(at.expect("reads"), [Some((row.id(), row.tally()))]);
        let senders = store.sent_as(message.send_id).await;
        assert_eq!(senders.expect("reads"), [(message.from, message.id)]);
    }

    let engine = Engine::memory();
    let store = EmbeddedMessages::new(engine.clone());
    store.save(rows).await.expect("saves");
    assert_eq!(sorted(contents(&engine)), sorted(old_entries));
}

#[tokio::test]
async fn private_messages_are_stored_as_before() {
    let fresh = TestIds::new(1);
    let talk = Talk::private(&fresh);
    let Recipient::User(to) = talk.to else {
        panic!("a private conversation");
    };
    let rows = MessageRow::from_placed(&talk.message(fresh.message(), 200), 150, newest());
    let old_entries = private_before(talk.from, to, &rows);
    have_the_same_form(rows, old_entries).await;
}

#[tokio::test]
async fn messages_of_groups_are_stored_as_before() {
    let fresh = TestIds::new(1);
    let talk = Talk::group(&fresh);
    let rows = MessageRow::from_placed(&talk.message(fresh.message(), 200), 150, newest());
    let old_entries = group_before(talk.group_id(), &rows[0]);
    have_the_same_form(rows, old_entries).await;
}

fn newest() -> Version {
    Version {
        epoch: 3,
        offset: 70_000,
    }
}

/// Registers of both kinds.
#[tokio::test]
async fn deletions_are_stored_as_before() {
    let fresh = TestIds::new(1);
    let [private, group] = [Talk::private(&fresh), Talk::group(&fresh)];
    let id = fresh.message();
    let engine = Engine::memory();
    let store = EmbeddedMessages::new(engine.clone());
    let keys = [(private.writers(), id), (group.writers(), id)];
    store.delete(&keys).await.expect("deletes");
    let key = |owner: Owner| [bytes(owner.number()), bytes(id.get())].concat();
    let status = RowStatus {
        deleted: true,
        ..RowStatus::default()
    };
    let old_entries = vec![
        (Table::PrivateStatus, key(keys[0].0), encoded(&status)),
        (Table::GroupStatus, key(keys[1].0), encoded(&true)),
    ];
    assert_eq!(sorted(contents(&engine)), sorted(old_entries));
}
