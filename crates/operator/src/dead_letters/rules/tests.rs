use proptest::prelude::*;

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn id(name: &str) -> TaskId {
    name.parse().expect("a name")
}

/// A task that has all of its letters in hand at once.
fn begin_actions(name: &str, work: OperatorWork, letters: &[&str]) -> [OperatorAction; 2] {
    begin_by_batch(name, work, letters, NonZeroU32::new(50))
}

fn begin_by_batch(
    name: &str,
    work: OperatorWork,
    letters: &[&str],
    batch: Option<NonZeroU32>,
) -> [OperatorAction; 2] {
    let start = StartedTask {
        task: id(name),
        work,
        letters: letters.len() as u64,
        pace: Pace::default(),
        about: "all".to_owned(),
        why: String::new(),
        batch,
    };
    let letters = letters.iter().map(|&letter| letter.to_owned()).collect();
    let task = id(name);
    [
        OperatorAction::Begun(start),
        OperatorAction::Chosen { task, letters },
    ]
}

/// As a worker of an earlier version wrote it.
fn claim_action(name: &str, letters: &[&str]) -> OperatorAction {
    let claim = |&letter: &&str| TaskClaim {
        letter: letter.to_owned(),
        at: at(1),
        to: None,
        version: None,
    };
    OperatorAction::Claimed {
        task: id(name),
        claims: letters.iter().map(claim).collect(),
    }
}

fn done_action(name: &str, letters: &[&str], outcome: TaskOutcome) -> OperatorAction {
    let outcomes = letters.iter().map(|&letter| (letter.to_owned(), outcome));
    OperatorAction::Done {
        task: id(name),
        outcomes: outcomes.collect(),
    }
}

/// The letter held `base`, and holds `version` from now on.
fn edit_action(letter: &str, base: u8, version: u8) -> OperatorAction {
    OperatorAction::Edited(EditedLetter {
        letter: letter.to_owned(),
        base: Version::of(&[base]),
        version: Version::of(&[version]),
        at: EditPosition {
            topic: Topic::Dead,
            partition: 0,
            offset: version.into(),
        },
        fields: vec!["deliver.dueAt".to_owned()],
        why: "a test".to_owned(),
    })
}

fn death_action(name: &str, letters: &[&str]) -> OperatorAction {
    let letters = letters.iter().map(|&letter| letter.to_owned()).collect();
    OperatorAction::DiedAgain {
        task: id(name),
        letters,
        parents: Vec::new(),
    }
}

/// A desk with its log.
#[derive(Default)]
struct Log(Operations, Vec<OperationEntry>);

impl Log {
    fn with(acts: impl IntoIterator<Item = OperatorAction>) -> Log {
        let mut log = Log::default();
        log.add(acts);
        log
    }

    fn add(&mut self, acts: impl IntoIterator<Item = OperatorAction>) {
        for act in acts {
            let entry = OperationEntry {
                at: at(self.1.len() as i64),
                by: "ann".to_owned(),
                act,
            };
            self.0.read(&entry);
            self.1.push(entry);
        }
    }

    /// Bytes that a letter holds by an edit, as their offset.
    fn holds(&self, letter: &str) -> Option<u64> {
        self.0.edit(letter).map(|edit| edit.letter.at.offset)
    }

    fn task(&self, name: &str) -> &OperatorTask {
        self.0.task(&id(name)).expect("known")
    }
}

/// Letters that the worker processes next.
fn next_letters(operations: &Operations) -> Vec<String> {
    operations
        .next()
        .map(|(_, letters)| letters)
        .unwrap_or_default()
}

