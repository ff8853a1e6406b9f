use proptest::prelude::*;

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn id(name: &str) -> TaskId {
    name.parse().expect("a name")
}

fn begin_actions(name: &str, work: OperatorWork, letters: &[&str]) -> [OperatorAction; 2] {
    let start = StartedTask {
        task: id(name),
        work,
        letters: letters.len() as u64,
        pace: Pace::default(),
        about: "all".to_owned(),
        why: String::new(),
    };
    let letters = letters.iter().map(|&letter| letter.to_owned()).collect();
    let task = id(name);
    [
        OperatorAction::Begun(start),
        OperatorAction::Chosen { task, letters },
    ]
}

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

#[test]
fn a_task_is_claimed_done_and_over() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a", "b", "c"]));
    assert!(matches!(
        log.0.next(2),
        Some(FoldStep::Claim { letters, .. }) if letters == ["a", "b"]
    ));
    log.add([claim_action("t", &["a", "b"])]);
    assert!(matches!(
        log.0.next(2),
        Some(FoldStep::Finish { claims, .. }) if claims.len() == 2
    ));
    log.add([done_action("t", &["a", "b"], TaskOutcome::ToRetry)]);
    assert!(matches!(log.0.status("a"), LetterStatus::Redriven { .. }));
    assert_eq!(log.task("t").progress, Progress::Running);
    log.add([
        claim_action("t", &["c"]),
        done_action("t", &["c"], TaskOutcome::BytesGone),
    ]);
    assert_eq!(log.0.status("c"), &LetterStatus::Open);
    assert_eq!(log.task("t").progress, Progress::Over);
    assert_eq!(
        (log.task("t").redriven_count(), log.task("t").done_letters()),
        (2, 3)
    );
    assert_eq!(log.0.next(2), None);
}

#[test]
fn redriven_and_discarded_letters_are_left_alone() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a"]));
    log.add([
        claim_action("t", &["a"]),
        done_action("t", &["a"], TaskOutcome::ToMessage),
    ]);
    log.add(begin_actions("d", OperatorWork::Discard, &["b"]));
    log.add([
        claim_action("d", &["b"]),
        done_action("d", &["b"], TaskOutcome::Discarded),
    ]);
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
    log.add([
        claim_action("r", &["b"]),
        done_action("r", &["b"], TaskOutcome::Restored),
    ]);
    assert_eq!(log.0.may(OperatorWork::Redrive, "b", now), Ok(()));
}

#[test]
fn a_task_pauses_goes_on_and_is_cancelled() {
    let task = id("t");
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a", "b"]));
    log.add([claim_action("t", &["a"])]);
    let reason = "too many died again".to_owned();
    log.add([OperatorAction::Paused {
        task: task.clone(),
        why: reason,
        by_itself: true,
    }]);
    // A claim is finished even so.
    assert!(matches!(log.0.next(9), Some(FoldStep::Finish { .. })));
    log.add([done_action("t", &["a"], TaskOutcome::ToRetry)]);
    assert_eq!(log.0.next(9), None);
    log.add([OperatorAction::Resumed { task: task.clone() }]);
    assert!(matches!(log.0.next(9), Some(FoldStep::Claim { letters, .. }) if letters == ["b"]));
    log.add([
        OperatorAction::Cancelled { task: task.clone() },
        OperatorAction::Resumed { task },
    ]);
    assert_eq!(log.0.next(9), None);
    assert!(log.task("t").is_over());
    assert_eq!(log.0.status("b"), &LetterStatus::Open);
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
    assert_eq!(log.0.next(9), None);
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
    log.add([
        claim_action("a", &["a", "b"]),
        done_action("a", &["a", "b"], TaskOutcome::Discarded),
    ]);
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
        log.add([
            claim_action(name, &[name]),
            done_action(name, &[name], TaskOutcome::Discarded),
        ]);
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
fn claimed_and_finished_letters_are_not_edited() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a"]));
    log.add([claim_action("t", &["a"]), edit_action("a", 0, 1)]);
    assert_eq!(log.holds("a"), None);
    assert_eq!(log.0.may_be_edited("a"), Err(EditRefusal::IsClaimed));
    log.add([
        done_action("t", &["a"], TaskOutcome::ToRetry),
        edit_action("a", 0, 1),
    ]);
    assert_eq!(log.holds("a"), None);
    assert_eq!(log.0.may_be_edited("a"), Err(EditRefusal::Redriven));
    log.add(begin_actions("d", OperatorWork::Discard, &["b"]));
    log.add([
        claim_action("d", &["b"]),
        done_action("d", &["b"], TaskOutcome::Discarded),
    ]);
    assert_eq!(log.0.may_be_edited("b"), Err(EditRefusal::Discarded));
    log.add(begin_actions("r", OperatorWork::Restore, &["b"]));
    log.add([
        claim_action("r", &["b"]),
        done_action("r", &["b"], TaskOutcome::Restored),
    ]);
    log.add([edit_action("b", 0, 1)]);
    assert_eq!(log.holds("b"), Some(1));
}

