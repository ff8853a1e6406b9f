//! Shutdown of `all`, and the conditions of its start.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::all::{All, all, set_level};
use crate::door::get;
use crate::process::{Process, WAIT_TIMEOUT, packetboat, run, within};

#[test]
fn a_signal_ends_it_in_order_and_its_data_can_be_used_again() {
    for signal in ["TERM", "INT"] {
        let mut all = All::start();
        let id = all.send("1", "2", "before the end");
        all.process.signal(signal);
        assert_eq!(
            all.process.ended(WAIT_TIMEOUT).code(),
            Some(0),
            "SIG{signal}"
        );
        let all = all.restart("");
        assert_eq!(all.listen("2", 1)[0]["msg_id"], id.as_str());
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    // A client that owes an acknowledgement for five minutes holds up the drain.
    let mut all = All::with(
        "boat.session.ack_wait = \"5m\"\ncarrier.ack_wait = \"5m\"\nboat.drain_deadline = \"5m\"",
    );
    let listen = ["listen", "--user", "2", "--no-ack"];
    let listener = Process::start(&mut all.user(&listen));
    // The first message may come by sync; the second is pushed, as the listener is online.
    for text in ["are you there?", "hold on"] {
        all.send("1", "2", text);
        assert!(listener.line().expect("a message").contains(text));
    }
    all.process.signal("TERM");
    // Two signals that find it stalled would count as one.
    within(WAIT_TIMEOUT, || get(&all.health, "/readyz").0 != 200);
    std::thread::sleep(Duration::from_millis(500));
    assert!(all.process.is_running(), "it waits for the acknowledgement");
    all.process.signal("TERM");
    assert_eq!(all.process.ended(WAIT_TIMEOUT).code(), Some(1));
}

// Regression: SIGHUP ended the process at once, without a drain.
#[test]
fn a_hangup_reads_the_log_level_again_and_ends_nothing() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut all = All::logging("warn", log.reopen().expect("a file"));
    let file = all.dir.path("packetboat.toml");
    let log_count = |text: &str| {
        let log = std::fs::read_to_string(&log).expect("a log");
        log.lines().filter(|line| line.contains(text)).count()
    };
    all.send("1", "2", "not a word of it");
    assert_eq!(log_count(" DEBUG "), 0);
    set_level(&file, "debug");
    all.process.signal("HUP");
    within(WAIT_TIMEOUT, || log_count("settings reloaded") == 1);
    for text in ["log.level = [", "no.such = 1\n"] {
        let old_count = log_count("reload failed; keeping the current settings");
        std::fs::write(&file, text).expect("a file");
        all.process.signal("HUP");
        within(WAIT_TIMEOUT, || {
            log_count("reload failed; keeping the current settings") > old_count
        });
    }
    all.send("1", "2", "still there");
    assert!(all.process.is_running());
    all.process.signal("TERM");
    assert_eq!(all.process.ended(WAIT_TIMEOUT).code(), Some(0));
}

// Regression: log lines were written by the logging thread, so that a full pipe on stderr held up
// probes and sends.
#[test]
fn unread_log_does_not_block_service() {
    let (_unread, stderr) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&stderr, 4096).expect("a small pipe");
    let all = All::logging("trace", stderr);
    let dropped_count = || {
        let (_, scrape) = get(&all.health, "/metrics");
        let count = scrape
            .lines()
            .find_map(|line| line.strip_prefix("log_lines_dropped_total "));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    // Each request logs a line of its own.
    let address = all.health.trim_start_matches("http://");
    within(WAIT_TIMEOUT * 4, || {
        for _ in 0..2_000 {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(b"no request\r\n\r\n").expect("sent");
            // Waits until it is answered and logged.
            let _ = stream.read(&mut [0; 16]);
        }
        dropped_count() > 0
    });
    // A process that the machine has stalled says so for a while.
    for _ in 0..400 {
        within(WAIT_TIMEOUT, || {
            get(&all.health, "/livez") == (200, "live\n".to_owned())
        });
    }
    all.send("1", "2", "who reads this?");
    within(WAIT_TIMEOUT, || get(&all.health, "/readyz").0 == 200);
}

