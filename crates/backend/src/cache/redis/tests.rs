use proptest::prelude::*;
use protocol::{GroupId, UserId};

use super::*;
use crate::cache::contract::{self, find, group_copy, keep_group};
use crate::clock::SystemEntropy;
use crate::mailbox::RedisMode;
use crate::test_ids::TestIds;

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

async fn open(mode: RedisMode, part: &str, settings: CacheConfig) -> RedisCache {
    let entropy = Arc::new(SystemEntropy);
    let cache = RedisCache::connect(&config(mode, part), settings, entropy).await;
    cache.expect("connected")
}

/// Runs each check of the contract on one part.
macro_rules! on_part {
    ($cache:ident, $part:ident: $($check:ident),* $(,)?) => {{
        let fresh = TestIds::new(1);
        $(contract::$check(&$cache, &fresh).await;)*
        crate::test_servers::ran("cache", $part);
    }};
}

async fn the_contract_holds_on(mode: RedisMode, part: &str) {
    let cache = open(mode, part, CacheConfig::default()).await;
    contract::checks!(on_part!(cache, part));
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

// proves S2-26: what another master made may be older than what was said since.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn entry_of_another_master_is_ignored() {
    let cache = open(RedisMode::Single, "redis-single", CacheConfig::default()).await;
    let group = TestIds::new(1).group();
    let owner = CacheKey::Group(group);
    let token = find(&cache, owner).await.token;
    assert!(keep_group(&cache, group, &token, &group_copy(1, 0)).await);
    let set_master = |replid: &str| {
        let key = key(&cache.prefix, owner);
        let call = Call::command_in(slots::for_tag(&tag(owner)), "HSET");
        call.key(key).arg("of").arg(replid)
    };
    let token = find(&cache, owner).await.token;
    let result = cache.connection.pool.ask(set_master("another")).await;
    result.expect("written");
    assert!(!keep_group(&cache, group, &token, &group_copy(2, 0)).await);
    assert_eq!(find(&cache, owner).await.group(), None);
    assert!(!keep_group(&cache, group, &token, &group_copy(2, 0)).await);
}

#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn unrefreshed_entries_expire() {
    let settings = CacheConfig {
        keep_for: Duration::from_secs(5),
        ..CacheConfig::default()
    };
    let cache = open(RedisMode::Single, "redis-single", settings).await;
    let group = TestIds::new(1).group();
    let token = find(&cache, CacheKey::Group(group)).await.token;
    assert!(keep_group(&cache, group, &token, &group_copy(1, 0)).await);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let lookup = find(&cache, CacheKey::Group(group)).await;
    assert_eq!(lookup.group(), None);
    assert_ne!(lookup.token, token);
}

#[test]
fn names_lie_beside_what_else_is_kept() {
    let group = CacheKey::Group(GroupId::new(77).expect("positive"));
    assert_eq!(key("msg", group), "msg/{g77}/c");
    let user = UserId::new(77).expect("positive");
    let bucket = keys::bucket_of(user);
    let name = key("msg", CacheKey::User(user));
    assert_eq!(name, format!("msg/{{b{bucket:04}}}/u:77/c"));
    assert_eq!(slots::for_key(&name), slots::for_bucket(bucket));
}

proptest! {
    // Threat 20: keys contain no text of strangers, and the hash tag is ours.
    #[test]
    fn a_copy_lies_in_the_slot_of_its_owner(prefix in slots::PREFIXES, number in 1..i64::MAX) {
        let user = CacheKey::User(UserId::new(number).expect("positive"));
        let group = CacheKey::Group(GroupId::new(number).expect("positive"));
        for owner in [user, group] {
            let key = key(&prefix, owner);
            prop_assert_eq!(slots::parse_tag(&prefix, &key), tag(owner));
            prop_assert_eq!(slots::for_key(&key), slots::for_tag(&tag(owner)));
        }
    }
}
