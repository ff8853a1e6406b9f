use std::sync::atomic::{AtomicI64, Ordering};

use protocol::Seq;
use protocol::group::Role;

use super::*;
use crate::clock::SystemClock;
use crate::groups::contract::{self, member, version};
use crate::test_ids::{TestIds, on_memory_and_disk};

contract::checks!(on_memory_and_disk!(super::open));

fn open(engine: Engine) -> EmbeddedGroups {
    EmbeddedGroups::new(engine, Arc::new(SystemClock))
}

const SETTINGS: GroupSettings = GroupSettings {
    open_history: true,
    open_door: true,
    ..GroupSettings::CLOSED
};

/// After a crash, a record's changes of a group are on both sides, or on neither.
#[tokio::test]
async fn a_crash_never_splits_a_member_from_their_list() {
    let fresh = TestIds::new(1);
    let (group, user) = (fresh.group(), fresh.user());
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = open(engine.clone());
    for n in 1..=3 {
        let members = vec![(user, member(Role::Member, n, n))];
        let info = Some(GroupInfo::uncounted(SETTINGS, version(n)));
        store.save(group, info, members).await.expect("saves");
    }
    assert_eq!(engine.undurable(), 3, "one write a call");
    for write_count in (0..=3).rev() {
        let store = open(engine.crash(write_count).expect("in memory"));
        let stored_group = contract::load(&store, group).await;
        let since_seq =
            stored_group.and_then(|group| group.members.get(user).map(|member| member.since));
        assert_eq!(
            since_seq,
            (write_count > 0).then_some(Seq(write_count as u64))
        );
        let groups = store.groups_of(user, None, 9).await.expect("reads");
        assert_eq!(groups.first().map(|(_, member)| member.since), since_seq);
    }
}

/// As many members as a group may have, and as many departed ones.
#[tokio::test]
async fn a_hundred_thousand_members_are_fine() {
    let fresh = TestIds::new(1);
    let group = fresh.group();
    let store = open(Engine::memory());
    let users: Vec<_> = (0..200_000).map(|_| fresh.user()).collect();
    for chunk in users.chunks(500) {
        // Departed members sort before all others.
        let role = |user: &UserId| (*user >= users[100_000]).then_some(Role::Member);
        let members = chunk.iter().map(|user| (*user, member(role(user), 0, 1)));
        let info = Some(GroupInfo::uncounted(SETTINGS, version(1)));
        let result = store.save(group, info, members.collect()).await;
        result.expect("saves");
    }
    let stored_group = contract::load(&store, group).await.expect("is there");
    assert_eq!(stored_group.members.len(), 200_000);
    assert_eq!(stored_group.present().count(), 100_000);
    let first = store.present(group, None, 500).await.expect("reads");
    let first: Vec<_> = first.into_iter().map(|(user, _)| user).collect();
    assert_eq!(first, users[100_000..100_500]);
}

struct Hand(AtomicI64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// A group forgets members who left before a time, unless they came back or left again since; the
/// users' own lists keep them.
#[tokio::test]
async fn a_group_forgets_long_departed_members() {
    let fresh = TestIds::new(1);
    let (group, leaver, returner, second_leaver) =
        (fresh.group(), fresh.user(), fresh.user(), fresh.user());
    let clock = Arc::new(Hand(AtomicI64::new(1_000)));
    let store = EmbeddedGroups::new(Engine::memory(), clock.clone());
    let member_now = Some(Role::Member);
    for (at, role, users, n) in [
        (1_000, member_now, vec![leaver, returner, second_leaver], 1),
        (2_000, None, vec![leaver, returner, second_leaver], 2),
        (3_000, member_now, vec![returner, second_leaver], 3),
        (4_000, None, vec![second_leaver], 4),
    ] {
        clock.0.store(at, Ordering::Relaxed);
        let members = users.into_iter().map(|user| (user, member(role, n, n)));
        let info = Some(GroupInfo::uncounted(SETTINGS, version(n)));
        let result = store.save(group, info, members.collect()).await;
        result.expect("saves");
    }
    let at = Timestamp::from_millis;
    assert_eq!(store.forget_left(at(2_000), 9).expect("forgets"), 0);
    assert_eq!(
        contract::load(&store, group)
            .await
            .expect("is there")
            .members
            .len(),
        3
    );
    assert_eq!(store.forget_left(at(2_001), 2).expect("forgets"), 2);
    assert_eq!(store.forget_left(at(2_001), 2).expect("forgets"), 1);
    let roles: Vec<_> = store.members(group, None, 9).await.expect("reads");
    let roles: Vec<_> = roles
        .into_iter()
        .map(|(user, member)| (user, member.role))
        .collect();
    let mut expected = vec![(returner, member_now), (second_leaver, None)];
    expected.sort_by_key(|(user, _)| *user);
    assert_eq!(roles, expected);
    assert_eq!(
        store.groups_of(leaver, None, 9).await.expect("reads").len(),
        1
    );
    assert_eq!(store.forget_left(at(9_000), 9).expect("forgets"), 1);
    assert_eq!(store.members(group, None, 9).await.expect("reads").len(), 1);
}

/// Nobody is let in again because a ban was long ago.
#[tokio::test]
async fn a_group_remembers_departed_members_who_are_banned_or_muted() {
    let fresh = TestIds::new(1);
    let (group, banned, muted, free) = (fresh.group(), fresh.user(), fresh.user(), fresh.user());
    let store = open(Engine::memory());
    let departed = |is_banned, muted_until| Member {
        restrictions: Restrictions {
            is_banned,
            muted_until: Timestamp::from_millis(muted_until),
        },
        ..member(None, 1, 1)
    };
    let members = vec![
        (banned, departed(true, 0)),
        (muted, departed(false, 5)),
        (free, departed(false, 0)),
    ];
    let info = Some(GroupInfo::uncounted(SETTINGS, version(1)));
    store.save(group, info, members).await.expect("saves");
    let forgotten = store.forget_left(Timestamp::from_millis(i64::MAX), 9);
    assert_eq!(forgotten.expect("forgets"), 3);
    let users: Vec<_> = store.members(group, None, 9).await.expect("reads");
    let users: Vec<_> = users.into_iter().map(|(user, _)| user).collect();
    assert!(users.contains(&banned) && users.contains(&muted) && !users.contains(&free));
}

/// Rows of programs from before members were counted, and of members without restrictions, have one
/// form.
#[tokio::test]
async fn rows_of_earlier_programs_are_read() {
    let fresh = TestIds::new(1);
    let (group, user) = (fresh.group(), fresh.user());
    let engine = Engine::memory();
    let store = open(engine.clone());
    let first = member(Role::Owner, 0, 1);
    let row = InfoRow {
        version: version(1),
        settings: SETTINGS,
    };
    let mut batch = WriteBatch::new();
    let info_row = encode(SEAM, &row).expect("encodes");
    batch.put(Table::GroupInfo, number(group.get()).to_vec(), info_row);
    let member_row = encode(SEAM, &(first.role, first.since, first.version)).expect("encodes");
    let key = pair(group.get(), user.get()).to_vec();
    batch.put(Table::GroupMember, key, member_row);
    engine.write(batch).expect("writes");
    let info = GroupInfo::uncounted(SETTINGS, version(1));
    let members = store.members_of(&[(group, user)]).await.expect("reads");
    assert_eq!(members, [Some((info, first))]);
}
