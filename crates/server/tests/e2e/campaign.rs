//! Kills everything once under a steady chat; after each blow the books balance, and at the end the
//! chat's clients lost nothing and showed nothing twice. Needs `make real-up`; run by
//! `make campaign`.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use backend::Backends;
use protocol::Timestamp;
use serde_json::Value;
use server::cli;
use server::compose::Around;
use tokio::time::Instant;

use crate::blows::{
    compact_etcd, etcd_leader, masters, node_id, partition_leader, promote_without_the_tail,
    revoke_boat_lease,
};
use crate::failpoints;
use crate::fleet::{Fleet, SERVICES};
use crate::process::{Process, run};
use crate::real::{self, Down, eventually, tool, within};

/// Time a steady chat runs between two blows.
const BREATH: Duration = Duration::from_secs(3);
/// Longer than the lease of a silent service, and than a carrier may be silent.
const LONG_SILENCE: Duration = Duration::from_secs(30);

/// Time after a blow for the receiver to have a new message, with all that came before it.
const SHOWN: Duration = Duration::from_secs(90);

/// Messages per second, which two cores carry beside all the parts; PACKETBOAT_CAMPAIGN_RATE
/// overrides it.
const RATE: &str = "20";

/// A running `bench steady` over both boats of a fleet.
struct Chat(Process);

impl Chat {
    fn begin(fleet: &Fleet) -> Chat {
        let boats = [fleet.boat("boat-1"), fleet.boat("boat-2")];
        let rate = std::env::var("PACKETBOAT_CAMPAIGN_RATE");
        let rate = rate.unwrap_or_else(|_| RATE.to_owned());
        let mut command = fleet.bench(&["steady", "--pairs", "60", "--rate", &rate]);
        command.args(["--url", &boats[0], "--url", &boats[1]]);
        command.args(["--seconds", "100000", "--settle", "120", "--output", "json"]);
        let chat = Chat(Process::start(&mut command));
        thread::sleep(BREATH);
        chat
    }

    /// Ends the chat and checks its clients' findings.
    fn end(mut self) {
        assert!(self.0.is_running(), "the chat ended by itself");
        self.0.signal("TERM");
        let findings = self.0.line_within(Duration::from_secs(180));
        let findings = findings.expect("it says what it found");
        let findings: Value = serde_json::from_str(&findings).expect("JSON");
        println!("the chat found {findings}");
        for fault in ["twice", "out_of_order", "open"] {
            assert_eq!(findings[fault], 0, "{fault} in {findings}");
        }
        assert_eq!(findings["missing"], Value::Array(Vec::new()), "{findings}");
        assert!(findings["shown"].as_u64() > Some(0), "{findings}");
    }
}

/// A fleet under a chat, hit again and again.
struct Campaign {
    fleet: Fleet,
    chat: Chat,
    /// Start of the time that no audit has covered yet.
    audit_from: Instant,
}

impl Campaign {
    fn begin() -> Campaign {
        let fleet = Fleet::start("cluster");
        let audit_from = Instant::now();
        let chat = Chat::begin(&fleet);
        let mut campaign = Campaign {
            fleet,
            chat,
            audit_from,
        };
        campaign.recovered("nothing");
        campaign
    }

    /// Checks after a blow that new messages pass from end to end, and that the books balance over
    /// everything since the blow before.
    fn recovered(&mut self, blow: &str) {
        let fleet = &self.fleet;
        let start = Instant::now();
        let id = eventually(&format!("a message passes after {blow}"), || {
            let send = ["send", "--user", "1", "--to", "2", "--timeout", "5", blow];
            let output = run(&mut fleet.user(&send));
            let line = output.json_lines().into_iter().next();
            line.filter(|_| output.code == Some(0))
                .map(|line| line["msg_id"].clone())
        });
        let send_time = start.elapsed();
        // Sends whose answer was lost come first.
        within(SHOWN, &format!("it is shown after {blow}"), || {
            let listen = ["listen", "--user", "2", "--count", "1", "--timeout", "5"];
            let lines = run(&mut fleet.user(&listen)).json_lines();
            lines.iter().any(|line| line["msg_id"] == id).then_some(())
        });
        let show_time = start.elapsed();
        let audit_start = Instant::now();
        eventually(&format!("the books balance after {blow}"), || {
            let period = format!("{}s", self.audit_from.elapsed().as_secs() + 1);
            let audit = run(&mut fleet.operator(&["audit", "--deep", "--last", &period]));
            let balance = audit.stdout.lines().next().unwrap_or_default();
            println!("after {blow}: sent in {send_time:.1?}, shown in {show_time:.1?}; {balance}");
            (audit.code == Some(0)).then_some(())
        });
        self.audit_from = audit_start;
        thread::sleep(BREATH);
    }