#[test]
fn a_task_is_done_batch_by_batch_and_over() {
    let batch = NonZeroU32::new(2);
    let mut log = Log::with(begin_by_batch(
        "t",
        OperatorWork::Redrive,
        &["a", "b", "c"],
        batch,
    ));
    assert_eq!(next_letters(&log.0), ["a", "b"]);
    log.add([done_action("t", &["b"], TaskOutcome::ToRetry)]);
    assert_eq!(next_letters(&log.0), ["a"]);
    log.add([done_action("t", &["a"], TaskOutcome::ToRetry)]);
    assert!(matches!(log.0.status("a"), LetterStatus::Redriven { .. }));
    assert_eq!(log.task("t").progress, Progress::Running);
    assert_eq!(next_letters(&log.0), ["c"]);
    log.add([done_action("t", &["c"], TaskOutcome::BytesGone)]);
    assert_eq!(log.0.status("c"), &LetterStatus::Open);
    assert_eq!(log.task("t").progress, Progress::Over);
    assert_eq!(
        (log.task("t").redriven_count(), log.task("t").done_letters()),
        (2, 3)
    );
    assert_eq!(log.0.next(), None);
}

#[test]
fn redriven_and_discarded_letters_are_left_alone() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a"]));
    log.add([done_action("t", &["a"], TaskOutcome::ToMessage)]);
    log.add(begin_actions("d", OperatorWork::Discard, &["b"]));
    log.add([done_action("d", &["b"], TaskOutcome::Discarded)]);
    let now = at(100);
    let may = |work, letter| log.0.may(work, letter, now);
    assert_eq!(may(OperatorWork::Redrive, "a"), Err(TaskOutcome::Before));
    assert_eq!(may(OperatorWork::Discard, "a"), Err(TaskOutcome::Before));
    assert_eq!(
        may(OperatorWork::Redrive, "b"),
        Err(TaskOutcome::IsDiscarded)
    );
    assert_eq!(
        may(OperatorWork::Restore, "a"),
        Err(TaskOutcome::NotDiscarded)
    );
    assert_eq!(may(OperatorWork::Restore, "b"), Ok(()));
    assert_eq!(may(OperatorWork::Redrive, "c"), Ok(()));
    let late = at(7) + DeskLimits::default().grace;
    assert_eq!(
        log.0.may(OperatorWork::Restore, "b", late),
        Err(TaskOutcome::Final)
    );
    log.add(begin_actions("r", OperatorWork::Restore, &["b"]));
    log.add([done_action("r", &["b"], TaskOutcome::Restored)]);
    assert_eq!(log.0.may(OperatorWork::Redrive, "b", now), Ok(()));
}

#[test]
fn a_task_pauses_goes_on_and_is_cancelled() {
    let task = id("t");
    let batch = NonZeroU32::new(1);
    let letters = ["a", "b", "c"];
    let mut log = Log::with(begin_by_batch("t", OperatorWork::Redrive, &letters, batch));
    let reason = "too many died again".to_owned();
    log.add([OperatorAction::Paused {
        task: task.clone(),
        why: reason,
        by_itself: true,
    }]);
    // A letter in hand is finished even so.
    assert_eq!(next_letters(&log.0), ["a"]);
    assert!(!log.task("t").is_at_rest());
    log.add([done_action("t", &["a"], TaskOutcome::ToRetry)]);
    assert_eq!(log.0.next(), None);
    assert!(log.task("t").is_at_rest());
    log.add([OperatorAction::Resumed { task: task.clone() }]);
    assert_eq!(next_letters(&log.0), ["b"]);
    log.add([
        OperatorAction::Cancelled { task: task.clone() },
        OperatorAction::Resumed { task },
    ]);
    assert_eq!(next_letters(&log.0), ["b"]);
    assert!(!log.task("t").is_over());
    log.add([done_action("t", &["b"], TaskOutcome::ToRetry)]);
    assert_eq!(log.0.next(), None);
    assert!(log.task("t").is_over());
    assert!(matches!(log.0.status("b"), LetterStatus::Redriven { .. }));
    assert_eq!(log.0.status("c"), &LetterStatus::Open);
}

/// One hand for all tasks: a letter of two tasks has one outcome before the other is decided.
#[test]
fn letters_of_one_task_are_in_hand_at_a_time() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a"]));
    log.add(begin_actions("d", OperatorWork::Discard, &["a", "b"]));
    assert!(log.0.is_in_hand("a") && !log.0.is_in_hand("b"));
    log.add([done_action("d", &["a", "b"], TaskOutcome::Discarded)]);
    assert_eq!(log.0.status("a"), &LetterStatus::Open);
    log.add([done_action("t", &["a"], TaskOutcome::ToRetry)]);
    assert!(log.0.is_in_hand("a") && log.0.is_in_hand("b"));
    let may = log.0.may(OperatorWork::Discard, "a", at(9));
    assert_eq!(may, Err(TaskOutcome::Before));
}

