mod random;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::mailbox::NewSession;
use protocol::presence::BoatLife;
use protocol::{BoatId, DeviceId, Incarnation, Platform, SessionId};
use tempfile::TempDir;

use super::*;
use crate::clock::SeededEntropy;
use crate::embedded::EngineOptions;
use crate::mailbox::contract::{self, BodyLoss, Scene};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn config() -> MailboxConfig {
    let mut config = MailboxConfig {
        expire: contract::EXPIRE,
        count_max: contract::COUNT_MAX as i32,
        ..MailboxConfig::default()
    };
    let unlimited_platform = PlatformConfig {
        expire: contract::EXPIRE,
        count_max: -1,
    };
    let name = contract::UNLIMITED.name().to_owned();
    config.platforms.insert(name, unlimited_platform);
    config
}

fn open(engine: Engine) -> EmbeddedMailbox {
    let mailbox = EmbeddedMailbox::open(engine, &config(), &SeededEntropy::new(7));
    mailbox.expect("opened").with_sessions(contract::capacity())
}

fn lose(engine: &Engine, id: MessageId, loss: BodyLoss) {
    let mut batch = WriteBatch::new();
    batch.remove(Table::MailBody, rows::body_key(id));
    if loss == BodyLoss::BodyAndCount {
        batch.remove(Table::MailBody, rows::count_key(id));
    }
    engine.write(batch).expect("written");
}

struct Rest {
    mailbox: Arc<EmbeddedMailbox>,
    _dir: Option<TempDir>,
}

fn scene(engine: Engine, dir: Option<TempDir>) -> (Scene, Rest) {
    let mailbox = Arc::new(open(engine.clone()));
    let scene = Scene {
        store: mailbox.clone(),
        now: NOW,
        first: 1_000,
        lose_body: Box::new(move |id, loss| {
            lose(&engine, id, loss);
            Box::pin(std::future::ready(()))
        }),
    };
    let rest = Rest { mailbox, _dir: dir };
    (scene, rest)
}

/// Audits the mail a check leaves behind, and closes the store.
async fn close(rest: Rest) {
    let audit = rest.mailbox.audit().expect("audited");
    assert_eq!(audit.wrong, Vec::<String>::new(), "{audit:?}");
    tokio::task::spawn_blocking(move || drop(rest))
        .await
        .expect("closed");
}

mod memory {
    fn open() -> (super::Scene, super::Rest) {
        super::scene(super::Engine::memory(), None)
    }

    crate::mailbox::contract::contract_tests!(open, super::close);
}

/// Runs all checks in turn on one store, because opening a store on disk takes a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_on_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut scene, rest) = scene(open_disk(&dir), Some(dir));
    contract::run_all!(scene);
    drop(scene);
    close(rest).await;
    crate::test_servers::ran("mailbox", "embedded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_behind_a_hook() {
    let (mut scene, rest) = scene(Engine::memory(), None);
    scene.store = crate::mailbox::behind_a_hook(scene.store);
    contract::run_all!(scene);
    drop(scene);
    close(rest).await;
}

fn open_disk(dir: &TempDir) -> Engine {
    Engine::open(dir.path(), EngineOptions::default()).expect("opened")
}

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn ios(n: i64) -> Target {
    Target {
        user: user(n),
        platform: Platform::Ios,
    }
}

fn mail(n: i64) -> Mail {
    Mail {
        id: MessageId::new(n).expect("positive"),
        accepted_at: NOW + Duration::from_millis(n as u64),
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
        now: NOW,
    }
}

fn connect_request(target: Target, session: i64) -> ConnectRequest {
    ConnectRequest {
        user: target.user,
        entry: NewSession {
            key: SessionKey {
                user: target.user,
                session: SessionId::new(session).expect("positive"),
                life: BoatLife {
                    boat: BoatId::new("boat").expect("short"),
                    incarnation: Incarnation(1),
                },
            },
            platform: target.platform,
            device: DeviceId::new(&format!("phone-{session}")).expect("short"),
        },
        denied_boats: DeniedBoats::default(),
        now: NOW,
    }
}

async fn waiting(mailbox: &EmbeddedMailbox, target: Target) -> Vec<i64> {
    let page = mailbox.page(target, None, 500, NOW).await.expect("paged");
    page.mails.iter().map(|mail| mail.id.get()).collect()
}

#[tokio::test]
async fn a_restart_keeps_mail_and_marker_and_loses_sessions() {
    let dir = tempfile::tempdir().expect("a directory");
    let marker = {
        let mailbox = open(open_disk(&dir));
        mailbox.route_or_store(vec![request(ios(1), 1)]).await;
        let login = mailbox.connect(connect_request(ios(2), 1)).await;
        login.expect("connected").expect("room").marker
    };
    let mailbox = open(open_disk(&dir));
    assert_eq!(mailbox.marker, marker);
    assert_eq!(waiting(&mailbox, ios(1)).await, [1]);
    let live = mailbox.sessions(&[user(2)], DeniedBoats::default()).await;
    assert!(live[0].as_ref().expect("answered").is_empty());
}

