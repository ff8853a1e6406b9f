//! Contract of every group store. Each check uses groups and users of its own, so that all may
//! share one store.

use std::collections::BTreeMap;

use protocol::group::{Group, GroupInfo, GroupSettings, Member, Restrictions, Role};
use protocol::history::Version;
use protocol::{GroupId, Seq, Timestamp, UserId};

use super::{GroupLoad, GroupStore, LoadProgress, PAGE};
use crate::test_ids::TestIds;

const MAX_MEMBERS: usize = 1000;

const OPEN: GroupSettings = GroupSettings {
    open_history: true,
    ..GroupSettings::CLOSED
};
const CLOSED: GroupSettings = GroupSettings {
    open_door: true,
    ..GroupSettings::CLOSED
};

pub(super) fn version(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

pub(super) fn member(role: impl Into<Option<Role>>, since_seq: u64, offset: u64) -> Member {
    Member::new(role.into(), Seq(since_seq), version(offset))
}

async fn save(
    store: &dyn GroupStore,
    group: GroupId,
    settings: impl Into<Option<(GroupSettings, u64)>>,
    members: &[(UserId, Member)],
) {
    let info = settings.into().map(info);
    let result = store.save(group, info, members.to_vec()).await;
    result.expect("saves");
}

fn info((settings, offset): (GroupSettings, u64)) -> GroupInfo {
    GroupInfo::uncounted(settings, version(offset))
}

pub(super) async fn load(store: &dyn GroupStore, group: GroupId) -> Option<Group> {
    let mut progress = LoadProgress::new(group);
    loop {
        match progress.next(store, PAGE).await.expect("reads") {
            GroupLoad::Part => {}
            GroupLoad::Whole(group) => return Some(group),
            GroupLoad::Absent => return None,
        }
    }
}

async fn present(
    store: &dyn GroupStore,
    group: GroupId,
    cursor: Option<UserId>,
    limit: usize,
) -> Vec<(UserId, Member)> {
    let present = store.present(group, cursor, limit).await;
    present.expect("reads")
}

async fn groups_of(store: &dyn GroupStore, user: UserId) -> Vec<(GroupId, Member)> {
    store
        .groups_of(user, None, MAX_MEMBERS)
        .await
        .expect("reads")
}

/// Asserts the exact group through every query.
async fn is(
    store: &dyn GroupStore,
    group: GroupId,
    (settings, offset): (GroupSettings, u64),
    members: &[(UserId, Member)],
) {
    let expected = Group {
        info: info((settings, offset)),
        members: members.iter().copied().collect(),
    };
    assert_eq!(load(store, group).await, Some(expected.clone()));
    let present_members = members.iter().filter(|(_, member)| member.role.is_some());
    let mut by_user: Vec<_> = present_members.copied().collect();
    by_user.sort_by_key(|(user, _)| *user);
    assert_eq!(present(store, group, None, MAX_MEMBERS).await, by_user);
    for (user, member) in members.iter().copied() {
        let memberships = store.members_of(&[(group, user)]).await.expect("reads");
        assert_eq!(memberships, [Some((info((settings, offset)), member))]);
        let listing = groups_of(store, user).await;
        let membership = listing.into_iter().find(|(listing, _)| *listing == group);
        assert_eq!(membership, Some((group, member)));
    }
}

pub(super) async fn a_group_is_what_was_saved(store: &dyn GroupStore, fresh: &TestIds) {
    let group = fresh.group();
    let [owner, admin, plain, leaver] = [(); 4].map(|()| fresh.user());
    assert_eq!(load(store, group).await, None);
    let mut members = vec![
        (owner, member(Role::Owner, 0, 1)),
        (plain, member(Role::Member, 1 << 40, 2)),
        (leaver, member(None, 3, 3)),
    ];
    save(store, group, (OPEN, 1), &members).await;
    is(store, group, (OPEN, 1), &members).await;

    // A record leaves members and settings that it does not mention.
    members.push((admin, member(Role::Admin, 4, 4)));
    save(store, group, None, &members[3..]).await;
    is(store, group, (OPEN, 1), &members).await;
    save(store, group, (CLOSED, 5), &[]).await;
    is(store, group, (CLOSED, 5), &members).await;
    save(store, group, None, &[]).await;
    is(store, group, (CLOSED, 5), &members).await;
    assert_eq!(load(store, fresh.group()).await, None);
}

/// An earlier version never replaces a later one, on either side, and a repeat changes nothing.
pub(super) async fn only_a_later_version_replaces(store: &dyn GroupStore, fresh: &TestIds) {
    let group = fresh.group();
    let (owner, other) = (fresh.user(), fresh.user());
    let now = [
        (owner, member(Role::Owner, 0, 1)),
        (other, member(None, 2, 9)),
    ];
    save(store, group, (CLOSED, 9), &now).await;
    // A late row with a larger role and a later `since`.
    let late = (other, member(Role::Owner, 99, 8));
    for (settings, members) in [
        (None, &[late][..]),
        (Some((OPEN, 8)), &[]),
        (Some((OPEN, 8)), &[late, now[0]]),
        (Some((CLOSED, 9)), &now),
    ] {
        save(store, group, settings, members).await;
        is(store, group, (CLOSED, 9), &now).await;
    }
    // Settings and members are compared each by their own version.
    save(store, group, (CLOSED, 10), &[late]).await;
    is(store, group, (CLOSED, 10), &now).await;
    let rejoin = (other, member(Role::Member, 1, 12));
    save(store, group, (OPEN, 9), &[rejoin]).await;
    is(store, group, (CLOSED, 10), &[now[0], rejoin]).await;

    // A later epoch wins, whatever its offset, also with both in one call, the later first.
    let new_log_member = Member {
        version: Version {
            epoch: 2,
            offset: 0,
        },
        ..member(None, 0, 0)
    };
    save(store, group, None, &[(other, new_log_member), rejoin]).await;
    is(
        store,
        group,
        (CLOSED, 10),
        &[now[0], (other, new_log_member)],
    )
    .await;
    save(store, group, None, &[rejoin]).await;
    is(
        store,
        group,
        (CLOSED, 10),
        &[now[0], (other, new_log_member)],
    )
    .await;
}

/// A new group exists once its own row does; an interrupted save leaves members, and is repeated.
pub(super) async fn without_its_row_there_is_no_group(store: &dyn GroupStore, fresh: &TestIds) {
    let (group, owner) = (fresh.group(), fresh.user());
    let members = [(owner, member(Role::Owner, 0, 1))];
    save(store, group, None, &members).await;
    assert_eq!(load(store, group).await, None);
    let memberships = store.members_of(&[(group, owner)]).await.expect("reads");
    assert_eq!(memberships, [None]);
    save(store, group, (OPEN, 1), &members).await;
    is(store, group, (OPEN, 1), &members).await;
}

/// Everything that a group counts, and what it forbids a user, comes back as it was saved, from every
/// query; a later record takes it back.
pub(super) async fn counts_and_restrictions_are_kept(store: &dyn GroupStore, fresh: &TestIds) {
    let (group, banned, muted) = (fresh.group(), fresh.user(), fresh.user());
    let settings = GroupSettings {
        muted: true,
        quiet: true,
        ..OPEN
    };
    let whole_info = GroupInfo {
        present: Some(100_000),
        is_large: true,
        resized_by: version(3),
        is_dissolved: true,
        ..GroupInfo::uncounted(settings, version(4))
    };
    let restricted = |member: Member, is_banned, muted_until| Member {
        restrictions: Restrictions {
            is_banned,
            muted_until: Timestamp::from_millis(muted_until),
        },
        ..member
    };
    let members = vec![
        (banned, restricted(member(None, 9, 4), true, 0)),
        (
            muted,
            restricted(member(Role::Member, 1, 4), false, 1 << 45),
        ),
    ];
    let free_members = vec![
        (banned, member(Role::Member, 9, 5)),
        (muted, member(None, 1, 5)),
    ];
    let free_info = GroupInfo {
        present: Some(0),
        ..info((CLOSED, 5))
    };
    for (info, members) in [(whole_info, members), (free_info, free_members)] {
        let saved = store.save(group, Some(info), members.clone()).await;
        saved.expect("saves");
        assert_eq!(store.infos(&[group]).await.expect("reads"), [Some(info)]);
        let mut by_user = members.clone();
        by_user.sort_by_key(|(user, _)| *user);
        let page = store.members(group, None, MAX_MEMBERS).await;
        assert_eq!(page.expect("reads"), by_user);
        for (user, member) in members {
            let memberships = store.members_of(&[(group, user)]).await.expect("reads");
            assert_eq!(memberships, [Some((info, member))]);
            assert_eq!(groups_of(store, user).await, [(group, member)]);
        }
    }
}

/// Many members in one query, in any order and repeatedly.
pub(super) async fn membership_is_answered_in_order(store: &dyn GroupStore, fresh: &TestIds) {
    let (open, closed_group, none) = (fresh.group(), fresh.group(), fresh.group());
    let users: Vec<_> = (0..150).map(|_| fresh.user()).collect();
    let members: Vec<_> = (1..)
        .zip(&users)
        .map(|(n, user)| (*user, member(Role::Member, n, n)))
        .collect();
    save(store, open, (OPEN, 1), &members).await;
    save(store, closed_group, (CLOSED, 1), &members[..1]).await;
    let mut keys: Vec<_> = users.iter().rev().map(|user| (open, *user)).collect();
    keys.extend([
        (closed_group, users[0]),
        (none, users[0]),
        (closed_group, users[1]),
        (open, fresh.user()),
        (closed_group, users[0]),
    ]);
    let memberships = store.members_of(&keys).await.expect("reads");
    let mut expected: Vec<_> = members
        .iter()
        .rev()
        .map(|(_, member)| Some((info((OPEN, 1)), *member)))
        .collect();
    let first = Some((info((CLOSED, 1)), members[0].1));
    expected.extend([first, None, None, None, first]);
    assert_eq!(memberships, expected);
    assert_eq!(store.members_of(&[]).await.expect("reads"), []);
}

/// Pages of present members, in order of user, each once, despite departed ones between.
pub(super) async fn present_members_come_by_page(store: &dyn GroupStore, fresh: &TestIds) {
    let (group, other_group) = (fresh.group(), fresh.group());
    let users: Vec<_> = (0..23).map(|_| fresh.user()).collect();
    let role = |n: usize| (!(4..12).contains(&n) && n != 22).then_some(Role::Member);
    let mut members: Vec<_> = users
        .iter()
        .enumerate()
        .map(|(n, user)| (*user, member(role(n), 0, 1)))
        .collect();
    save(store, other_group, (OPEN, 1), &members).await;
    members.reverse();
    save(store, group, (OPEN, 1), &members).await;
    members.reverse();
    let expected: Vec<_> = members
        .into_iter()
        .filter(|(_, member)| member.role.is_some())
        .collect();
    for limit in [1, 3, 14, 15] {
        let mut all_pages: Vec<(UserId, Member)> = Vec::new();
        loop {
            let last = all_pages.last().map(|(user, _)| *user);
            let page = present(store, group, last, limit).await;
            let is_last = page.len() < limit;
            all_pages.extend(page);
            if is_last {
                break;
            }
        }
        assert_eq!(all_pages, expected, "pages of {limit}");
    }
    // After a departed member, after the last one, and after a user who never was a member.
    let page_after = |user: UserId| present(store, group, Some(user), MAX_MEMBERS);
    assert_eq!(page_after(users[7]).await, expected[4..]);
    assert_eq!(page_after(users[22]).await, []);
    assert_eq!(page_after(fresh.user()).await, []);
    assert_eq!(present(store, group, None, 0).await, []);
    assert_eq!(present(store, fresh.group(), None, MAX_MEMBERS).await, []);
}

/// A user's own list: in order of group, by page, including groups left.
pub(super) async fn a_user_finds_their_groups(store: &dyn GroupStore, fresh: &TestIds) {
    let (user, other) = (fresh.user(), fresh.user());
    let groups: Vec<_> = (1..=11).map(|n| (n, fresh.group())).collect();
    let mut expected = Vec::new();
    for (n, group) in groups.iter().rev() {
        let mine = member((n % 3 != 0).then_some(Role::Member), *n, *n);
        let theirs = member(Role::Owner, 0, 1);
        save(store, *group, (OPEN, 1), &[(other, theirs), (user, mine)]).await;
        expected.push((*group, mine));
    }
    expected.reverse();
    assert_eq!(groups_of(store, user).await, expected);
    for limit in [1, 4, 11] {
        let mut all_pages: Vec<(GroupId, Member)> = Vec::new();
        loop {
            let last = all_pages.last().map(|(group, _)| *group);
            let page = store.groups_of(user, last, limit).await.expect("reads");
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= limit);
            all_pages.extend(page);
        }
        assert_eq!(all_pages, expected, "pages of {limit}");
    }
    assert_eq!(groups_of(store, fresh.user()).await, []);
    let none = store.groups_of(user, None, 0).await;
    assert_eq!(none.expect("reads"), []);
}

