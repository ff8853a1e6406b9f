//! Each interleaving of a subscription with what happens to the group at the same time.

use super::world::World;
use crate::interleavings::{Step, explore};
use crate::subscription::{GroupEnd, GroupState};

/// What goes wrong once all has come to rest.
fn ends_badly(mut world: World) -> bool {
    world.finish();
    world.has_leak() || world.ignorant_client().is_some()
}

/// As `ends_badly`, after members who were told to go have subscribed again.
fn ends_badly_after_again(mut world: World) -> bool {
    world.finish();
    world.subscribe_again();
    world.has_leak() || world.ignorant_client().is_some()
}

impl World {
    fn subscribe_user_2(&mut self) {
        self.subscribe(2, 2, &[1]);
    }

    fn station_works(&mut self) {
        self.work(0);
    }

    fn boat_receives(&mut self) {
        self.receive(1);
    }

    fn message(&mut self) {
        self.save_message(1, 1);
    }

    fn removal_rows(&mut self) {
        self.write_rows(1, &[2], false);
    }

    fn join_rows(&mut self) {
        self.write_rows(1, &[2], true);
    }

    fn command_end(&mut self) {
        self.complete_command(1);
    }

    fn sends(&mut self) {
        self.hand_over();
    }
}

const SUBSCRIBER: &[Step<World>] = &[World::subscribe_user_2];
const STATION: &[Step<World>] = &[
    World::station_works,
    World::station_works,
    World::station_works,
];
const BOAT: &[Step<World>] = &[World::boat_receives, World::boat_receives];

#[test]
fn no_order_of_message_and_subscription_leaves_a_member_ignorant() {
    let carrier: &[Step<World>] = &[World::message, World::sends];
    let parties = [SUBSCRIBER, STATION, BOAT, carrier];
    let orders = explore(&World::new(&[1, 2]), &parties, ends_badly);
    assert_eq!((orders.all, orders.bad), (1_680, 0));
}

#[test]
fn no_order_of_removal_and_subscription_shows_a_later_message() {
    let carrier: &[Step<World>] = &[
        World::removal_rows,
        World::command_end,
        World::message,
        World::sends,
        World::sends,
    ];
    let parties = [SUBSCRIBER, STATION, BOAT, carrier];
    let orders = explore(&World::new(&[1, 2]), &parties, ends_badly);
    assert_eq!((orders.all, orders.bad), (27_720, 0));
}

#[test]
fn no_order_of_join_and_subscription_hides_a_later_message() {
    let carrier: &[Step<World>] = &[
        World::message,
        World::join_rows,
        World::command_end,
        World::message,
        World::sends,
    ];
    let parties = [SUBSCRIBER, STATION, BOAT, carrier];
    let orders = explore(&World::new(&[1]), &parties, ends_badly_after_again);
    assert_eq!((orders.all, orders.bad), (27_720, 0));
}

#[test]
fn rows_read_before_the_state_show_a_later_message() {
    let carrier: &[Step<World>] = &[
        World::removal_rows,
        |world| {
            world.command_end();
            world.sends();
        },
        |world| {
            world.message();
            world.sends();
        },
    ];
    let lost_stream: &[Step<World>] = &[|world| {
        world.lose_oldest_stream();
        world.open_stream(2);
    }];
    let parties = [SUBSCRIBER, STATION, carrier, lost_stream];
    let leaks = |mut world: World| {
        world.finish();
        world.has_leak()
    };
    let orders = explore(&World::new(&[1, 2]), &parties, leaks);
    assert_eq!((orders.all, orders.bad), (1_120, 0));
    let world = World {
        reads_rows_first: true,
        ..World::new(&[1, 2])
    };
    let orders = explore(&world, &parties, leaks);
    assert!(orders.bad > 0, "{orders:?}");
}

#[test]
fn no_order_of_a_lost_stream_and_a_removal_shows_a_later_message() {
    // Subscribed already.
    let mut world = World::new(&[1, 2]);
    world.subscribe_user_2();
    world.answer_all();
    let carrier: &[Step<World>] = &[
        World::removal_rows,
        World::command_end,
        World::sends,
        World::message,
        World::sends,
    ];
    let lost_stream: &[Step<World>] = &[World::lose_oldest_stream, |world| world.open_stream(2)];
    let boat: &[Step<World>] = &[|world| world.receive(1), |world| world.receive(2)];
    let time: &[Step<World>] = &[|world| world.wait(std::time::Duration::from_secs(2))];
    let parties = [carrier, lost_stream, boat, time];
    let orders = explore(&world, &parties, ends_badly);
    assert_eq!((orders.all, orders.bad), (7_560, 0));
}

#[test]
fn no_order_of_a_cut_and_messages_leaves_a_member_ignorant() {
    let mut world = World::new(&[1, 2]);
    world.subscribe_user_2();
    world.answer_all();
    let carrier: &[Step<World>] = &[
        World::message,
        World::sends,
        World::cut,
        World::message,
        World::sends,
    ];
    let station: &[Step<World>] = &[
        |world| world.wait(std::time::Duration::from_secs(2)),
        World::station_works,
        World::station_works,
        World::station_works,
    ];
    let boat: &[Step<World>] = &[World::boat_receives, World::boat_receives];
    let orders = explore(&world, &[carrier, station, boat], ends_badly);
    assert_eq!((orders.all, orders.bad), (6_930, 0));
}

#[test]
fn no_order_of_an_end_of_the_group_shows_a_later_message() {
    let carrier: &[Step<World>] = &[
        |world| world.write_state(1, GroupState::Gone),
        World::command_end,
        World::sends,
    ];
    let parties = [SUBSCRIBER, STATION, BOAT, carrier];
    let orders = explore(&World::new(&[1, 2]), &parties, ends_badly);
    assert_eq!((orders.all, orders.bad), (5_040, 0));
}

#[test]
fn no_order_of_two_subscriptions_opens_a_seat_by_an_old_answer() {
    // The user is removed while the first session's row is being read, and the second session
    // subscribes then. Another member keeps the group known.
    let mut world = World::new(&[1, 2]);
    world.subscribe(3, 1, &[1]);
    world.answer_all();
    let carrier: &[Step<World>] = &[
        |world| {
            world.removal_rows();
            world.command_end();
        },
        World::sends,
        |world| {
            world.message();
            world.sends();
        },
    ];
    let sessions: &[Step<World>] = &[
        World::subscribe_user_2,
        |world| world.leave(2),
        |world| world.subscribe(4, 2, &[1]),
    ];
    let boat: &[Step<World>] = &[World::boat_receives];
    let parties = [sessions, STATION, boat, carrier];
    let orders = explore(&world, &parties, ends_badly);
    assert_eq!((orders.all, orders.bad), (16_800, 0));
}

#[test]
fn a_client_that_has_everything_hears_nothing_at_subscription() {
    let mut world = World::new(&[1, 2]);
    for _ in 0..3 {
        world.message();
        world.sends();
    }
    world.receive_all();
    world.subscribe_user_2();
    world.answer_all();
    let client = world.clients.values().next().expect("a client").clone();
    assert_eq!(client.signal_count, 1, "it had nothing");
    world.leave(2);
    let mut again = world.clone();
    again.clients.insert(super::world::session(2), client);
    again.subscribe_user_2();
    again.answer_all();
    let client = again.clients.values().next().expect("a client");
    assert_eq!(client.signal_count, 1, "it has all");
    let end = client.ends.values().next().copied();
    assert_eq!(end.map(|end: GroupEnd| end.seq.0), Some(3));
}
