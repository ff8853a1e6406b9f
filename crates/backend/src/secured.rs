//! Parts with TLS and passwords (`make real-up TLS=1`): correct credentials are accepted, and a
//! refusal names the setting to look at.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::keys::Topic;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::clock::{Entropy, SystemClock, SystemEntropy};
use crate::discovery::{EtcdConfig, EtcdRegistry, Registry};
use crate::mailbox::{RedisConfig, RedisMailbox, RedisMode};
use crate::queue::{
    Consumer, KafkaConfig, KafkaQueue, NewRecord, Partition, Polled, Queue, SaslMechanism, topics,
};
use crate::scylla::{Cql, ScyllaConfig, ScyllaTlsConfig, fixture};
use crate::test_servers::{self, Access, access};
use crate::tls::ServerNames;
use crate::{Error, Result};

/// Fault in the credentials shown.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Password,
    Root,
    Plain,
    NoCertificate,
}

/// Folder with an operator's faulty files.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("a directory"))
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// Copies the part's credentials, so that a test may change them.
    fn copy(&self, access: &Access) -> Access {
        let copy = |path: &Option<PathBuf>| {
            let path = path.as_ref().expect("TLS=1: scripts/e2e secured");
            let name = path.file_name().expect("a name").to_string_lossy();
            Some(self.write(&name, &std::fs::read(path).expect("a file")))
        };
        let mut own = access.clone();
        own.tls.ca_file = copy(&access.tls.ca_file);
        own.tls.cert_file = copy(&access.tls.cert_file);
        own.tls.key_file = copy(&access.tls.key_file);
        own.password_file = copy(&access.password_file);
        own
    }
}

impl Fault {
    const ALL: [Fault; 4] = [
        Fault::Password,
        Fault::Root,
        Fault::Plain,
        Fault::NoCertificate,
    ];

    fn apply_to(self, access: &Access, files: &Files) -> Access {
        let mut wrong = access.clone();
        match self {
            Fault::Password => wrong.password_file = Some(files.write("wrong", b"hunter2")),
            Fault::Root => {
                let right = access.tls.ca_file.as_deref().expect("TLS=1");
                wrong.tls.ca_file = Some(right.with_file_name("other-ca.crt"));
            }
            Fault::Plain => wrong.tls = Default::default(),
            Fault::NoCertificate => {
                wrong.tls.cert_file = None;
                wrong.tls.key_file = None;
            }
        }
        wrong
    }

    /// End of the name of the setting that its error has to name.
    fn setting(self) -> &'static str {
        match self {
            Fault::Password => "password_file",
            Fault::Root | Fault::Plain => "tls.ca_file",
            Fault::NoCertificate => "tls.cert_file",
        }
    }
}

/// Dials with each fault; the error must name the setting and no secret.
async fn each_fault_is_refused(
    part: &str,
    section: &str,
    dial: impl AsyncFn(Access) -> Result<()>,
) {
    let (right, files) = (access(part), Files::new());
    dial(right.clone()).await.expect("what the part wants");
    for fault in Fault::ALL {
        let start = Instant::now();
        let outcome = timeout(
            Duration::from_secs(60),
            dial(fault.apply_to(&right, &files)),
        )
        .await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{part} with {fault:?} hangs"));
        let error: Error = outcome.expect_err("a fault");
        let text = error.source.to_string();
        let context = format!("{part} with {fault:?} after {:?}: {text}", start.elapsed());
        assert!(text.contains(section), "{context}");
        assert!(text.contains(fault.setting()), "{context}");
        assert!(!text.contains("hunter2"), "{context}");
    }
}

fn name() -> String {
    format!("test-{:016x}-", SystemEntropy.next())
}

