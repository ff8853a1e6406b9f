//! Ring 1 of the simulator: the pure machines of client, boat, carrier and mailbox in seeded worlds
//! that lose, repeat, delay and crash between any two effects. The ledger and the devices are
//! judges.
//!
//! This ring is frozen: no new feature enters it, and what is new is judged in whole services
//! (`tests/system`). It stays because three of its 33 planted bugs and two of its altered plans are
//! not found there in 2,000 worlds with a scene (`tests/planted/switched.txt`): `DeadlinesByWall`,
//! `OldCopyKept`, `GroupFromBefore`; `Without(Invalidate)`, `EarlyHandover`.
//!
//! A finding names its seed; `PACKETBOAT_SIM_SEED=n cargo test -p tests --test sim` replays it, with
//! the planted bug that `PACKETBOAT_SIM_PLANTED` names.

#![allow(
    clippy::print_stdout,
    reason = "a replayed world is told on standard output"
)]

mod boat;
mod cache;
mod carrier;
mod changes;
mod clocks;
mod device;
mod effects;
mod facts;
mod groups;
mod judge;
mod letters;
mod mutate;
mod older;
mod oracle;
mod panics;
mod plan;
mod reading;
mod receipts;
mod scenes;
mod station;
mod stores;
mod wire;
mod world;
mod writer;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mutate::{Mutation, STORED_KINDS};
use oracle::Tally;
use plan::{Plan, Sabotage};
use protocol::writer::EffectKind;
use rand::rngs::StdRng;
use scenes::{SCENES, Scene};
use world::World;

/// Seeds with a past finding; each stays.
const CORPUS: &[u64] = &[
    1, 8, 10, 14, 15, 19, 27, 33, 58, 61, 102, 184, 197, 209, 284, 385, 594, 1135, 2305, 2544,
    2695, 7381, 8402, 8584, 8743, 9932, 10921, 11205, 12247, 13917, 15586, 16626, 18078, 26840,
    29658, 32288, 34030, 35675, 38889, 46596, 50345, 56883, 22650, 3581, 90712, 114178, 139111,
    143190, 218793, 256418, 287324, 307687, 318324, 336324, 410971, 569996, 612128, 803776, 824974,
];

/// Seeds searched for a planted bug at a time.
const SEARCH_BATCH: u64 = 50;

/// Seeds among which each planted bug is found. Rare ones have a seed in the corpus, until worlds
/// change.
const PLANTED_BUG_SEEDS: u64 = 30_000;

fn seeds() -> u64 {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    number("PACKETBOAT_SIM_SEEDS").unwrap_or(10_000)
}

/// Bug to plant in a world that is replayed, by its name.
fn planted_bug() -> Option<Sabotage> {
    let name = std::env::var("PACKETBOAT_SIM_PLANTED").ok()?;
    let sabotage = Sabotage::ALL
        .into_iter()
        .find(|bug| format!("{bug:?}") == name);
    Some(sabotage.expect("PACKETBOAT_SIM_PLANTED is a planted bug"))
}

fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<(u64, Tally), String> {
    run_plan(Plan::of(seed), sabotage)
}

fn run_plan(plan: (Plan, StdRng), sabotage: Option<Sabotage>) -> Result<(u64, Tally), String> {
    let run = AssertUnwindSafe(|| World::new(plan, sabotage).run());
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of unknown kind")))
    })
}

/// Runs seeds on all processors. Returns the findings, smallest seed first.
fn findings(
    seeds: impl Iterator<Item = u64> + Clone + Send,
    sabotage: Option<Sabotage>,
) -> Vec<(u64, String)> {
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut results: Vec<(u64, String)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let own_seeds = seeds.skip(worker).step_by(workers);
                    own_seeds
                        .filter_map(|seed| Some((seed, run(seed, sabotage).err()?)))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().expect("caught inside"))
            .collect()
    });
    results.sort();
    results
}

/// The first finding among the corpus and so many seeds. A bug of a scene is searched for in worlds
/// of the scene alone.
fn first_finding(sabotage: Option<Sabotage>, seed_count: u64) -> Option<(u64, String)> {
    let scene = sabotage.and_then(Sabotage::scene);
    let batch_size = SEARCH_BATCH * if scene.is_some() { SCENES } else { 1 };
    let corpus = CORPUS.iter().map(|&seed| seed..seed + 1);
    let starts = (0..seed_count).step_by(batch_size as usize);
    let mut seeds = corpus.chain(starts.map(|first| first..first + batch_size));
    seeds.find_map(|seeds| {
        let seeds = seeds.filter(|seed| scene.is_none() || Scene::of(*seed) == scene);
        findings(seeds, sabotage).into_iter().next()
    })
}

