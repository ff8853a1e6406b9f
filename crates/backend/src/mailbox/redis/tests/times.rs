//! Lifetime of data in Redis that nobody asks for.

use protocol::Timestamp;

use super::server::Server;
use super::*;

const DAY: i64 = 86_400_000;
const MINUTE: i64 = 60_000;

/// A mailbox that keeps mail for a week, on a server of its own.
async fn keeping_a_week() -> (Server, RedisMailbox) {
    let server = Server::start(&[]).await;
    let config = RedisConfig {
        expire: Duration::from_secs(7 * 86_400),
        ..config(RedisMode::Single, vec![server.address()])
    };
    let mailbox = open(&config).await;
    (server, mailbox)
}

impl Server {
    /// Expiry time of a key, in milliseconds.
    async fn ends(&self, key: &str) -> i64 {
        self.execute(&["PEXPIRETIME", key]).await.expect("told")
    }

    async fn kind(&self, key: &str) -> String {
        self.execute(&["TYPE", key]).await.expect("told")
    }
}

async fn put_at(mailbox: &RedisMailbox, target: Target, n: i64, accepted_at: Timestamp) {
    let mut request = request(target, n);
    if let Some(mail) = &mut request.mail {
        mail.accepted_at = accepted_at;
    }
    let answers = mailbox.route_or_store(vec![request]).await;
    assert!(answers[0].is_ok(), "{answers:?}");
}

// proves S1-39, S1-43, S1-46: body and count are two strings, which end when the message has expired for its platform.
// proves S1-47, S1-58: each new message prolongs the mapping, so that of an inactive user it ends.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn unfetched_mail_expires_with_its_keys() {
    let (server, mailbox) = keeping_a_week().await;
    let target = ios(1);
    let bucket = protocol::keys::bucket_of(target.user);
    let (keys, mail_key) = (&mailbox.keys, mailbox.keys.waiting(target));
    let now = SystemClock.now();
    let minutes_ago = |minutes: i64| Timestamp::from_millis(now.millis() - minutes * MINUTE);
    let end = |accepted_at: Timestamp| accepted_at.millis() + 7 * DAY + 10 * MINUTE;
    // The second message was accepted last, the third first.
    let times = [minutes_ago(20), minutes_ago(10), minutes_ago(30)];
    let ends = [end(times[0]), end(times[1]), end(times[1])];
    for ((n, accepted_at), mapping) in (1..).zip(times).zip(ends) {
        put_at(&mailbox, target, n, accepted_at).await;
        let id = MessageId::new(n).expect("positive");
        for key in [keys.body(bucket, id), keys.count(bucket, id)] {
            assert_eq!(server.kind(&key).await, "string");
            assert_eq!(server.ends(&key).await, end(accepted_at), "{key}");
        }
        assert_eq!(server.ends(&mail_key).await, mapping, "after {n}");
    }
    // Storing the newest once more changes nothing, not even a mapping that would end early.
    let early = (now.millis() + DAY).to_string();
    let set: i64 = (server.execute(&["PEXPIREAT", &mail_key, &early]).await).expect("set");
    assert_eq!(set, 1);
    put_at(&mailbox, target, 2, times[1]).await;
    assert_eq!(server.ends(&mail_key).await.to_string(), early);
    // A new one prolongs it, to its own end.
    put_at(&mailbox, target, 4, minutes_ago(5)).await;
    assert_eq!(server.ends(&mail_key).await, end(minutes_ago(5)));
}

