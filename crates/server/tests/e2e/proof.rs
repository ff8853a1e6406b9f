//! CPU time of all services per message on the real parts, with certificates and tickets and
//! without either. Needs `make real-up` and a release build; run by `scripts/costs cpu`.

use std::time::Duration;

use serde_json::Value;

use crate::fleet::Fleet;
use crate::process::run;

/// Runs of each kind, in turn.
const ROUNDS: usize = 3;
/// Messages per second that two cores carry beside the parts.
const RATE: &str = "150";
const SECONDS: &str = "40";

/// CPU time of the services for one message of a steady chat, with new users in each round.
fn spent(fleet: &Fleet, round: usize) -> Duration {
    let mut chat = fleet.bench(&["steady", "--pairs", "60", "--rate", RATE]);
    for boat in ["boat-1", "boat-2"] {
        chat.args(["--url", &fleet.boat(boat)]);
    }
    chat.args([
        "--seconds",
        SECONDS,
        "--settle",
        "20",
        "--away",
        "0",
        "--output",
        "json",
    ]);
    chat.args(["--first-user", &(round * 1000).to_string()]);
    let old_cpu = fleet.cpu();
    let figures = run(&mut chat).ok().json_lines().remove(0);
    let cpu_time = fleet.cpu() - old_cpu;
    assert_eq!(figures["open"], 0, "{figures}");
    assert_eq!(figures["missing"], Value::Array(Vec::new()), "{figures}");
    let message_count = figures["shown"].as_u64().expect("a count");
    cpu_time / u32::try_from(message_count).expect("messages of a minute")
}

#[test]
#[ignore = "a measurement: scripts/costs cpu"]
fn a_message_with_proof_and_without() {
    let fleets = [Fleet::start("single"), Fleet::without_proof("single")];
    let mut sums = [Duration::ZERO; 2];
    for round in 1..=ROUNDS {
        let [proved, plain] = [&fleets[0], &fleets[1]].map(|fleet| spent(fleet, round));
        println!("run {round}: CPU of a message {proved:?} with proof, {plain:?} without");
        sums[0] += proved;
        sums[1] += plain;
    }
    let ratio = sums[0].as_secs_f64() / sums[1].as_secs_f64();
    let [proved, plain] = sums.map(|sum| sum / ROUNDS as u32);
    println!("CPU of a message: {proved:?} with proof, {plain:?} without, ratio {ratio:.2}");
}
