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
    assert!(whole.contains("all that the log keeps"), "{whole}");
    let day = run(&mut all.operator(&["audit"])).ok().stdout;
    assert!(day.contains("3 accepted"), "{day}");
    assert!(day.contains("accepted since 20"), "{day}");
    let before = ["audit", "--until", "2026-01-01T00:00:00Z"];
    let before = run(&mut all.operator(&before)).ok().stdout;
    assert!(before.contains("0 accepted"), "{before}");

    let deep = run(&mut all.operator(&["audit", "--deep"])).ok().stdout;
    assert!(deep.contains("3 accepted = 3 settled"), "{deep}");
    let chain = run(&mut all.operator(&["audit", "verify", "--deep"])).ok();
    assert!(
        chain.stdout.starts_with("the chain holds"),
        "{}",
        chain.stdout
    );

    // A page holds whole minutes, and the next one goes on behind them.
    let (mut counted, mut since) = (0, None::<String>);
    loop {
        let mut question = vec!["audit", "--limit", "1"];
        if let Some(since) = &since {
            question.extend(["--since", since]);
        }
        let part = run(&mut all.operator(&question));
        let accepted = part.stdout.split_once(" accepted").expect("a number").0;
        let accepted = accepted.rsplit(' ').next().expect("a word");
        let accepted = accepted.trim_start_matches(|of: char| !of.is_ascii_digit());
        counted += accepted.parse::<u64>().expect("a number");
        let Some((_, next)) = part.stdout.split_once("--since ") else {
            assert_eq!(part.code, Some(0), "{}", part.stdout);
            break;
        };
        assert_eq!(part.code, Some(1), "not everything was looked at");
        let next = next.split(',').next().expect("a time");
        since = Some(next.to_owned());
    }
    assert_eq!(counted, 3);
}
