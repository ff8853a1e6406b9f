//! Answers made from cache entries.

use std::time::Duration;

use backend::cache::CacheConfig;
use protocol::cache::{CacheKey, Invalidation};
use protocol::frame::{HistoryRange, ListPage};
use protocol::receipt::ReceiptKind;
use protocol::{Code, Seq, Timestamp};

use super::groups::{CLOSED, group, of};
use super::receipts::receipt_item;
use super::world::*;
use crate::Config;

async fn cached_world() -> World {
    world_with_cache(Config::default(), CacheConfig::default()).await
}

impl World {
    async fn forget(&self, owner: CacheKey) {
        let results = self.backends.cache.forget(&[Invalidation::of(owner)]).await;
        assert!(results.iter().all(Result::is_ok));
    }

    async fn forward(&self, number: i64, cursor: u64) -> Result<Vec<u64>, Code> {
        let range = HistoryRange::Forward { after: Seq(cursor) };
        let page = self.history(number, of(7), range, 0).await?;
        let seqs = page.messages.iter().map(|entry| entry.position.seq.0);
        Ok(seqs.collect())
    }
}

fn ends(page: &ListPage) -> Vec<u64> {
    page.conversations.iter().map(|row| row.seq.0).collect()
}

/// Should a cache entry ever be stale, the next list that knows better makes good for it, and
/// nobody who knows more hears that the server lost something.
#[tokio::test(start_paused = true)]
async fn stale_cache_entry_is_corrected_by_a_later_list() {
    let world = cached_world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.say(7, 1, "one").await;
    let first = world.list(2, Timestamp::ZERO, None).await;
    assert_eq!(ends(&first), [1]);
    assert_eq!(world.forward(2, 0).await, Ok(vec![1]));
    tokio::time::advance(Duration::from_secs(120)).await;
    // Nobody invalidates the entry.
    world.say(7, 1, "two").await;
    let page = world
        .history(2, of(7), HistoryRange::Forward { after: Seq(0) }, 0)
        .await;
    assert_eq!(page.expect("a page").last_seq, Seq(1));
    assert_eq!(world.forward(2, 2).await, Ok(vec![]), "it has the second");
    world.forget(CacheKey::Group(group(7))).await;
    tokio::time::advance(Duration::from_secs(120)).await;

    // A user's entry as well: its age shows in the version.
    world.list(2, first.version, None).await;
    world.place(1, 2, 1, "hello").await;
    tokio::time::advance(Duration::from_secs(120)).await;
    let stale = world.list(2, world.backends.clock.now(), None).await;
    assert!(ends(&stale).is_empty());
    let start = world.backends.clock.now() - Duration::from_secs(250);
    let stale = world.list(2, start, None).await;
    assert_eq!(ends(&stale), [2], "the group alone");
    assert!(stale.version < world.backends.clock.now() - Duration::from_secs(100));
    world.forget(CacheKey::User(user(2))).await;
    let next_page = world.list(2, stale.version, None).await;
    assert_eq!(next_page.conversations[0].conversation, between(1, 2));
}

#[tokio::test(start_paused = true)]
async fn copies_end_with_their_time() {
    let world = cached_world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.say(7, 1, "one").await;
    let query_count = async || {
        world.faults.calls("groups", "members_of");
        let page = world.list(2, Timestamp::from_millis(1), None).await;
        assert_eq!(ends(&page), [1]);
        world.forward(2, 0).await.expect("a page");
        world.faults.calls("groups", "members_of")
    };
    assert!(query_count().await > 0);
    assert_eq!(query_count().await, 0);
    tokio::time::advance(Duration::from_secs(30 * 60)).await;
    assert!(query_count().await > 0);
    assert_eq!(query_count().await, 0);
}

/// A receipt moves the register, and the cache entry with it.
#[tokio::test(start_paused = true)]
async fn receipt_updates_the_cached_row() {
    let world = cached_world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    let mut last = world.say(7, 1, "one").await;
    for _ in 0..4 {
        last = world.say(7, 1, "more").await;
    }
    let row = async || {
        let page = world.list(2, Timestamp::from_millis(1), None).await;
        page.conversations.into_iter().next().expect("listed")
    };
    assert_eq!(row().await.unread, 5);
    world.forward(2, 0).await.expect("a page");
    let read = receipt_item(2, ReceiptKind::Read, &[&last]);
    assert_eq!(world.acknowledge(&[read]).await[0].refusals, []);
    world.faults.calls("groups", "members_of");
    let cached_row = row().await;
    assert_eq!((cached_row.unread, cached_row.read_seq), (0, Seq(5)));
    assert_eq!(world.faults.calls("groups", "members_of"), 0);
    // A private one is in the difference again.
    let entry = world.place(1, 2, 1, "hello").await;
    world.forget(CacheKey::User(user(2))).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let quiet = world.list(2, world.backends.clock.now(), None).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let read = receipt_item(2, ReceiptKind::Read, &[&entry]);
    assert_eq!(world.acknowledge(&[read]).await[0].refusals, []);
    let page = world.list(2, quiet.version, None).await;
    let row = page
        .conversations
        .iter()
        .find(|row| row.conversation == between(1, 2));
    assert_eq!(row.expect("it was read").read_seq, Seq(1));
}

/// A removed member reads nothing by an old entry once it is invalidated, and a user who never was
/// a member reads nothing at all.
#[tokio::test(start_paused = true)]
async fn only_members_are_answered_from_copies() {
    let world = cached_world().await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    world.say(7, 1, "one").await;
    world.list(3, Timestamp::ZERO, None).await;
    world.list(2, Timestamp::ZERO, None).await;
    assert_eq!(world.forward(2, 0).await, Ok(vec![1]));
    assert_eq!(world.forward(3, 0).await, Err(Code::Forbidden));
    world.set_role(7, CLOSED, 2, None).await;
    world.forget(CacheKey::User(user(2))).await;
    assert_eq!(world.forward(2, 0).await, Err(Code::Forbidden));
    world.list(2, Timestamp::from_millis(1), None).await;
    assert_eq!(world.forward(2, 0).await, Err(Code::Forbidden));
}
