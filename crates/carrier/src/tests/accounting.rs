//! Cost of a message to the stores, by the rows present afterwards.

use std::time::Duration;

use backend::embedded::{ScanOrder, Table};
use bytes::Bytes;
use protocol::message::Content;
use protocol::{Message, Platform, Seq};

use super::groups::{create, group};
use super::world::*;

impl World {
    /// Rows of a table, and the bytes of their values.
    fn table_size(&self, table: Table) -> (usize, usize) {
        let rows = self.engine.prefix(table, b"", ScanOrder::Forward, 10_000);
        let rows = rows.expect("readable");
        (rows.len(), rows.iter().map(|(_, row)| row.len()).sum())
    }
}

// proves S0-06 in part, S3-23 in part: two copies of what two users say, one of what is said in a group.
// proves S4-14, S4-32 in part, S4-33: each of two users has one row of the list however much is said, which names the
// newest; members of a group none.
#[tokio::test(start_paused = true)]
async fn a_message_of_two_users_is_two_rows_and_one_of_a_group_is_one() {
    let world = World::new().await;
    for message_count in 1..=5 {
        let newest = world.send(ALICE, BOB).await;
        world.wait_until_committed().await;
        let keys = [ALICE, BOB].map(|user_id| (user(user_id), between(ALICE, BOB)));
        let list_rows = world
            .backends
            .conversations
            .get(&keys)
            .await
            .expect("lists");
        for list_row in list_rows {
            let row = list_row.expect("a row").row;
            assert_eq!(
                (row.last_id, row.end.seq),
                (newest, Seq(message_count as u64))
            );
        }
        assert_eq!(world.table_size(Table::Private).0, 2 * message_count);
        assert_eq!(world.table_size(Table::Conversation).0, 2);
    }
    assert_eq!(world.faults.items("timeline", "push"), 0);

    world.command(ALICE, create(100..140)).await;
    let message_count = 5;
    for _ in 0..message_count {
        world.say(ALICE).await;
    }
    world.wait_until_committed().await;
    assert_eq!(world.table_size(Table::Group).0, message_count);
    assert_eq!(world.table_size(Table::Conversation).0, 2);
    assert_eq!(world.faults.items("timeline", "push"), message_count);

    let per_private = world.table_size(Table::Private).1 / message_count;
    let per_group = world.table_size(Table::Group).1 / message_count;
    assert!(
        (19..=21).contains(&(10 * per_private / per_group)),
        "{per_private} to {per_group} bytes a message"
    );
}

// proves S4-15: a message writes its rows of the list and nothing else there: what their owners did stays, and so does the
// version of that.
#[tokio::test(start_paused = true)]
async fn a_message_moves_no_version_of_what_its_owners_did() {
    let world = World::new().await;
    world.send(ALICE, BOB).await;
    world.command(ALICE, create([BOB])).await;
    world.wait_until_committed().await;
    let conversations = &world.backends.conversations;
    let keys = [ALICE, BOB].map(|user_id| (user(user_id), between(ALICE, BOB)));
    let read = keys.map(|(user_id, conversation)| (user_id, conversation, Seq(1)));
    let read_at = world.now();
    let read = conversations.set_read(read.into(), read_at).await;
    read.expect("writes");
    let versions = async || {
        let list_rows = conversations.get(&keys).await.expect("reads").into_iter();
        let list_rows = list_rows.map(|list_row| list_row.expect("a row"));
        list_rows
            .map(|list_rows| (list_rows.row.version, list_rows.touched))
            .collect::<Vec<_>>()
    };
    let registers = async || conversations.registers(&keys).await.expect("reads");
    let (previous, old_registers) = (versions().await, registers().await);
    world.faults.writes("conversations");

    tokio::time::sleep(Duration::from_secs(60)).await;
    let round_count = 3;
    for _ in 0..round_count {
        world.send(ALICE, BOB).await;
        world.send(BOB, ALICE).await;
        world.say(ALICE).await;
        world.wait_until_committed().await;
    }
    assert!(world.faults.calls("conversations", "save") > 0);
    assert_eq!(world.faults.writes("conversations"), 0, "but its rows");
    assert_eq!(registers().await, old_registers);
    for (previous, new_version) in previous.into_iter().zip(versions().await) {
        assert!(new_version.0 > previous.0, "the message's version");
        assert_eq!((previous.1, new_version.1), (read_at, read_at));
    }
}

const SIZE: usize = 100_000;

/// Everything stored but the log, with indexes and ledger, by tables that hold more than `SIZE`.
impl World {
    fn tables(&self) -> Vec<(Table, usize)> {
        let tables = Table::ALL.iter().filter(|table| **table != Table::Log);
        let sizes = tables.map(|table| (*table, self.table_size(*table).1));
        sizes.filter(|(_, size)| *size > SIZE).collect()
    }
}

// proves S0-06, S3-28 in part: by all that is stored, two copies of what two users say, one of what is said in a group.
// proves S0-79: who is there and has it leaves nothing of a private message beside history, neither waiting nor with
// what was said last.
#[tokio::test(start_paused = true)]
async fn bodies_are_stored_twice_for_two_users_and_once_for_a_group() {
    let world = World::new().await;
    for user_id in [BOB, 100, 101] {
        let manner = Manner::Acknowledges;
        world.sign_in(user_id, Platform::Web, user_id, manner).await;
    }
    let large = |message: Message| Message {
        content: Content {
            data: Bytes::from(vec![b'x'; SIZE]),
            ..message.content
        },
        ..message
    };
    let message = world.message(ALICE, BOB);
    world.accept(task(large(message))).await;
    world.wait_until_committed().await;
    let [(Table::Private, private)] = world.tables()[..] else {
        panic!("{:?}", world.tables());
    };
    assert!((2 * SIZE..2 * SIZE + SIZE / 20).contains(&private));
    assert_eq!(world.faults.items("timeline", "push"), 0);

    world.command(ALICE, create([100, 101])).await;
    let message = world.for_group(ALICE, None);
    world.accept_from_sender(large(message)).await;
    world.wait_until_committed().await;
    let [(Table::Private, _), (Table::Group, group)] = world.tables()[..] else {
        panic!("{:?}", world.tables());
    };
    assert!((SIZE..SIZE + SIZE / 20).contains(&group), "{group}");
}

// proves S0-78 in part: what lies beside history is the frame as it is sent, and no other form of the row. (How it compares
// with JSON: the codec's tests.)
#[tokio::test(start_paused = true)]
async fn beside_history_lies_the_frame_as_it_is_sent() {
    let world = World::new().await;
    let manner = Manner::Acknowledges;
    world.sign_in(BOB, Platform::Web, 20, manner).await;
    world.command(ALICE, create([BOB])).await;
    world.say(ALICE).await;
    world.wait_until_committed().await;
    let newest = world.backends.timeline.latest(group(), 0, 1).await;
    let body = newest.expect("reads").remove(0).body;
    let frame = api::codec::decode_server(body.clone(), 1 << 20).expect("a frame of ours");
    assert!(world.boat.frames().contains(&frame), "{frame:?}");
    assert_eq!(api::codec::encode_server(&frame), body);
}