#[test]
fn a_task_whose_letters_were_never_all_named_does_nothing() {
    let [begun, _] = begin_actions("t", OperatorWork::Discard, &["a", "b"]);
    let letters = vec!["a".to_owned()];
    let mut log = Log::with([
        begun,
        OperatorAction::Chosen {
            task: id("t"),
            letters,
        },
    ]);
    assert_eq!(log.task("t").progress, Progress::Choosing);
    assert_eq!(log.0.next(), None);
    log.add([OperatorAction::Cancelled { task: id("t") }]);
    assert!(log.task("t").is_over());
}

#[test]
fn a_request_that_cannot_be_is_refused() {
    let operations = Operations::new(DeskLimits {
        letters: 2,
        tasks: 1,
        marks: 3,
        ..DeskLimits::default()
    });
    let request = |letters, pace| StartedTask {
        task: id("t"),
        work: OperatorWork::Redrive,
        letters,
        pace,
        about: String::new(),
        why: String::new(),
        batch: None,
    };
    let refusal_text = |start: StartedTask| operations.admit(&start).expect_err("refused").text;
    assert!(refusal_text(request(0, Pace::default())).contains("no letter"));
    assert!(refusal_text(request(3, Pace::default())).contains("at most 2"));
    let zero_pace = Pace {
        per_second: 0,
        ..Pace::default()
    };
    assert!(refusal_text(request(1, zero_pace)).contains("1 to 1000"));
    assert_eq!(operations.admit(&request(2, Pace::default())), Ok(()));
    let mut log = Log(operations, Vec::new());
    log.add(begin_actions("a", OperatorWork::Discard, &["a", "b"]));
    let busy = log.0.admit(&request(1, Pace::default())).expect_err("busy");
    assert_eq!(busy.code, Code::RateLimited);
    log.add([done_action("a", &["a", "b"], TaskOutcome::Discarded)]);
    assert_eq!(log.0.admit(&request(1, Pace::default())), Ok(()));
    let full = log.0.admit(&request(2, Pace::default())).expect_err("full");
    assert!(full.text.contains("at most 3"), "{full}");
}

#[test]
fn the_past_is_forgotten_but_not_its_marks() {
    let mut log = Log(
        Operations::new(DeskLimits {
            finished_tasks: 1,
            ..DeskLimits::default()
        }),
        Vec::new(),
    );
    for name in ["a", "b", "c", "d"] {
        log.add(begin_actions(name, OperatorWork::Discard, &[name]));
        log.add([done_action(name, &[name], TaskOutcome::Discarded)]);
    }
    let names: Vec<_> = log.0.tasks().map(|task| task.id().to_string()).collect();
    assert_eq!(names, ["d", "c"]);
    assert!(matches!(log.0.status("a"), LetterStatus::Discarded { .. }));
}

#[test]
fn the_newest_edit_counts_and_a_stale_one_does_not() {
    let mut log = Log::with([edit_action("a", 0, 1)]);
    assert_eq!(log.holds("a"), Some(1));
    // Based on the bytes before the first edit.
    log.add([edit_action("a", 0, 2)]);
    assert_eq!(log.holds("a"), Some(1));
    log.add([edit_action("a", 1, 2)]);
    assert_eq!(log.holds("a"), Some(2));
    let OperatorAction::Edited(stale) = edit_action("a", 1, 3) else {
        unreachable!();
    };
    assert_eq!(log.0.admit_edit(&stale), Err(EditRefusal::Changed));
}

