//! Boats that drain at the same time, by the loads that they read of each other, with delay.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    BoatLoad, BoatState, Drain, DrainBounds, DrainFacts, DrainStep, Load, PUBLISH_EVERY,
    ROOM_EVERY, Room,
};
use crate::presence::BoatLife;
use crate::{BoatId, Incarnation, Timestamp};

const STEP: Duration = Duration::from_millis(50);
const SPREAD: Duration = Duration::from_secs(10);
/// As `boat.drain_notice`: others see the boat draining before its clients go.
const NOTICE: Duration = Duration::from_secs(5);

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }
}

struct SimulatedBoat {
    life: BoatLife,
    seats: usize,
    clients: usize,
    drains_at: Option<Timestamp>,
    drain: Drain,
    next: Timestamp,
    published: BoatLoad,
    publishes_at: Timestamp,
    room: Room,
    reads_at: Timestamp,
}

impl SimulatedBoat {
    fn is_draining(&self, now: Timestamp) -> bool {
        self.drains_at.is_some_and(|at| at <= now)
    }

    fn load(&mut self, now: Timestamp) -> BoatLoad {
        BoatLoad {
            leaving: self.drain.leaving(now),
            state: match self.is_draining(now) {
                true => BoatState::Draining,
                false => BoatState::Open,
            },
            connections: self.clients,
            seats: self.seats,
            accepts_per_second: 100_000,
            ..BoatLoad::default()
        }
    }
}

/// Rule of a run.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Whole,
    /// Ignores clients under way.
    WithoutDepartures,
}

#[derive(Debug)]
struct DrainOutcome {
    /// Clients that found no free seat on arrival.
    refused: usize,
    /// Clients still waiting.
    left: usize,
    /// Free seats of boats that stay.
    free: usize,
}

fn boats(random: &mut Random, start: Timestamp) -> Vec<SimulatedBoat> {
    let count = 3 + random.below(5);
    let draining = 1 + random.below(2);
    // No boat can foresee the loss of seats when another boat begins to drain later.
    let begins = random.below(15_000);
    (0..count)
        .map(|number| {
            let clients = 500 + random.below(500) as usize;
            let publishes_at = start + Duration::from_millis(random.below(10_000));
            let drains_at = start + Duration::from_millis(begins + random.below(2_000));
            let mut boat = SimulatedBoat {
                life: BoatLife {
                    boat: BoatId::new(&format!("boat-{number}")).expect("a name"),
                    incarnation: Incarnation(1),
                },
                // Barely enough, or too few.
                seats: clients + random.below(900) as usize,
                clients,
                drains_at: (number < draining).then_some(drains_at),
                drain: Drain::new(SPREAD),
                next: start,
                published: BoatLoad::default(),
                publishes_at,
                room: Room::default(),
                reads_at: start,
            };
            boat.published = boat.load(start);
            boat
        })
        .collect()
}

fn run(seed: u64, rule: Rule) -> DrainOutcome {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let start = Timestamp::from_millis(1_000_000);
    let bounds = DrainBounds {
        pace: NonZeroU32::new(2000).expect("a pace"),
        pace_cluster: NonZeroU32::new(10_000).expect("a pace"),
        batch: 256,
    };
    let mut boats = boats(&mut random, start);
    let mut arrivals: Vec<Timestamp> = Vec::new();
    let mut refused = 0;
    let mut now = start;
    while now < start + Duration::from_secs(300) {
        let loads: Vec<Load> = (boats.iter())
            .map(|boat| Load {
                life: boat.life.clone(),
                load: boat.published.clone(),
            })
            .collect();
        for boat in &mut boats {
            let is_news = boat
                .drains_at
                .is_some_and(|at| at <= now && now < at + STEP);
            if boat.publishes_at <= now || is_news {
                boat.published = boat.load(now);
                boat.publishes_at = now
                    + match boat.is_draining(now) {
                        true => ROOM_EVERY,
                        false => PUBLISH_EVERY,
                    };
            }
            if !boat.is_draining(now) {
                continue;
            }
            if boat.reads_at <= now || is_news {
                boat.room = Room::beside(&boat.life, &loads);
                boat.reads_at = now + ROOM_EVERY;
            }
            let may_go = boat.drains_at.is_some_and(|at| at + NOTICE <= now);
            while may_go && boat.next <= now && boat.clients > 0 {
                if rule == Rule::WithoutDepartures {
                    boat.drain.departures.clear();
                }
                let facts = DrainFacts {
                    clients: boat.clients,
                    room: Some(boat.room),
                    left: None,
                };
                match boat.drain.step(&bounds, &facts, now) {
                    DrainStep::Go { clients, pause } => {
                        boat.clients -= clients;
                        boat.next = now + pause.max(Duration::from_millis(1));
                        for _ in 0..clients {
                            let after = random.below(SPREAD.as_millis() as u64);
                            arrivals.push(now + Duration::from_millis(after));
                        }
                    }
                    DrainStep::Wait { pause } => boat.next = now + pause,
                }
            }
        }
        arrivals.retain(|at| {
            if *at > now {
                return true;
            }
            let open = boats.iter_mut().filter(|boat| !boat.is_draining(now));
            match open.max_by_key(|boat| boat.seats - boat.clients) {
                Some(boat) if boat.clients < boat.seats => boat.clients += 1,
                _ => refused += 1,
            }
            false
        });
        now = now + STEP;
    }
    let stay: Vec<&SimulatedBoat> = (boats.iter()).filter(|it| !it.is_draining(now)).collect();
    DrainOutcome {
        refused,
        left: (boats.iter())
            .filter(|it| it.is_draining(now))
            .map(|it| it.clients)
            .sum(),
        free: stay.iter().map(|it| it.seats - it.clients).sum(),
    }
}

#[test]
fn boats_that_drain_together_send_nobody_where_no_seat_is() {
    let mut emptied = 0;
    for seed in 0..1000 {
        let outcome = run(seed, Rule::Whole);
        // Two boats may find the last seat at a time.
        assert!(outcome.refused <= 1, "seed {seed}: {outcome:?}");
        // No client waits while there is room; the last seats take their time.
        assert!(
            outcome.left == 0 || outcome.free <= 2,
            "seed {seed}: {outcome:?}"
        );
        emptied += usize::from(outcome.left == 0);
    }
    assert!(
        (100..900).contains(&emptied),
        "{emptied}: both kinds are tried"
    );
}

/// Negative twin: loads are late, and seats would be given twice.
#[test]
fn without_a_count_of_departures_seats_are_given_twice() {
    let refused = (0..300).map(|seed| run(seed, Rule::WithoutDepartures).refused);
    assert!(refused.sum::<usize>() > 100);
}