    /// Checks that the chat's clients and the books agree that nothing was lost.
    fn end(self) -> Fleet {
        self.chat.end();
        self.fleet.at_rest();
        self.fleet
    }
}

// proves S1-27 in part
#[test]
#[ignore = "needs the real parts: make campaign"]
fn killed_parts_lose_no_accepted_message() {
    let mut campaign = Campaign::begin();
    for service in SERVICES {
        let name = format!("{service}-1");
        campaign.fleet.kill(&name);
        thread::sleep(BREATH);
        campaign.fleet.restart(&name);
        campaign.recovered(&format!("kill -9 of {name}"));
    }
    if real::addresses("kafka").len() > 1 {
        let broker = partition_leader(&campaign.fleet);
        let down = Down::new("kafka", &[broker]);
        thread::sleep(Duration::from_secs(10));
        campaign.recovered("kill -9 of a Kafka leader");
        drop(down);
    }
    promote_without_the_tail();
    campaign.recovered("the promotion of a Redis replica that lacked its tail");
    for port in masters() {
        eventually("it is flushed", || {
            let answer = tool("redis-cli", &["-p", &port, "flushall"]);
            (answer.trim() == "OK").then_some(())
        });
    }
    campaign.recovered("FLUSHALL");
    let down = (real::addresses("etcd").len() > 1).then(|| Down::new("etcd", &[etcd_leader()]));
    campaign.recovered("kill -9 of the etcd leader");
    drop(down);
    revoke_boat_lease(&campaign.fleet, "boat-1");
    campaign.recovered("the revocation of a boat's lease");
    let down = Down::new("cql", &["1".to_owned()]);
    thread::sleep(Duration::from_secs(20));
    drop(down);
    campaign.recovered("twenty seconds without the CQL node");
    campaign.end();
}

/// Parts that hang or are away for a while resume their work.
#[test]
#[ignore = "needs the real parts: make campaign"]
fn absent_parts_lose_no_accepted_message() {
    let mut campaign = Campaign::begin();
    for service in SERVICES {
        let name = format!("{service}-1");
        campaign.fleet.process(&name).signal("STOP");
        thread::sleep(LONG_SILENCE);
        campaign.fleet.process(&name).signal("CONT");
        campaign.recovered(&format!("a long silence of {name}"));
    }
    let first = |part, most: usize| -> Vec<String> {
        let nodes = 1..=most.min(real::addresses(part).len());
        nodes.map(|node| node.to_string()).collect()
    };
    let master = vec![masters().remove(0)];
    for (part, nodes) in [
        ("kafka", first("kafka", 2)),
        ("etcd", first("etcd", 3)),
        ("redis", master),
    ] {
        let down = Down::new(part, &nodes);
        thread::sleep(Duration::from_secs(15));
        drop(down);
        campaign.recovered(&format!("{} of {part} away", nodes.len()));
    }
    campaign.end();
}

/// Variable that names the file with the clock error of a process, in seconds.
const CLOCK: &str = "WRONG_CLOCK";
/// Interval of reads of that file.
const CLOCK_LOOK: Duration = Duration::from_millis(100);

/// A clock that a file sets. Faking the system's calls (libfaketime) would make librdkafka spin:
/// its waits end at times of the true clock.
struct Clock(std::path::PathBuf);

impl Clock {
    /// Restarts a member under this clock, which shows the true time at first.
    fn new(fleet: &mut Fleet, name: &str) -> Clock {
        let clock = Clock(fleet.log(name).with_extension("clock"));
        clock.set(0);
        fleet.kill(name);
        fleet.restart_as(name, |command| {
            let mut program = failpoints::within(command, "campaign::member_with_a_wrong_clock");
            program.env(CLOCK, &clock.0);
            program
        });
        clock
    }

