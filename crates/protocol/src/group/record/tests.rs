//! A writer that dies between any two of its effects, compared with one that never does.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Code;
use crate::group::tests::{CLOSED, any_command, at, limits, user};
use crate::group::{GroupInfo, GroupSettings};

#[derive(Clone, Debug)]
enum Record {
    Message(UserId),
    Command(UserId, GroupCommand),
}

/// Stored state of a group, and its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Store {
    info: Option<GroupInfo>,
    members: BTreeMap<UserId, Member>,
    /// Each message's record and readers.
    rows: Vec<(Version, Vec<UserId>)>,
}

/// Rule that judges a record: `rule`, or one that does not recognise its own work.
type Rule = fn(
    Option<&Group>,
    Version,
    UserId,
    &GroupCommand,
    Seq,
    &GroupLimits,
) -> Result<GroupUpdate, Refusal>;

fn forgetful(
    group: Option<&Group>,
    record: Version,
    by: UserId,
    command: &GroupCommand,
    end: Seq,
    limits: &GroupLimits,
) -> Result<GroupUpdate, Refusal> {
    match group {
        Some(group) => group.judge(record, by, command, end, limits),
        None => rule(None, record, by, command, end, limits),
    }
}

impl Store {
    fn group(&self) -> Option<Group> {
        Some(Group {
            info: self.info?,
            members: self.members.clone().into_iter().collect(),
        })
    }

    fn end(&self) -> Seq {
        Seq(self.rows.len() as u64)
    }

    /// Handles a record and dies after so many effects.
    fn handle(&mut self, version: Version, record: &Record, effects: usize, rule: Rule) {
        match record {
            Record::Message(from) if effects > 0 => self.message(version, *from),
            Record::Message(_) => {}
            Record::Command(by, command) => {
                let group = self.group();
                let result = rule(group.as_ref(), version, *by, command, self.end(), &limits());
                if let Ok(outcome) = result {
                    self.save(outcome, effects);
                }
            }
        }
    }

    fn message(&mut self, version: Version, from: UserId) {
        let Some(group) = self.group() else { return };
        if self.rows.last().is_some_and(|(last, _)| *last >= version) {
            let rows = (1..).map(Seq).zip(&self.rows);
            for (seq, (_, stored_readers)) in rows.filter(|(_, (row, _))| *row == version) {
                // The same readers, without those who left and came back behind it.
                let has_rejoined =
                    |user: &UserId| group.members.get(*user).is_none_or(|it| it.since >= seq);
                let expected = stored_readers
                    .iter()
                    .filter(|user| !has_rejoined(user))
                    .copied();
                let repeated_readers: Vec<_> = group.readers(version, seq).collect();
                assert_eq!(repeated_readers, expected.collect::<Vec<_>>());
            }
            return;
        }
        let accepted_at = Timestamp::from_millis(version.offset as i64);
        let refusal = refusal(Some(&group), version, from, accepted_at);
        if group.newest() < version && refusal.is_none() {
            let readers = group.readers(version, self.end().next()).collect();
            self.rows.push((version, readers));
        }
    }

    fn save(&mut self, outcome: GroupUpdate, effects: usize) {
        let member_count = outcome.members.len();
        for (user, member) in outcome.members.into_iter().take(effects) {
            let current = self.members.entry(user).or_insert(member);
            if current.version <= member.version {
                *current = member;
            }
        }
        if let Some(info) = outcome.info
            && effects > member_count
            && self
                .info
                .is_none_or(|current| current.version <= info.version)
        {
            self.info = Some(info);
        }
    }
}

const ALL_EFFECTS: usize = usize::MAX;

/// Runs lives of the writer. Each of `crashes` gives the reach of a life, the effects of its last
/// record before it ends, and how far back the next one starts.
fn run(records: &[Record], crashes: &[(usize, usize, usize)], rule: Rule) -> Store {
    let mut store = Store::default();
    let mut first = 0;
    for (reach, effects, step_back) in crashes {
        let last = first + reach % (records.len() - first);
        for (index, record) in records.iter().enumerate().take(last + 1).skip(first) {
            let effects = if index == last { *effects } else { ALL_EFFECTS };
            store.handle(at(index as u64 + 1), record, effects, rule);
        }
        // Committed records are never redelivered.
        first += step_back % (last - first + 1);
    }
    for (index, record) in records.iter().enumerate().skip(first) {
        store.handle(at(index as u64 + 1), record, ALL_EFFECTS, rule);
    }
    store
}