#[tokio::test]
async fn a_power_cut_leaves_whole_mailboxes() {
    let engine = Engine::memory();
    engine.hold_syncs();
    let mailbox = open(engine.clone());
    for n in 1..=4 {
        let requests = vec![request(ios(1), n), request(ios(2), n)];
        mailbox.route_or_store(requests).await;
    }
    let acks = vec![(ios(1), vec![mail(2).id])];
    assert!(mailbox.acknowledge(acks, NOW).await[0].is_ok());
    // The marker, four batches, one acknowledgement: every prefix of them is whole.
    assert_eq!(engine.undurable(), 6);
    for write_count in 1..=6 {
        let engine = Engine::memory();
        engine.hold_syncs();
        let mailbox = open(engine.clone());
        for n in 1..=4 {
            let requests = vec![request(ios(1), n), request(ios(2), n)];
            mailbox.route_or_store(requests).await;
        }
        let acks = vec![(ios(1), vec![mail(2).id])];
        assert!(mailbox.acknowledge(acks, NOW).await[0].is_ok());
        let recovered_mailbox = open(engine.crash(write_count).expect("in memory"));
        let audit = recovered_mailbox.audit().expect("audited");
        assert!(audit.wrong.is_empty(), "{audit:?}");
        let entries = if write_count == 6 {
            7
        } else {
            2 * (write_count as u64 - 1)
        };
        assert_eq!(audit.entries, entries);
        assert_eq!(recovered_mailbox.marker, mailbox.marker);
    }
    // Nothing was durable: other data, another marker.
    let nothing = engine.crash(0).expect("in memory");
    let recovered_mailbox = EmbeddedMailbox::open(nothing, &config(), &SeededEntropy::new(8));
    assert_ne!(recovered_mailbox.expect("opened").marker, mailbox.marker);
}

#[tokio::test]
async fn a_refusing_disk_fails_what_must_be_stored_and_nothing_else() {
    let engine = Engine::memory();
    let mailbox = open(engine.clone());
    let login = mailbox.connect(connect_request(ios(2), 1)).await;
    login.expect("connected").expect("room");
    mailbox.route_or_store(vec![request(ios(1), 9)]).await;
    engine.crash(0).expect("in memory");
    let requests = vec![request(ios(1), 1), request(ios(2), 1)];
    let answers = mailbox.route_or_store(requests).await;
    assert_eq!(
        answers[0].as_ref().map_err(|e| e.kind),
        Err(crate::Kind::Unavailable)
    );
    assert_eq!(answers[1].as_ref().expect("live").live.len(), 1);
    // A rejected acknowledgement is not remembered.
    let acks = vec![(ios(1), vec![mail(9).id])];
    assert!(mailbox.acknowledge(acks, NOW).await[0].is_err());
    let answers = mailbox.route_or_store(vec![request(ios(1), 9)]).await;
    assert_eq!(
        answers[0]
            .as_ref()
            .expect("waits already")
            .acknowledged_platforms,
        []
    );
}

#[tokio::test]
async fn a_row_that_cannot_be_read_fails_its_user_only() {
    let engine = Engine::memory();
    let mailbox = open(engine.clone());
    let mut batch = WriteBatch::new();
    batch.put(Table::Session, rows::box_key(ios(1)), b"half".to_vec());
    engine.write(batch).expect("written");
    let requests = vec![request(ios(1), 1), request(ios(2), 1)];
    let answers = mailbox.route_or_store(requests).await;
    assert_eq!(
        answers[0].as_ref().map_err(|e| e.kind),
        Err(crate::Kind::Corrupt)
    );
    assert!(answers[1].is_ok());
    assert_eq!(waiting(&mailbox, ios(2)).await, [1]);
}

