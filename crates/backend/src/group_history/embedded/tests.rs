use super::*;
use crate::group_history::contract::{self, Talk};
use crate::test_ids::{TestIds, on_memory_and_disk};

contract::checks!(on_memory_and_disk!(super::EmbeddedGroupHistory::new));

/// After a crash, a message has its position and its sender's count, or neither.
#[tokio::test]
async fn a_crash_never_splits_a_message() {
    let fresh = TestIds::new(1);
    let talk = Talk::new(&fresh);
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = EmbeddedGroupHistory::new(engine.clone());
    for seq in 1..=3 {
        talk.say(&store, [seq]).await;
    }
    let writes = engine.undurable();
    assert_eq!(writes, 3, "one write a call");
    for kept in (0..=writes).rev() {
        let store = EmbeddedGroupHistory::new(engine.crash(kept).expect("in memory"));
        let range = HistoryRange::Forward { after: Seq::ZERO };
        let rows = store.conversation(talk.group, range, 10).await;
        let rows = rows.expect("reads");
        assert_eq!(rows.len(), kept);
        let own = store.own_between(talk.group, talk.user, Seq(0), Seq(9));
        assert_eq!(own.await.expect("reads"), kept as u64);
        for row in rows {
            let found = store.find_send(row.from, row.group, row.send_id, row.id);
            assert_eq!(found.await.expect("reads"), Some(row));
        }
    }
}

/// A position that names a missing row is an error, not a gap.
#[tokio::test]
async fn a_position_without_its_row_is_corrupt() {
    let fresh = TestIds::new(1);
    let talk = Talk::new(&fresh);
    let engine = Engine::memory();
    let store = EmbeddedGroupHistory::new(engine.clone());
    let ids = talk.say(&store, 1..=2).await;
    let mut batch = WriteBatch::new();
    batch.remove(Table::Group, row_key(talk.group, ids[1]).to_vec());
    engine.write(batch).expect("writes");
    let range = HistoryRange::Forward { after: Seq::ZERO };
    let read = store.conversation(talk.group, range, 10).await;
    assert_eq!(read.expect_err("torn").kind, crate::Kind::Corrupt);
}
