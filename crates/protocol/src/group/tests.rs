use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub(super) fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

pub(super) fn at(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

pub(super) const CLOSED: GroupSettings = GroupSettings {
    open_history: false,
    open_door: false,
};

pub(super) fn limits() -> GroupLimits {
    GroupLimits {
        members: 6,
        added_per_command: 3,
    }
}

/// A group of user 1, with the administrator 2 and the member 3.
pub(super) fn group() -> Group {
    let mut group = Group::new(user(1), CLOSED, at(0));
    for (by, command) in [
        (1, GroupCommand::Add(vec![user(2), user(3)])),
        (1, GroupCommand::SetRole(user(2), Role::Admin)),
    ] {
        apply(&mut group, 1, by, command).expect("allowed");
    }
    group
}

fn judge(group: &Group, by: i64, command: &GroupCommand) -> Result<GroupUpdate, Code> {
    let result = group.judge(at(9), user(by), command, Seq(5), &limits());
    result.map_err(|refusal| refusal.code)
}

fn apply(group: &mut Group, offset: u64, by: i64, command: GroupCommand) -> Result<(), Code> {
    let result = group.judge(at(offset), user(by), &command, Seq(offset), &limits());
    group.apply(result.map_err(|refusal| refusal.code)?);
    Ok(())
}

#[test]
fn commands_follow_roles() {
    let group = group();
    let forbidden = Err(Code::Forbidden);
    for command in [
        GroupCommand::Add(vec![user(4)]),
        GroupCommand::Remove(user(2)),
        GroupCommand::Set(CLOSED),
    ] {
        assert_eq!(judge(&group, 3, &command), forbidden, "{command:?}");
        assert_eq!(judge(&group, 9, &command), forbidden, "{command:?}");
    }
    for by in [2, 3, 9] {
        let promote = GroupCommand::SetRole(user(3), Role::Admin);
        assert_eq!(judge(&group, by, &promote), forbidden);
        assert_eq!(
            judge(&group, by, &GroupCommand::HandOver(user(by))),
            forbidden
        );
    }
    assert_eq!(judge(&group, 2, &GroupCommand::Remove(user(1))), forbidden);
    assert_eq!(judge(&group, 2, &GroupCommand::Remove(user(2))), forbidden);
    assert!(judge(&group, 2, &GroupCommand::Remove(user(3))).is_ok());
    assert!(judge(&group, 1, &GroupCommand::Remove(user(2))).is_ok());
    assert_eq!(judge(&group, 9, &GroupCommand::Join), forbidden);
    assert_eq!(
        judge(&group, 1, &GroupCommand::Leave),
        Err(Code::InvalidArgument)
    );
    assert!(judge(&group, 3, &GroupCommand::Leave).is_ok());
}

#[test]
fn command_without_effect_changes_nothing() {
    let group = group();
    for (by, command) in [
        (3, GroupCommand::Join),
        (9, GroupCommand::Leave),
        (1, GroupCommand::Add(vec![user(3)])),
        (1, GroupCommand::Remove(user(9))),
        (1, GroupCommand::SetRole(user(2), Role::Admin)),
        (1, GroupCommand::HandOver(user(1))),
        (2, GroupCommand::Set(CLOSED)),
    ] {
        let outcome = judge(&group, by, &command).expect("allowed");
        assert!(outcome.is_nothing(), "{command:?}");
    }
}

// proves S0-15: who joins later may see what was before, if the group says so.
#[test]
fn late_member_reads_from_the_join_or_everything() {
    let mut group = group();
    apply(&mut group, 40, 1, GroupCommand::Add(vec![user(4)])).expect("allowed");
    assert_eq!(group.readable_after(user(4)), Some(Seq(40)));
    let open_settings = GroupSettings {
        open_history: true,
        ..CLOSED
    };
    apply(&mut group, 41, 1, GroupCommand::Set(open_settings)).expect("allowed");
    assert_eq!(group.readable_after(user(4)), Some(Seq::ZERO));
    apply(&mut group, 42, 4, GroupCommand::Leave).expect("allowed");
    assert_eq!(group.readable_after(user(4)), None);
    assert_eq!(group.readable_after(user(9)), None);
}

#[test]
fn a_group_has_bounds() {
    let mut group = group();
    let four_users = GroupCommand::Add((4..8).map(user).collect());
    assert_eq!(judge(&group, 1, &four_users), Err(Code::InvalidArgument));
    apply(
        &mut group,
        2,
        1,
        GroupCommand::Add((4..7).map(user).collect()),
    )
    .expect("six");
    let one_user = GroupCommand::Add(vec![user(7)]);
    assert_eq!(judge(&group, 1, &one_user), Err(Code::RateLimited));
    apply(&mut group, 3, 5, GroupCommand::Leave).expect("allowed");
    assert!(
        judge(&group, 1, &one_user).is_ok(),
        "those who left have no place"
    );
}

pub(super) fn any_command() -> impl Strategy<Value = (i64, GroupCommand)> {
    let anybody = || (1..9_i64).prop_map(user);
    let role = prop_oneof![Just(Role::Member), Just(Role::Admin), Just(Role::Owner)];
    let command = prop_oneof![
        Just(GroupCommand::Join),
        Just(GroupCommand::Leave),
        vec(anybody(), 0..4).prop_map(GroupCommand::Add),
        anybody().prop_map(GroupCommand::Remove),
        (anybody(), role).prop_map(|(user, role)| GroupCommand::SetRole(user, role)),
        anybody().prop_map(GroupCommand::HandOver),
        any::<(bool, bool)>().prop_map(|(open_history, open_door)| GroupCommand::Set(
            GroupSettings {
                open_history,
                open_door
            }
        )),
    ];
    (1..9_i64, command)
}

proptest! {
    #[test]
    fn a_group_has_one_owner_or_nobody(commands in vec(any_command(), 0..80)) {
        let mut group = Group::new(user(1), CLOSED, at(0));
        for (index, (by, command)) in commands.into_iter().enumerate() {
            let previous = group.clone();
            let offset = index as u64 + 1;
            if apply(&mut group, offset, by, command.clone()).is_err() {
                prop_assert_eq!(&group, &previous);
            }
            let member_count = group.present().count();
            let owners = group.present().filter(|(_, role)| *role == Role::Owner).count();
            prop_assert_eq!(owners, usize::from(member_count > 0));
            prop_assert!(member_count <= limits().members);
            // Only a member, or a user who joins through an open door, changes the group.
            if group != previous {
                let was_join = command == GroupCommand::Join && previous.settings.open_door;
                prop_assert!(previous.role(user(by)).is_some() || was_join);
            }
        }
    }
}

/// Every query of a group that a record causes, at the group's maximum size.
#[test]
fn largest_group_is_never_walked_through_for_a_record() {
    let limits = GroupLimits::default();
    let mut large = Group::new(user(1), CLOSED, at(0));
    let member = |n: i64| Member {
        role: Some(Role::Member),
        since: Seq::ZERO,
        version: at(n as u64),
    };
    large
        .members
        .extend((2..=limits.members as i64 - 1000).map(|n| (user(n), member(n))));
    let member_count = limits.members - 1000;
    let record = at(1 << 30);
    let ((), walks) = members::walks::count_during(|| {
        assert_eq!(large.newest(), at(member_count as u64));
        assert_eq!(refusal(Some(&large), record, user(7)), None);
        assert_eq!(
            large
                .judge(record, user(1), &GroupCommand::Leave, Seq(9), &limits)
                .map_err(|it| it.code),
            Err(Code::InvalidArgument)
        );
        // Keeps every state.
        let mut states = vec![large.clone()];
        for n in 1..=1000 {
            let last = states.last().expect("the first");
            let record = at(record.offset + n);
            let command = GroupCommand::Add(vec![user((1 << 30) + n as i64)]);
            let ruling = rule(Some(last), record, user(1), &command, Seq(9), &limits);
            let mut next = last.clone();
            next.apply(ruling.expect("there is room"));
            assert_eq!(
                (next.newest(), next.members.present()),
                (record, member_count + n as usize)
            );
            states.push(next);
        }
        assert_eq!(states[0].members.len(), member_count);
        let full_group = states.last().expect("the last");
        let command = GroupCommand::Add(vec![user(1 << 40)]);
        let result = rule(
            Some(full_group),
            at(1 << 31),
            user(1),
            &command,
            Seq(9),
            &limits,
        );
        assert_eq!(
            result.map_err(|refusal| refusal.code),
            Err(Code::RateLimited)
        );
    });
    assert_eq!(walks, 0);
}

/// A public group with a hundred thousand former members: a message looks at the present ones only,
/// and a record that is read again at all of them, since it was theirs to read.
#[test]
fn those_who_left_are_not_walked_through_for_a_message() {
    let mut group = Group::new(user(1), CLOSED, at(0));
    let former_member = |n: i64| Member {
        role: None,
        since: Seq::ZERO,
        version: at(n as u64),
    };
    let former_ids = 2..=100_000;
    group
        .members
        .extend(former_ids.map(|n| (user(n), former_member(n))));
    assert_eq!((group.members.len(), group.members.present()), (100_000, 1));
    let group = Arc::new(group);
    let readers = |record, seq| -> usize {
        let audience = Audience::for_message(Arc::clone(&group), record, seq);
        audience.behind(None).count()
    };
    let (count, walks) = members::walks::count_during(|| readers(at(100_000), Seq(9)));
    assert_eq!((count, walks), (1, 0));
    let (count, walks) = members::walks::count_during(|| readers(at(99_990), Seq(9)));
    assert_eq!((count, walks), (11, 1));
    let audience_now = Audience::for_change(Arc::clone(&group), Seq(9));
    let (count, walks) = members::walks::count_during(|| audience_now.behind(None).count());
    assert_eq!((count, walks), (1, 0));
}