/// A worker may have made its record before it learned of the edit.
#[test]
fn a_claim_of_other_bytes_does_not_count() {
    let mut log = Log::with(begin_actions("t", OperatorWork::Redrive, &["a", "b"]));
    log.add([edit_action("a", 0, 1), claim_action("t", &["a", "b"])]);
    let claims: Vec<_> = log.task("t").claims().map(|claim| &*claim.letter).collect();
    assert_eq!(claims, ["b"]);
    log.add([done_action("t", &["a", "b"], TaskOutcome::ToRetry)]);
    assert_eq!(log.0.status("a"), &LetterStatus::Open);
    let OperatorAction::Claimed { task, mut claims } = claim_action("t", &["a"]) else {
        unreachable!();
    };
    claims[0].version = Some(Version::of(&[1]));
    log.add([OperatorAction::Claimed { task, claims }]);
    assert!(log.0.is_claimed("a"));
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
    log.add([
        claim_action("d", &["a"]),
        done_action("d", &["a"], TaskOutcome::Discarded),
    ]);
    let late = at(3) + DeskLimits::default().grace;
    let early = at(2) + DeskLimits::default().grace;
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
    log.add([
        claim_action("t", &["a", "b"]),
        done_action("t", &["a", "b"], TaskOutcome::ToRetry),
    ]);
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
        claim_action("t", first),
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
    log.add([
        claim_action("t", &letters),
        done_action("t", &letters, TaskOutcome::ToRetry),
    ]);
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
    Claim(usize),
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
        4 => (0..6usize).prop_map(Move::Claim),
        4 => (0..6usize, outcome).prop_map(|(letter, outcome)| Move::Done(letter, outcome)),
        1 => Just(Move::Pause),
        1 => Just(Move::Resume),
        1 => Just(Move::Cancel),
        1 => (0..6usize, 0..3u8, 0..3u8).prop_map(|(letter, a, b)| Move::Edit(letter, a, b)),
        1 => (0..6usize).prop_map(Move::DiedAgain),
    ];
    prop::collection::vec((any::<bool>(), one), 0..60)
}

proptest! {
    #[test]
    fn a_letter_is_done_once_in_a_task_whoever_writes(moves in moves()) {
        const LETTERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let mut log = Log::with(begin_actions("x", OperatorWork::Redrive, &LETTERS));
        log.add(begin_actions("y", OperatorWork::Redrive, &LETTERS));
        for (first, one) in moves {
            let name = if first { "x" } else { "y" };
            let task = id(name);
            log.add([match one {
                Move::Claim(letter) => claim_action(name, &[LETTERS[letter]]),
                Move::Done(letter, outcome) => done_action(name, &[LETTERS[letter]], outcome),
                Move::Pause => OperatorAction::Paused { task, why: String::new(), by_itself: false },
                Move::Edit(letter, base, version) => edit_action(LETTERS[letter], base, version),
                Move::DiedAgain(letter) => death_action(name, &[LETTERS[letter]]),
                Move::Resume => OperatorAction::Resumed { task },
                Move::Cancel => OperatorAction::Cancelled { task },
            }]);
            for name in ["x", "y"] {
                let task = log.task(name);
                let open = task.waiting_letters().count() + task.claims().count();
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
}
