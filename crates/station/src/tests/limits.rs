//! Limits at the door: a user who reaches one hears when to come again, and nobody else notices.

use std::num::NonZeroU32;
use std::time::Duration;

use api::station::SyncCall;
use api::v1;
use backend::hook::Fault;
use protocol::frame::Send;
use protocol::frame::{HistoryRange, SyncQuery, SyncRequest};
use protocol::{Code, Platform, Recipient, Refusal, Seq};

use super::groups::{CLOSED, NEWEST, group, of};
use super::refusals::Refusals;
use super::world::*;
use crate::Config;

fn count(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not zero")
}

fn sync_call(number: i64, query: SyncQuery) -> v1::SyncCall {
    v1::SyncCall::from(&SyncCall {
        user: user(number),
        session: session(number),
        request: SyncRequest { request: 9, query },
        ticket: None,
    })
}

async fn refusal_for(world: &World, number: i64, query: SyncQuery) -> Refusal {
    let answer = world.client.clone().sync(sync_call(number, query)).await;
    api::status::to_refusal(&answer.expect_err("too much"))
}

// proves S1-05 in part: a user who signs in again and again is refused in a defined way, and stays signed in.
#[tokio::test(start_paused = true)]
async fn a_user_who_signs_in_too_often_waits_and_others_come_in() {
    let world = world_with(Config {
        user_sign_ins_burst: count(2),
        ..Config::default()
    })
    .await;
    world.sign_in(1, Platform::Ios, 11).await;
    world.sign_in(1, Platform::Web, 12).await;
    let third = world.connect_request(1, Platform::Ios, 13);
    let refusal = world.connect(&third).await.expect_err("too often");
    assert_eq!(refusal.code, Code::RateLimited);
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(2)));
    settle().await;
    let request = v1::OnlineRequest { users: vec![1] };
    let online = world.client.clone().online(request).await;
    let sessions = &online.expect("answered").into_inner().users[0].sessions;
    assert_eq!(sessions.len(), 2, "nobody had to leave for it");
    world.sign_in(2, Platform::Ios, 21).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    world.connect(&third).await.expect("admitted");
}

// A forged token costs its alleged user nothing.
#[tokio::test(start_paused = true)]
async fn forged_sign_ins_keep_nobody_out() {
    let world = world_with(Config {
        user_sign_ins_burst: count(1),
        ..Config::default()
    })
    .await;
    let mut wrong_connect = world.connect_request(1, Platform::Ios, 11);
    wrong_connect.token.push('x');
    for _ in 0..3 {
        let refusal = world.connect(&wrong_connect).await.expect_err("forged");
        assert_eq!(refusal.code, Code::Unauthenticated);
    }
    world.sign_in(1, Platform::Ios, 11).await;
}