fn kafka(access: Access) -> KafkaConfig {
    let mut config = KafkaConfig {
        brokers: test_servers::addresses("kafka"),
        topic_prefix: name(),
        tls: access.tls,
        request_timeout: Duration::from_secs(10),
        ..KafkaConfig::default()
    };
    config.partitions.message = 2;
    config.partitions.retry = 1;
    config.partitions.notification = 1;
    config.sasl.mechanism = Some(SaslMechanism::ScramSha512);
    config.sasl.username = access.username;
    config.sasl.password_file = access.password_file;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn brokers_want_certificate_and_password() {
    let dial = async |access| topics::check(&kafka(access)).await.map(drop);
    each_fault_is_refused("kafka", "kafka.", dial).await;
}

// Brokers do not verify these tokens: the test sees that one is shown, and another after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn brokers_take_a_token_that_is_read_again_before_it_ends() {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    let by_password = kafka(access("kafka"));
    topics::apply(&by_password).await.expect("made");
    let files = Files::new();
    let write = |life: i64| {
        let now = crate::clock::Clock::now(&SystemClock).millis() / 1000;
        let claims = format!(r#"{{"sub":"packetboat","iat":{now},"exp":{}}}"#, now + life);
        let [head, claims] =
            [r#"{"alg":"none"}"#, &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
        files.write("token", format!("{head}.{claims}.\n").as_bytes())
    };
    let mut config = by_password.clone();
    config.sasl = Default::default();
    config.sasl.mechanism = Some(SaslMechanism::OauthBearer);
    config.sasl.token_file = Some(write(15));
    assert_eq!(topics::check(&config).await.expect("asked"), []);
    let error = topics::apply(&config).await.expect_err("an administrator");
    assert!(error.source.to_string().contains("OAUTHBEARER"));

    let queue = KafkaQueue::connect(config).await.expect("connected");
    write(3600);
    publish(&queue, 1).await;
    // The first token has expired by then; a new connection has to show the second.
    tokio::time::sleep(Duration::from_secs(16)).await;
    publish(&queue, 2).await;
    let consumer = queue.subscribe("carrier", Topic::Message).await;
    let mut consumer = consumer.expect("a member");
    assert_eq!(receive(&mut *consumer, 2).await, [1, 2]);
}

async fn publish(queue: &KafkaQueue, number: u8) {
    let record = NewRecord {
        partition: Partition {
            topic: Topic::Message,
            number: 0,
        },
        key: Bytes::from_static(b"key"),
        headers: Vec::new(),
        value: Bytes::copy_from_slice(&[number]),
    };
    for answer in queue.producer().publish(vec![record]).await {
        answer.expect("accepted");
    }
}

/// Polls until `count` records came, and commits them.
async fn receive(consumer: &mut dyn Consumer, count: usize) -> Vec<u8> {
    let mut values = Vec::new();
    let all = async {
        while values.len() < count {
            if let Polled::Records(records) = consumer.poll(10).await.expect("polled") {
                for record in records {
                    values.push(record.value[0]);
                    let next = [(record.partition, record.offset + 1)];
                    consumer.commit(&next).await.expect("committed");
                }
            }
        }
    };
    let outcome = timeout(Duration::from_secs(60), all).await;
    outcome.unwrap_or_else(|_| panic!("records within a minute: {values:?}"));
    values
}

// A renewal: the member leaves with its commits and joins again, the producer is replaced, and no
// record is lost or refused. Credentials that brokers refuse change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn clients_of_the_log_are_made_anew_with_new_credentials() {
    let files = Files::new();
    let right = access("kafka");
    let own = files.copy(&right);
    let config = kafka(own.clone());
    topics::apply(&config).await.expect("made");
    let queue = KafkaQueue::connect(config.clone())
        .await
        .expect("connected");
    let mut consumer = queue.subscribe("carrier", Topic::Message).await.unwrap();
    publish(&queue, 1).await;
    assert_eq!(receive(&mut *consumer, 1).await, [1]);

    // A password unknown to the brokers.
    let password = own.password_file.as_deref().expect("a file");
    std::fs::write(password, "hunter2").expect("written");
    let outcome = timeout(Duration::from_secs(15), next_change(&mut *consumer)).await;
    assert!(outcome.is_err(), "{outcome:?}");
    publish(&queue, 2).await;
    assert_eq!(receive(&mut *consumer, 1).await, [2]);

    // Another certificate of the same root, and the right password.
    let folder = right
        .tls
        .ca_file
        .as_deref()
        .and_then(Path::parent)
        .expect("a folder");
    for (from, to) in [("server.crt", "client.crt"), ("server.key", "client.key")] {
        let content = std::fs::read(folder.join(from)).expect("a file");
        files.write(to, &content);
    }
    let content = std::fs::read(right.password_file.expect("a file")).expect("a password");
    std::fs::write(password, content).expect("written");
    let outcome = timeout(Duration::from_secs(60), next_change(&mut *consumer)).await;
    let outcome = outcome.expect("within a minute");
    assert!(matches!(outcome, Polled::Revoked(_)), "{outcome:?}");
    for number in 3..=20 {
        publish(&queue, number).await;
    }
    let read = receive(&mut *consumer, 18).await;
    assert_eq!(read, (3..=20).collect::<Vec<_>>());
}

/// Polls until something other than records comes.
async fn next_change(consumer: &mut dyn Consumer) -> Polled {
    loop {
        match consumer.poll(10).await.expect("polled") {
            Polled::Records(_) => {}
            change => return change,
        }
    }
}

fn redis(access: Access, mode: RedisMode, part: &str) -> RedisConfig {
    RedisConfig {
        mode,
        addresses: test_servers::addresses(part),
        username: access.username.clone(),
        password_file: access.password_file.clone(),
        sentinel_username: access.username,
        sentinel_password_file: access.password_file,
        tls: access.tls,
        key_prefix: name(),
        ..RedisConfig::default()
    }
}

#[tokio::test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn redis_wants_certificate_and_password() {
    for (mode, part) in [
        (RedisMode::Single, "redis-single"),
        (RedisMode::Sentinel, "redis-sentinel"),
        (RedisMode::Cluster, "redis-cluster"),
    ] {
        let dial = async |access| {
            let config = redis(access, mode, part);
            let mailbox = RedisMailbox::connect(&config, Arc::new(SystemEntropy)).await;
            mailbox.map(drop)
        };
        each_fault_is_refused("redis", "redis.", dial).await;
    }
}

#[tokio::test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn etcd_wants_certificate_and_password() {
    let dial = async |access: Access| {
        let config = EtcdConfig {
            endpoints: test_servers::addresses("etcd"),
            prefix: format!("/test/{}", name()),
            username: access.username,
            password_file: access.password_file,
            tls: access.tls,
            ..EtcdConfig::default()
        };
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let registry = EtcdRegistry::connect(&config, clock, entropy).await?;
        registry.cluster().await.map(drop)
    };
    each_fault_is_refused("etcd", "etcd.", dial).await;
}

fn scylla(access: Access, names: ServerNames) -> ScyllaConfig {
    ScyllaConfig {
        username: access.username.unwrap_or_default(),
        password_file: access.password_file,
        tls: ScyllaTlsConfig {
            ca_file: access.tls.ca_file,
            cert_file: access.tls.cert_file,
            key_file: access.tls.key_file,
            names,
        },
        ..fixture::config()
    }
}

#[tokio::test]
#[ignore = "needs the real parts with TLS=1: scripts/e2e secured"]
async fn nodes_want_certificate_and_password() {
    fixture::cql().await;
    for names in [ServerNames::Address, ServerNames::Ca] {
        let dial = async |access| Cql::connect(&scylla(access, names)).await.map(drop);
        each_fault_is_refused("cql", "scylla.", dial).await;
    }
}