// Regression: the process had no port at all until every part had answered.
#[cfg(feature = "cluster")]
#[test]
fn a_process_that_waits_for_a_part_is_live_and_not_ready() {
    // Accepts connections and sends nothing.
    let etcd = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = etcd.local_addr().expect("bound");
    let dir = crate::all::Dir::new();
    let more = format!(
        "etcd.endpoints = [\"http://{address}\"]\netcd.lease_ttl = \"10m\"\n\
         etcd.call_deadline = \"5m\""
    );
    let file = dir.settings(["127.0.0.1:0"; 3], &more);
    let [port] = crate::ports::free_ports();
    let health = format!("127.0.0.1:{port}");
    let mut boat = packetboat(&["--config"]);
    boat.arg(&file).args(["boat", "--listen", "127.0.0.1:0"]);
    let _boat = Process::start(boat.args(["--health", &health]));
    within(WAIT_TIMEOUT, || TcpStream::connect(&health).is_ok());
    within(WAIT_TIMEOUT, || {
        get(&health, "/livez") == (200, "live\n".to_owned())
    });
    assert_eq!(get(&health, "/readyz"), (503, "starting\n".to_owned()));
}

#[test]
fn each_service_says_whether_it_is_ready() {
    let all = All::start();
    within(WAIT_TIMEOUT, || get(&all.health, "/readyz").0 == 200);
    let (status, text) = get(&all.health, "/readyz");
    assert_eq!(status, 200, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "ready",
        "boat: ready",
        "station: ready",
        "carrier: ready",
        "horn: ready",
    ];
    assert_eq!(lines, expected);
    assert_eq!(get(&all.health, "/api/v1/me").0, 404, "no desk there");
}

#[test]
fn every_scraped_metric_has_help_and_is_documented() {
    let all = All::start();
    all.becomes_known("2");
    all.send("1", "2", "to be counted");
    all.listen("2", 1);
    all.at_rest();
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operations/metrics.md"
    );
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, scrape) = get(&all.health, "/metrics");
    let names: BTreeSet<&str> = scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    for name in &names {
        let has_help = scrape.contains(&format!("# HELP {name} "));
        assert!(has_help, "{name} has no line of help");
        assert!(
            page.contains(&format!("| `{name}` |")),
            "{name} is not in metrics.md"
        );
    }
    assert!(names.len() > 50, "{} are not all", names.len());
    for name in [
        "process_resident_memory_bytes",
        "process_open_fds",
        "packetboat_build_info",
    ] {
        assert!(names.contains(name), "{name} is missing");
    }
}

#[test]
fn two_cannot_have_the_same_data() {
    let first = All::start();
    let file = first.dir.path("other.toml");
    let free = "admin.listen = \"127.0.0.1:0\"\nhealth.listen = \"127.0.0.1:0\"\nboat.websocket = \"127.0.0.1:0\"\nboat.tcp = \"127.0.0.1:0\"\n";
    std::fs::write(&file, free).expect("a file");
    let second = run(&mut all(&file, &first.dir.path("data")));
    assert_eq!((second.code, second.stdout.as_str()), (Some(1), ""));
    let data = first.dir.path("data");
    let error_text = &second.stderr;
    assert!(
        error_text.contains(&*data.to_string_lossy()),
        "{error_text}"
    );
    assert!(
        error_text.contains("another packetboat is using"),
        "{error_text}"
    );
    first.send("1", "2", "the first goes on");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let first = All::start();
    let holds = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let used_address = holds.local_addr().expect("bound").to_string();
    let file = first.dir.path("taken.toml");
    let text = format!(
        "admin.listen = \"127.0.0.1:0\"\nhealth.listen = \"127.0.0.1:0\"\nboat.websocket = \"{used_address}\"\nboat.tcp = \"{used_address}\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    let second = run(&mut all(&file, &first.dir.path("elsewhere")));
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains(&used_address), "{}", second.stderr);
}
