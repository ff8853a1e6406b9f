mod costs;
mod faults;
mod killed;
mod leaving;
mod loss;
mod moving;
mod random;
mod server;
mod times;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::keys::BUCKETS;
use protocol::mailbox::Mail;
use protocol::presence::BoatLife;
use protocol::{BoatId, DeviceId, Incarnation, Platform, SessionId};

use super::*;
use crate::clock::{Clock, SystemClock, SystemEntropy};
use crate::mailbox::PlatformConfig;
use crate::mailbox::contract::{self, BodyLoss, Scene};
use crate::redis::call::Call;

const MODES: [(RedisMode, &str); 3] = [
    (RedisMode::Single, "redis-single"),
    (RedisMode::Sentinel, "redis-sentinel"),
    (RedisMode::Cluster, "redis-cluster"),
];

/// The contract's settings, on keys of its own. Deadlines are long because the machine may be busy.
fn config(mode: RedisMode, addresses: Vec<String>) -> RedisConfig {
    let unlimited_platform = PlatformConfig {
        expire: contract::EXPIRE,
        count_max: -1,
    };
    RedisConfig {
        mode,
        addresses,
        master: "packetboat".to_owned(),
        key_prefix: format!("test-{:x}", SystemEntropy.next()),
        deadline: Duration::from_secs(5),
        connect_wait: Duration::from_secs(5),
        expire: contract::EXPIRE,
        count_max: contract::COUNT_MAX as i32,
        platforms: [(contract::UNLIMITED.name().to_owned(), unlimited_platform)].into(),
        ..RedisConfig::default()
    }
}

async fn open(config: &RedisConfig) -> RedisMailbox {
    let mailbox = RedisMailbox::connect(config, Arc::new(SystemEntropy)).await;
    mailbox
        .expect("connected")
        .with_sessions(contract::capacity())
}

/// Configures this machine's servers, with the credentials they require.
fn config_real(mode: RedisMode, part: &str) -> RedisConfig {
    let access = crate::test_servers::access("redis");
    RedisConfig {
        username: access.username.clone(),
        password_file: access.password_file.clone(),
        sentinel_username: access.username,
        sentinel_password_file: access.password_file,
        tls: access.tls,
        ..config(mode, crate::test_servers::addresses(part))
    }
}

async fn open_real(mode: RedisMode, part: &str) -> RedisMailbox {
    open(&config_real(mode, part)).await
}

/// Deletes the keys a test left behind.
async fn clean(mailbox: &RedisMailbox) {
    let all = auditor::all_keys(mailbox.pool(), &mailbox.keys).await;
    let all: Vec<_> = all.expect("scanned").into_iter().collect();
    for chunk in all.chunks(1024) {
        let deletions = chunk.iter().map(async |(master, name)| {
            let mut delete = redis::cmd("UNLINK");
            delete.arg(name);
            let result = auditor::ask(mailbox.pool(), master, delete).await;
            result.expect("deleted")
        });
        futures_util::future::join_all(deletions).await;
    }
}

async fn lose(pool: &Pool, keys: &Keys, id: MessageId, loss: BodyLoss) {
    let mut calls = Vec::new();
    for bucket in 0..BUCKETS {
        calls.push(Call::command(bucket, "DEL").key(keys.body(bucket, id)));
        if loss == BodyLoss::BodyAndCount {
            calls.push(Call::command(bucket, "DEL").key(keys.count(bucket, id)));
        }
    }
    for result in pool.run(&calls).await {
        result.expect("deleted");
    }
}

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn on(n: i64, platform: Platform) -> Target {
    Target {
        user: user(n),
        platform,
    }
}

fn ios(n: i64) -> Target {
    on(n, Platform::Ios)
}

fn mail(n: i64) -> Mail {
    Mail {
        id: MessageId::new(n).expect("positive"),
        accepted_at: SystemClock.now(),
        body: Bytes::from(format!("body {n}")),
    }
}

