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

pub(super) const CLOSED: GroupSettings = GroupSettings::CLOSED;

pub(super) fn limits() -> GroupLimits {
    GroupLimits {
        members: 6,
        users_per_command: 3,
        push_max: 3,
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
        GroupCommand::Remove(vec![user(2)]),
        GroupCommand::Ban(vec![user(9)]),
        GroupCommand::Mute(user(3), Timestamp::ZERO),
        GroupCommand::Set(CLOSED),
        GroupCommand::Dissolve,
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
    assert_eq!(
        judge(&group, 2, &GroupCommand::Remove(vec![user(1)])),
        forbidden
    );
    assert_eq!(
        judge(&group, 2, &GroupCommand::Remove(vec![user(2)])),
        forbidden
    );
    assert!(judge(&group, 2, &GroupCommand::Remove(vec![user(3)])).is_ok());
    assert!(judge(&group, 1, &GroupCommand::Remove(vec![user(2)])).is_ok());
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
        (1, GroupCommand::Remove(vec![user(9)])),
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
    let four_users: Vec<UserId> = (4..8).map(user).collect();
    for command in [GroupCommand::Add, GroupCommand::Remove, GroupCommand::Ban] {
        let result = judge(&group, 1, &command(four_users.clone()));
        assert_eq!(result, Err(Code::InvalidArgument));
    }
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
        vec(anybody(), 0..4).prop_map(GroupCommand::Remove),
        (anybody(), role).prop_map(|(user, role)| GroupCommand::SetRole(user, role)),
        anybody().prop_map(GroupCommand::HandOver),
        vec(anybody(), 0..4).prop_map(GroupCommand::Ban),
        (anybody(), 0..60_i64)
            .prop_map(|(user, until)| GroupCommand::Mute(user, Timestamp::from_millis(until))),
        Just(GroupCommand::Dissolve),
        any::<[bool; 4]>().prop_map(|[open_history, open_door, muted, quiet]| GroupCommand::Set(
            GroupSettings {
                open_history,
                open_door,
                muted,
                quiet,
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
            let info = group.info;
            prop_assert_eq!(info.is_dissolved && info.is_large, info.is_dissolved && member_count > 0);
            if !info.is_dissolved {
                prop_assert_eq!(info.present, Some(member_count as u32));
                let (was_large, quiet) = (previous.info.is_large, info.settings.quiet);
                let is_large = quiet || member_count > 3 || was_large && member_count > 2;
                prop_assert!(group == previous || info.is_large == is_large);
            }
            let owners = group.present().filter(|(_, role)| *role == Role::Owner).count();
            prop_assert_eq!(owners, usize::from(member_count > 0));
            prop_assert!(member_count <= limits().members);
            // Only a member, or a user who joins through an open door, changes the group.
            if group != previous {
                let was_join = command == GroupCommand::Join && previous.info.settings.open_door;
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
    let member = |n: i64| Member::new(Some(Role::Member), Seq::ZERO, at(n as u64));
    large
        .members
        .extend((2..=limits.members as i64 - 1000).map(|n| (user(n), member(n))));
    let member_count = limits.members - 1000;
    let record = at(1 << 30);
    let ((), walks) = members::walks::count_during(|| {
        assert_eq!(large.newest(), at(member_count as u64));
        assert_eq!(
            refusal(Some(&large), record, user(7), Timestamp::ZERO),
            None
        );
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
    let former_member = |n: i64| Member::new(None, Seq::ZERO, at(n as u64));
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

/// A group of user 1 with the administrator 2 and members up to `last`.
fn group_of(last: i64) -> Group {
    let mut group = group();
    for number in 4..=last {
        let add = GroupCommand::Add(vec![user(number)]);
        apply(&mut group, 2, 1, add).expect("there is room");
    }
    group
}

#[test]
fn a_group_is_large_above_its_bound_until_it_falls_to_four_fifths() {
    let bound = |push_max| GroupLimits {
        push_max,
        ..limits()
    };
    let mut group = group_of(5);
    assert_eq!((group.info.present, group.info.is_large), (Some(5), true));
    let resized_by = group.info.resized_by;
    let leave = |group: &mut Group, number: i64, push_max| {
        let record = at(50 - number as u64);
        let update = group.judge(
            record,
            user(number),
            &GroupCommand::Leave,
            Seq(9),
            &bound(push_max),
        );
        group.apply(update.expect("allowed"));
        group.info
    };
    let info = leave(&mut group, 5, 4);
    assert!(info.is_large, "four of a bound of four");
    assert_eq!(info.resized_by, resized_by);
    let info = leave(&mut group, 4, 5);
    assert!(!info.is_large, "three of a bound of five");
    assert_eq!(info.resized_by, at(46));
}

#[test]
fn a_quiet_group_is_large_whatever_its_size() {
    let mut group = group();
    let quiet = GroupSettings {
        quiet: true,
        ..CLOSED
    };
    apply(&mut group, 7, 2, GroupCommand::Set(quiet)).expect("allowed");
    assert_eq!((group.info.is_large, group.info.resized_by), (true, at(7)));
    apply(&mut group, 8, 2, GroupCommand::Set(CLOSED)).expect("allowed");
    assert!(group.info.is_large, "three of a bound of three");
    apply(&mut group, 9, 3, GroupCommand::Leave).expect("allowed");
    assert_eq!((group.info.is_large, group.info.resized_by), (false, at(9)));
}

#[test]
fn banned_users_stay_out_until_an_administrator_adds_them() {
    let mut group = group();
    let open_door = GroupSettings {
        open_door: true,
        ..CLOSED
    };
    apply(&mut group, 3, 2, GroupCommand::Set(open_door)).expect("allowed");
    // One of them never was here.
    let ban = GroupCommand::Ban(vec![user(3), user(9)]);
    apply(&mut group, 4, 2, ban).expect("allowed");
    let forbidden = Err(Code::Forbidden);
    for number in [3, 9] {
        assert_eq!(group.role(user(number)), None);
        assert_eq!(judge(&group, number, &GroupCommand::Join), forbidden);
    }
    let readers: Vec<_> = group.readers(at(3), Seq(4)).collect();
    assert_eq!(readers, [1, 2, 3].map(user), "a message before the ban");
    let member = group.members.get(user(9)).copied();
    let member = member.map(|member| (group.info, member));
    assert!(!reads_edit(member.as_ref(), Seq(4), at(3)));
    apply(&mut group, 5, 8, GroupCommand::Join).expect("the door is open");
    let add = GroupCommand::Add(vec![user(7), user(3)]);
    assert_eq!(judge(&group, 8, &add), forbidden, "a plain member");
    apply(&mut group, 6, 2, add).expect("an administrator");
    apply(&mut group, 7, 3, GroupCommand::Leave).expect("allowed");
    apply(&mut group, 8, 3, GroupCommand::Join).expect("the ban is over");
}

#[test]
fn a_muted_member_writes_nothing_until_the_mute_ends() {
    let mut group = group();
    let time = Timestamp::from_millis;
    let refused_at = |group: &Group, number, at_time| {
        let refusal = refusal(Some(group), at(99), user(number), time(at_time));
        refusal.map(|refusal| refusal.code)
    };
    let mute = GroupCommand::Mute(user(3), time(5_000));
    apply(&mut group, 4, 2, mute).expect("allowed");
    assert_eq!(refused_at(&group, 3, 4_999), Some(Code::Muted));
    assert_eq!(refused_at(&group, 3, 5_000), None);
    // Who leaves and comes back stays muted.
    apply(&mut group, 5, 3, GroupCommand::Leave).expect("allowed");
    apply(&mut group, 6, 2, GroupCommand::Add(vec![user(3)])).expect("allowed");
    assert_eq!(refused_at(&group, 3, 4_999), Some(Code::Muted));
    // A mute has the time in its text, however far away it is.
    let endless = GroupCommand::Mute(user(3), time(i64::MAX));
    apply(&mut group, 7, 2, endless).expect("allowed");
    let refusal = refusal(Some(&group), at(99), user(3), time(0)).expect("muted");
    assert!(refusal.text.contains("9999-12-31"), "{}", refusal.text);
    apply(&mut group, 8, 2, GroupCommand::Mute(user(3), time(0))).expect("allowed");
    assert_eq!(refused_at(&group, 3, 0), None);

    let forbidden = Err(Code::Forbidden);
    for (by, whom) in [(3, 2), (2, 1), (2, 2)] {
        let mute = GroupCommand::Mute(user(whom), time(9));
        assert_eq!(judge(&group, by, &mute), forbidden, "{by} mutes {whom}");
    }
    let mute = GroupCommand::Mute(user(9), time(9));
    assert_eq!(judge(&group, 1, &mute), Err(Code::NotFound));

    let muted = GroupSettings {
        muted: true,
        ..CLOSED
    };
    apply(&mut group, 9, 1, GroupCommand::Set(muted)).expect("allowed");
    let refused_at = |number| refused_at(&group, number, 0);
    assert_eq!([1, 2, 3].map(refused_at), [None, None, Some(Code::Muted)]);
}

#[test]
fn nobody_does_anything_in_a_dissolved_group() {
    for (last, members_stay) in [(3, false), (5, true)] {
        let mut group = group_of(last);
        for by in [2, 3, 9] {
            let result = judge(&group, by, &GroupCommand::Dissolve);
            assert_eq!(result, Err(Code::Forbidden));
        }
        apply(&mut group, 6, 1, GroupCommand::Dissolve).expect("the owner");
        assert_eq!(group.present().count() > 0, members_stay);
        for command in [
            GroupCommand::Join,
            GroupCommand::Leave,
            GroupCommand::Add(vec![user(9)]),
            GroupCommand::Set(CLOSED),
            GroupCommand::Dissolve,
        ] {
            assert_eq!(judge(&group, 1, &command), Err(Code::NotFound));
        }
        let refusal = refusal(Some(&group), at(9), user(1), Timestamp::ZERO);
        assert_eq!(refusal.map(|refusal| refusal.code), Some(Code::NotFound));
    }
}

/// Its members were never counted: were it taken for a small one, one record would write all of them.
#[test]
fn a_large_group_from_before_members_were_counted_keeps_them_when_it_ends() {
    let mut group = group_of(5);
    group.info = GroupInfo::uncounted(CLOSED, at(0));
    apply(&mut group, 9, 1, GroupCommand::Dissolve).expect("the owner");
    assert_eq!(group.present().count(), 5);
    assert!(group.info.is_dissolved && group.info.is_large);
    assert_eq!(group.role(user(1)), None);
}

#[test]
fn users_outside_a_group_are_banned_up_to_its_bound_of_members() {
    let mut group = group();
    for number in 10..16 {
        apply(&mut group, 4, 2, GroupCommand::Ban(vec![user(number)])).expect("there is room");
    }
    let one_more = GroupCommand::Ban(vec![user(3), user(16)]);
    assert_eq!(judge(&group, 2, &one_more), Err(Code::RateLimited));
    for known in [3, 10] {
        let ban = GroupCommand::Ban(vec![user(known)]);
        assert!(judge(&group, 2, &ban).is_ok(), "{known}");
    }
}

#[test]
fn a_new_group_is_large_above_the_bound() {
    for (push_max, is_large) in [(0, true), (1, false)] {
        let limits = GroupLimits {
            push_max,
            ..limits()
        };
        let create = GroupCommand::Create {
            settings: CLOSED,
            members: Vec::new(),
        };
        let group = Group::create(at(1), user(1), &create, &limits).expect("allowed");
        assert_eq!(
            (group.info.present, group.info.is_large),
            (Some(1), is_large)
        );
    }
}
