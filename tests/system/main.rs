//! Ring 2 of the simulation: boats, stations, carriers and horns as they ship, over the embedded
//! parts, in one thread on paused time. Seeds decide their waits, failures and crashes, between any
//! two calls to the parts; stores, mailboxes, ledger and devices are judged.
//!
//! A finding names its seed; `PACKETBOAT_SIM_SEED=n cargo test -p tests --test system -- no_seed`
//! replays it (`no_power` for a world with power cuts, `no_scene` for one with a scene), and
//! `PACKETBOAT_SIM_TRACE=1` shows the events.

#![allow(
    clippy::print_stdout,
    reason = "a replayed world is shown on standard output"
)]

mod device;
mod host;
mod judge;
mod letters;
mod machine;
mod plan;
mod scenes;
mod troubles;
mod world;

use std::sync::atomic::{AtomicBool, Ordering};

use plan::Plan;
use tests::world::Trace;

/// Number of worlds of the gate.
const SEEDS: u64 = 200;
/// Seeds with a past finding; each stays.
const CORPUS: [u64; 10] = [278, 522, 922, 1894, 3040, 3578, 3726, 3913, 5317, 5903];
/// Number of worlds of the gate that lose power.
const POWER_SEEDS: u64 = 100;
/// Seeds of these with a past finding.
const POWER_CORPUS: [u64; 5] = [119, 218, 413, 528, 1685];
/// Number of worlds of the gate that have a scene.
const SCENE_SEEDS: u64 = 64;
/// Seeds of these with a past finding.
const SCENE_CORPUS: [u64; 0] = [];
/// Number of worlds of each kind that are run twice.
const REPLAYED_SEEDS: u64 = 12;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Runs seeds on all processors. Returns the findings, smallest seed first. With
/// `PACKETBOAT_SIM_FIRST` set, one is enough.
fn findings(
    plan: fn(u64) -> Plan,
    seeds: impl Iterator<Item = u64> + Clone + Send,
) -> Vec<(u64, String)> {
    let (is_enough, is_found) = (
        number("PACKETBOAT_SIM_FIRST").is_some(),
        AtomicBool::new(false),
    );
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut findings: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|worker| {
                let seeds = seeds.clone().skip(worker).step_by(workers);
                let is_found = &is_found;
                scope.spawn(move || {
                    let mut findings = Vec::new();
                    for seed in seeds {
                        if is_enough && is_found.load(Ordering::Relaxed) {
                            break;
                        }
                        if let Err(finding) = world::run(plan(seed)).0 {
                            is_found.store(true, Ordering::Relaxed);
                            findings.push((seed, finding));
                        }
                    }
                    findings
                })
            })
            .collect();
        let findings = workers.into_iter().flat_map(|worker| worker.join());
        findings.flatten().collect()
    });
    findings.sort();
    findings
}

/// Runs the seeds of a test, or the one that is to be replayed.
fn judge(plan: fn(u64) -> Plan, corpus: &[u64], seeds: u64) {
    if let Some(seed) = number("PACKETBOAT_SIM_SEED") {
        println!("{:#?}", plan(seed));
        assert_eq!(world::run(plan(seed)).0, Ok(()), "seed {seed}");
        return;
    }
    let seeds = number("PACKETBOAT_SIM_SEEDS").unwrap_or(seeds);
    let findings = findings(plan, corpus.iter().copied().chain(0..seeds));
    let first: Vec<_> = findings.iter().take(10).collect();
    let count = findings.len();
    assert!(findings.is_empty(), "{count} of {seeds} seeds: {first:#?}");
}

// In part: I1 to I5 and the balance of the ledger, for services that wait, fail and crash.
// proves S0-02, S0-15, S1-16, S2-01, S2-19 in part
#[test]
fn no_seed_loses_repeats_or_reorders_a_message() {
    judge(Plan::of, &CORPUS, SEEDS);
}

// Invariants as above, on a machine whose disk loses the newest writes that no fsync covers.
// proves S0-02 in part
#[test]
fn no_power_cut_loses_repeats_or_reorders_a_message() {
    judge(Plan::with_power_cuts, &POWER_CORPUS, POWER_SEEDS);
}

// Invariants as above, with the faults of a scene: dead letters, panics, clocks that step, an older carrier, outdated
// cache entries, members that come back, devices that come and go. With an operator, what died is delivered in the end;
// without one, it is a letter.
// proves S0-02 in part
#[test]
fn no_scene_loses_repeats_or_reorders_a_message() {
    judge(Plan::with_scene, &SCENE_CORPUS, SCENE_SEEDS);
}

/// First event that differs, with those before it.
fn difference(one: &Trace, other: &Trace) -> Option<String> {
    let (one, other) = (one.lines(), other.lines());
    let first_difference =
        (0..one.len().max(other.len())).find(|&at| one.get(at) != other.get(at))?;
    let start = first_difference.saturating_sub(5);
    let excerpt = |lines: &[String]| {
        lines[start.min(lines.len())..lines.len().min(first_difference + 2)].join("\n")
    };
    Some(format!(
        "event {first_difference}:\n{}\nand in the other run:\n{}",
        excerpt(&one),
        excerpt(&other)
    ))
}

/// Kinds of worlds.
const PLANS: [fn(u64) -> Plan; 3] = [Plan::of, Plan::with_power_cuts, Plan::with_scene];

#[test]
fn the_same_seed_is_the_same_world() {
    let seeds = 0..number("PACKETBOAT_SIM_TWICE").unwrap_or(REPLAYED_SEEDS);
    for (seed, plan) in seeds.flat_map(|seed| PLANS.map(|plan| (seed, plan))) {
        let [(one, trace), (other, other_trace)] = [(); 2].map(|()| world::run(plan(seed)));
        let first_difference = difference(&trace, &other_trace);
        assert_eq!(first_difference, None, "seed {seed}");
        assert_eq!(one, other, "seed {seed}");
    }
}
