use protocol::Seq;
use protocol::group::Role;

use super::*;
use crate::fresh::{Fresh, on_memory_and_disk};
use crate::groups::contract::{self, member, version};

contract::checks!(on_memory_and_disk!(super::EmbeddedGroups::new));

const SETTINGS: Settings = Settings {
    open_history: true,
    open_door: true,
};

/// A crash finds what a record made of a group on both sides, or on neither.
#[tokio::test]
async fn a_crash_never_splits_a_member_from_their_list() {
    let fresh = Fresh::new(1);
    let (group, user) = (fresh.group(), fresh.user());
    let engine = Engine::memory();
    engine.hold_syncs();
    let store = EmbeddedGroups::new(engine.clone());
    for n in 1..=3 {
        let members = vec![(user, member(Role::Member, n, n))];
        let settings = Some((SETTINGS, version(n)));
        store.save(group, settings, members).await.expect("saves");
    }
    assert_eq!(engine.undurable(), 3, "one write a call");
    for kept in (0..=3).rev() {
        let store = EmbeddedGroups::new(engine.crash(kept).expect("in memory"));
        let loaded = contract::load(&store, group).await;
        let since = loaded.and_then(|group| group.members.get(user).map(|it| it.since));
        assert_eq!(since, (kept > 0).then_some(Seq(kept as u64)));
        let listed = store.groups_of(user, None, 9).await.expect("reads");
        assert_eq!(listed.first().map(|(_, it)| it.since), since);
    }
}

/// As many as a group may have, and as many again who left.
#[tokio::test]
async fn a_hundred_thousand_members_are_fine() {
    let fresh = Fresh::new(1);
    let group = fresh.group();
    let store = EmbeddedGroups::new(Engine::memory());
    let users: Vec<_> = (0..200_000).map(|_| fresh.user()).collect();
    for some in users.chunks(500) {
        // Those who left stand before all others.
        let role = |user: &UserId| (*user >= users[100_000]).then_some(Role::Member);
        let members = some.iter().map(|user| (*user, member(role(user), 0, 1)));
        let settings = Some((SETTINGS, version(1)));
        let saved = store.save(group, settings, members.collect()).await;
        saved.expect("saves");
    }
    let loaded = contract::load(&store, group).await.expect("is there");
    assert_eq!(loaded.members.len(), 200_000);
    assert_eq!(loaded.present().count(), 100_000);
    let first = store.present(group, None, 500).await.expect("reads");
    let first: Vec<_> = first.into_iter().map(|(user, _)| user).collect();
    assert_eq!(first, users[100_000..100_500]);
}