// Each device that is neither lost nor displaced ends with what history has, message by message,
// changes included: S2-01. Devices that come later see what the others saw; lists and unread counts
// equal a count by hand: S4-35. A device comes back through any boat and station; these remember
// nothing of it but cache entries, which others may have filled: S0-81, S0-82.
// proves S0-02, S0-15, S0-61b, S0-61h, S0-61i, S2-04, S2-05, S2-19, S3-36, S3-37 in part
// proves S4-04, S4-06, S4-17, S4-18, S4-19, S4-21, S4-22, S4-23, S4-30, S4-31, S4-34, S4-35
// proves S0-11, S0-14, S0-65, S0-72, S0-73, S0-74, S0-76, S0-77, S0-81, S0-82, S1-09, S1-16, S2-01, S3-22
#[test]
fn no_seed_loses_repeats_or_reorders_a_message() {
    if let Ok(seed) = std::env::var("PACKETBOAT_SIM_SEED") {
        let seed = seed.parse().expect("PACKETBOAT_SIM_SEED is a number");
        println!("{:#?}", Plan::of(seed).0);
        assert_eq!(run(seed, planted_bug()).err(), None, "seed {seed}");
        return;
    }
    let failures = findings(0..seeds(), None);
    let first: Vec<_> = failures.iter().take(40).collect();
    assert!(
        failures.is_empty(),
        "{} of {} seeds: {first:#?}",
        failures.len(),
        seeds()
    );
}

/// The trace's verdict on each message agrees with the witness.
#[test]
fn traces_match_the_witness() {
    let mut tally = Tally::default();
    for seed in 0..3000 {
        for plan in [Plan::plain(seed), Plan::of(seed)] {
            let world = run_plan(plan, None);
            let (_, verdicts) = world.unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
            tally.add(verdicts);
        }
    }
    println!("verdicts of 6000 worlds: {tally:?}");
    let kinds = [
        tally.repeat_count,
        tally.placed_count,
        tally.delivered_count,
        tally.stored_count,
    ];
    assert!(kinds.iter().all(|&count| count > 0), "{tally:?}");
    assert!(
        tally.untold_count * 100 < tally.delivered_count,
        "{tally:?}"
    );
}

#[test]
fn the_corpus_stays_clean() {
    for &seed in CORPUS {
        assert_eq!(run(seed, None).err(), None, "seed {seed}");
        let plain = run_plan(Plan::plain(seed), None);
        assert_eq!(plain.err(), None, "seed {seed}, messages only");
    }
}

/// Negative twins: a judge that cannot see these bugs proves nothing.
#[test]
fn every_planted_bug_is_found() {
    for sabotage in Sabotage::ALL {
        let finding = first_finding(Some(sabotage), PLANTED_BUG_SEEDS);
        let (seed, text) = finding.unwrap_or_else(|| panic!("{sabotage:?} was not found"));
        println!("{sabotage:?}: first found with seed {seed}: {text}");
    }
}

/// Seeds among which worlds without a scene find no bug of one.
const PLAIN_SEEDS: u64 = 100;

#[test]
fn scene_bugs_are_found_only_in_their_scenes() {
    let bugs = Sabotage::ALL.into_iter();
    for bug in bugs.filter(|bug| bug.scene().is_some()) {
        let plain_seeds = (0..PLAIN_SEEDS).filter(|seed| Scene::of(*seed).is_none());
        let failures = findings(plain_seeds, Some(bug));
        assert_eq!(failures.first(), None, "{bug:?}");
    }
}

/// Seeds among which a plan without one of its effects, or in the wrong order, is found.
const MUTATION_SEEDS: u64 = 3_000;

/// Seeds that stay without a finding if an effect is done twice, or a lazy one is left out.
const HARMLESS_SEEDS: u64 = 150;

/// Mutated plans are found: without an effect that is not lazy, with a stage too late, or with an
/// early handover.
#[test]
fn every_effect_left_out_or_late_is_found() {
    let without = STORED_KINDS.into_iter().filter(|kind| !kind.is_lazy());
    let without = without.map(Mutation::Without);
    // Not among them, as no world can see it: heads behind list rows, unless a device asks in between, and in 20,000
    // worlds none did; the group, its lists and its invalidations among each other, as all come before the next part.
    let reordered = [
        Mutation::Behind(EffectKind::Messages),
        Mutation::Behind(EffectKind::Changes),
        Mutation::EarlyHandover,
    ];
    let mutations = without.chain(reordered);
    for mutation in mutations {
        let sabotage = Some(Sabotage::Planned(mutation));
        let finding = first_finding(sabotage, MUTATION_SEEDS);
        let (seed, text) = finding.unwrap_or_else(|| panic!("{mutation:?} was not found"));
        println!("{mutation:?}: first found with seed {seed}: {text}");
    }
}

/// Promises of effects: each may be applied again, and a lazy one may be missing.
#[test]
fn effects_may_be_repeated_and_lazy_ones_left_out() {
    let repeated = STORED_KINDS.map(Mutation::Twice).into_iter();
    let lazy = STORED_KINDS.into_iter().filter(|kind| kind.is_lazy());
    for mutation in repeated.chain(lazy.map(Mutation::Without)) {
        let failures = findings(0..HARMLESS_SEEDS, Some(Sabotage::Planned(mutation)));
        assert_eq!(failures.first(), None, "{mutation:?}");
    }
}

#[test]
fn same_seed_gives_the_same_world() {
    for seed in 0..50 {
        assert_eq!(run(seed, None), run(seed, None), "seed {seed}");
    }
}
