//! Audits from the command line: do the books balance, and since when?

use crate::all::All;
use crate::process::run;

#[test]
fn an_audit_says_what_it_looked_at_and_what_it_left_off() {
    let all = All::with("audit.continuous = true");
    for text in ["one", "two", "three"] {
        all.send("1", "2", text);
    }
    all.at_rest();
    let whole = run(&mut all.operator(&["audit", "--all"])).ok().stdout;
    assert!(whole.contains("3 accepted = 3 settled"), "{whole}");
    assert!(whole.contains("everything the log retains"), "{whole}");
    let day = run(&mut all.operator(&["audit"])).ok().stdout;
    assert!(day.contains("3 accepted"), "{day}");
    assert!(day.contains("accepted since 20"), "{day}");
    let old_period = ["audit", "--until", "2026-01-01T00:00:00Z"];
    let old_period = run(&mut all.operator(&old_period)).ok().stdout;
    assert!(old_period.contains("0 accepted"), "{old_period}");

    let deep = run(&mut all.operator(&["audit", "--deep"])).ok().stdout;
    assert!(deep.contains("3 accepted = 3 settled"), "{deep}");
    let chain = run(&mut all.operator(&["audit", "verify", "--deep"])).ok();
    assert!(
        chain.stdout.starts_with("the chain holds"),
        "{}",
        chain.stdout
    );

    // A page holds whole minutes, and the next one goes on behind them.
    let (mut total, mut start) = (0, None::<String>);
    loop {
        let mut question = vec!["audit", "--limit", "1"];
        if let Some(start) = &start {
            question.extend(["--since", start]);
        }
        let part = run(&mut all.operator(&question));
        let count = part.stdout.split_once(" accepted").expect("a number").0;
        let count = count.rsplit(' ').next().expect("a word");
        let count = count.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        total += count.parse::<u64>().expect("a number");
        let Some((_, next)) = part.stdout.split_once("--since ") else {
            assert_eq!(part.code, Some(0), "{}", part.stdout);
            break;
        };
        assert_eq!(part.code, Some(1), "not everything was looked at");
        let next = next.split(',').next().expect("a time");
        start = Some(next.to_owned());
    }
    assert_eq!(total, 3);
}