#[test]
fn letters_in_hand_and_finished_ones_are_not_edited() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a"]));
    log.add([edit_action("a", 0, 1)]);
    assert_eq!(log.holds("a"), None);
    assert_eq!(log.0.may_be_edited("a"), Err(EditRefusal::IsInHand));
    log.add([
        done_action("t", &["a"], TaskOutcome::ToRetry),
        edit_action("a", 0, 1),
    ]);
    assert_eq!(log.holds("a"), None);
    assert_eq!(log.0.may_be_edited("a"), Err(EditRefusal::Redriven));
    log.add(begin_actions("d", OperatorWork::Discard, &["b"]));
    log.add([done_action("d", &["b"], TaskOutcome::Discarded)]);
    assert_eq!(log.0.may_be_edited("b"), Err(EditRefusal::Discarded));
    log.add(begin_actions("r", OperatorWork::Restore, &["b"]));
    log.add([done_action("r", &["b"], TaskOutcome::Restored)]);
    log.add([edit_action("b", 0, 1)]);
    assert_eq!(log.holds("b"), Some(1));
}

/// A log from before: its workers claimed letters, by entries, and the next version goes on.
#[test]
fn a_task_of_an_earlier_version_goes_on() {
    let letters = ["a", "b", "c", "d"];
    let mut log = Log::with(begin_by_batch("t", OperatorWork::Discard, &letters, None));
    assert!(!log.0.is_in_hand("a"));
    log.add([
        edit_action("c", 0, 1),
        claim_action("t", &["a", "b", "c"]),
        done_action("t", &["a"], TaskOutcome::Discarded),
    ]);
    // That of "c" was made without knowledge of its edit.
    assert_eq!(next_letters(&log.0), ["b"]);
    log.add([done_action("t", &["b"], TaskOutcome::Discarded)]);
    assert_eq!(next_letters(&log.0), ["c", "d"]);
    log.add([done_action("t", &["c", "d"], TaskOutcome::Discarded)]);
    assert_eq!(log.task("t").progress, Progress::Over);
    assert_eq!(log.task("t").outcomes[&TaskOutcome::Discarded], 4);
}

#[test]
fn a_claimed_letter_of_a_cancelled_task_is_finished() {
    let mut log = Log::with(begin_by_batch(
        "t",
        OperatorWork::Discard,
        &["a", "b"],
        None,
    ));
    log.add([
        claim_action("t", &["a"]),
        OperatorAction::Cancelled { task: id("t") },
    ]);
    assert_eq!(next_letters(&log.0), ["a"]);
    log.add([done_action("t", &["a", "b"], TaskOutcome::Discarded)]);
    assert!(matches!(log.0.status("a"), LetterStatus::Discarded { .. }));
    assert_eq!(log.0.status("b"), &LetterStatus::Open);
    assert!(log.task("t").is_over());
}

/// During a rolling upgrade, a worker of the earlier version may own the log.
#[test]
fn claims_of_a_task_with_letters_in_hand_change_nothing() {
    let batch = NonZeroU32::new(1);
    let mut log = Log::with(begin_by_batch(
        "t",
        OperatorWork::Redrive,
        &["a", "b"],
        batch,
    ));
    let task = log.task("t").clone();
    log.add([claim_action("t", &["a", "b"])]);
    assert_eq!(*log.task("t"), task);
    log.add([done_action("t", &["a"], TaskOutcome::ToRetry)]);
    assert_eq!(next_letters(&log.0), ["b"]);
}

#[test]
fn edits_are_bounded_and_forgotten_with_their_letters() {
    let limits = DeskLimits {
        edits: 1,
        ..DeskLimits::default()
    };
    let mut log = Log(Operations::new(limits), Vec::new());
    log.add([
        edit_action("a", 0, 1),
        edit_action("b", 0, 1),
        edit_action("a", 1, 2),
    ]);
    assert_eq!((log.holds("a"), log.holds("b")), (Some(2), None));
    let letters = vec!["a".to_owned()];
    log.add([
        OperatorAction::Forgotten { letters },
        edit_action("b", 0, 1),
    ]);
    assert_eq!((log.holds("a"), log.holds("b")), (None, Some(1)));
}