/// More members than any store reads at once.
pub(super) async fn a_large_group_is_loaded_whole(store: &dyn GroupStore, fresh: &TestIds) {
    let group = fresh.group();
    let members: BTreeMap<_, _> = (0..2_500)
        .map(|n| {
            let role = (n % 4 != 0).then_some(Role::Member);
            (fresh.user(), member(role, n, n + 1))
        })
        .collect();
    let all: Vec<_> = members
        .iter()
        .map(|(user, member)| (*user, *member))
        .collect();
    for chunk in all.chunks(500) {
        save(store, group, (CLOSED, 1), chunk).await;
    }
    let stored_group = load(store, group).await.expect("it is there");
    assert!(
        stored_group.members == members.into_iter().collect(),
        "{} of them",
        stored_group.members.len()
    );
    let present_members: Vec<_> = all
        .into_iter()
        .filter(|(_, member)| member.role.is_some())
        .collect();
    let page = present(store, group, None, 5_000).await;
    assert!(page == present_members, "{} of them", page.len());
}

/// Includes departed members, in order, each once, for any page size; the group itself has a query
/// of its own.
pub(super) async fn members_come_by_page(store: &dyn GroupStore, fresh: &TestIds) {
    let (group, other_group) = (fresh.group(), fresh.group());
    assert_eq!(store.infos(&[group]).await.expect("reads"), [None]);
    let all: Vec<_> = (0..23)
        .map(|n| {
            let role = (n % 3 != 0).then_some(Role::Member);
            (fresh.user(), member(role, n, n + 1))
        })
        .collect();
    save(store, other_group, (OPEN, 1), &all).await;
    save(store, group, None, &all).await;
    assert_eq!(load(store, group).await, None);
    save(store, group, (CLOSED, 7), &[]).await;
    let infos = store.infos(&[group, fresh.group(), group]).await;
    let stored_info = Some(info((CLOSED, 7)));
    assert_eq!(infos.expect("reads"), [stored_info, None, stored_info]);
    let whole = load(store, group).await;
    for limit in [1, 5, 22, 23, 24] {
        let mut progress = LoadProgress::new(group);
        let mut pages = 0;
        let stored_group = loop {
            pages += 1;
            match progress.next(store, limit).await.expect("reads") {
                GroupLoad::Part => {}
                GroupLoad::Whole(group) => break Some(group),
                GroupLoad::Absent => break None,
            }
        };
        assert_eq!(stored_group, whole, "pages of {limit}");
        assert_eq!(pages, 23 / limit + 1, "pages of {limit}");
    }
    let rest = store.members(group, Some(all[20].0), MAX_MEMBERS).await;
    assert_eq!(rest.expect("reads"), all[21..]);
    let none = store.members(group, None, 0).await;
    assert_eq!(none.expect("reads"), []);
    let none = store.members(fresh.group(), None, MAX_MEMBERS).await;
    assert_eq!(none.expect("reads"), []);
}

