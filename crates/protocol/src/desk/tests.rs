use proptest::prelude::*;

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn id(name: &str) -> TaskId {
    name.parse().expect("a name")
}

fn begun(name: &str, work: Work, letters: &[&str]) -> [Act; 2] {
    let begun = Begun {
        task: id(name),
        work,
        letters: letters.len() as u64,
        pace: Pace::default(),
        about: "all".to_owned(),
        why: String::new(),
    };
    let letters = letters.iter().map(|&letter| letter.to_owned()).collect();
    let task = id(name);
    [Act::Begun(begun), Act::Chosen { task, letters }]
}

fn claimed(name: &str, letters: &[&str]) -> Act {
    let claim = |&letter: &&str| Claim {
        letter: letter.to_owned(),
        at: at(1),
        to: None,
    };
    Act::Claimed {
        task: id(name),
        claims: letters.iter().map(claim).collect(),
    }
}

fn done(name: &str, letters: &[&str], outcome: Outcome) -> Act {
    let outcomes = letters.iter().map(|&letter| (letter.to_owned(), outcome));
    Act::Done {
        task: id(name),
        outcomes: outcomes.collect(),
    }
}

/// A desk with its log.
#[derive(Default)]
struct Log(Desk, Vec<Entry>);

impl Log {
    fn with(acts: impl IntoIterator<Item = Act>) -> Log {
        let mut log = Log::default();
        log.add(acts);
        log
    }

    fn add(&mut self, acts: impl IntoIterator<Item = Act>) {
        for act in acts {
            let entry = Entry {
                at: at(self.1.len() as i64),
                by: "ann".to_owned(),
                act,
            };
            self.0.read(&entry);
            self.1.push(entry);
        }
    }

    fn task(&self, name: &str) -> &Task {
        self.0.task(&id(name)).expect("known")
    }
}

#[test]
fn a_task_is_claimed_done_and_over() {
    let mut log = Log::with(begun("t", Work::Redrive, &["a", "b", "c"]));
    assert!(matches!(
        log.0.next(2),
        Some(Step::Claim { letters, .. }) if letters == ["a", "b"]
    ));
    log.add([claimed("t", &["a", "b"])]);
    assert!(matches!(
        log.0.next(2),
        Some(Step::Finish { claims, .. }) if claims.len() == 2
    ));
    log.add([done("t", &["a", "b"], Outcome::ToRetry)]);
    assert!(matches!(log.0.status("a"), Status::Redriven { .. }));
    assert_eq!(log.task("t").progress, Progress::Running);
    log.add([claimed("t", &["c"]), done("t", &["c"], Outcome::BytesGone)]);
    assert_eq!(log.0.status("c"), &Status::Open);
    assert_eq!(log.task("t").progress, Progress::Over);
    assert_eq!(
        (log.task("t").redriven(), log.task("t").done_letters()),
        (2, 3)
    );
    assert_eq!(log.0.next(2), None);
}

#[test]
fn what_is_redriven_or_discarded_is_left_alone() {
    let mut log = Log::with(begun("t", Work::Redrive, &["a"]));
    log.add([claimed("t", &["a"]), done("t", &["a"], Outcome::ToMessage)]);
    log.add(begun("d", Work::Discard, &["b"]));
    log.add([claimed("d", &["b"]), done("d", &["b"], Outcome::Discarded)]);
    let now = at(100);
    let may = |work, letter| log.0.may(work, letter, now);
    assert_eq!(may(Work::Redrive, "a"), Err(Outcome::Before));
    assert_eq!(may(Work::Discard, "a"), Err(Outcome::Before));
    assert_eq!(may(Work::Redrive, "b"), Err(Outcome::IsDiscarded));
    assert_eq!(may(Work::Restore, "a"), Err(Outcome::NotDiscarded));
    assert_eq!(may(Work::Restore, "b"), Ok(()));
    assert_eq!(may(Work::Redrive, "c"), Ok(()));
    let late = at(7) + Limits::default().grace;
    assert_eq!(log.0.may(Work::Restore, "b", late), Err(Outcome::Final));
    log.add(begun("r", Work::Restore, &["b"]));
    log.add([claimed("r", &["b"]), done("r", &["b"], Outcome::Restored)]);
    assert_eq!(log.0.may(Work::Redrive, "b", now), Ok(()));
}

#[test]
fn a_task_pauses_goes_on_and_is_cancelled() {
    let task = id("t");
    let mut log = Log::with(begun("t", Work::Redrive, &["a", "b"]));
    log.add([claimed("t", &["a"])]);
    let why = "too many died again".to_owned();
    log.add([Act::Paused {
        task: task.clone(),
        why,
    }]);
    // A claim is finished all the same.
    assert!(matches!(log.0.next(9), Some(Step::Finish { .. })));
    log.add([done("t", &["a"], Outcome::ToRetry)]);
    assert_eq!(log.0.next(9), None);
    log.add([Act::Resumed { task: task.clone() }]);
    assert!(matches!(log.0.next(9), Some(Step::Claim { letters, .. }) if letters == ["b"]));
    log.add([Act::Cancelled { task: task.clone() }, Act::Resumed { task }]);
    assert_eq!(log.0.next(9), None);
    assert!(log.task("t").is_over());
    assert_eq!(log.0.status("b"), &Status::Open);
}

