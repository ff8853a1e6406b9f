//! Restarts every boat of a fleet, one after another, under a crowd: no client signs in again,
//! nearly every client is back within ten seconds, and nothing is lost. Needs `make real-up`; run
//! by `make campaign`.

mod balancer;
mod crowd;

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::count_at;
use crate::fleet::Fleet;
use crate::process::{Process, run};
use crate::real::{eventually, within};
use crate::rolling::crowd::{CROWD, Plan};

const BOATS: u32 = 6;
/// Clients of all crowds; PACKETBOAT_CROWD_CLIENTS overrides it.
const CLIENTS: u32 = 20_000;
/// Clients of one process, which holds three sockets for each.
const PER_CROWD: u32 = 5_000;
/// Messages per second over all crowds.
const RATE: f64 = 40.0;
/// Clients per second that leave a boat: two cores run this whole cluster.
const PACE: u32 = 150;
/// Pause between boats, like a rollout's minReadySeconds: clients that are back read what they
/// missed.
const SETTLE: Duration = Duration::from_secs(20);
/// Time for a crowd to sign in, or to come back.
const ROLLING_TIMEOUT: Duration = Duration::from_secs(300);
/// Limit for nearly every client, from the last frame of its boat to its next welcome.
const BACK_WITHIN_MS: u64 = 10_000;

struct Crowds(Vec<Process>);

impl Crowds {
    fn begin(fleet: &Fleet, clients: u32) -> Crowds {
        let boats: Vec<[String; 2]> = (1..=BOATS)
            .map(|number| format!("boat-{number}"))
            .map(|name| [fleet.boat(&name), fleet.admin_of(&name)])
            .collect();
        let count = clients.div_ceil(PER_CROWD);
        let crowds = (0..count).map(|number| {
            let plan = Plan {
                boats: boats.clone(),
                first_user: i64::from(1 + number * PER_CROWD),
                clients: PER_CROWD.min(clients - number * PER_CROWD),
                rate: RATE / f64::from(count),
            };
            let program = std::env::current_exe().expect("this program");
            let mut crowd = Command::new(program);
            crowd.args([
                "--ignored",
                "--exact",
                "--nocapture",
                "rolling::crowd::gathers",
            ]);
            crowd.env(CROWD, serde_json::to_string(&plan).expect("JSON"));
            Process::start(&mut crowd)
        });
        Crowds(crowds.collect())
    }

    /// Answers of all crowds to one command.
    fn ask(&mut self, word: &str) -> Vec<Value> {
        for crowd in &mut self.0 {
            crowd.type_line(word);
        }
        let answers = self.0.iter().map(|crowd| {
            loop {
                let line = crowd.line_within(ROLLING_TIMEOUT).expect("it answers");
                // The harness prints lines of its own.
                if line.starts_with('{') {
                    break serde_json::from_str(&line).expect("JSON");
                }
            }
        });
        answers.collect()
    }

    fn sum(&mut self, word: &str, field: &str) -> u64 {
        let answers = self.ask(word);
        let number = |answer: &Value| answer[field].as_u64().expect("a number");
        answers.iter().map(number).sum()
    }
}

// R18
#[test]
#[ignore = "needs the real parts: make campaign"]
fn a_rolling_restart_costs_nobody_a_sign_in() {
    let clients = std::env::var("PACKETBOAT_CROWD_CLIENTS");
    let clients = clients.map_or(CLIENTS, |text| text.parse().expect("a number"));
    let more = format!("boat.drain_notice = \"2s\"\nboat.drain_pace = {PACE}\n");
    let mut fleet = Fleet::with_boats("single", BOATS, &more);
    let audit_start = Instant::now();
    let mut crowds = Crowds::begin(&fleet, clients);
    let all = u64::from(clients);
    within(ROLLING_TIMEOUT, "all have signed in", || {
        (crowds.sum("count", "ready") == all).then_some(())
    });
    println!("{clients} clients after {:?}", audit_start.elapsed());
    let stations = ["station-1", "station-2"].map(|name| fleet.admin_of(name));
    let sign_ins = || count_at(&stations, "station_connects_total{result=\"admitted\"}");
    let old_sign_ins = sign_ins();

    for number in 1..=BOATS {
        sleep(SETTLE);
        let name = format!("boat-{number}");
        let began = Instant::now();
        fleet.process(&name).signal("TERM");
        assert!(
            fleet.process(&name).ended(ROLLING_TIMEOUT).success(),
            "{name}"
        );
        let stop_time = began.elapsed();
        fleet.restart(&name);
        within(
            ROLLING_TIMEOUT,
            &format!("all are back after {name}"),
            || (crowds.sum("count", "ready") == all).then_some(()),
        );
        println!(
            "{name} left in {stop_time:.1?}, all back after {:.1?}",
            began.elapsed()
        );
    }

    let (mut back_ms, mut broken) = (Vec::new(), 0);
    for findings in crowds.ask("end") {
        let mut findings = findings;
        let times = findings["back_ms"].take();
        back_ms.extend(
            times
                .as_array()
                .expect("times")
                .iter()
                .filter_map(Value::as_u64),
        );
        println!("a crowd found {findings}");
        let reasons = findings["reasons"].as_object().expect("reasons");
        let count = |(reason, count): (&String, &Value)| match reason.as_str() {
            "draining" => 0,
            _ => count.as_u64().expect("a count"),
        };
        broken += reasons.iter().map(count).sum::<u64>();
        assert_eq!(findings["missing"], 0, "{findings}");
        assert_eq!(findings["twice"], 0, "{findings}");
        assert!(findings["shown"].as_u64() > Some(0), "{findings}");
        assert_eq!(findings["open"], 0, "{findings}");
    }
    let new_sign_ins = sign_ins() - old_sign_ins;
    let resumed_count = count_at(&stations, "station_sessions_resumed_total");
    println!(
        "{new_sign_ins} more sign-ins, {resumed_count} of them with a ticket; {broken} connections broke"
    );
    back_ms.sort_unstable();
    let share = |percent: usize| back_ms[(back_ms.len() * percent / 100).min(back_ms.len() - 1)];
    println!(
        "{} returns; back after ms: half {}, 99 of 100 {}, all {}",
        back_ms.len(),
        share(50),
        share(99),
        share(100)
    );
    // A socket that breaks on an overloaded machine brings no ticket.
    assert!(
        new_sign_ins - resumed_count <= broken,
        "nobody's token was looked at twice for a drain"
    );
    // A client that moved to a boat restarted later has moved more than once.
    assert!(back_ms.len() as u64 >= all);
    assert!(share(99) <= BACK_WITHIN_MS, "{}", share(99));

    eventually("the books balance", || {
        let period = format!("{}s", audit_start.elapsed().as_secs() + 1);
        let audit = run(&mut fleet.operator(&["audit", "--deep", "--last", &period]));
        println!("{}", audit.stdout.lines().next().unwrap_or_default());
        (audit.code == Some(0)).then_some(())
    });
}