/// Another writer goes on between two pages: the group is read anew, so that its row is not older than
/// its members.
pub(super) async fn a_group_that_changes_is_loaded_anew(store: &dyn GroupStore, fresh: &TestIds) {
    let group = fresh.group();
    let mut users = [(); 3].map(|()| fresh.user());
    users.sort_unstable();
    let members = users.map(|user| (user, member(Role::Member, 0, 1)));
    save(store, group, (OPEN, 1), &members).await;
    let mut progress = LoadProgress::new(group);
    let page = progress.next(store, 2).await.expect("reads");
    assert_eq!(page, GroupLoad::Part);
    // A change of the settings, and then one of a member whose page is still to come.
    save(store, group, (CLOSED, 2), &[]).await;
    let left = (users[2], member(None, 0, 3));
    save(store, group, (CLOSED, 3), &[left]).await;
    let loaded = loop {
        match progress.next(store, 2).await.expect("reads") {
            GroupLoad::Part => {}
            GroupLoad::Whole(group) => break group,
            GroupLoad::Absent => panic!("it is there"),
        }
    };
    let members_now = [members[0], members[1], left];
    is(store, group, (CLOSED, 3), &members_now).await;
    assert_eq!(Some(loaded), load(store, group).await);
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            a_group_is_what_was_saved,
            only_a_later_version_replaces,
            without_its_row_there_is_no_group,
            counts_and_restrictions_are_kept,
            membership_is_answered_in_order,
            present_members_come_by_page,
            a_user_finds_their_groups,
            members_come_by_page,
            a_large_group_is_loaded_whole,
            a_group_that_changes_is_loaded_anew,
        );
    };
}
pub(crate) use checks;
