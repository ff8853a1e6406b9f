//! What could not be delivered, from the operator's commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::all::All;
use crate::process::{Process, run};

/// Waits that a test can sit through.
const QUICK: &str = "boat.session.ack_wait = \"300ms\"\ncarrier.ack_wait = \"300ms\"\n\
    carrier.retry_delays = [\"10ms\", \"20ms\", \"30ms\", \"40ms\", \"50ms\"]";

// proves S1-15
#[test]
fn a_listener_that_never_acknowledges_is_sent_away_and_the_message_waits() {
    let all = All::with(QUICK);
    let deaf = ["listen", "--user", "2", "--device", "deaf", "--no-ack"];
    let mut deaf = Process::start(&mut all.user(&deaf));
    // Found by sync, maybe: now it is signed in.
    all.send("1", "2", "are you there?");
    assert!(deaf.line().expect("it is shown").contains("are you there?"));
    let id = all.send("1", "2", "hello?");
    assert!(deaf.line().expect("it is shown").contains(&id));
    all.traced(&id, &["NoAck", "StoredOffline"]);
    deaf.kill();
    assert_eq!(all.listen("2", 2)[1]["msg_id"], id.as_str());
    all.traced(&id, &["Fetched"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}

// proves S1-29, S1-30 in part
#[test]
fn a_dead_letter_is_listed_shown_and_redriven_when_its_cause_is_gone() {
    let mut all = All::with("carrier.record_bytes_max = 512");
    all.send("1", "2", "small");
    assert_eq!(all.listen("2", 1)[0]["text"], "small");
    let large = "x".repeat(2000);
    let id = all.send("1", "2", &large);
    all.traced(&id, &["Dead", "TooLarge"]);

    let letter = all.letter("too-large");
    let shown = run(&mut all.operator(&["dlq", "show", &letter, "--body"])).ok();
    assert!(
        shown.stdout.contains("too-large") && shown.stdout.contains(&id),
        "{}",
        shown.stdout
    );
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    assert!(stats.contains("too-large"), "{stats}");
    run(&mut all.operator(&["audit"])).ok();

    all.process.signal("TERM");
    all.process.ended(crate::process::SOON);
    let all = all.again("");
    run(&mut all.operator(&["dlq", "redrive", &letter])).ok();
    let heard = all.listen("2", 1);
    assert_eq!(
        (heard[0]["msg_id"].as_str(), heard[0]["text"].as_str()),
        (Some(&*id), Some(&*large))
    );
    all.traced(&id, &["Redriven", "Settled"]);
    all.nothing_for("2");
    run(&mut all.operator(&["audit"])).ok();
}

/// A webhook that refuses what it is told, until it does not.
struct Webhook {
    url: String,
    refuses: Arc<AtomicBool>,
}

impl Webhook {
    fn refusing() -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let refuses = Arc::new(AtomicBool::new(true));
        let mood = refuses.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let status = if mood.load(Ordering::SeqCst) {
                    "400 Bad Request"
                } else {
                    "200 OK"
                };
                answer(stream.expect("a connection"), status);
            }
        });
        Webhook { url, refuses }
    }
}

fn answer(mut stream: TcpStream, status: &str) {
    let mut request = BufReader::new(stream.try_clone().expect("the same socket"));
    let mut length = 0;
    let mut line = String::new();
    while request.read_line(&mut line).expect("a header") > 2 {
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        line.clear();
    }
    request.read_exact(&mut vec![0; length]).expect("a body");
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // Who asked may be gone.
    let _ = stream.write_all(head.as_bytes());
}

// proves S1-30 in part, for notifications
#[test]
fn a_notification_that_nobody_took_is_listed_shown_and_redriven() {
    let webhook = Webhook::refusing();
    let url = &webhook.url;
    let all = All::with(&format!(
        "horn.provider = \"webhook\"\nhorn.url = \"{url}\""
    ));
    all.nothing_for("2"); // known from now on, and away
    let id = all.send("1", "2", "are you there?");
    all.traced(&id, &["StoredOffline", "\"ok\":false"]);

    let of = |topic: &str| {
        let list = ["dlq", "list", "--topic", topic, "--output", "json"];
        let list = run(&mut all.operator(&list)).ok().stdout;
        serde_json::from_str::<serde_json::Value>(&list).expect("JSON")["letters"].clone()
    };
    assert_eq!(of("message"), serde_json::json!([]));
    let letters = of("notification");
    let letter = letters[0]["id"].as_str().expect("a letter");
    assert!(letter.starts_with("notification-"), "{letter}");
    assert_eq!(letters[0]["reason"], "refused");
    assert_eq!(letters[0]["targets"], serde_json::json!(["2/desktop"]));
    let both = run(&mut all.operator(&["dlq", "list"])).ok().stdout;
    assert!(both.contains(letter) && both.contains(&id), "{both}");
    let shown = run(&mut all.operator(&["dlq", "show", letter, "--body"])).ok();
    let shown = shown.stdout;
    assert!(
        shown.contains("answered 400") && shown.contains("NotificationTask"),
        "{shown}"
    );
    let stats = run(&mut all.operator(&["dlq", "stats"])).ok().stdout;
    assert!(stats.contains("notification  refused  1"), "{stats}");

    webhook.refuses.store(false, Ordering::SeqCst);
    let redrive = ["dlq", "redrive", "--topic", "notification", "--all"];
    let redriven = run(&mut all.operator(&redrive)).ok().stdout;
    assert!(redriven.contains("told again"), "{redriven}");
    all.traced(&id, &["Redriven", "\"ok\":true"]);
    let again = run(&mut all.operator(&redrive)).ok().stdout;
    assert!(again.contains("No letter matches"), "{again}");
    all.at_rest();
}