#[test]
fn discarded_letters_are_gone_after_the_grace() {
    let mut log = Log::with(begin_actions("d", OperatorWork::Discard, &["a"]));
    log.add([done_action("d", &["a"], TaskOutcome::Discarded)]);
    let late = at(2) + DeskLimits::default().grace;
    let early = at(1) + DeskLimits::default().grace;
    assert_eq!(log.0.standing("a", early), LetterState::Discarded);
    assert_eq!(log.0.standing("a", late), LetterState::Gone);
    assert_eq!(log.0.standing("b", late), LetterState::Open);
    for work in [
        OperatorWork::Redrive,
        OperatorWork::Discard,
        OperatorWork::Restore,
    ] {
        assert_eq!(log.0.may(work, "a", late), Err(TaskOutcome::Final));
    }
}

#[test]
fn marks_go_when_the_log_drops_their_letters() {
    let limits = DeskLimits {
        marks: 2,
        ..DeskLimits::default()
    };
    let mut log = Log(Operations::new(limits), Vec::new());
    log.add(begin_actions("t", OperatorWork::Redrive, &["a", "b"]));
    log.add([done_action("t", &["a", "b"], TaskOutcome::ToRetry)]);
    let [OperatorAction::Begun(next), _] = begin_actions("u", OperatorWork::Redrive, &["c"]) else {
        unreachable!();
    };
    assert!(log.0.admit(&next).is_err());
    assert_eq!(log.0.remembered_letters().collect::<Vec<_>>(), ["a", "b"]);
    let letters = vec!["a".to_owned()];
    log.add([OperatorAction::Forgotten { letters }]);
    assert_eq!(log.0.admit(&next), Ok(()));
    assert_eq!(log.0.remembered_letters().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn letters_that_died_again_are_reported_and_pause() {
    let names: Vec<String> = (0..40).map(|number| format!("letter-{number}")).collect();
    let letters: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &letters));
    let first = &letters[..30];
    log.add([
        done_action("t", first, TaskOutcome::ToMessage),
        death_action("t", &["x-1", "x-2", "x-2", "x-3", "x-4", "x-5", "x-6"]),
    ]);
    assert_eq!(log.task("t").died_again, 6);
    assert!(log.0.failing().is_none());
    log.add([death_action("t", &["x-1", "x-7"])]);
    assert_eq!(log.task("t").died_again_as.len(), 7);
    let counts = log.0.failing().map(OperatorTask::fresh);
    assert_eq!(counts, Some((30, 7)));
    log.add([
        OperatorAction::Paused {
            task: id("t"),
            why: String::new(),
            by_itself: true,
        },
        OperatorAction::Resumed { task: id("t") },
    ]);
    assert!(log.0.failing().is_none(), "an operator has seen these");
    assert_eq!(log.task("t").fresh(), (0, 0));
}

/// A letter with several targets may die again as several letters.
#[test]
fn a_letter_that_died_again_as_several_counts_for_one() {
    let names: Vec<String> = (0..20).map(|number| format!("letter-{number}")).collect();
    let letters: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &letters));
    log.add([done_action("t", &letters, TaskOutcome::ToRetry)]);
    let deaths = |number: usize| OperatorAction::DiedAgain {
        task: id("t"),
        letters: vec![format!("x-{number}"), format!("y-{number}")],
        parents: vec![names[number].clone(); 2],
    };
    log.add((0..4).map(deaths));
    assert_eq!(log.task("t").fresh(), (20, 4));
    assert_eq!(log.task("t").died_again, 8);
    assert_eq!(log.task("t").died_again_as.len(), 8);
    let pace = log.task("t").start.pace;
    assert!(!pace.is_exceeded(20, 4) && pace.is_exceeded(20, 8));
}

#[test]
fn decisions_are_told_from_the_work() {
    let pause = |by_itself| OperatorAction::Paused {
        task: id("t"),
        why: String::new(),
        by_itself,
    };
    let [start_action, choice] = begin_actions("t", OperatorWork::Redrive, &["a"]);
    for decision in [start_action, pause(false), edit_action("a", 0, 1)] {
        assert!(decision.is_decision(), "{decision:?}");
    }
    let work = [
        choice,
        claim_action("t", &["a"]),
        done_action("t", &["a"], TaskOutcome::ToRetry),
        pause(true),
        death_action("t", &["x"]),
    ];
    for act in work {
        assert!(!act.is_decision(), "{act:?}");
    }
}

