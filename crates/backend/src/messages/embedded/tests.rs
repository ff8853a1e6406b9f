mod stored;

use protocol::message::Content;

use super::*;
use crate::embedded::{ScanOrder, Table, WriteBatch};
use crate::messages::contract::{self, Talk};
use crate::test_ids::{TestIds, on_memory_and_disk};

contract::checks!(on_memory_and_disk!(super::EmbeddedMessages::new));

/// Rows of the talk by position.
async fn page(store: &EmbeddedMessages, talk: &Talk<'_>, owner: Owner) -> Result<Vec<MessageRow>> {
    let range = HistoryRange::Forward { after: Seq::ZERO };
    store.page(owner, talk.conversation(), range, 10).await
}

/// A new instance has no memory and reads before it writes.
#[tokio::test]
async fn a_new_life_replaces_nothing_that_is_later() {
    let fresh = TestIds::new(1);
    let talk = Talk::private(&fresh);
    let engine = Engine::memory();
    let store = || EmbeddedMessages::new(engine.clone());
    talk.say(&store(), [3]).await;
    let good = talk.rows(fresh.message(), 9, 9);
    store().save(good.clone()).await.expect("saves");
    let mut zombie = good.clone();
    for row in &mut zombie {
        row.version.offset = 5;
        row.placed.message.content = Content::text("a zombie's");
    }
    // The new life knows the conversation from an earlier row.
    let life = store();
    talk.say(&life, [4]).await;
    life.save(zombie).await.expect("saves");
    let keys = [(talk.writers(), good[0].id())];
    let result = store().rows(&keys).await.expect("reads");
    assert_eq!(result, [Some(good[0].clone())]);
}

/// After a crash, a message has both rows and its index entry, or none of them.
#[tokio::test]
async fn a_crash_never_splits_a_private_message() {
    let fresh = TestIds::new(1);
    let talk = Talk::private(&fresh);
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = EmbeddedMessages::new(engine.clone());
    for seq in 1..=3 {
        talk.say(&store, [seq]).await;
    }
    let writes = engine.undurable();
    assert_eq!(writes, 3, "one write a call");
    for write_count in (0..=writes).rev() {
        let store = EmbeddedMessages::new(engine.crash(write_count).expect("in memory"));
        for owner in [talk.writers(), talk.receivers()] {
            let rows = page(&store, &talk, owner).await;
            assert_eq!(rows.expect("reads").len(), write_count);
            let rows = store.find(owner, IdRange::default(), Order::Forward, 9);
            assert_eq!(rows.await.expect("reads").len(), write_count);
        }
    }
}

/// After a crash, a message has its position and its sender's count, or neither.
#[tokio::test]
async fn a_crash_never_splits_a_message_of_a_group() {
    let fresh = TestIds::new(1);
    let talk = Talk::group(&fresh);
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = EmbeddedMessages::new(engine.clone());
    for seq in 1..=3 {
        talk.say(&store, [seq]).await;
    }
    let writes = engine.undurable();
    assert_eq!(writes, 3, "one write a call");
    for write_count in (0..=writes).rev() {
        let store = EmbeddedMessages::new(engine.crash(write_count).expect("in memory"));
        let rows = page(&store, &talk, talk.writers()).await;
        let rows = rows.expect("reads");
        assert_eq!(rows.len(), write_count);
        let range = OwnRange {
            group: talk.group_id(),
            base: Seq(0),
            last: Seq(9),
        };
        let own = store.own_between(talk.from, &[range]).await;
        assert_eq!(own.expect("reads"), [write_count as u64]);
        for row in rows {
            let message = &row.placed.message;
            let key = SendKey {
                from: message.from,
                conversation: row.placed.conversation,
                send_id: message.send_id,
                min_id: message.id,
            };
            let result = store.find_sends(&[key]).await;
            assert_eq!(result.expect("reads"), [Some(row)]);
        }
    }
}

/// A new instance has no memory and reads the row.
#[tokio::test]
async fn a_new_life_knows_where_rows_stand() {
    let fresh = TestIds::new(1);
    let talk = Talk::private(&fresh);
    let engine = Engine::memory();
    let rows = talk.rows(fresh.message(), 300, 300);
    let users = [talk.from, talk.receiver()];
    let keys = users.map(|user| (user, rows[0].id()));
    let store = EmbeddedMessages::new(engine.clone());
    store.save(rows.clone()).await.expect("saves");
    let places = EmbeddedMessages::new(engine).places(&keys).await;
    let expected: Vec<_> = rows.iter().map(MessageRow::place).collect();
    assert_eq!(places.expect("reads"), expected);
}

/// A position without its index entry is found again once its row is rewritten.
#[tokio::test]
async fn a_row_written_again_restores_the_way_to_it() {
    let fresh = TestIds::new(1);
    let talk = Talk::private(&fresh);
    let engine = Engine::memory();
    let store = EmbeddedMessages::new(engine.clone());
    talk.say(&store, [1]).await;
    let second = talk.rows(fresh.message(), 2, 2);
    store.save(second.clone()).await.expect("saves");
    talk.say(&store, [3]).await;
    let index_entries = engine.prefix(Table::PrivateIndex, &[], ScanOrder::Forward, 9);
    let keys = index_entries.expect("reads");
    let mut loss = WriteBatch::new();
    loss.remove(Table::PrivateIndex, keys[1].0.to_vec());
    engine.write(loss).expect("written");
    let from = |after_seq| {
        let range = HistoryRange::Forward {
            after: Seq(after_seq),
        };
        store.page(talk.receivers(), talk.conversation(), range, 10)
    };
    from(1).await.expect_err("a hole");

    store.save(second).await.expect("saves");
    let result = from(1).await.expect("no hole");
    let result: Vec<Seq> = result.iter().map(MessageRow::seq).collect();
    assert_eq!(result, [Seq(2), Seq(3)]);
}

/// A position that names a missing row is an error, not a gap.
#[tokio::test]
async fn a_position_without_its_row_is_corrupt() {
    let fresh = TestIds::new(1);
    let talk = Talk::group(&fresh);
    let engine = Engine::memory();
    let store = EmbeddedMessages::new(engine.clone());
    talk.say(&store, 1..=2).await;
    let rows = engine.prefix(Table::Group, &[], ScanOrder::Forward, 9);
    let rows = rows.expect("reads");
    let mut batch = WriteBatch::new();
    batch.remove(Table::Group, rows[1].0.to_vec());
    engine.write(batch).expect("writes");
    let read = page(&store, &talk, talk.writers()).await;
    assert_eq!(read.expect_err("torn").kind, crate::Kind::Corrupt);
}
