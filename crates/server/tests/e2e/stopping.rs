//! How `all` ends, and who may start it.

use std::time::Duration;

use crate::all::{All, all};
use crate::process::{Process, SOON, run};

#[test]
fn a_signal_ends_it_in_order_and_its_data_can_be_used_again() {
    for signal in ["TERM", "INT"] {
        let mut all = All::start();
        let id = all.send("1", "2", "before the end");
        all.process.signal(signal);
        assert_eq!(all.process.ended(SOON).code(), Some(0), "SIG{signal}");
        let all = all.again("");
        assert_eq!(all.listen("2", 1)[0]["msg_id"], id.as_str());
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    // A client that owes an acknowledgement for twenty seconds holds up the drain.
    let mut all = All::with("boat.session.ack_wait = \"20s\"\ncarrier.ack_wait = \"20s\"");
    let listen = ["listen", "--user", "2", "--no-ack"];
    let listener = Process::start(&mut all.user(&listen));
    // The first is found by sync, maybe; the second is pushed, as the listener is there.
    for text in ["are you there?", "hold on"] {
        all.send("1", "2", text);
        assert!(listener.line().expect("a message").contains(text));
    }
    all.process.signal("TERM");
    std::thread::sleep(Duration::from_millis(500));
    assert!(all.process.is_running(), "it waits for the acknowledgement");
    all.process.signal("TERM");
    assert_eq!(all.process.ended(Duration::from_secs(2)).code(), Some(1));
}

#[test]
fn two_cannot_have_the_same_data() {
    let first = All::start();
    let file = first.dir.path("other.toml");
    let free = "admin.listen = \"127.0.0.1:0\"\nboat.websocket = \"127.0.0.1:0\"\nboat.tcp = \"127.0.0.1:0\"\n";
    std::fs::write(&file, free).expect("a file");
    let second = run(&mut all(&file, &first.dir.path("data")));
    assert_eq!((second.code, second.stdout.as_str()), (Some(1), ""));
    let data = first.dir.path("data");
    let told = &second.stderr;
    assert!(told.contains(&*data.to_string_lossy()), "{told}");
    assert!(told.contains("another packetboat runs"), "{told}");
    first.send("1", "2", "the first goes on");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let first = All::start();
    let holds = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holds.local_addr().expect("bound").to_string();
    let file = first.dir.path("taken.toml");
    let text = format!(
        "admin.listen = \"127.0.0.1:0\"\nboat.websocket = \"{taken}\"\nboat.tcp = \"{taken}\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    let second = run(&mut all(&file, &first.dir.path("elsewhere")));
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains(&taken), "{}", second.stderr);
}
