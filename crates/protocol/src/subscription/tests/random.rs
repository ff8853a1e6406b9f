//! Random worlds: two groups, six users on two loops, streams that are cut, lost and doubled,
//! stations that fail.

use std::time::Duration;

use super::world::World;
use crate::pause::mix;
use crate::subscription::GroupState;

const SEEDS: u64 = 2_000;

const STEPS: usize = 160;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = mix(self.0, 1);
        self.0 % sides
    }

    fn number(&mut self, sides: u64) -> i64 {
        self.roll(sides) as i64 + 1
    }
}

fn world(seed: u64, plant: fn(&mut World)) -> World {
    let mut dice = Dice(seed);
    let mut world = World::new(&[1, 2, 3]);
    world.add_group(2, &[1, 4]);
    plant(&mut world);
    let mut last_stream = 1;
    for _ in 0..STEPS {
        let (group, user) = (dice.number(2), dice.number(6));
        match dice.roll(70) {
            0..9 => world.save_message(group, user),
            9..11 => world.save_change(group, user),
            11..15 => {
                let is_in = dice.roll(2) == 0;
                world.write_rows(group, &[user, dice.number(6)], is_in);
            }
            15..18 => world.complete_command(group),
            18 if dice.roll(8) == 0 => world.write_state(group, GroupState::Gone),
            18 if dice.roll(4) == 0 => world.write_state(group, GroupState::Small),
            18..20 => world.write_state(group, GroupState::Large),
            20..30 => world.hand_over(),
            30..39 => world.receive(last_stream),
            39 => world.receive(last_stream.saturating_sub(1)),
            40 => world.redeliver(dice.roll(4) as usize),
            41 => world.cut(),
            42 => {
                last_stream += 1;
                world.open_stream(last_stream);
                if world.streams.len() > 2 || dice.roll(2) == 0 {
                    world.lose_oldest_stream();
                }
            }
            43..61 => {
                world.work(dice.roll(2) as usize);
            }
            61 => world.cut(),
            62 => world.fail(dice.roll(3) as usize),
            63..67 => {
                let groups: &[i64] = match dice.roll(5) {
                    0 => &[1],
                    1 => &[2],
                    2 => &[],
                    _ => &[1, 2],
                };
                // Up to two sessions of a user, on two loops.
                let session = user * 2 + dice.roll(2) as i64;
                world.subscribe(session, user, groups);
            }
            67 => world.leave(user * 2),
            _ => world.wait(Duration::from_millis(dice.roll(4_000))),
        }
    }
    world
}

/// What goes wrong in this world.
fn fault(mut world: World) -> Option<String> {
    world.finish();
    if !world.has_leak() {
        world.subscribe_again();
    }
    if world.has_leak() {
        return Some(format!("a body too many: {:?}", world.leaks));
    }
    let ignorant_client = world.ignorant_client();
    ignorant_client.map(|client| format!("{client:?} does not know how far it is"))
}

#[test]
fn random_worlds_show_nothing_too_much_and_leave_nobody_ignorant() {
    let (mut bodies, mut signals) = (0, 0);
    for seed in 0..SEEDS {
        let world = world(seed, |_| {});
        if let Some(fault) = fault(world.clone()) {
            panic!("seed {seed}: {fault}");
        }
        bodies += world
            .clients
            .values()
            .map(|it| it.bodies.len())
            .sum::<usize>();
        signals += world
            .clients
            .values()
            .map(|it| it.signal_count)
            .sum::<usize>();
    }
    assert!(
        bodies > 1_000 && signals > 1_000,
        "{bodies} bodies, {signals} signals"
    );
}

#[test]
fn random_worlds_find_rows_that_are_read_before_the_state() {
    let is_found = |seed| {
        let world = world(seed, |world| world.reads_rows_first = true);
        fault(world).is_some()
    };
    assert!((0..SEEDS).any(is_found));
}
