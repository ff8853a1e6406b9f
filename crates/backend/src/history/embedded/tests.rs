use protocol::frame::HistoryRange;
use protocol::history::{PrivateRow, Version};
use protocol::message::Content;
use protocol::{
    ConversationId, DeviceId, Message, Options, Placed, Position, Recipient, SendId, Seq, UserId,
};

use super::*;
use crate::history::contract;
use crate::test_ids::{at, on_memory_and_disk};

contract::checks!(on_memory_and_disk!(super::EmbeddedHistory::new));

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

/// Rows of a message from user 1 to user 2 at a position, written by the record of the same number.
fn rows(seq: u64, text: &str) -> Vec<PrivateRow> {
    let placed = Placed {
        conversation: ConversationId::private(user(1), user(2)).expect("two users"),
        position: Position {
            seq: Seq(seq),
            prev: None,
        },
        message: Message {
            id: MessageId::floor_of(at(seq)),
            from: user(1),
            to: Recipient::User(user(2)),
            accepted_at: at(seq),
            device: DeviceId::new("d").expect("a name"),
            send_id: SendId::from_bytes([seq as u8; 16]),
            options: Options::CHAT,
            content: Content::text(text),
        },
    };
    let version = Version {
        epoch: 1,
        offset: seq,
    };
    PrivateRow::pair_of(&placed, placed.position.seq.0, version)
        .expect("private")
        .to_vec()
}

/// A new instance has no memory and reads before it writes.
#[tokio::test]
async fn a_new_life_replaces_nothing_that_is_later() {
    let engine = Engine::memory();
    let store = || EmbeddedHistory::new(engine.clone());
    for seq in [3, 9] {
        store()
            .save_private(rows(seq, "good"))
            .await
            .expect("saves");
    }
    let mut zombie = rows(9, "a zombie's");
    zombie.iter_mut().for_each(|row| row.version.offset = 5);
    // The new life knows the conversation from an earlier row.
    let life = store();
    life.save_private(rows(4, "good")).await.expect("saves");
    life.save_private(zombie).await.expect("saves");
    let keys = [(user(1), MessageId::floor_of(at(9)))];
    let found = store().private(&keys).await.expect("reads");
    assert_eq!(found, [Some(rows(9, "good").remove(0))]);
}

/// After a crash, a message has both rows and its index entry, or none of them.
#[tokio::test]
async fn a_crash_never_splits_a_message() {
    let conversation = ConversationId::private(user(1), user(2)).expect("two users");
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = EmbeddedHistory::new(engine.clone());
    for seq in 1..=3 {
        store.save_private(rows(seq, "hello")).await.expect("saves");
    }
    let writes = engine.undurable();
    assert_eq!(writes, 3, "one write a call");
    for kept in (0..=writes).rev() {
        let store = EmbeddedHistory::new(engine.crash(kept).expect("in memory"));
        for owner in [user(1), user(2)] {
            let range = HistoryRange::Forward { after: Seq(0) };
            let page = store.conversation(owner, conversation, range, 9).await;
            assert_eq!(page.expect("reads").len(), kept);
            let page = store
                .find_private(owner, IdRange::default(), Order::Forward, 9)
                .await;
            assert_eq!(page.expect("reads").len(), kept);
        }
    }
}

/// A new instance has no memory and reads the row.
#[tokio::test]
async fn a_new_life_knows_where_rows_stand() {
    let engine = Engine::memory();
    let rows = rows(300, "hello");
    let keys: Vec<_> = rows.iter().map(|row| (row.owner, row.id)).collect();
    let store = EmbeddedHistory::new(engine.clone());
    store.save_private(rows.clone()).await.expect("saves");
    let places = EmbeddedHistory::new(engine).places(&keys).await;
    let wanted: Vec<_> = rows.iter().map(|row| Some(Place::from(row))).collect();
    assert_eq!(places.expect("reads"), wanted);
}

#[test]
fn keys_of_the_index_sort_as_positions_do() {
    let conversation = ConversationId::private(user(1), user(2)).expect("two users");
    let seqs = [
        0,
        1,
        255,
        256,
        65_535,
        65_536,
        u64::from(u32::MAX),
        u64::MAX - 1,
        u64::MAX,
    ];
    let keys: Vec<_> = seqs
        .iter()
        .map(|&seq| index_key(conversation, Seq(seq)))
        .collect();
    assert!(keys.is_sorted());
    let read: Vec<_> = keys.iter().map(|key| seq_of(key).expect("whole")).collect();
    assert_eq!(read, seqs);
    assert!(seq_of(&keys[3][..17]).is_err());
}

/// A position without its index entry is found again once its row is rewritten.
#[tokio::test]
async fn a_row_written_again_restores_the_way_to_it() {
    let engine = Engine::memory();
    let store = EmbeddedHistory::new(engine.clone());
    for seq in 1..=3 {
        let saved = store.save_private(rows(seq, "good")).await;
        saved.expect("saves");
    }
    let conversation = ConversationId::private(user(1), user(2)).expect("two users");
    let mut loss = WriteBatch::new();
    loss.remove(Table::PrivateIndex, index_key(conversation, Seq(2)));
    engine.write(loss).expect("written");
    let from = |after| {
        let range = HistoryRange::Forward { after: Seq(after) };
        store.conversation(user(2), conversation, range, 10)
    };
    from(1).await.expect_err("a hole");

    let saved = store.save_private(rows(2, "good")).await;
    saved.expect("saves");
    let found = from(1).await.expect("no hole");
    let found: Vec<Seq> = found.iter().map(|row| row.seq).collect();
    assert_eq!(found, [Seq(2), Seq(3)]);
}