fn request(target: Target, n: i64) -> RouteRequest {
    RouteRequest {
        user: target.user,
        platforms: vec![target.platform],
        forced_platforms: Vec::new(),
        mail: Some(mail(n)),
        denied_boats: DeniedBoats::default(),
        now: SystemClock.now(),
    }
}

fn new_session(target: Target, n: i64) -> NewSession {
    NewSession {
        key: SessionKey {
            user: target.user,
            session: SessionId::new(n).expect("positive"),
            life: BoatLife {
                boat: BoatId::new("boat").expect("short"),
                incarnation: Incarnation(1),
            },
        },
        platform: target.platform,
        device: DeviceId::new(&format!("phone-{n}")).expect("short"),
    }
}

async fn connect(mailbox: &RedisMailbox, target: Target, n: i64) -> Result<ConnectAnswer> {
    let request = ConnectRequest {
        user: target.user,
        entry: new_session(target, n),
        denied_boats: DeniedBoats::default(),
        now: SystemClock.now(),
    };
    let answer = mailbox.connect(request).await?;
    Ok(answer.expect("room"))
}

async fn reassert(mailbox: &RedisMailbox, target: Target, n: i64) -> Result<ReassertAnswer> {
    let sessions = vec![(target.user, new_session(target, n).into())];
    let denied_boats = DeniedBoats::default();
    let mut answers = mailbox
        .reassert(sessions, denied_boats, SystemClock.now())
        .await;
    answers.remove(0)
}

async fn put(mailbox: &RedisMailbox, target: Target, n: i64) -> Result<RouteAnswer> {
    let mut answers = mailbox.route_or_store(vec![request(target, n)]).await;
    answers.remove(0)
}

async fn waiting(mailbox: &RedisMailbox, target: Target) -> Result<Vec<i64>> {
    let page = mailbox.page(target, None, 500, SystemClock.now()).await?;
    Ok(page.mails.iter().map(|mail| mail.id.get()).collect())
}

async fn acknowledge(mailbox: &RedisMailbox, target: Target, ids: &[i64]) -> Result<()> {
    let ids = ids.iter().map(|n| MessageId::new(*n).expect("positive"));
    let acks = vec![(target, ids.collect())];
    let results = mailbox.acknowledge(acks, SystemClock.now()).await;
    results.into_iter().try_for_each(|ids| ids.map(drop))
}

/// Retries until success; a failover takes some seconds.
async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Result<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => {
                assert_eq!(error.kind, crate::Kind::Unavailable, "{:?}", error.source);
                assert!(tokio::time::Instant::now() < deadline, "{:?}", error.source);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn why(error: &Error) -> String {
    format!("{}: {}", error.kind, error.source)
}

async fn the_contract_holds_on(mode: RedisMode, part: &str) {
    let mailbox = Arc::new(open_real(mode, part).await);
    let (pool, keys) = (Arc::clone(mailbox.pool()), mailbox.keys.clone());
    let mut scene = Scene {
        store: mailbox.clone(),
        now: SystemClock.now(),
        first: 1_000,
        lose_body: Box::new(move |id, loss| {
            let (pool, keys) = (Arc::clone(&pool), keys.clone());
            Box::pin(async move { lose(&pool, &keys, id, loss).await })
        }),
    };
    contract::run_all!(scene);
    let audit = mailbox.audit().await.expect("audited");
    assert_eq!(audit.wrong, Vec::<String>::new(), "{audit:?}");
    assert!(audit.entries > 0, "{audit:?}");
    clean(&mailbox).await;
    crate::test_servers::ran("mailbox", part);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_on_one_server() {
    let (mode, part) = MODES[0];
    the_contract_holds_on(mode, part).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_behind_sentinels() {
    let (mode, part) = MODES[1];
    the_contract_holds_on(mode, part).await;
}

// proves S1-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts: make e2e"]
async fn the_contract_holds_on_a_cluster() {
    let (mode, part) = MODES[2];
    the_contract_holds_on(mode, part).await;
}