#[test]
fn only_a_share_of_enough_pauses() {
    let pace = Pace {
        per_second: 1,
        pause_above: 20,
    };
    assert!(!pace.is_exceeded(19, 19));
    assert!(!pace.is_exceeded(20, 4));
    assert!(pace.is_exceeded(20, 5));
    assert!(
        !Pace {
            pause_above: 100,
            ..pace
        }
        .is_exceeded(u64::MAX, u64::MAX)
    );
}

#[test]
fn entries_are_readable_and_come_back() {
    let entry = OperationEntry {
        at: at(7),
        by: "ann".to_owned(),
        act: OperatorAction::Claimed {
            task: id("t"),
            claims: vec![TaskClaim {
                letter: "message-0-1".to_owned(),
                at: at(6),
                to: Some(LetterPosition {
                    topic: Topic::Retry(1),
                    partition: 3,
                    from: 9,
                }),
                version: None,
            }],
        },
    };
    let text = serde_json::to_string(&entry).expect("JSON");
    assert!(text.contains("\"topic\":\"retry-1\""), "{text}");
    assert!(!text.contains("version"), "{text}");
    assert_eq!(
        serde_json::from_str::<OperationEntry>(&text).expect("back"),
        entry
    );
    assert!("no spaces".parse::<TaskId>().is_err());
}