// proves S1-54: the bodies of a page of 64 come by MGETs of at most 50.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn bodies_of_a_page_are_read_fifty_at_a_time() {
    let (server, mailbox) = keeping_a_week().await;
    let (target, now) = (on(1, contract::UNLIMITED), SystemClock.now());
    for n in 1..=130 {
        put_at(&mailbox, target, n, now).await;
    }
    // Calls of MGET since the last look; scripts' calls count as well.
    let reads = async || {
        let stats: String = server
            .execute(&["INFO", "commandstats"])
            .await
            .expect("told");
        let reset: String = server
            .execute(&["CONFIG", "RESETSTAT"])
            .await
            .expect("told");
        assert_eq!(reset, "OK");
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_mget:calls="));
        let calls = line.and_then(|line| line.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().expect("a number"))
    };
    reads().await;
    for (limit, expected) in [(1, 1), (50, 1), (51, 2), (64, 2), (100, 2), (101, 3)] {
        let page = mailbox.page(target, None, limit, now).await.expect("paged");
        assert_eq!(page.mails.len(), limit);
        assert_eq!(reads().await, expected, "for {limit}");
    }
}

// proves S1-57 in part, S0-79 in part: what was fetched, or has expired behind it, leaves no key.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn fetched_mail_leaves_no_body() {
    let (server, mailbox) = keeping_a_week().await;
    let target = ios(1);
    let week = Duration::from_secs(7 * 86_400);
    let now = SystemClock.now();
    put_at(&mailbox, target, 1, now).await;
    put_at(&mailbox, target, 2, now).await;
    acknowledge(&mailbox, target, &[1]).await.expect("fetched");
    let bodies = async || -> Vec<String> {
        let mut bodies: Vec<String> = server.execute(&["KEYS", "*/om:*"]).await.expect("told");
        bodies.sort();
        bodies
    };
    assert_eq!(bodies().await.len(), 2, "body and count of the second");
    let policy = mailbox.policy(Platform::Ios);
    assert_eq!(policy.expire, week);
    let after_expiry = now + week + Duration::from_millis(1);
    let result = mailbox.trim(target, policy, after_expiry).await;
    assert_eq!(result.expect("trimmed"), 1);
    assert_eq!(bodies().await, Vec::<String>::new());
    assert_eq!(server.kind(&mailbox.keys.waiting(target)).await, "none");
}

// proves S1-37: a session that nobody asserts or reads any more is forgotten after 30 days; one that is asserted is not.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn a_stale_session_ends_with_its_hash() {
    let (server, mailbox) = keeping_a_week().await;
    connect(&mailbox, ios(1), 1).await.expect("connected");
    let sessions = mailbox.keys.sessions(user(1));
    let ttl = async || -> i64 { server.execute(&["PTTL", &sessions]).await.expect("told") };
    let lives = async |days: i64| (days * DAY - MINUTE..=days * DAY).contains(&ttl().await);
    assert!(lives(30).await, "{}", ttl().await);
    for (days, expected) in [(16, 16), (14, 30)] {
        let time = (days * DAY).to_string();
        let _: i64 = server
            .execute(&["PEXPIRE", &sessions, &time])
            .await
            .expect("set");
        reassert(&mailbox, ios(1), 1).await.expect("asserted");
        assert!(lives(expected).await, "{}", ttl().await);
    }
}

// proves S1-32: a session is where its user's are, and nowhere else.
#[tokio::test]
#[ignore = "needs the real parts: make e2e"]
async fn sessions_are_kept_by_their_user_alone() {
    let (server, mailbox) = keeping_a_week().await;
    for (user_number, number) in [(1, 1), (1, 2), (2, 3)] {
        let target = on(
            user_number,
            [Platform::Ios, Platform::Web][number as usize % 2],
        );
        connect(&mailbox, target, number).await.expect("connected");
        reassert(&mailbox, target, number).await.expect("asserted");
    }
    let users = [user(1), user(2)];
    let mut expected: Vec<String> = users.map(|user| mailbox.keys.sessions(user)).into();
    let buckets = users.map(protocol::keys::bucket_of);
    expected.extend(buckets.map(|bucket| mailbox.keys.epoch(bucket)));
    expected.sort();
    let mut keys: Vec<String> = server.execute(&["KEYS", "*"]).await.expect("told");
    keys.sort();
    assert_eq!(keys, expected);
}
