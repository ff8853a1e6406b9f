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
    async fn keep_copy(&self, who: i64) {
        let token = self.found(CacheKey::User(user(who))).await.token;
        let copy = UserEntry {
            at: self.now(),
            private_before: Timestamp::ZERO,
            groups: Default::default(),
        };
        let copy = CacheRecord::of_user(user(who), token, &copy).expect("small");
        self.keep(copy).await;
    }

    async fn keep_group_copy(&self, head: Head) {
        let token = self.found(CacheKey::Group(group())).await.token;
        let copy = GroupEntry::read(self.now(), head, Some(CLOSED));
        let copy = CacheRecord::of_group(group(), token, &copy).expect("small");
        self.keep(copy).await;
    }

    async fn keep(&self, copy: CacheRecord) {
        let mut kept = self.backends.cache.keep(vec![copy]).await;
        assert!(kept.remove(0).expect("answers"));
    }

    async fn found(&self, owner: CacheKey) -> CacheLookup {
        let mut found = self.backends.cache.find(&[owner]).await;
        found.remove(0).expect("answers")
    }

    async fn copy(&self, who: UserId) -> Option<UserEntry> {
        self.found(CacheKey::User(who)).await.user()
    }

    async fn group_copy(&self) -> Option<GroupEntry> {
        self.found(CacheKey::Group(group())).await.group()
    }
}

// proves S2-24: what a message made old is forgotten or renewed before anybody hears of it, and nothing else is.
#[tokio::test(start_paused = true)]
async fn what_a_record_made_old_is_not_found_any_more() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.until_quiet().await;
    for who in [ALICE, BOB, CAROL] {
        world.keep_copy(who).await;
    }
    world.say(ALICE).await;
    world.until_quiet().await;
    assert_eq!(world.group_copy().await, None, "nobody asked for it");
    let heads = [ConversationId::Group(group())];
    let heads = world.backends.heads.load(&heads).await.expect("loads");
    let head = heads[0].expect("it has one");
    world.keep_group_copy(head).await;
    let copy = world.group_copy().await.expect("kept");
    let last = world.say(BOB).await;
    world.until_quiet().await;
    let next = world.group_copy().await.expect("renewed");
    assert_eq!((copy.head.seq.0, next.head.seq.0), (1, 2));
    assert_eq!(next.head.last_id, Some(last));
    assert_eq!((next.settings, next.at), (Some(CLOSED), next.head.stamp));
    for who in [ALICE, BOB] {
        assert!(world.copy(user(who)).await.is_some(), "of a group");
    }

    world.send(ALICE, BOB).await;
    world.until_quiet().await;
    for (who, stays) in [(ALICE, false), (BOB, false), (CAROL, true)] {
        assert_eq!(world.copy(user(who)).await.is_some(), stays, "{who}");
    }

    world.keep_copy(BOB).await;
    world
        .command(ALICE, GroupCommand::Add(vec![user(CAROL)]))
        .await;
    world.until_quiet().await;
    assert_eq!(world.copy(user(CAROL)).await, None);
    assert_eq!(world.group_copy().await, None);
    assert!(world.copy(user(BOB)).await.is_some());
}

/// A carrier that does not know that it was overtaken: the other's head stays, and so does the
/// cache entry.
#[tokio::test(start_paused = true)]
async fn a_late_writer_does_not_put_an_older_copy() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.say(ALICE).await;
    world.until_quiet().await;
    let of = ConversationId::Group(group());
    let heads = world.backends.heads.load(&[of]).await.expect("loads");
    let mut ahead = heads[0].expect("it has one");
    ahead.seq = Seq(8);
    ahead.version.offset += 1000;
    let saved = world.backends.heads.save(vec![(of, ahead)]).await;
    saved.expect("saves");
    world.keep_group_copy(ahead).await;
    world.say(BOB).await;
    world.until_quiet().await;
    let copy = world.group_copy().await;
    assert!(copy.is_none_or(|copy| copy.head == ahead), "{copy:?}");
}

/// A message is written, and no session is looked for before the cache entry is gone.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_while_a_copy_may_be_found() {
    let world = World::new().await;
    world
        .sign_in(BOB, Platform::Web, 20, Manner::Acknowledges)
        .await;
    world.keep_copy(BOB).await;
    world.faults.begin(CACHE, Fault::Unavailable);
    let id = world.send(ALICE, BOB).await;
    world
        .until("it is placed", async || {
            !world.conversation(ALICE, BOB).await.is_empty()
        })
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(world.boat.pushed_to(20).is_empty());
    world.faults.end(CACHE);
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(20), [id.get()]);
    assert_eq!(world.copy(user(BOB)).await, None);
    // But not for ever.
    world.faults.begin(CACHE, Fault::Unavailable);
    let id = world.send(ALICE, BOB).await;
    world.until_quiet().await;
    assert_eq!(world.boat.pushed_to(20)[1..], [id.get()]);
}

/// A removed member must not find, by a stale cache entry, anything said after the removal.
#[tokio::test(start_paused = true)]
async fn nothing_behind_a_command_is_written_before_copies_are_forgotten() {
    let world = World::new().await;
    world.command(ALICE, create([BOB])).await;
    world.until_quiet().await;
    world.keep_copy(BOB).await;
    world.faults.begin(CACHE, Fault::Unavailable);
    world.command(ALICE, GroupCommand::Remove(user(BOB))).await;
    let behind = world.say(ALICE).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.said().await, []);
    world.faults.end(CACHE);
    world.until_quiet().await;
    assert_eq!(world.said().await, [(protocol::Seq(1), behind)]);
    assert_eq!(world.copy(user(BOB)).await, None);
}