/// Logs of earlier versions: answers have a form of their own, and this one stays.
#[test]
fn the_stored_form_of_an_entry_stays() {
    let acts = [
        r#"{"begun":{"task":"t","work":"redrive","letters":1,"pace":{"per_second":50,"pause_above":20},"about":"message-0-1","why":"w"}}"#,
        r#"{"begun":{"task":"t","work":"redrive","letters":1,"pace":{"per_second":50,"pause_above":20},"about":"message-0-1","why":"w","batch":12}}"#,
        r#"{"chosen":{"task":"t","letters":["message-0-1"]}}"#,
        r#"{"claimed":{"task":"t","claims":[{"letter":"message-0-1","at":6,"to":{"topic":"retry-1","partition":3,"from":9}}]}}"#,
        r#"{"done":{"task":"t","outcomes":[["message-0-1","to_retry"]]}}"#,
        r#"{"paused":{"task":"t","why":"w"}}"#,
        r#"{"paused":{"task":"t","why":"w","by_itself":true}}"#,
        r#"{"died_again":{"task":"t","letters":["message-0-2"],"parents":["message-0-1"]}}"#,
        r#"{"resumed":{"task":"t"}}"#,
        r#"{"cancelled":{"task":"t"}}"#,
        r#"{"looked":{"letter":"message-0-1","why":"w"}}"#,
        r#"{"exported":{"from":"message-0-1","letters":1,"why":"w"}}"#,
        r#"{"imported":{"letters":["message-0-1"],"why":"w"}}"#,
        r#"{"repaired":{"user":7,"what":["a step"],"why":"w"}}"#,
        r#"{"signed_out":{"user":7,"platform":"Ios","why":"w"}}"#,
        r#"{"signed_out":{"user":7,"revoked_before":9,"why":"w","outcome":"1 sessions end"}}"#,
        r#"{"drained":{"boat":"boat-1","cancel":true}}"#,
        r#"{"edited":{"letter":"message-0-1","base":"0123456789abcdef","version":"fedcba9876543210","at":{"topic":"dead","partition":0,"offset":2},"fields":["message.data"],"why":"w"}}"#,
        r#"{"forgotten":{"letters":["message-0-1"]}}"#,
    ];
    for act in acts {
        let text = format!(r#"{{"at":7,"by":"ann","act":{act}}}"#);
        let entry: OperationEntry = serde_json::from_str(&text).expect(&text);
        assert_eq!(serde_json::to_string(&entry).expect("JSON"), text);
    }
}

/// Two workers, one of them unaware that it lost its partition: whatever they write, in any order,
/// a letter is marked by one task and counted once.
#[derive(Clone, Debug)]
enum Move {
    Done(usize, TaskOutcome),
    Pause,
    Resume,
    Cancel,
    Edit(usize, u8, u8),
    DiedAgain(usize),
}

fn moves() -> impl Strategy<Value = Vec<(bool, Move)>> {
    let outcome = prop_oneof![
        Just(TaskOutcome::ToRetry),
        Just(TaskOutcome::Before),
        Just(TaskOutcome::BytesGone)
    ];
    let one = prop_oneof![
        4 => (0..6usize, outcome).prop_map(|(letter, outcome)| Move::Done(letter, outcome)),
        1 => Just(Move::Pause),
        1 => Just(Move::Resume),
        1 => Just(Move::Cancel),
        1 => (0..6usize, 0..3u8, 0..3u8).prop_map(|(letter, a, b)| Move::Edit(letter, a, b)),
        1 => (0..6usize).prop_map(Move::DiedAgain),
    ];
    prop::collection::vec((any::<bool>(), one), 0..60)
}

const LETTERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A worker that reads the log late, and may die or stall between a record and its outcome.
#[derive(Default)]
struct Worker {
    operations: Operations,
    entries: usize,
    outcomes: Option<(TaskId, Vec<(String, TaskOutcome)>)>,
}

impl Worker {
    /// Reads the log to its end, as a worker that has just started does.
    fn read(&mut self, log: &Log) {
        log.1[self.entries..]
            .iter()
            .for_each(|entry| self.operations.read(entry));
        self.entries = log.1.len();
        self.outcomes = None;
    }

    /// Publishes records of the letters in hand, as far as it has read; returns them by their
    /// version.
    fn publish(&mut self, now: Timestamp) -> Vec<(String, Option<Version>)> {
        let Some((task, letters)) = self.operations.next() else {
            return Vec::new();
        };
        let mut records = Vec::new();
        let outcomes = letters.into_iter().map(|letter| {
            let outcome = match self.operations.may(task.start.work, &letter, now) {
                Err(outcome) => outcome,
                Ok(()) if task.start.work == OperatorWork::Discard => TaskOutcome::Discarded,
                Ok(()) => {
                    let edit = self.operations.edit(&letter);
                    let version = edit.map(|edit| edit.letter.version.clone());
                    records.push((letter.clone(), version));
                    TaskOutcome::ToRetry
                }
            };
            (letter, outcome)
        });
        self.outcomes = Some((task.id().clone(), outcomes.collect()));
        records
    }

    fn say(&mut self, log: &mut Log) {
        if let Some((task, outcomes)) = self.outcomes.take() {
            log.add([OperatorAction::Done { task, outcomes }]);
        }
    }
}

#[derive(Clone, Debug)]
enum WorkerMove {
    Read(usize),
    Publish(usize),
    Say(usize),
    Begin(usize),
    Pause(usize),
    Resume(usize),
    Cancel(usize),
    Edit(usize, u8, u8),
}

fn worker_moves() -> impl Strategy<Value = Vec<WorkerMove>> {
    let one = prop_oneof![
        4 => (0..3usize).prop_map(WorkerMove::Read),
        6 => (0..3usize).prop_map(WorkerMove::Publish),
        4 => (0..3usize).prop_map(WorkerMove::Say),
        2 => (0..4usize).prop_map(WorkerMove::Begin),
        1 => (0..4usize).prop_map(WorkerMove::Pause),
        1 => (0..4usize).prop_map(WorkerMove::Resume),
        1 => (0..4usize).prop_map(WorkerMove::Cancel),
        1 => (0..6usize, 0..3u8, 0..3u8).prop_map(|(letter, a, b)| WorkerMove::Edit(letter, a, b)),
    ];
    prop::collection::vec(one, 0..80)
}

proptest! {
    #[test]
    fn a_letter_is_done_once_in_a_task_whoever_writes(moves in moves()) {
        let batch = NonZeroU32::new(2);
        let mut log = Log::with(begin_by_batch("x", OperatorWork::Redrive, &LETTERS, batch));
        log.add(begin_by_batch("y", OperatorWork::Redrive, &LETTERS, batch));
        for (first, one) in moves {
            let name = if first { "x" } else { "y" };
            let task = id(name);
            log.add([match one {
                Move::Done(letter, outcome) => done_action(name, &[LETTERS[letter]], outcome),
                Move::Pause => OperatorAction::Paused { task, why: String::new(), by_itself: false },
                Move::Edit(letter, base, version) => edit_action(LETTERS[letter], base, version),
                Move::DiedAgain(letter) => death_action(name, &[LETTERS[letter]]),
                Move::Resume => OperatorAction::Resumed { task },
                Move::Cancel => OperatorAction::Cancelled { task },
            }]);
            for name in ["x", "y"] {
                let task = log.task(name);
                let open = task.waiting_letters.len() + task.letters_in_hand.len();
                prop_assert!(task.done_letters() as usize + open <= LETTERS.len());
                let is_cancelled = matches!(task.progress, Progress::Cancelled { .. });
                prop_assert!(is_cancelled || task.done_letters() as usize + open == LETTERS.len());
                prop_assert_eq!(task.progress == Progress::Over, !is_cancelled && open == 0);
            }
        }
        // A second reader of the log arrives at the same state.
        let mut other = Operations::default();
        log.1.iter().for_each(|entry| other.read(entry));
        prop_assert_eq!(other.tasks, log.0.tasks);
        prop_assert_eq!(other.marks, log.0.marks);
        prop_assert_eq!(other.edits, log.0.edits);
    }

    /// Several workers at once, each of which may have read any part of the log.
    #[test]
    fn a_second_record_is_a_repeat_of_the_first(moves in worker_moves()) {
        let works = [
            OperatorWork::Redrive,
            OperatorWork::Discard,
            OperatorWork::Redrive,
            OperatorWork::Discard,
        ];
        let names = ["w", "x", "y", "z"];
        let mut log = Log::default();
        let mut workers: [Worker; 3] = Default::default();
        let mut records: BTreeMap<String, Option<Version>> = BTreeMap::new();
        for one in moves {
            let task = |place: usize| id(names[place]);
            match one {
                WorkerMove::Read(place) => workers[place].read(&log),
                WorkerMove::Say(place) => workers[place].say(&mut log),
                WorkerMove::Begin(place) => {
                    let batch = NonZeroU32::new(1 + place as u32);
                    let letters = &LETTERS[place..];
                    log.add(begin_by_batch(names[place], works[place], letters, batch));
                }
                WorkerMove::Pause(place) => log.add([OperatorAction::Paused {
                    task: task(place),
                    why: String::new(),
                    by_itself: false,
                }]),
                WorkerMove::Resume(place) => {
                    log.add([OperatorAction::Resumed { task: task(place) }]);
                }
                WorkerMove::Cancel(place) => {
                    log.add([OperatorAction::Cancelled { task: task(place) }]);
                }
                WorkerMove::Edit(letter, base, version) => {
                    log.add([edit_action(LETTERS[letter], base, version)]);
                }
                WorkerMove::Publish(place) => {
                    for (letter, version) in workers[place].publish(at(1)) {
                        let is_redriven = matches!(log.0.status(&letter), LetterStatus::Redriven { .. });
                        prop_assert!(is_redriven || log.0.is_in_hand(&letter), "{letter}");
                        let first = records.entry(letter).or_insert_with(|| version.clone());
                        prop_assert_eq!(&*first, &version);
                    }
                }
            }
        }
        // A worker that takes over finishes what any of them began.
        let mut successor = Worker::default();
        successor.read(&log);
        while successor.operations.next().is_some() {
            for (letter, version) in successor.publish(at(1)) {
                prop_assert_eq!(records.entry(letter).or_insert_with(|| version.clone()), &version);
            }
            successor.say(&mut log);
            successor.read(&log);
        }
        for letter in records.keys() {
            prop_assert!(matches!(log.0.status(letter), LetterStatus::Redriven { .. }), "{letter}");
        }
        for task in log.0.tasks() {
            prop_assert!(task.is_at_rest());
            let is_done = task.done_letters() == task.start.letters;
            let is_cancelled = matches!(task.progress, Progress::Cancelled { .. });
            prop_assert!(is_cancelled || is_done == (task.progress == Progress::Over));
        }
    }
}
