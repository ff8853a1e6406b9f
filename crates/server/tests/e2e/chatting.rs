//! Two chats in terminals.

use crate::all::All;
use crate::door::get;
use crate::process::{Process, WAIT_TIMEOUT, run, within};

// proves S3-10, S3-16, S3-17 in part: the sender sees its message sent, delivered, read.
#[test]
fn two_chats_see_each_other_and_what_became_of_their_lines() {
    let all = All::start();
    let mut ada = Process::start(&mut all.user(&["chat", "--user", "1", "--to", "2"]));
    let mut bea = Process::start(&mut all.user_over_tcp(&["chat", "--user", "2", "--to", "1"]));
    ada.type_line("hello");
    ada.line_is("[sent] hello");
    bea.line_is("1: hello");
    ada.line_is("[read] hello");
    bea.type_line("good evening");
    bea.line_is("[sent] good evening");
    ada.line_is("2: good evening");
    bea.line_is("[read] good evening");
    ada.type_line("/pin");
    for chat in [&mut ada, &mut bea] {
        chat.line_is("[changed] 2: good evening (pinned)");
    }
    bea.type_line("/pins");
    bea.line_is("2: good evening (pinned)");
    bea.type_line("/unpin");
    for chat in [&mut ada, &mut bea] {
        chat.line_is("[changed] 2: good evening");
    }
    bea.type_line("/pins");
    bea.line_is("nothing is pinned here");
    bea.type_line("/hide");
    bea.line_is("[changed] 2: (hidden)");
    for chat in [&mut ada, &mut bea] {
        chat.feed(String::new());
        assert!(chat.ended(WAIT_TIMEOUT).success());
    }
}

#[test]
fn text_of_others_steers_no_terminal() {
    let all = All::start();
    let strange = "hi \u{1b}[2J\u{9b}2J\u{1b}]52;c;aGk=\u{7}\n1: I owe you \u{202e}1000";
    all.send("1", "2", strange);
    let mut chat = Process::start(&mut all.user(&["chat", "--user", "2", "--to", "1"]));
    let escaped_text = r"hi \u001b[2J\u009b2J\u001b]52;c;aGk=\u0007\n1: I owe you \u202e1000";
    chat.line_is(&format!("1: {escaped_text}"));
    chat.type_line("/list");
    // The list counts it as unread until the reading is recorded.
    let is_listed = |line: &str| line.starts_with("1 ") && line.ends_with(escaped_text);
    let listed = chat.look_for(WAIT_TIMEOUT, is_listed);
    assert_eq!(listed, Ok(()));
    chat.feed(String::new());
    assert!(chat.ended(WAIT_TIMEOUT).success());
    // JSON keeps the value.
    let listen = ["listen", "--user", "2", "--platform", "pad", "--count", "1"];
    let output = run(&mut all.user(&listen)).ok();
    assert!(
        !output.stdout.trim_end().contains(char::is_control),
        "{}",
        output.stdout
    );
    assert_eq!(output.json_lines()[0]["text"], strange);
}

// proves S3-17 in part, S3 Pitfall C: delivered is not read.
#[test]
fn a_listener_has_it_delivered_and_not_read() {
    let all = All::start();
    let _listener = Process::start(&mut all.user(&["listen", "--user", "2"]));
    // The listener must be online first: a later one would fetch the message, and no sample would
    // be taken.
    within(WAIT_TIMEOUT, || all.metric("boat_sessions") == 1);
    let mut ada = Process::start(&mut all.user(&["chat", "--user", "1", "--to", "2"]));
    ada.type_line("hello");
    ada.line_is("[delivered] hello");
    ada.feed(String::new());
    assert!(ada.ended(WAIT_TIMEOUT).success());
    let rest: Vec<String> = std::iter::from_fn(|| ada.line()).collect();
    assert!(!rest.contains(&"[read] hello".to_owned()), "{rest:?}");
    // The listener's acknowledgement is one sample.
    within(WAIT_TIMEOUT, || {
        let (_, scrape) = get(&all.health, "/metrics");
        scrape.contains("carrier_ack_latency_seconds_count 1\n")
    });
}

#[test]
fn a_message_that_can_never_be_sent_says_why() {
    let all = All::start();
    let self_send = run(&mut all.user(&["send", "--user", "1", "--to", "1", "me"]));
    assert_eq!(self_send.code, Some(1), "{}", self_send.stdout);
    assert!((self_send.stdout + &self_send.stderr).contains("yourself"));
    let forged_send =
        run(&mut all.user(&["send", "--user", "1", "--to", "2", "--token", "sesame", "x"]));
    assert_eq!(forged_send.code, Some(1), "{}", forged_send.stdout);
    assert!((forged_send.stdout + &forged_send.stderr).contains("unauthenticated"));
}