    fn set(&self, seconds: i64) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("a file");
        std::fs::rename(new, &self.0).expect("a file");
    }
}

/// The system's clock, off by this many milliseconds.
struct WrongClock(Arc<dyn backend::clock::Clock>, Arc<AtomicI64>);

impl backend::clock::Clock for WrongClock {
    fn now(&self) -> Timestamp {
        let wrong = self.1.load(Ordering::Relaxed);
        Timestamp::from_millis(self.0.now().millis() + wrong)
    }
}

struct WrongClocks(Arc<AtomicI64>);

impl Around for WrongClocks {
    fn backends(&self, inner: Backends) -> Backends {
        Backends {
            clock: Arc::new(WrongClock(inner.clock, self.0.clone())),
            ..inner
        }
    }
}

#[test]
#[ignore = "a process of clock_jumps_and_etcd_faults_lose_no_accepted_message"]
fn member_with_a_wrong_clock() {
    let file = std::env::var_os(CLOCK).expect("a file");
    let wrong = Arc::new(AtomicI64::new(0));
    let look = wrong.clone();
    thread::spawn(move || {
        loop {
            let text = std::fs::read_to_string(&file).expect("a file");
            let seconds: i64 = text.parse().expect("a number");
            look.store(seconds * 1000, Ordering::Relaxed);
            thread::sleep(CLOCK_LOOK);
        }
    });
    cli::run_around(failpoints::cli(), &WrongClocks(wrong)).expect("it runs");
}

/// Clocks step, a watcher sleeps through a compaction, and all of etcd is away for five minutes.
// T-N2, T-E4, T-E2
#[test]
#[ignore = "needs the real parts: make campaign"]
fn clock_jumps_and_etcd_faults_lose_no_accepted_message() {
    let mut campaign = Campaign::begin();
    let clock = Clock::new(&mut campaign.fleet, "station-1");
    campaign.recovered("a new clock of station-1");
    for step in [-30, 0, 3600] {
        clock.set(step);
        thread::sleep(BREATH * 2);
        campaign.recovered(&format!("a step of station-1's clock by {step} s"));
    }
    // Station-1 makes no ids for an hour now: a restarted process takes another number.
    clock.set(0);
    thread::sleep(BREATH);
    campaign.recovered("a step of station-1's clock back by an hour");
    campaign.fleet.kill("station-1");
    campaign.fleet.restart("station-1");
    campaign.recovered("a start of station-1 with the true time");

    for watcher in ["station-1", "carrier-1"] {
        campaign.fleet.process(watcher).signal("STOP");
    }
    campaign.fleet.kill("boat-2");
    campaign.fleet.restart("boat-2");
    compact_etcd();
    thread::sleep(BREATH);
    for watcher in ["station-1", "carrier-1"] {
        campaign.fleet.process(watcher).signal("CONT");
    }
    campaign.recovered("a compaction that watchers slept through");

    let members = 1..=real::addresses("etcd").len();
    let members: Vec<String> = members.map(|member| member.to_string()).collect();
    let down = Down::new("etcd", &members);
    thread::sleep(Duration::from_secs(150));
    campaign.recovered("half of five minutes without etcd");
    thread::sleep(Duration::from_secs(150));
    drop(down);
    campaign.recovered("five minutes without etcd");
    campaign.end();
}

/// Slots move from one master to another and back, under load.
#[test]
#[ignore = "needs the real parts: make campaign"]
fn resharding_loses_nothing() {
    let mut campaign = Campaign::begin();
    let masters = masters();
    let (first, second) = (&masters[0], &masters[1]);
    for (from, to) in [(first, second), (second, first)] {
        let (from_id, to_id) = (node_id(from), node_id(to));
        let output = Command::new("redis-cli")
            .args(["--cluster", "reshard", &format!("127.0.0.1:{first}")])
            .args(["--cluster-from", &from_id, "--cluster-to", &to_id])
            .args(["--cluster-slots", "500", "--cluster-yes"])
            .output()
            .expect("redis-cli runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        campaign.recovered("resharding");
    }
    let fleet = campaign.end();
    for service in SERVICES {
        for number in [1, 2] {
            let log = std::fs::read_to_string(fleet.log(&format!("{service}-{number}")));
            assert!(!log.expect("a log").to_uppercase().contains("CROSSSLOT"));
        }
    }
}
