use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::{Entropy, SystemEntropy};
use crate::mailbox::RedisMode;
use crate::test_ids::TestIds;
use crate::timeline::contract::{self, count, entry, latest, push};

fn config(mode: RedisMode, part: &str) -> RedisConfig {
    let access = crate::test_servers::access("redis");
    RedisConfig {
        mode,
        username: access.username.clone(),
        password_file: access.password_file.clone(),
        sentinel_username: access.username,
        sentinel_password_file: access.password_file,
        tls: access.tls,
        addresses: crate::test_servers::addresses(part),
        key_prefix: format!("test-{:x}", SystemEntropy.next()),
        // The machine may be busy.
        deadline: Duration::from_secs(5),
        connect_wait: Duration::from_secs(5),
        ..RedisConfig::default()
    }
}

/// Short expiry, so that nothing outlives a run for long.
fn brief() -> TimelineConfig {
    TimelineConfig {
        expire: Duration::from_secs(600),
        ..TimelineConfig::default()
    }
}

async fn open(mode: RedisMode, part: &str, settings: TimelineConfig) -> RedisTimeline {
    let timeline = RedisTimeline::connect(&config(mode, part), settings).await;
    timeline.expect("connected")
}

/// Runs each check of the contract on one part.
macro_rules! on_part {
    ($line:ident, $part:ident: $($check:ident),* $(,)?) => {{
        let fresh = TestIds::new(1);
        $(contract::$check(&$line, &fresh).await;)*
        crate::test_servers::ran("timeline", $part);
    }};
}

