//! Single rules, with values.

use std::time::Duration;

use bytes::Bytes;

use super::world::{START, World, group, session, user};
use crate::subscription::questions::{Item, Questions};
use crate::subscription::{
    Action, Broadcast, Delivery, GroupAnswer, GroupEnd, GroupState, SubscriptionState,
    Subscriptions,
};
use crate::{Seq, Timestamp};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A world with two members, of whom user 2 has an open seat as session 2.
fn seated_world() -> World {
    let mut world = World::new(&[1, 2]);
    world.subscribe(2, 2, &[1]);
    world.answer_all();
    world
}

fn state(world: &World, number: i64) -> Option<SubscriptionState> {
    let client = world.clients.get(&session(number))?;
    client.states.get(&group(1)).copied()
}

fn send_message(world: &mut World) {
    world.save_message(1, 1);
    world.hand_over();
    world.receive_all();
}

fn bodies(world: &World, number: i64) -> Vec<u64> {
    let client = &world.clients[&session(number)];
    client.bodies.iter().map(|(_, seq)| seq.0).collect()
}

/// What session 2 of user 2 gets of message 1 by `author`.
fn delivery(is_watching: bool, change: fn(&mut Broadcast)) -> Option<Delivery> {
    let mut world = seated_world();
    if is_watching {
        world.boat.watch(session(2), &[group(1)]);
    }
    world.save_message(1, 1);
    let record = world.saved_records.pop_front().expect("saved");
    world.boat.handle_record(record, START);
    let Some(Action::Broadcast {
        seats, broadcast, ..
    }) = world.boat.poll_action()
    else {
        panic!("no broadcast");
    };
    let mut broadcast = (*broadcast).clone();
    change(&mut broadcast);
    seats.first().expect("a seat").delivery(&broadcast)
}

#[test]
fn a_seat_gets_the_frame_unless_the_record_is_for_signals() {
    assert_eq!(delivery(false, |_| {}), Some(Delivery::Frame));
    let signal = |it: &mut Broadcast| it.is_signal = true;
    assert_eq!(delivery(false, signal), Some(Delivery::Signal));
    assert_eq!(delivery(true, signal), Some(Delivery::Frame), "watching");
    let own = |it: &mut Broadcast| (it.is_signal, it.author) = (true, user(2));
    assert_eq!(delivery(false, own), Some(Delivery::Frame), "the author's");
    let origin = |it: &mut Broadcast| it.origin = Some(session(2));
    assert_eq!(delivery(true, origin), Some(Delivery::Signal), "sent here");
    // Nobody reads what came before their join.
    let early = |it: &mut Broadcast| it.seq = Seq::ZERO;
    assert_eq!(delivery(false, early), None);
    let early_change = |it: &mut Broadcast| (it.seq, it.is_change) = (Seq::ZERO, true);
    assert_eq!(delivery(false, early_change), Some(Delivery::Signal));
}

#[test]
fn a_boat_without_room_says_that_it_is_full() {
    let mut world = World::new(&[1, 2, 3]);
    world.boat = Subscriptions::new(1, 7);
    world.subscribe(2, 2, &[1]);
    world.subscribe(3, 3, &[1]);
    world.answer_all();
    assert_eq!(state(&world, 2), Some(SubscriptionState::Subscribed));
    assert_eq!(state(&world, 3), Some(SubscriptionState::Full));
    world.leave(2);
    assert_eq!(world.boat.seat_count(), 0);
    world.subscribe(3, 3, &[1]);
    world.answer_all();
    send_message(&mut world);
    assert_eq!(bodies(&world, 3), [1]);
}