#[test]
fn a_task_whose_letters_were_never_all_named_does_nothing() {
    let [begun, _] = begun("t", Work::Discard, &["a", "b"]);
    let letters = vec!["a".to_owned()];
    let mut log = Log::with([
        begun,
        Act::Chosen {
            task: id("t"),
            letters,
        },
    ]);
    assert_eq!(log.task("t").progress, Progress::Choosing);
    assert_eq!(log.0.next(9), None);
    log.add([Act::Cancelled { task: id("t") }]);
    assert!(log.task("t").is_over());
}

#[test]
fn a_request_that_cannot_be_is_refused() {
    let desk = Desk::new(Limits {
        letters: 2,
        tasks: 1,
        marks: 3,
        ..Limits::default()
    });
    let request = |letters, pace| Begun {
        task: id("t"),
        work: Work::Redrive,
        letters,
        pace,
        about: String::new(),
        why: String::new(),
    };
    let refused = |begun: Begun| desk.admit(&begun).expect_err("refused").text;
    assert!(refused(request(0, Pace::default())).contains("no letter"));
    assert!(refused(request(3, Pace::default())).contains("2 at most"));
    let never = Pace {
        per_second: 0,
        ..Pace::default()
    };
    assert!(refused(request(1, never)).contains("1 to 1000"));
    assert_eq!(desk.admit(&request(2, Pace::default())), Ok(()));
    let mut log = Log(desk, Vec::new());
    log.add(begun("a", Work::Discard, &["a", "b"]));
    let busy = log.0.admit(&request(1, Pace::default())).expect_err("busy");
    assert_eq!(busy.code, Code::RateLimited);
    log.add([
        claimed("a", &["a", "b"]),
        done("a", &["a", "b"], Outcome::Discarded),
    ]);
    assert_eq!(log.0.admit(&request(1, Pace::default())), Ok(()));
    let full = log.0.admit(&request(2, Pace::default())).expect_err("full");
    assert!(full.text.contains("3 at most"), "{full}");
}

#[test]
fn the_past_is_forgotten_but_not_its_marks() {
    let mut log = Log(
        Desk::new(Limits {
            past: 1,
            ..Limits::default()
        }),
        Vec::new(),
    );
    for name in ["a", "b", "c", "d"] {
        log.add(begun(name, Work::Discard, &[name]));
        log.add([
            claimed(name, &[name]),
            done(name, &[name], Outcome::Discarded),
        ]);
    }
    let names: Vec<_> = log.0.tasks().map(|task| task.id().to_string()).collect();
    assert_eq!(names, ["d", "c"]);
    assert!(matches!(log.0.status("a"), Status::Discarded { .. }));
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
    let entry = Entry {
        at: at(7),
        by: "ann".to_owned(),
        act: Act::Claimed {
            task: id("t"),
            claims: vec![Claim {
                letter: "message-0-1".to_owned(),
                at: at(6),
                to: Some(Place {
                    topic: Topic::Retry(1),
                    partition: 3,
                    from: 9,
                }),
            }],
        },
    };
    let text = serde_json::to_string(&entry).expect("JSON");
    assert!(text.contains("\"topic\":\"retry-1\""), "{text}");
    assert_eq!(serde_json::from_str::<Entry>(&text).expect("back"), entry);
    assert!("no spaces".parse::<TaskId>().is_err());
}

/// Two workers, one of which does not know that it lost its partition: whatever they write, in any
/// order, a letter is marked by one task and counted once.
#[derive(Clone, Debug)]
enum Move {
    Claim(usize),
    Done(usize, Outcome),
    Pause,
    Resume,
    Cancel,
}

fn moves() -> impl Strategy<Value = Vec<(bool, Move)>> {
    let outcome = prop_oneof![
        Just(Outcome::ToRetry),
        Just(Outcome::Before),
        Just(Outcome::BytesGone)
    ];
    let one = prop_oneof![
        4 => (0..6usize).prop_map(Move::Claim),
        4 => (0..6usize, outcome).prop_map(|(letter, outcome)| Move::Done(letter, outcome)),
        1 => Just(Move::Pause),
        1 => Just(Move::Resume),
        1 => Just(Move::Cancel),
    ];
    prop::collection::vec((any::<bool>(), one), 0..60)
}

proptest! {
    #[test]
    fn a_letter_is_done_once_in_a_task_whoever_writes(moves in moves()) {
        const LETTERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
        let mut log = Log::with(begun("x", Work::Redrive, &LETTERS));
        log.add(begun("y", Work::Redrive, &LETTERS));
        for (first, one) in moves {
            let name = if first { "x" } else { "y" };
            let task = id(name);
            log.add([match one {
                Move::Claim(letter) => claimed(name, &[LETTERS[letter]]),
                Move::Done(letter, outcome) => done(name, &[LETTERS[letter]], outcome),
                Move::Pause => Act::Paused { task, why: String::new() },
                Move::Resume => Act::Resumed { task },
                Move::Cancel => Act::Cancelled { task },
            }]);
            for name in ["x", "y"] {
                let task = log.task(name);
                let open = task.waiting().count() + task.claims().count();
                prop_assert!(task.done_letters() as usize + open <= LETTERS.len());
                let cancelled = matches!(task.progress, Progress::Cancelled { .. });
                prop_assert!(cancelled || task.done_letters() as usize + open == LETTERS.len());
                prop_assert_eq!(task.progress == Progress::Over, !cancelled && open == 0);
            }
        }
        // Whoever reads the log anew knows the same.
        let mut other = Desk::default();
        log.1.iter().for_each(|entry| other.read(entry));
        prop_assert_eq!(other.tasks, log.0.tasks);
        prop_assert_eq!(other.marks, log.0.marks);
    }
}
