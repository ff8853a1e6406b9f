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

    let part = run(&mut all.operator(&["audit", "--limit", "1"]));
    assert_eq!(part.code, Some(1), "not everything was looked at");
    assert!(part.stdout.contains("1 accepted"), "{}", part.stdout);
    let (_, next) = part.stdout.split_once("--since ").expect("where to go on");
    let next = next.split(',').next().expect("a time");
    let rest = run(&mut all.operator(&["audit", "--since", next])).ok();
    assert!(rest.stdout.contains("2 accepted"), "{}", rest.stdout);
}