#[tokio::test(start_paused = true)]
async fn a_conversation_takes_so_much_from_both_sides_together() {
    let world = world_with(Config {
        private_sends_per_second: count(2),
        private_sends_burst: count(2),
        ..Config::default()
    })
    .await;
    let results = world
        .submit(vec![
            item(1, send(2, 1, "to 2")),
            item(2, send(1, 2, "to 1")),
            item(1, send(2, 3, "too much")),
            item(1, send(3, 4, "elsewhere")),
        ])
        .await;
    assert!(results[0].is_ok() && results[1].is_ok() && results[3].is_ok());
    assert_eq!(results[2], Err(Code::RateLimited));
    tokio::time::advance(Duration::from_millis(500)).await;
    let resend = as_resend(send(2, 3, "too much"), 1, Duration::from_millis(500));
    assert!(world.submit_one(item(1, resend)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn strangers_take_nothing_from_a_group() {
    let world = world_with(Config {
        group_sends_burst: count(2),
        ..Config::default()
    })
    .await;
    world.create_group(7, CLOSED, &[1, 2]).await;
    let to_group = |number, attempt| {
        let to = Recipient::Group(group(7));
        as_resend(
            Send {
                to,
                ..send(2, number, "text")
            },
            attempt,
            Duration::ZERO,
        )
    };
    for number in 1..=5 {
        let stranger = item(9, to_group(number, 0));
        assert_eq!(world.submit_one(stranger).await, Err(Code::Forbidden));
        // As a resend, the send is the writer's to refuse.
        let stranger = item(9, to_group(number + 100, 1));
        assert!(world.submit_one(stranger).await.is_ok());
    }
    let members = [item(1, to_group(1, 0)), item(2, to_group(2, 1))];
    assert!(world.submit(members.into()).await.iter().all(Result::is_ok));
    let excess = [item(1, to_group(3, 0)), item(1, to_group(4, 0))];
    assert_eq!(
        world.submit(excess.into()).await,
        [Err(Code::RateLimited), Err(Code::EarlierSendFailed)]
    );
}

#[tokio::test(start_paused = true)]
async fn excess_questions_are_told_when_to_retry() {
    let world = world_with(Config {
        user_questions_per_second: count(4),
        user_questions_burst: count(2),
        ..Config::default()
    })
    .await;
    let query = || SyncQuery::Status { ids: Vec::new() };
    assert!(world.ask(1, query()).await.is_ok());
    assert!(world.ask(1, query()).await.is_ok());
    let refusal = refusal_for(&world, 1, query()).await;
    assert_eq!(refusal.code, Code::RateLimited);
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(250)));
    assert!(world.ask(2, query()).await.is_ok());
    tokio::time::advance(Duration::from_millis(250)).await;
    assert!(world.ask(1, query()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_pages_that_history_is_asked_for_count() {
    let world = world_with(Config {
        user_history_reads_burst: count(1),
        ..Config::default()
    })
    .await;
    for seq in 1..=4 {
        world.place(1, 2, seq, "text").await;
    }
    let page = async |number, cursor| {
        let range = HistoryRange::Forward { after: Seq(cursor) };
        let page = world.history(number, between(1, 2), range, 2).await;
        page.map(|page| page.messages.len())
    };
    for _ in 0..3 {
        assert_eq!(page(1, 0).await, Ok(2), "one read, then from memory");
    }
    assert_eq!(page(1, 2).await, Err(Code::RateLimited));
    assert_eq!(page(2, 2).await, Ok(2), "the other side");
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(page(1, 2).await, Ok(2));
}

// Pins may be far back, and no memory has them.
#[tokio::test(start_paused = true)]
async fn each_page_of_pins_counts_as_one_of_history() {
    let world = world_with(Config {
        user_history_reads_burst: count(2),
        ..Config::default()
    })
    .await;
    world.place(1, 2, 1, "text").await;
    let pins = || SyncQuery::Pins {
        conversation: between(1, 2),
        before: None,
        limit: 0,
    };
    assert!(world.ask(1, pins()).await.is_ok());
    assert!(world.ask(1, pins()).await.is_ok());
    assert_eq!(refusal_for(&world, 1, pins()).await.code, Code::RateLimited);
    assert!(world.ask(2, pins()).await.is_ok(), "the other side");
}

// A slow store takes the places of its readers, and of nobody else.
#[tokio::test(start_paused = true)]
async fn where_history_has_too_much_to_do_only_its_readers_wait() {
    let refusals = Refusals::default();
    let _recorder = metrics::set_default_local_recorder(&refusals);
    let world = world_with(Config {
        history_reads_max: 1,
        ..Config::default()
    })
    .await;
    for in_group in [7, 8, 9] {
        world.create_group(in_group, CLOSED, &[1, 2]).await;
    }
    world.say_uncached(7, 1, "far back").await;
    world.say_uncached(8, 1, "far back").await;
    world.say(9, 1, "kept beside history").await;
    let page = |in_group| SyncQuery::History {
        conversation: of(in_group),
        range: NEWEST,
        limit: 10,
    };
    world.faults.begin(PAGES, Fault::Hold);
    let mut client = world.client.clone();
    let pending_page = tokio::spawn(async move { client.sync(sync_call(1, page(7))).await });
    settle().await;

    let refusal = refusal_for(&world, 2, page(8)).await;
    assert_eq!(refusal.code, Code::Unavailable);
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    assert!(refusals.counted_only("history_reads", 1));
    assert!(world.ask(2, page(9)).await.is_ok());
    let status = SyncQuery::Status { ids: Vec::new() };
    assert!(world.ask(2, status).await.is_ok());
    assert!(world.submit_one(item(2, send(1, 1, "hi"))).await.is_ok());

    assert!(!pending_page.is_finished(), "its deadline has not come");
    world.faults.end(PAGES);
    pending_page.await.expect("it ends").expect("a page");
    assert!(world.ask(2, page(8)).await.is_ok());
}