fn any_record() -> impl Strategy<Value = Record> {
    let create = (any::<(bool, bool)>(), vec((1..9_i64).prop_map(user), 0..4));
    let create = create.prop_map(
        |((open_history, open_door), members)| GroupCommand::Create {
            settings: GroupSettings {
                open_history,
                open_door,
                ..GroupSettings::CLOSED
            },
            members,
        },
    );
    prop_oneof![
        2 => (1..9_i64).prop_map(|from| Record::Message(user(from))),
        4 => any_command().prop_map(|(by, command)| Record::Command(user(by), command)),
        1 => (1..9_i64, create).prop_map(|(by, command)| Record::Command(user(by), command)),
    ]
}

/// A log in which the group is created first.
fn any_log() -> impl Strategy<Value = Vec<Record>> {
    vec(any_record(), 1..40).prop_map(|mut records| {
        let settings = GroupSettings {
            open_door: true,
            ..GroupSettings::CLOSED
        };
        let members = vec![user(2), user(3)];
        let create = GroupCommand::Create { settings, members };
        records.insert(0, Record::Command(user(1), create));
        records
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A redelivered record leaves the same state as the first time, positions and members alike.
    #[test]
    fn a_writer_that_dies_leaves_what_one_leaves_that_never_does(
        records in any_log(),
        crashes in vec((any::<usize>(), 0..6_usize, any::<usize>()), 0..8),
    ) {
        let expected = run(&records, &[], rule);
        prop_assert_eq!(run(&records, &crashes, rule), expected);
    }
}

/// The property is not empty: a writer that does not recognise its own work leaves a group without
/// an owner.
#[test]
fn a_writer_that_does_not_know_its_own_work_is_found_out() {
    let create = GroupCommand::Create {
        settings: CLOSED,
        members: vec![user(2)],
    };
    let records = [
        Record::Command(user(1), create),
        Record::Command(user(1), GroupCommand::HandOver(user(2))),
    ];
    let expected = run(&records, &[], rule);
    // The old owner is written, the new one is not.
    let crashes = [(1, 1, 1)];
    assert_eq!(run(&records, &crashes, rule), expected);
    assert_ne!(run(&records, &crashes, forgetful), expected);
}

/// A number in use is refused, unless this very record made the group.
#[test]
fn a_group_is_made_once() {
    let create = GroupCommand::Create {
        settings: CLOSED,
        members: vec![user(2)],
    };
    let mut store = Store::default();
    let judge = |store: &Store, offset, by| {
        let group = store.group();
        rule(
            group.as_ref(),
            at(offset),
            user(by),
            &create,
            Seq(9),
            &limits(),
        )
    };
    let update = judge(&store, 1, 1).expect("there is none");
    // Without its own row there is no group yet.
    store.save(update.clone(), 1);
    assert_eq!(judge(&store, 1, 1).expect("broken off"), update);
    store.save(update.clone(), ALL_EFFECTS);
    assert_eq!(judge(&store, 1, 1).expect("its own"), update);
    let result = judge(&store, 2, 3).map_err(|refusal| refusal.code);
    assert_eq!(result, Err(Code::InvalidArgument));
}

/// Some of the members were saved when the writer died, or all of them, but not the group itself.
#[test]
fn interrupted_command_is_completed() {
    for (command, end) in [
        (GroupCommand::HandOver(user(2)), Seq(7)),
        (GroupCommand::Add(vec![user(4), user(5), user(2)]), Seq(7)),
        (GroupCommand::Remove(vec![user(2), user(3)]), Seq(7)),
        (GroupCommand::Ban(vec![user(3), user(4)]), Seq(5)),
        (
            GroupCommand::Mute(user(3), Timestamp::from_millis(1)),
            Seq(7),
        ),
        (GroupCommand::Dissolve, Seq(7)),
    ] {
        let group = crate::group::tests::group();
        let complete = rule(Some(&group), at(9), user(1), &command, Seq(5), &limits());
        let complete = complete.expect("allowed");
        assert!(complete.info.is_some(), "{command:?}");
        let members: Vec<_> = complete.members.iter().collect();
        for saved in 1..1_u32 << members.len() {
            let mut partial = group.clone();
            for (index, (user, member)) in members.iter().enumerate() {
                if saved & 1 << index != 0 {
                    partial.members.insert(**user, **member);
                }
            }
            let redelivered = rule(Some(&partial), at(9), user(1), &command, end, &limits());
            let redelivered = redelivered.expect("granted before");
            assert_eq!(redelivered, complete, "{command:?} {saved:b}");
        }
    }
}
