//! The end of every test here is judged, and its seed repeats it.

use backend::embedded::{Engine, Table, WriteBatch};
use protocol::conversation::ConversationRow;
use protocol::history::Version;
use protocol::unread::Tally;
use protocol::{MessageId, Seq};
use tests::person::conversation;
use tests::{Cluster, settings, user};

/// System over this store in which two users have talked, and the ids of their messages.
async fn talk(engine: &Engine) -> (Cluster, Vec<MessageId>) {
    let cluster = Cluster::over(settings(), engine).await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).over_tcp().ready().await;
    let mut ids = Vec::new();
    for text in ["one", "two", "three"] {
        ids.push(ada.say(2, text).await);
        assert_eq!(bea.hear_texts(1).await, [text]);
    }
    cluster.assert_settled(3).await;
    ada.close().await;
    bea.close().await;
    (cluster, ids)
}

// Nobody reads it any more: only the judges notice.
#[tokio::test]
#[should_panic(expected = "the judges: ")]
async fn a_row_that_is_gone_fails_the_test_at_its_end() {
    let engine = Engine::memory();
    let (cluster, ids) = talk(&engine).await;
    let key = [user(2).get().to_be_bytes(), ids[1].get().to_be_bytes()].concat();
    let row = engine.get(Table::Private, &key).expect("reads");
    assert!(row.is_some());
    let mut batch = WriteBatch::new();
    batch.remove(Table::Private, key);
    engine.write(batch).expect("writes");
    cluster.stop().await;
}

// The list says more than the log.
#[tokio::test]
#[should_panic(expected = "the judges: the list of 2 has p:1:2 up to")]
async fn planted_list_row_fails_the_test_at_its_end() {
    let (cluster, ids) = talk(&Engine::memory()).await;
    let row = ConversationRow {
        owner: user(2),
        conversation: conversation(1, 2),
        end: Tally {
            seq: Seq(4),
            incoming: 4,
        },
        rev: 0,
        last_id: ids[2],
        version: cluster.now(),
        source: Version::LATEST,
    };
    let result = cluster.backends.conversations.save(vec![row]).await;
    result.expect("saves");
    cluster.stop().await;
}

/// Calls of the parts in a talk by this seed.
async fn calls(seed: u64) -> Vec<String> {
    let cluster = Cluster::seeded(seed).await;
    let mut ada = cluster.device(1).over_tcp().ready().await;
    let mut bea = cluster.device(2).over_tcp().ready().await;
    for _ in 0..3 {
        ada.say(2, "ping").await;
        bea.hear().await;
        bea.say(1, "pong").await;
        ada.hear().await;
    }
    cluster.assert_settled(6).await;
    let calls = cluster.calls();
    cluster.stop().await;
    calls
}

// On the real parts nothing is seeded, and there are no calls to compare.
#[tokio::test]
async fn the_same_seed_is_the_same_test_and_another_is_not() {
    let (one, repeat, other) = (calls(7).await, calls(7).await, calls(8).await);
    let difference = one.iter().zip(&repeat).find(|(one, repeat)| one != repeat);
    assert_eq!(difference, None);
    assert_eq!(one.len(), repeat.len());
    assert!(one.is_empty() || one != other);
}