#[test]
fn strangers_and_members_of_small_groups_hear_why_nothing_comes() {
    let mut world = World::new(&[1, 2]);
    world.subscribe(3, 3, &[1]);
    world.answer_all();
    assert_eq!(state(&world, 3), Some(SubscriptionState::Gone));
    let mut world = seated_world();
    world.write_state(1, GroupState::Small);
    world.complete_command(1);
    world.hand_over();
    world.receive_all();
    assert_eq!(state(&world, 2), Some(SubscriptionState::Small));
    world.subscribe(2, 2, &[1]);
    world.answer_all();
    assert_eq!(
        state(&world, 2),
        Some(SubscriptionState::Small),
        "asked anew"
    );
    world.write_state(1, GroupState::Large);
    world.complete_command(1);
    world.subscribe(2, 2, &[1]);
    world.answer_all();
    send_message(&mut world);
    send_message(&mut world);
    assert_eq!(bodies(&world, 2), [1]);
}

#[test]
fn a_closed_seat_of_a_user_who_joins_opens_by_itself() {
    let mut world = seated_world();
    world.write_rows(1, &[2], false);
    world.complete_command(1);
    world.hand_over();
    world.receive_all();
    assert_eq!(state(&world, 2), Some(SubscriptionState::Gone));
    send_message(&mut world);
    world.write_rows(1, &[2], true);
    world.complete_command(1);
    world.hand_over();
    world.receive_all();
    world.answer_all();
    send_message(&mut world);
    assert_eq!(bodies(&world, 2), [2]);
}

#[test]
fn a_row_read_before_a_state_that_came_first_opens_nothing() {
    let mut world = World::new(&[1, 2]);
    world.subscribe(3, 1, &[1]);
    world.answer_all();
    // A command was lost: the boat asks for the state.
    world.boat.handle_cut(1, world.now);
    world.wait(seconds(2));
    world.subscribe(2, 2, &[1]);
    // User 2 is removed after the row was read, and before the state is.
    (0..2).for_each(|_| world.work(1));
    world.write_rows(1, &[2], false);
    world.complete_command(1);
    (0..3).for_each(|_| world.work(0));
    world.work(0);
    world.saved_records.clear();
    send_message(&mut world);
    assert!(bodies(&world, 2).is_empty());
    world.finish();
    assert_eq!(state(&world, 2), Some(SubscriptionState::Gone));
}

#[test]
fn an_old_answer_of_a_station_closes_nobody() {
    let mut world = seated_world();
    world.boat.handle_cut(1, world.now);
    world.wait(seconds(2));
    world.work(0);
    world.write_rows(1, &[3], true);
    world.complete_command(1);
    world.hand_over();
    world.receive_all();
    (0..2).for_each(|_| world.work(0));
    send_message(&mut world);
    assert_eq!(bodies(&world, 2), [1]);
}

#[test]
fn what_is_lost_before_the_first_state_is_asked_for() {
    let mut world = World::new(&[1, 2]);
    world.subscribe(2, 2, &[1]);
    (0..2).for_each(|_| world.work(0));
    world.save_message(1, 1);
    world.hand_over();
    world.cut();
    world.receive_all();
    world.finish();
    assert_eq!(world.ignorant_client(), None);
}

#[test]
fn a_set_waits_while_a_question_is_under_way() {
    let mut world = World::new(&[1, 2]);
    world.add_group(2, &[1, 2]);
    world.add_group(3, &[1, 2]);
    world.subscribe(2, 2, &[1]);
    assert_eq!(world.readings.len(), 1);
    world.subscribe(2, 2, &[1, 2]);
    world.subscribe(2, 2, &[1, 3]);
    assert_eq!((world.readings.len(), world.boat.seat_count()), (1, 1));
    world.answer_all();
    assert_eq!(world.boat.seat_count(), 2, "the last set counts");
}

#[test]
fn a_question_that_fails_does_not_hold_up_the_next_set() {
    let mut world = World::new(&[1, 2]);
    world.add_group(2, &[1, 2]);
    world.subscribe(2, 2, &[1]);
    world.subscribe(2, 2, &[1, 2]);
    world.fail(0);
    assert_eq!(world.boat.seat_count(), 2);
    world.wait(seconds(2));
    world.answer_all();
    send_message(&mut world);
    assert_eq!(bodies(&world, 2), [1]);
}

