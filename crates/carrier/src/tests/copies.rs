//! Cache entries beside the stores: renewed by the writer, invalidated before any delivery.

use std::time::Duration;

use backend::cache::{CacheLookup, CacheRecord};
use backend::hook::Fault;
use protocol::cache::{CacheKey, GroupEntry, UserEntry};
use protocol::conversation::Head;
use protocol::group::GroupCommand;
use protocol::{ConversationId, Platform, Seq, Timestamp, UserId};

use super::groups::{CLOSED, create, group};
use super::world::*;

const CAROL: i64 = 3;

impl World {
    /// Fills the cache, as a station that has read the user.
    async fn store_user_entry(&self, user_id: i64) {
        let token = self.lookup(CacheKey::User(user(user_id))).await.token;
        let entry = UserEntry {
            at: self.now(),
            private_before: Timestamp::ZERO,
            groups: Default::default(),
        };
        let entry = CacheRecord::from_user(user(user_id), token, &entry).expect("small");
        self.keep(entry).await;
    }

    async fn store_group_entry(&self, head: Head) {
        let token = self.lookup(CacheKey::Group(group())).await.token;
        let entry = GroupEntry::read(self.now(), head, Some(CLOSED));
        let entry = CacheRecord::from_group(group(), token, &entry).expect("small");
        self.keep(entry).await;
    }

    async fn keep(&self, entry: CacheRecord) {
        let mut answers = self.backends.cache.keep(vec![entry]).await;
        assert!(answers.remove(0).expect("answers"));
    }

    async fn lookup(&self, owner: CacheKey) -> CacheLookup {
        let mut lookups = self.backends.cache.find(&[owner]).await;
        lookups.remove(0).expect("answers")
    }

    async fn user_entry(&self, user_id: UserId) -> Option<UserEntry> {
        self.lookup(CacheKey::User(user_id)).await.user()
    }

    async fn group_entry(&self) -> Option<GroupEntry> {
        self.lookup(CacheKey::Group(group())).await.group()
    }
}

// proves S2-24: what a message made old is forgotten or renewed before anybody hears of it, and nothing else is.
#[tokio::test(start_paused = true)]
async fn stale_entries_are_renewed_or_invalidated() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.wait_until_committed().await;
    for user_id in [ALICE, BOB, CAROL] {
        world.store_user_entry(user_id).await;
    }
    world.say(ALICE).await;
    world.wait_until_committed().await;
    assert_eq!(world.group_entry().await, None, "nobody asked for it");
    let heads = [ConversationId::Group(group())];
    let heads = world.backends.heads.load(&heads).await.expect("loads");
    let head = heads[0].expect("it has one");
    world.store_group_entry(head).await;
    let old_entry = world.group_entry().await.expect("kept");
    let last = world.say(BOB).await;
    world.wait_until_committed().await;
    let new_entry = world.group_entry().await.expect("renewed");
    assert_eq!((old_entry.head.seq.0, new_entry.head.seq.0), (1, 2));
    assert_eq!(new_entry.head.last_id, Some(last));
    assert_eq!(
        (new_entry.settings, new_entry.at),
        (Some(CLOSED), new_entry.head.stamp)
    );
    for user_id in [ALICE, BOB] {
        assert!(
            world.user_entry(user(user_id)).await.is_some(),
            "of a group"
        );
    }

    world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    for (user_id, stays) in [(ALICE, false), (BOB, false), (CAROL, true)] {
        assert_eq!(
            world.user_entry(user(user_id)).await.is_some(),
            stays,
            "{user_id}"
        );
    }

    world.store_user_entry(BOB).await;
    world
        .command(ALICE, GroupCommand::Add(vec![user(CAROL)]))
        .await;
    world.wait_until_committed().await;
    assert_eq!(world.user_entry(user(CAROL)).await, None);
    assert_eq!(world.group_entry().await, None);
    assert!(world.user_entry(user(BOB)).await.is_some());
}

/// A carrier that does not know that it was overtaken: the other's head stays, and so does the
/// cache entry.
#[tokio::test(start_paused = true)]
async fn a_late_writer_does_not_put_an_older_copy() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.say(ALICE).await;
    world.wait_until_committed().await;
    let conversation = ConversationId::Group(group());
    let heads = world
        .backends
        .heads
        .load(&[conversation])
        .await
        .expect("loads");
    let mut newer_head = heads[0].expect("it has one");
    newer_head.seq = Seq(8);
    newer_head.version.offset += 1000;
    let save = world
        .backends
        .heads
        .save(vec![(conversation, newer_head)])
        .await;
    save.expect("saves");
    world.store_group_entry(newer_head).await;
    world.say(BOB).await;
    world.wait_until_committed().await;
    let entry = world.group_entry().await;
    assert!(
        entry.is_none_or(|entry| entry.head == newer_head),
        "{entry:?}"
    );
}

/// A message is written, and no session is looked for before the cache entry is gone.
#[tokio::test(start_paused = true)]
async fn deliveries_wait_until_stale_entries_are_invalidated() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.store_user_entry(BOB).await;
    world.faults.begin(CACHE, Fault::Unavailable);
    let id = world.send(ALICE, BOB).await;
    world
        .wait_until("it is placed", async || {
            !world.conversation(ALICE, BOB).await.is_empty()
        })
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(world.boat.pushed_to(20).is_empty());
    world.faults.end(CACHE);
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(world.user_entry(user(BOB)).await, None);
    // But not for ever.
    world.faults.begin(CACHE, Fault::Unavailable);
    let id = world.send(ALICE, BOB).await;
    world.wait_until_committed().await;
    assert_eq!(world.boat.pushed_to(20)[1..], [id.get()]);
}

/// A removed member must not find, by a stale cache entry, anything said after the removal.
#[tokio::test(start_paused = true)]
async fn a_write_behind_a_command_waits_for_cache_invalidation() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.wait_until_committed().await;
    world.store_user_entry(BOB).await;
    world.faults.begin(CACHE, Fault::Unavailable);
    world
        .command(ALICE, GroupCommand::Remove(vec![user(BOB)]))
        .await;
    let next_id = world.say(ALICE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.group_history().await, []);
    world.faults.end(CACHE);
    world.wait_until_committed().await;
    assert_eq!(world.group_history().await, [(protocol::Seq(1), next_id)]);
    assert_eq!(world.user_entry(user(BOB)).await, None);
}