#[tokio::test]
async fn pages_are_bounded_in_bytes() {
    let config = MailboxConfig {
        page_bytes_max: 15,
        ..config()
    };
    let mailbox = EmbeddedMailbox::open(Engine::memory(), &config, &SeededEntropy::new(7));
    let mailbox = mailbox.expect("opened");
    for n in 1..=5 {
        mailbox.route_or_store(vec![request(ios(1), n)]).await;
    }
    // Each body has six bytes.
    let mut cursor = None;
    let mut pages = Vec::new();
    loop {
        let page = mailbox.page(ios(1), cursor, 500, NOW).await.expect("paged");
        pages.push(page.mails.len());
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(pages, [2, 2, 1]);
}

#[tokio::test]
async fn a_sweep_visits_every_mailbox() {
    // proves S1-47 in part, S1-57 in part, S1-58 in part
    let mailbox = open(Engine::memory());
    for n in 1..=10 {
        mailbox.route_or_store(vec![request(ios(n), n)]).await;
    }
    let after_expiry = NOW + contract::EXPIRE + Duration::from_secs(1);
    let (mut cursor, mut steps) = (None, 0);
    loop {
        cursor = mailbox.sweep(cursor, 3, after_expiry).expect("swept");
        steps += 1;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(steps, 4);
    assert_eq!(mailbox.audit().expect("audited"), IntegrityCheck::default());
}

// proves S1-47, S1-58: an inactive user's mailbox goes with its newest message, which a repeat of another one does not
// outlast.
#[tokio::test]
async fn a_sweep_keeps_a_mailbox_until_its_newest_message_expires() {
    let engine = Engine::memory();
    let mailbox = open(engine.clone());
    let half = contract::EXPIRE / 2;
    let newer = |n| {
        let mut request = request(ios(1), n);
        request.now = NOW + half;
        if let (2, Some(mail)) = (n, &mut request.mail) {
            mail.accepted_at = NOW + half;
        }
        request
    };
    for request in [request(ios(1), 1), newer(2), newer(1)] {
        let answers = mailbox.route_or_store(vec![request]).await;
        assert!(answers[0].is_ok(), "{answers:?}");
    }
    let rows = |table| {
        let rows = engine.range(table, .., ScanOrder::Forward, 100);
        rows.expect("read").len()
    };
    let bodies_at = |now| {
        mailbox.sweep(None, 10, now).expect("swept");
        rows(Table::MailBody)
    };
    assert_eq!(bodies_at(NOW + half), 4, "a body and a count each");
    let end = NOW + contract::EXPIRE + Duration::from_secs(1);
    assert_eq!(bodies_at(end), 2, "the second stays");
    assert_eq!(waiting(&mailbox, ios(1)).await, [2]);
    assert_eq!(bodies_at(end + half), 0);
    assert_eq!(rows(Table::Session), 0);
    assert_eq!(mailbox.audit().expect("audited"), IntegrityCheck::default());
}

#[tokio::test]
async fn a_trim_may_take_many_steps() {
    let mailbox = open(Engine::memory());
    let web = Target {
        user: user(1),
        platform: contract::UNLIMITED,
    };
    let many = 2 * TRIM_STEP as i64 + 10;
    let requests = (1..=many).map(|n| request(web, n)).collect();
    mailbox.route_or_store(requests).await;
    let policy = MailboxPolicy {
        expire: contract::EXPIRE,
        count_max: Some(3),
    };
    let removed_count = mailbox.trim(web, policy, NOW).await.expect("trimmed");
    assert_eq!(i64::from(removed_count), many - 3);
    assert_eq!(waiting(&mailbox, web).await, [many - 2, many - 1, many]);
    assert_eq!(
        mailbox.audit().expect("audited").wrong,
        Vec::<String>::new()
    );
}

// proves S1-08 in part: a hundred thousand sessions of a boat are signed off in a hundred calls, and nobody else's.
#[tokio::test]
async fn a_hundred_thousand_leave_at_once() {
    const USERS: i64 = 100_000;
    let mailbox = open(Engine::memory());
    let requests = (1..=USERS + 1).map(|n| connect_request(ios(n), n));
    let keys: Vec<_> = requests.clone().map(|request| request.entry.key).collect();
    for request in requests {
        let answer = mailbox.connect(request).await.expect("connected");
        answer.expect("room");
    }
    let (stays, leave) = keys.split_last().expect("many");
    for batch in leave.chunks(1024) {
        let answers = mailbox.disconnect(batch.to_vec()).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    let users: Vec<_> = keys.iter().map(|key| key.user).collect();
    let live = mailbox.sessions(&users, DeniedBoats::default()).await;
    let live = live.into_iter().flat_map(|result| result.expect("found"));
    let live: Vec<_> = live.map(|entry| entry.session).collect();
    assert_eq!(live, [stays.session]);
}

/// `cargo test --release -p backend route_costs -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "it is read by a person")]
async fn route_costs() {
    let mailbox = open(Engine::memory());
    const USERS: i64 = 10_000;
    for n in 1..=USERS {
        let login = mailbox.connect(connect_request(ios(n), n)).await;
        login.expect("connected").expect("room");
    }
    let start = tokio::time::Instant::now();
    for _ in 0..20 {
        for n in 1..=USERS {
            let answers = mailbox.route_or_store(vec![request(ios(n), n)]).await;
            assert!(answers[0].is_ok());
        }
    }
    let live = start.elapsed() / (20 * USERS as u32);

    let dir = tempfile::tempdir().expect("a directory");
    let mailbox = open(open_disk(&dir));
    let mut costs = vec![("live", live)];
    for (label, platform) in [
        ("stored in batches of 64", contract::UNLIMITED),
        ("stored where the oldest goes", Platform::Ios),
    ] {
        let start = tokio::time::Instant::now();
        for step in 0..USERS / 64 {
            let requests = (1..=64).map(|n| {
                let user = user(n);
                request(Target { user, platform }, step * 64 + n)
            });
            for answer in mailbox.route_or_store(requests.collect()).await {
                answer.expect("stored");
            }
        }
        costs.push((label, start.elapsed() / USERS as u32));
    }
    println!("{costs:?}");
}