async fn the_contract_holds_on(mode: RedisMode, part: &str) {
    let timeline = open(mode, part, brief()).await;
    contract::checks!(on_part!(timeline, part));
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_on_one_server() {
    the_contract_holds_on(RedisMode::Single, "redis-single").await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_behind_sentinels() {
    the_contract_holds_on(RedisMode::Sentinel, "redis-sentinel").await;
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_on_a_cluster() {
    the_contract_holds_on(RedisMode::Cluster, "redis-cluster").await;
}

impl RedisTimeline {
    async fn number(&self, group: GroupId, command: &'static str, key: String) -> i64 {
        let call = Call::command_in(group_slot(group), command).key(key);
        reply::integer(self.ask(call).await.expect("asked")).expect("a number")
    }
}

// proves S2-12: each body is a key of its own, apart from the order, and ends by itself.
/// Bodies go with their dropped messages, and stored keys have a time to live.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn dropped_entries_leave_no_keys() {
    let timeline = open(RedisMode::Cluster, "redis-cluster", brief()).await;
    let group = TestIds::new(1).group();
    push(&timeline, group, 1..=900).await;
    push(&timeline, group, 901..=1300).await;
    let moved_entry = TimelineEntry {
        id: entry(5_000).id,
        ..entry(1300)
    };
    timeline
        .push(group, vec![moved_entry.clone()])
        .await
        .expect("pushes");
    for seq in (1..=300).chain([1300]) {
        let body = timeline.body(group, entry(seq).id);
        assert_eq!(timeline.number(group, "EXISTS", body).await, 0, "{seq}");
    }
    let mut names: Vec<_> = (301..1300)
        .map(|seq| timeline.body(group, entry(seq).id))
        .collect();
    names.extend([
        timeline.body(group, moved_entry.id),
        timeline.timeline(group),
    ]);
    for name in &names {
        let ttl_millis = timeline.number(group, "PTTL", name.clone()).await;
        assert!((1..=600_000).contains(&ttl_millis), "{name}: {ttl_millis}");
    }
    timeline.forget(group).await.expect("forgets");
    for name in names {
        assert_eq!(
            timeline.number(group, "EXISTS", name.clone()).await,
            0,
            "{name}"
        );
    }
}

/// A page and the count end before a missing body; expired bodies make room.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_page_ends_before_a_body_that_is_gone() {
    let timeline = open(RedisMode::Single, "redis-single", brief()).await;
    let group = TestIds::new(1).group();
    push(&timeline, group, 1..=9).await;
    let lose = async |seq| {
        timeline
            .number(group, "DEL", timeline.body(group, entry(seq).id))
            .await
    };
    assert_eq!(lose(4).await, 1);
    let seqs: Vec<_> = latest(&timeline, group, 0, 9).await;
    let seqs: Vec<_> = seqs.iter().map(|entry| entry.seq.0).collect();
    assert_eq!(seqs, [9, 8, 7, 6, 5]);
    assert_eq!(count(&timeline, group, 99).await, 5);
    assert_eq!(latest(&timeline, group, 5, 9).await, []);
    for seq in 1..=3 {
        lose(seq).await;
    }
    push(&timeline, group, [10]).await;
    assert_eq!(
        timeline
            .number(group, "ZCARD", timeline.timeline(group))
            .await,
        6
    );
    // The writer pushes the message again.
    push(&timeline, group, [4]).await;
    assert_eq!(count(&timeline, group, 99).await, 7);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn unpushed_groups_expire() {
    let settings = TimelineConfig {
        expire: Duration::from_millis(300),
        ..TimelineConfig::default()
    };
    let timeline = open(RedisMode::Single, "redis-single", settings).await;
    let group = TestIds::new(1).group();
    push(&timeline, group, 1..=3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(count(&timeline, group, 9).await, 0);
    assert_eq!(
        timeline
            .number(group, "EXISTS", timeline.timeline(group))
            .await,
        0
    );
}

proptest! {
    #[test]
    fn all_keys_of_a_group_lie_in_one_slot(group in 1..i64::MAX, id in 1..i64::MAX) {
        let group = GroupId::new(group).expect("positive");
        let id = MessageId::new(id).expect("positive");
        for name in [timeline_key("msg", group), body_key("msg", group, id)] {
            prop_assert_eq!(slots::for_key(&name), group_slot(group), "{}", name);
        }
    }
}

// proves S0-62a, S2-11 in part, S2-12 in part: as docs/decisions/0013 has it.
#[test]
fn names_are_those_of_the_design() {
    let group = GroupId::new(77).expect("positive");
    assert_eq!(timeline_key("msg", group), "msg/{g77}/tl");
    let id = MessageId::new(7).expect("positive");
    let body = body_key("msg", group, id);
    assert_eq!(body, "msg/{g77}/b:00000000000000000007");
}

#[test]
fn calls_hold_many_small_or_few_large_messages() {
    let batch_lengths = |count: u64, bytes: usize| {
        let entries: Vec<_> = (1..=count)
            .map(|seq| TimelineEntry {
                body: Bytes::from(vec![0; bytes]),
                ..entry(seq)
            })
            .collect();
        let lengths: Vec<usize> = batches(&entries).map(<[TimelineEntry]>::len).collect();
        lengths
    };
    assert!(batch_lengths(0, 1).is_empty());
    assert_eq!(batch_lengths(130, 1), [64, 64, 2]);
    assert_eq!(batch_lengths(10, 128 << 10), [4, 4, 2]);
    assert_eq!(batch_lengths(2, 2 << 20), [1, 1]);
}

proptest! {
    // Threat 20: keys contain no text of strangers, and the hash tag is ours.
    #[test]
    fn keys_of_a_group_lie_in_its_slot(
        prefix in slots::PREFIXES,
        group in 1..i64::MAX,
        id in 1..i64::MAX,
    ) {
        let group = GroupId::new(group).expect("positive");
        let id = MessageId::new(id).expect("positive");
        for key in [timeline_key(&prefix, group), body_key(&prefix, group, id)] {
            prop_assert_eq!(slots::parse_tag(&prefix, &key), tag(group));
            prop_assert_eq!(slots::for_key(&key), group_slot(group));
        }
    }
}