#[test]
fn a_group_that_cannot_be_read_holds_up_no_other() {
    let mut world = World::new(&[1, 2]);
    world.add_group(2, &[1, 2]);
    world.subscribe(2, 2, &[1, 2]);
    let Some(reading) = world.readings.pop() else {
        panic!("no question");
    };
    let number = reading.question().number;
    let mut rest = World::new(&[1, 2]);
    rest.subscribe(2, 2, &[1]);
    rest.work(0);
    rest.work(0);
    let answer = GroupAnswer {
        groups: rest.readings[0].states().clone(),
        members: rest.readings[0].rows().clone(),
    };
    world.boat.handle_answer(number, Some(answer), START);
    send_message(&mut world);
    assert_eq!(bodies(&world, 2), [1]);
    // The other one is asked for again, after a while.
    assert!(world.readings.is_empty());
    world.wait(seconds(2));
    let groups: Vec<_> = world.readings[0].question().groups().collect();
    assert_eq!(groups, [group(2), group(2)]);
}

#[test]
fn groups_of_a_partition_that_nobody_serves_are_asked_for_again_and_again() {
    let mut world = seated_world();
    world.lose_oldest_stream();
    world.save_message(1, 1);
    let mut asked_after = Vec::new();
    for second in 1..=34 {
        world.wait(seconds(1));
        if !world.readings.is_empty() {
            asked_after.push(second);
            world.answer_all();
        }
    }
    assert_eq!(asked_after.len(), 3, "{asked_after:?}");
    assert!(
        asked_after
            .iter()
            .zip([2, 17, 32])
            .all(|(at, latest)| *at <= latest)
    );
    assert_eq!(world.ignorant_client(), None);
    assert!(bodies(&world, 2).is_empty());
}

#[test]
fn a_partition_that_is_served_is_not_asked_for() {
    let mut world = seated_world();
    for _ in 0..30 {
        world.boat.handle_serves(1, &[1], world.now);
        world.wait(seconds(5));
        assert!(world.readings.is_empty());
    }
    // Another carrier takes over.
    world.boat.handle_serves(2, &[1], world.now);
    world.wait(seconds(2));
    assert_eq!(world.readings.len(), 1);
}

#[test]
fn questions_are_bounded_in_size_and_number() {
    let mut questions = Questions::default();
    for number in 1..=2_600 {
        questions.ask(Item::member(group(1), user(number)), START);
    }
    let sizes = std::iter::from_fn(|| questions.next(START)).map(|it| it.rows().count());
    assert_eq!(sizes.collect::<Vec<_>>(), [500, 500, 500, 500]);
    assert_eq!(questions.deadline(), None, "four are under way");
    questions.answered(2);
    assert_eq!(questions.deadline(), Some(START));
    assert_eq!(questions.next(START).map(|it| it.number), Some(5));
}

#[test]
fn a_question_due_earlier_replaces_a_later_one() {
    let mut questions = Questions::default();
    let item = Item::group(group(1));
    questions.ask(item, START + seconds(2));
    questions.ask(item, START + seconds(1));
    questions.ask(item, START + seconds(3));
    assert_eq!(questions.deadline(), Some(START + seconds(1)));
    assert!(questions.next(START).is_none());
    let question = questions.next(START + seconds(1)).expect("due");
    assert_eq!(question.states().collect::<Vec<_>>(), [group(1)]);
    assert!(questions.next(Timestamp::MAX).is_none(), "asked once");
}

#[test]
fn a_signal_bears_the_time_over_which_clients_spread() {
    let mut world = seated_world();
    let members: Vec<i64> = (1..=300).collect();
    world.write_rows(1, &members, true);
    world.complete_command(1);
    world.hand_over();
    world.receive_all();
    world.save_message(1, 1);
    let record = world.saved_records.pop_front().expect("saved");
    world.boat.handle_record(record, START);
    let Some(Action::Broadcast { broadcast, .. }) = world.boat.poll_action() else {
        panic!("no broadcast");
    };
    assert_eq!(broadcast.signal.spread, Duration::from_millis(30));
    let end = GroupEnd {
        seq: Seq(1),
        rev: 0,
    };
    assert_eq!(
        (broadcast.signal.end, &broadcast.frame),
        (end, &Bytes::new())
    );
}
